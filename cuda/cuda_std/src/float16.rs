//! Half-precision conversions, and arithmetic on pairs, by the instructions of the hardware.

use half::f16;

#[cfg(target_os = "cuda")]
use core::arch::asm;

/// Converts to f32, exactly.
#[inline(always)]
pub fn to_f32(x: f16) -> f32 {
    #[cfg(target_os = "cuda")]
    {
        let wide: f32;
        // SAFETY: arithmetic.
        unsafe {
            asm!("cvt.f32.f16 {}, {};", out(reg32) wide, in(reg16) x.to_bits(), options(pure, nomem, nostack))
        };
        wide
    }
    #[cfg(not(target_os = "cuda"))]
    x.to_f32()
}

/// Rounds to the nearest f16, ties to even; to infinity beyond the largest.
#[inline(always)]
pub fn from_f32(x: f32) -> f16 {
    #[cfg(target_os = "cuda")]
    {
        let bits: u16;
        // SAFETY: arithmetic.
        unsafe {
            asm!("cvt.rn.f16.f32 {}, {};", out(reg16) bits, in(reg32) x, options(pure, nomem, nostack))
        };
        f16::from_bits(bits)
    }
    #[cfg(not(target_os = "cuda"))]
    f16::from_f32(x)
}

/// Two halves in one word, the first in the low bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(non_camel_case_types, reason = "as CUDA and PTX call it, beside f16")]
#[repr(transparent)]
pub struct f16x2(pub u32);

// SAFETY: a number.
unsafe impl crate::memory::Plain for f16x2 {}

macro_rules! pairwise {
    ($($name:ident($($argument:ident),*), $instruction:literal, $one:expr, $what:literal;)*) => {$(
        #[doc = $what]
        #[inline(always)]
        #[must_use]
        pub fn $name(self, $($argument: Self),*) -> Self {
            #[cfg(target_os = "cuda")]
            {
                let bits: u32;
                // SAFETY: arithmetic.
                unsafe {
                    asm!($instruction, out(reg32) bits, in(reg32) self.0, $(in(reg32) $argument.0,)*
                        options(pure, nomem, nostack));
                }
                Self(bits)
            }
            #[cfg(not(target_os = "cuda"))]
            {
                let one = $one;
                Self::new(one(self.low(), $($argument.low()),*), one(self.high(), $($argument.high()),*))
            }
        }
    )*};
}

impl f16x2 {
    /// The pair of `low` and `high`.
    #[inline(always)]
    pub fn new(low: f16, high: f16) -> Self {
        Self(u32::from(low.to_bits()) | u32::from(high.to_bits()) << 16)
    }

    /// The first value.
    #[inline(always)]
    pub fn low(self) -> f16 {
        f16::from_bits(self.0 as u16)
    }

    /// The second value.
    #[inline(always)]
    pub fn high(self) -> f16 {
        f16::from_bits((self.0 >> 16) as u16)
    }

    pairwise! {
        plus(other), "add.rn.f16x2 {}, {}, {};", |a: f16, b: f16| fused(a, f16::ONE, b), "The sums, rounded to nearest.";
        minus(other), "sub.rn.f16x2 {}, {}, {};", |a: f16, b: f16| fused(b, f16::NEG_ONE, a), "The differences, rounded to nearest.";
        times(other), "mul.rn.f16x2 {}, {}, {};", |a: f16, b: f16| f16::from_f32(a.to_f32() * b.to_f32()), "The products, rounded to nearest.";
        mul_add(b, c), "fma.rn.f16x2 {}, {}, {}, {};", fused, "The products with `b` plus `c`, rounded once.";
        min(other), "min.f16x2 {}, {}, {};", |a: f16, b: f16| f16::from_f32(a.to_f32().min(b.to_f32())), "The smaller ones; of a NaN and a number, the number.";
        max(other), "max.f16x2 {}, {}, {};", |a: f16, b: f16| f16::from_f32(a.to_f32().max(b.to_f32())), "The larger ones; of a NaN and a number, the number.";
    }
}

/// `a * b + c` rounded once to half precision.
///
/// The product is exact in f64. If the sum is not, then either the smaller term is below 2^-31 of
/// the larger, or the larger is the product and the lost bits lie below the smallest half. Both
/// ways the result rounds as the exact sum would.
#[cfg(not(target_os = "cuda"))]
fn fused(a: f16, b: f16, c: f16) -> f16 {
    let exact = a.to_f64() * b.to_f64() + c.to_f64();
    // `half` truncates an f64 before it rounds. So go by f32, truncated with a sticky last bit: it
    // has twice the bits of a half and two more, which rounds correctly.
    let near = exact as f32;
    if f64::from(near) == exact || !near.is_finite() {
        return f16::from_f32(near);
    }
    let cut = near.to_bits() - u32::from(f64::from(near).abs() > exact.abs());
    f16::from_f32(f32::from_bits(cut | 1))
}

#[cfg(all(test, not(target_os = "cuda")))]
mod tests {
    use super::*;

    #[test]
    fn pairs_round_once() {
        let h = f16::from_f64;
        // 1 + 2^-11 is a tie and rounds to even; one bit more rounds up.
        assert_eq!(fused(h(1.0), h(1.0), h(2f64.powi(-11))), h(1.0));
        let just_more = fused(h(1.0 + 2f64.powi(-10)), h(2f64.powi(-11)), h(1.0));
        assert_eq!(just_more, h(1.0 + 2f64.powi(-10)));
        // A tie, and a tie plus the smallest half.
        let tie = |c| fused(h(683.0), h(48.0), c);
        assert_eq!((tie(f16::ZERO), tie(f16::from_bits(1))), (h(32_768.0), h(32_800.0)));
        let pair = f16x2::new(h(1.5), h(-2.0)).minus(f16x2::new(h(2.0), h(3.0)));
        assert_eq!((pair.low(), pair.high()), (h(-0.5), h(-5.0)));
    }
}
