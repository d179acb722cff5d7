//! Element types of vectors and their distance kernels.

use std::fmt;
use std::str::FromStr;

use half::{bf16, f16};
use serde::{Deserialize, Serialize};

use crate::vectors::{Bits, MAX_DIM};
use crate::{Error, Result};

/// The type of a vector's components.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ElementType {
    /// 32-bit floating point.
    F32,
    /// 16-bit floating point (IEEE 754 binary16).
    F16,
    /// 16-bit floating point with the exponent of f32 (bfloat16).
    Bf16,
    /// Unsigned bytes.
    U8,
    /// Signed bytes.
    I8,
    /// Bits, eight to a byte: component `j` is bit `j % 8`, from the least, of byte `j / 8`.
    B1,
}

impl ElementType {
    /// All types.
    pub const ALL: [Self; 6] = [Self::F32, Self::F16, Self::Bf16, Self::U8, Self::I8, Self::B1];

    /// Whether values of other types are rounded to this one. Integers must be held exactly.
    pub(in crate::vectors) const fn rounds(self) -> bool {
        matches!(self, Self::F16 | Self::Bf16)
    }

    /// Bytes per value: a component, or eight of bits.
    pub const fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::U8 | Self::I8 | Self::B1 => 1,
        }
    }

    /// Components per value.
    pub(crate) const fn per_value(self) -> usize {
        if matches!(self, Self::B1) { 8 } else { 1 }
    }

    /// Values that hold `dim` components: bytes of bits, else `dim`.
    pub(crate) const fn values(self, dim: usize) -> usize {
        dim.div_ceil(self.per_value())
    }

    /// Bytes of a row of `dim` components.
    pub const fn row_bytes(self, dim: usize) -> usize {
        self.values(dim).saturating_mul(self.size())
    }

    /// The largest dimension: 32,768 bits, or 4,096 components of another type.
    pub const fn max_dim(self) -> usize {
        MAX_DIM * self.per_value()
    }

    /// `f32`, `f16`, `bf16`, `u8`, `i8` or `b1`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::U8 => "u8",
            Self::I8 => "i8",
            Self::B1 => "b1",
        }
    }
}

impl FromStr for ElementType {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::ALL
            .into_iter()
            .find(|element| element.name() == name)
            .ok_or_else(|| Error::argument("type", name, "f32, f16, bf16, u8, i8 or b1"))
    }
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A type of the values of vectors: `f32`, `f16`, `bf16`, `u8`, `i8`, or [`Bits`]. No other type
/// can have it.
pub trait Component: Element {}

impl Component for f32 {}
impl Component for f16 {}
impl Component for bf16 {}
impl Component for u8 {}
impl Component for i8 {}
impl Component for Bits {}

/// A component type with distance kernels. Public in a private module, so that [`Component`] is
/// sealed.
pub trait Element: bytemuck::Pod + Send + Sync {
    const TYPE: ElementType;

    /// The components of a row, widened to f32, exactly; for finite values. Rows of bits end with
    /// those of a whole byte.
    fn components(row: &[Self]) -> impl Iterator<Item = f32>;

    /// Converts `components` to a row. Floats of 16 bits are rounded; other types must hold them
    /// exactly.
    ///
    /// # Errors
    /// The place of the first component that does not convert, and its value.
    fn fill(row: &mut [Self], components: impl Iterator<Item = f32>) -> Result<(), (usize, f32)>;

    /// Sum of squared differences of two rows of the same length.
    fn squared_l2(a: &[Self], b: &[Self]) -> f32;

    /// Sum of products of two rows of the same length.
    fn dot(a: &[Self], b: &[Self]) -> f32;
}

/// A type of one component per value.
pub trait Scalar: Element + fmt::Display {
    /// Widens the value to f32, exactly; for finite values.
    fn to_f32(self) -> f32;

    /// Rounds `value` to this type; none if it is out of range.
    fn from_f32(value: f32) -> Option<Self>;
}

macro_rules! scalar_rows {
    () => {
        #[inline(always)]
        fn components(row: &[Self]) -> impl Iterator<Item = f32> {
            row.iter().map(|&x| Scalar::to_f32(x))
        }

        #[inline(always)]
        fn fill(row: &mut [Self], components: impl Iterator<Item = f32>) -> Result<(), (usize, f32)> {
            let rounds = Self::TYPE.rounds();
            for (place, (to, wide)) in row.iter_mut().zip(components).enumerate() {
                let narrow = <Self as Scalar>::from_f32(wide);
                // f32 holds every value of every type.
                let narrow = narrow.filter(|&narrow| rounds || Scalar::to_f32(narrow) == wide);
                *to = narrow.ok_or((place, wide))?;
            }
            Ok(())
        }
    };
}

/// Independent sums per row of floats. Their number and the tree that adds them are fixed, and
/// products are never fused with sums, so every machine and instruction set gives the same bytes.
const LANES: usize = 16;

#[inline(always)]
fn lanes<T: Scalar>(a: &[T], b: &[T], term: impl Fn(f32, f32) -> f32 + Copy) -> f32 {
    let (a_blocks, a_rest) = a.as_chunks::<LANES>();
    let (b_blocks, b_rest) = b.as_chunks::<LANES>();
    let mut sums = [0f32; LANES];
    // By places: a zip stays a call for each pair of rows.
    let b_blocks = &b_blocks[..a_blocks.len()];
    for block in 0..a_blocks.len() {
        // By value: through a reference, without link-time optimisation, each term is a call.
        add_terms(&mut sums, &a_blocks[block], &b_blocks[block], term);
    }
    if !a_rest.is_empty() {
        // Padding zeros add zero terms, which change no sum.
        let (mut x, mut y) = ([T::zeroed(); LANES], [T::zeroed(); LANES]);
        x[..a_rest.len()].copy_from_slice(a_rest);
        y[..b_rest.len()].copy_from_slice(b_rest);
        add_terms(&mut sums, &x, &y, term);
    }
    // Without `black_box` the compiler splits the sums into vectors of two and four to suit the
    // tree, which takes twice as long.
    tree(std::hint::black_box(sums))
}

/// Adds the upper half of the sums to the lower until one is left.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn tree(sums: [f32; LANES]) -> f32 {
    use std::arch::x86_64::{__m128, _mm_add_ps, _mm_add_ss, _mm_cvtss_f32, _mm_movehl_ps, _mm_shuffle_ps};
    // Left to the compiler, the tree takes four times as long as the sums of 64 components.
    let [a, b, c, d]: [__m128; 4] = bytemuck::cast(sums);
    // SAFETY: every processor of this architecture has SSE.
    unsafe {
        let four = _mm_add_ps(_mm_add_ps(a, c), _mm_add_ps(b, d));
        let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
    }
}

/// Adds the upper half of the sums to the lower until one is left.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
fn tree(sums: [f32; LANES]) -> f32 {
    let [a, b, c, d]: [[f32; 4]; 4] = bytemuck::cast(sums);
    let four: [f32; 4] = std::array::from_fn(|lane| (a[lane] + c[lane]) + (b[lane] + d[lane]));
    (four[0] + four[2]) + (four[1] + four[3])
}

#[inline(always)]
fn add_terms<T: Scalar>(
    sums: &mut [f32; LANES],
    x: &[T; LANES],
    y: &[T; LANES],
    term: impl Fn(f32, f32) -> f32,
) {
    for lane in 0..LANES {
        sums[lane] += term(x[lane].to_f32(), y[lane].to_f32());
    }
}

macro_rules! float_kernels {
    () => {
        scalar_rows!();

        #[inline(always)]
        fn squared_l2(a: &[Self], b: &[Self]) -> f32 {
            lanes(a, b, |x, y| (x - y) * (x - y))
        }

        #[inline(always)]
        fn dot(a: &[Self], b: &[Self]) -> f32 {
            lanes(a, b, |x, y| x * y)
        }
    };
}

/// The sum of integer terms of two rows of one length. It is exact (4096 * 255^2 < 2^31), so its
/// order does not matter.
#[inline(always)]
fn sum<T: Copy>(a: &[T], b: &[T], term: impl Fn(T, T) -> i32) -> f32 {
    // By places: a zip stays a call for each pair of rows.
    let b = &b[..a.len()];
    let mut sum = 0;
    for place in 0..a.len() {
        sum += term(a[place], b[place]);
    }
    sum as f32
}

macro_rules! integer_kernels {
    () => {
        scalar_rows!();

        #[inline(always)]
        fn squared_l2(a: &[Self], b: &[Self]) -> f32 {
            sum(a, b, |x, y| {
                let difference = i32::from(i16::from(x) - i16::from(y));
                difference * difference
            })
        }

        #[inline(always)]
        fn dot(a: &[Self], b: &[Self]) -> f32 {
            sum(a, b, |x, y| i32::from(i16::from(x)) * i32::from(i16::from(y)))
        }
    };
}

impl Element for f32 {
    const TYPE: ElementType = ElementType::F32;

    float_kernels!();
}

impl Scalar for f32 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }

    fn from_f32(value: f32) -> Option<Self> {
        Some(value)
    }
}

impl Element for f16 {
    const TYPE: ElementType = ElementType::F16;

    float_kernels!();
}

impl Scalar for f16 {
    /// Exact for finite values, and branch-free so that loops vectorise. The bits move to those of
    /// an f32 with an exponent 112 too small; a multiplication corrects it.
    #[inline(always)]
    fn to_f32(self) -> f32 {
        let bits = u32::from(self.to_bits());
        let magnitude = f32::from_bits((bits & 0x7fff) << 13) * f32::from_bits((112 + 127) << 23);
        f32::from_bits(magnitude.to_bits() | ((bits & 0x8000) << 16))
    }

    fn from_f32(value: f32) -> Option<Self> {
        let rounded = Self::from_f32(value);
        rounded.is_finite().then_some(rounded)
    }
}

impl Element for bf16 {
    const TYPE: ElementType = ElementType::Bf16;

    float_kernels!();
}

impl Scalar for bf16 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }

    fn from_f32(value: f32) -> Option<Self> {
        let rounded = Self::from_f32(value);
        rounded.is_finite().then_some(rounded)
    }
}

impl Element for u8 {
    const TYPE: ElementType = ElementType::U8;

    integer_kernels!();
}

impl Scalar for u8 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        f32::from(self)
    }

    fn from_f32(value: f32) -> Option<Self> {
        let rounded = value.round_ties_even();
        (0.0..=255.0).contains(&rounded).then_some(rounded as Self)
    }
}

impl Element for i8 {
    const TYPE: ElementType = ElementType::I8;

    integer_kernels!();
}

impl Scalar for i8 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        f32::from(self)
    }

    fn from_f32(value: f32) -> Option<Self> {
        let rounded = value.round_ties_even();
        (-128.0..=127.0).contains(&rounded).then_some(rounded as Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f16_is_widened_exactly() {
        for bits in 0..=u16::MAX {
            let value = f16::from_bits(bits);
            if value.is_finite() {
                assert_eq!(Scalar::to_f32(value).to_bits(), value.to_f32().to_bits(), "{bits:#x}");
            }
        }
    }

    #[test]
    fn bf16_is_widened_exactly() {
        for bits in 0..=u16::MAX {
            let value = bf16::from_bits(bits);
            if value.is_finite() {
                let wide = Scalar::to_f32(value);
                assert_eq!(wide.to_bits(), value.to_f32().to_bits(), "{bits:#x}");
                assert_eq!(<bf16 as Scalar>::from_f32(wide).map(bf16::to_bits), Some(bits));
            }
        }
    }

    #[test]
    fn values_out_of_range_do_not_convert() {
        assert_eq!(<u8 as Scalar>::from_f32(255.0), Some(255));
        assert_eq!(<u8 as Scalar>::from_f32(256.0), None);
        assert_eq!(<u8 as Scalar>::from_f32(-1.0), None);
        assert_eq!(<i8 as Scalar>::from_f32(-128.0), Some(-128));
        assert_eq!(<i8 as Scalar>::from_f32(f32::NAN), None);
        assert!(<f16 as Scalar>::from_f32(65_504.0).is_some());
        assert!(<f16 as Scalar>::from_f32(1e5).is_none());
        assert!(<bf16 as Scalar>::from_f32(3.38e38).is_some());
        assert!(<bf16 as Scalar>::from_f32(f32::MAX).is_none());
    }
}
