//! One query, prepared without allocating.

use half::f16;

use super::norms::normalise;
use super::range::{most, products_last};
use super::space::{Query, Space};
use super::{Bits, Element, Matrix, Metric, TypedRows, Vectors, magnitude_bits};
use crate::{Error, Progress, Result};

/// The values of a query in the type of the base, for one query after another.
#[derive(Default)]
pub(crate) struct QueryBuffer {
    f32: Vec<f32>,
    f16: Vec<f16>,
    u8: Vec<u8>,
    i8: Vec<i8>,
    b1: Vec<Bits>,
}

impl Space<'_> {
    /// Prepares `row` as [`queries`](Self::queries) prepares many. A row that needs no change is
    /// not copied.
    ///
    /// # Errors
    /// As [`queries`](Self::queries).
    pub(crate) fn query_of<'q>(&self, row: &'q [f32], buffer: &'q mut QueryBuffer) -> Result<Query<'q>> {
        let dim = self.dim();
        if row.len() != dim {
            let (found, expected) =
                (format_args!("dimension {}", row.len()), format_args!("{dim} as in the base"));
            return Err(Error::mismatch("query", found, expected));
        }
        let magnitude = magnitude_bits(row);
        let is_in_range = magnitude <= most(Some(self.metric()), dim).to_bits()
            && (self.metric() != Metric::InnerProduct
                || products_last(f32::from_bits(magnitude), self.largest()));
        if !is_in_range {
            return Err(self.refusal(row));
        }
        if self.metric() == Metric::Cosine {
            buffer.f32.clear();
            buffer.f32.extend_from_slice(row);
            let zero = !normalise(&mut buffer.f32);
            return Ok(Query::first_of(TypedRows::F32(Matrix::new(&buffer.f32, dim, dim)), zero));
        }
        let rows = match self.rows() {
            TypedRows::F32(_) => Some(TypedRows::F32(Matrix::new(row, dim, dim))),
            TypedRows::Bf16(_) => unreachable!("a prepared space holds bf16 as f32"),
            TypedRows::F16(_) => narrowed(row, &mut buffer.f16).map(TypedRows::F16),
            TypedRows::U8(_) => narrowed(row, &mut buffer.u8).map(TypedRows::U8),
            TypedRows::I8(_) => narrowed(row, &mut buffer.i8).map(TypedRows::I8),
            TypedRows::B1(_) => narrowed(row, &mut buffer.b1).map(TypedRows::B1),
        };
        rows.map(|rows| Query::first_of(rows, false)).ok_or_else(|| self.refusal(row))
    }

    /// The error for a query that cannot be used: that of [`queries`](Self::queries).
    fn refusal(&self, row: &[f32]) -> Error {
        let query = Vectors::dense_f32(row.to_vec(), row.len());
        let refused = self.queries(&query, &Progress::silent()).err();
        refused.unwrap_or_else(|| Error::mismatch("query", "a value out of range", "values as in the base"))
    }
}

/// `row` in another type; none if a value does not convert. f16 rounds; integer types must hold
/// the value exactly.
fn narrowed<'q, T: Element>(row: &[f32], out: &'q mut Vec<T>) -> Option<Matrix<'q, T>> {
    out.clear();
    out.resize(T::TYPE.values(row.len()), T::zeroed());
    T::fill(out, row.iter().copied()).ok()?;
    Some(Matrix::new(&out[..], out.len(), out.len()))
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;

    #[test]
    fn one_query_is_prepared_as_many_are() {
        let silent = Progress::silent();
        let values: Vec<f32> = (0..40).map(|i| (i * i % 23) as f32).collect();
        let bases = [
            Vectors::from_f32(values.clone(), 4).unwrap(),
            Vectors::from_f16(values.iter().map(|&x| f16::from_f32(x)).collect(), 4).unwrap(),
            Vectors::from_bf16(values.iter().map(|&x| bf16::from_f32(x)).collect(), 4).unwrap(),
            Vectors::from_u8(values.iter().map(|&x| x as u8).collect(), 4).unwrap(),
            Vectors::from_i8(values.iter().map(|&x| x as i8).collect(), 4).unwrap(),
        ];
        let rows = [
            [1.0, 2.0, 3.0, 4.0],
            [0.0; 4],
            [1.0, f32::NAN, 3.0, 4.0],
            [1.0, 2.5, 3.0, 4.0],
            [1e30, 2.0, 3.0, 4.0],
            [1e-33, 0.0, 0.0, 0.0],
            [300.0, 0.0, 0.0, -200.0],
        ];
        let (ids, mut buffer) = ((0..10).collect::<Vec<u32>>(), QueryBuffer::default());
        for base in &bases {
            for metric in [Metric::L2, Metric::InnerProduct, Metric::Cosine] {
                let space = Space::new(base, metric, &silent).unwrap();
                for row in rows {
                    let query = Vectors::from_f32(row.to_vec(), 4).unwrap();
                    let (mut expected, mut found) = (Vec::new(), Vec::new());
                    match (space.queries(&query, &silent), space.query_of(&row, &mut buffer)) {
                        (Ok(queries), Ok(query)) => {
                            space.list_distances(queries.query(0), &ids, &mut expected);
                            space.list_distances(query, &ids, &mut found);
                            assert_eq!(found, expected, "{row:?}, {} {metric}", base.element_type());
                        }
                        (many, one) => {
                            let (many, one) = (many.err().unwrap().to_string(), one.err().unwrap());
                            assert_eq!(one.to_string(), many, "{row:?}, {} {metric}", base.element_type());
                        }
                    }
                }
            }
        }
    }
}
