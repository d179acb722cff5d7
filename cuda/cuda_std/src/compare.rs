//! Comparisons whose results are bits of a word: a predicated instruction each, where a compiler selects and adds.

#[cfg(target_os = "cuda")]
use core::arch::asm;

macro_rules! marks {
    ($($one:ident, $either:ident $type:ty, $kind:literal;)*) => {$(
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

        /// `bits`, with `mask` set if the first of either pair is below the second.
        #[inline(always)]
        #[must_use]
        pub fn $either(bits: u32, mask: u32, one: ($type, $type), other: ($type, $type)) -> u32 {
            #[cfg(target_os = "cuda")]
            {
                let mut bits = bits;
                // SAFETY: arithmetic.
                unsafe {
                    asm!(
                        "{{ .reg .pred is;",
                        concat!("setp.lt.", $kind, " is, {a}, {b};"),
                        concat!("setp.lt.or.", $kind, " is, {c}, {d}, is;"),
                        "@is or.b32 {bits}, {bits}, {mask}; }}",
                        bits = inout(reg32) bits, mask = in(reg32) mask,
                        a = in(reg32) one.0, b = in(reg32) one.1, c = in(reg32) other.0, d = in(reg32) other.1,
                        options(pure, nomem, nostack),
                    );
                }
                bits
            }
            #[cfg(not(target_os = "cuda"))]
            {
                if one.0 < one.1 || other.0 < other.1 { bits | mask } else { bits }
            }
        }
    )*};
}

marks! {
    mark_below_f32, mark_either_f32 f32, "f32";
    mark_below_i32, mark_either_i32 i32, "s32";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_below_is_marked() {
        assert_eq!(mark_below_f32(1, 4, (1.0, 2.0)), 5);
        assert_eq!(mark_below_f32(1, 4, (2.0, 2.0)), 1);
        assert_eq!(mark_below_f32(1, 4, (f32::NAN, 2.0)), 1);
        assert_eq!(mark_below_i32(0, 8, (-1, 0)), 8);
        assert_eq!(mark_either_i32(2, 8, (3, 3), (4, 5)), 10);
        assert_eq!(mark_either_i32(2, 8, (3, 3), (5, 5)), 2);
        assert_eq!(mark_either_f32(0, 1, (-1.0, 3.0), (5.0, 5.0)), 1);
    }
}
