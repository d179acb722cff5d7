//! One query, prepared without allocating.

use crate::vectors::norms::normalise;
use crate::vectors::range::{most, products_last};
use crate::vectors::shape::with_type;
use crate::vectors::space::{Query, Space};
use crate::vectors::{Element, ElementType, Metric, Vectors, magnitude_bits};
use crate::{Error, Progress, Result};

/// Room for the values of a query in the type of the base, for one query after another.
#[derive(Default)]
pub(crate) struct QueryBuffer(Vec<u64>);

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
            let unit = buffer.room::<f32>(dim);
            unit.copy_from_slice(row);
            let zero = !normalise(unit);
            return Ok(Query::new(unit, zero));
        }
        let element = self.vectors().element_type();
        if element == ElementType::F32 {
            return Ok(Query::new(row, false));
        }
        with_type!(element, T => {
            let values = buffer.room::<T>(dim);
            let converted = T::fill(values, row.iter().copied());
            converted.map(|()| Query::new(values, false)).map_err(|_| self.refusal(row))
        })
    }

    /// The error for a query that cannot be used: that of [`queries`](Self::queries).
    fn refusal(&self, row: &[f32]) -> Error {
        let query = Vectors::dense_f32(row.to_vec(), row.len());
        let refused = self.queries(&query, &Progress::silent()).err();
        refused.unwrap_or_else(|| Error::mismatch("query", "a value out of range", "values as in the base"))
    }
}

impl QueryBuffer {
    /// Room for `dim` components.
    fn room<T: Element>(&mut self, dim: usize) -> &mut [T] {
        self.0.resize(T::TYPE.row_bytes(dim).div_ceil(size_of::<u64>()), 0);
        &mut bytemuck::cast_slice_mut(&mut self.0)[..T::TYPE.values(dim)]
    }
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

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
