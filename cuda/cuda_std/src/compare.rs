//! Comparisons that set bits of a word, by one predicated instruction each. The compiler would
//! select and add.

#[cfg(target_os = "cuda")]
use core::arch::asm;

macro_rules! marks {
    ($($one:ident $type:ty, $kind:literal;)*) => {$(
        /// `bits`, with `mask` set if `value < bound`.
        #[inline(always)]
        #[must_use]
        pub fn $one(bits: u32, mask: u32, (value, bound): ($type, $type)) -> u32 {
            #[cfg(target_os = "cuda")]
            {
                let mut bits = bits;
                // SAFETY: arithmetic.
                unsafe {
                    asm!(
                        "{{ .reg .pred is;",
                        concat!("setp.lt.", $kind, " is, {value}, {bound};"),
                        "@is or.b32 {bits}, {bits}, {mask}; }}",
                        bits = inout(reg32) bits, mask = in(reg32) mask,
                        value = in(reg32) value, bound = in(reg32) bound,
                        options(pure, nomem, nostack),
                    );
                }
                bits
            }
            #[cfg(not(target_os = "cuda"))]
            {
                if value < bound { bits | mask } else { bits }
            }
        }
    )*};
}

marks! {
    mark_below_f32 f32, "f32";
    mark_below_i32 i32, "s32";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_below_the_bound_are_marked() {
        assert_eq!(mark_below_f32(1, 4, (1.0, 2.0)), 5);
        assert_eq!(mark_below_f32(1, 4, (2.0, 2.0)), 1);
        assert_eq!(mark_below_f32(1, 4, (f32::NAN, 2.0)), 1);
        assert_eq!(mark_below_i32(0, 8, (-1, 0)), 8);
    }
}
