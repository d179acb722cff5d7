//! The properties of a data set that a build's memory depends on.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::loops::{all, at_least};
use crate::parallel::FEW_BYTES;
use crate::vectors::{ElementType, MAX_ROWS, Metric, Scalar, TypedRows, Vectors, spread_rows};
use crate::{Error, Progress, Result};

/// Up to this many bytes, all rows of a data set are inspected.
const READ: usize = 4 << 30;

/// Size and type of a data set, from which a build's memory follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct DataShape {
    /// Number of rows.
    pub rows: usize,
    /// Components per row.
    pub dim: usize,
    /// Type of the components.
    pub element: ElementType,
    /// Whether all values are f32 or bf16 but whole numbers from 0 to 255, as byte vectors often
    /// come. A GPU stores them as bytes.
    pub bytes: bool,
}

impl DataShape {
    /// The shape of `rows` rows of `dim` components of any values.
    ///
    /// # Errors
    /// If the number of rows or components is 0 or above the limit of a data set.
    pub fn new(rows: usize, dim: usize, element: ElementType) -> Result<Self> {
        for (what, found, most) in [("n", rows, MAX_ROWS), ("dim", dim, element.max_dim())] {
            if !(1..=most).contains(&found) {
                return Err(Error::argument(what, found, format_args!("1 to {most}")));
            }
        }
        Ok(Self { rows, dim, element, bytes: false })
    }

    /// The shape of `base`. A sample of the rows tells whether float values are bytes; if they are,
    /// all rows confirm it, up to 4 GiB of them.
    ///
    /// # Errors
    /// If the work is cancelled.
    pub fn inspect(base: &Vectors, progress: &Progress) -> Result<Self> {
        let bytes = match base.bytes.get() {
            Some(&known) => known,
            None if base.lent().is_some() => {
                // The check of values tells; faulty values are an error of whoever needs them.
                let checked = base.validate(progress);
                progress.check()?;
                matches!((checked, base.bytes.get()), (Ok(()), Some(true)))
            }
            None => {
                let found = are_bytes(base, progress);
                // A cancelled pass proves nothing.
                progress.check()?;
                *base.bytes.get_or_init(|| found)
            }
        };
        Ok(Self { rows: base.len(), dim: base.dim(), element: base.element_type(), bytes })
    }

    /// The shape of `base`, as far as a sample of the rows tells.
    pub(crate) fn guess(base: &Vectors) -> Self {
        let bytes = base.bytes.get().copied();
        let bytes =
            bytes.unwrap_or_else(|| base.spread().is_ok_and(|(some, rows)| may_be_bytes(&some, rows)));
        Self { rows: base.len(), dim: base.dim(), element: base.element_type(), bytes }
    }

    /// The shape of `rows` of these rows.
    pub(crate) fn part(self, rows: usize) -> Self {
        Self { rows, ..self }
    }

    /// Values per row: the dimension, or bytes of bits.
    pub(crate) fn values(self) -> usize {
        self.element.values(self.dim)
    }

    /// Bytes per row.
    pub(crate) fn row_bytes(self) -> usize {
        self.element.row_bytes(self.dim)
    }
}

/// The element type of the space of this data: unit vectors are f32, and bf16 is widened.
pub(crate) fn own_type(data: &DataShape, metric: Metric) -> ElementType {
    let widened = metric == Metric::Cosine || data.element == ElementType::Bf16;
    if widened { ElementType::F32 } else { data.element }
}

/// The element type on a device, where it may be narrower.
pub(crate) fn device_type(data: &DataShape, metric: Metric) -> ElementType {
    let are_bytes = is_narrowed(data, metric) || data.element == ElementType::B1;
    if are_bytes { ElementType::U8 } else { own_type(data, metric) }
}

/// The element type in which a device searches exactly.
pub(crate) fn exact_type(data: &DataShape, metric: Metric) -> ElementType {
    if is_read(data.rows, data.row_bytes()) { device_type(data, metric) } else { own_type(data, metric) }
}

/// Whether values are bytes on their way to a device.
pub(crate) fn is_narrowed(data: &DataShape, metric: Metric) -> bool {
    data.bytes && metric != Metric::Cosine
}

/// Vectors whose type kernels have: bf16 is widened to f32, which holds it exactly, and bits to
/// bytes.
pub(crate) fn wide<'a>(vectors: &'a Vectors, progress: &Progress) -> Result<Cow<'a, Vectors>> {
    match vectors.element_type() {
        ElementType::Bf16 => {}
        ElementType::B1 => return vectors.cast(ElementType::U8, progress),
        _ => return Ok(Cow::Borrowed(vectors)),
    }
    let values = vectors.floats(|_| progress.check())?;
    Ok(Cow::Owned(Vectors::dense_f32(values, vectors.dim())))
}

/// Evaluates an expression with an element type as a type.
macro_rules! with_type {
    ($element:expr, $type:ident => $body:expr) => {
        $crate::vectors::shape::with_type!(
            $element, $type => $body;
            F32: f32, F16: ::half::f16, Bf16: ::half::bf16, U8: u8, I8: i8, B1: $crate::vectors::Bits
        )
    };
    ($element:expr, $type:ident => $body:expr; $($($variant:ident)|+: $of:ty),+) => {
        match $element {
            $($($crate::ElementType::$variant)|+ => {
                type $type = $of;
                $body
            })+
        }
    };
}
pub(crate) use with_type;

/// Evaluates an expression with the type that an element type has on a device: bf16 is f32 there,
/// and bits are bytes.
macro_rules! with_device_type {
    ($element:expr, $type:ident => $body:expr) => {
        $crate::vectors::shape::with_type!(
            $element, $type => $body; F32 | Bf16: f32, F16: ::half::f16, U8 | B1: u8, I8: i8
        )
    };
}
pub(crate) use with_device_type;

/// Whether f32 holds sums of squares of `dim` bytes exactly, as integers do.
pub(crate) fn sums_are_exact(dim: usize) -> bool {
    dim * 255 * 255 <= 1 << 24
}

/// The byte equal to `x`, if there is one.
#[inline]
pub(crate) fn byte(x: f32) -> Option<u8> {
    // The cast saturates, so other values do not compare equal.
    let byte = x as u8;
    (f32::from(byte) == x && !(x == 0.0 && x.is_sign_negative())).then_some(byte)
}

/// Whether row `row` holds float values of a wide range that are bytes.
fn is_byte_row(base: &Vectors, row: usize) -> bool {
    match base.rows() {
        TypedRows::F32(rows) => rows.row(row).iter().all(|&x| byte(x).is_some()),
        TypedRows::Bf16(rows) => rows.row(row).iter().all(|&x| byte(Scalar::to_f32(x)).is_some()),
        TypedRows::F16(_) | TypedRows::U8(_) | TypedRows::I8(_) | TypedRows::B1(_) => false,
    }
}

/// Whether a sample of the rows holds f32 or bf16 values that are bytes.
fn may_be_bytes(base: &Vectors, sample: impl IntoIterator<Item = usize>) -> bool {
    let is_byte = |row: usize| is_byte_row(base, row);
    sums_are_exact(base.dim()) && base.far_apart(|| sample.into_iter().all(is_byte))
}

fn are_bytes(base: &Vectors, progress: &Progress) -> bool {
    may_be_bytes(base, spread_rows(base.len())) && (!all_are_read(base) || all_are_bytes(base, progress))
}

/// Whether [`DataShape::inspect`] reads every row.
pub(crate) fn all_are_read(base: &Vectors) -> bool {
    is_read(base.len(), base.element_type().row_bytes(base.dim()))
}

fn is_read(rows: usize, row_bytes: usize) -> bool {
    rows.saturating_mul(row_bytes) <= READ
}

fn all_are_bytes(base: &Vectors, progress: &Progress) -> bool {
    let is_byte = |row: usize| !progress.is_cancelled() && is_byte_row(base, row);
    if base.len() * base.dim() <= FEW_BYTES {
        (0..base.len()).all(is_byte)
    } else {
        all(at_least(1024, 0..base.len()), is_byte)
    }
}

/// Whether all values of rows in host memory are f32 or bf16, but bytes, and f32 sums up squares of
/// their differences without rounding.
pub(crate) fn hold_bytes(vectors: &Vectors) -> bool {
    let silent = Progress::silent();
    *vectors.bytes.get_or_init(|| are_bytes(vectors, &silent))
        && (all_are_read(vectors) || all_are_bytes(vectors, &silent))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_detected() {
        let shape = |values: Vec<f32>, dim| {
            DataShape::inspect(&Vectors::from_f32(values, dim).unwrap(), &Progress::silent()).unwrap()
        };
        let whole: Vec<f32> = (0..20_000).map(|i| (i % 256) as f32).collect();
        assert_eq!(
            shape(whole.clone(), 2),
            DataShape { rows: 10_000, dim: 2, element: ElementType::F32, bytes: true }
        );
        // Also at places that the sample skips.
        for wrong in [0.5, -1.0, 256.0, -0.0] {
            let mut values = whole.clone();
            values[13] = wrong;
            assert!(!shape(values, 2).bytes, "{wrong}");
        }
        assert!(!shape(vec![1.0; 2 * 1000], 1000).bytes);
        let bytes = Vectors::from_u8(vec![1, 2], 1).unwrap();
        let shape = DataShape::inspect(&bytes, &Progress::silent()).unwrap();
        assert_eq!(shape, DataShape::new(2, 1, ElementType::U8).unwrap());
        assert!(DataShape::new(0, 1, ElementType::U8).is_err());
    }
}
