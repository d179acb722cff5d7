//! Arithmetic on four bytes at once.

#[cfg(target_os = "cuda")]
use core::arch::asm;

macro_rules! dots {
    ($($name:ident $type:ty, $instruction:literal, $what:literal;)*) => {$(
        #[doc = $what]
        /// Wraps beyond 32 bits.
        #[inline(always)]
        #[must_use]
        pub fn $name(a: u32, b: u32, sum: i32) -> i32 {
            #[cfg(target_os = "cuda")]
            {
                let total: i32;
                // SAFETY: arithmetic.
                unsafe {
                    asm!($instruction, out(reg32) total, in(reg32) a, in(reg32) b, in(reg32) sum,
                        options(pure, nomem, nostack));
                }
                total
            }
            #[cfg(not(target_os = "cuda"))]
            {
                let (a, b) = (a.to_le_bytes(), b.to_le_bytes());
                (0..4).fold(sum, |sum, i| sum.wrapping_add(a[i] as $type as i32 * (b[i] as $type as i32)))
            }
        }
    )*};
}

dots! {
    dot_u8 u8, "dp4a.u32.u32 {}, {}, {}, {};", "`sum` and the products of four unsigned bytes each.";
    dot_i8 i8, "dp4a.s32.s32 {}, {}, {}, {};", "`sum` and the products of four signed bytes each.";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_products_are_added() {
        let (a, b) = (u32::from_le_bytes([255, 1, 2, 128]), u32::from_le_bytes([255, 3, 0, 2]));
        assert_eq!(dot_u8(a, b, -1), 255 * 255 + 3 + 256 - 1);
        assert_eq!(dot_i8(a, b, 5), 1 + 3 - 256 + 5);
    }
}
