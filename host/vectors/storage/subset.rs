//! Some rows of a data set as a data set of their own.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::OnceLock;

use crate::Result;
use crate::loops::{at_least, for_each, rows_mut};
use crate::memory::{collected, zeros};
use crate::vectors::storage::Storage;
use crate::vectors::{Element, Layout, Matrix, Vectors, spread_rows, with_matrix};

impl Vectors {
    /// Copies the rows `ids` to host memory.
    ///
    /// # Errors
    /// If they lie on a device that fails.
    pub(crate) fn select(&self, ids: &[u32]) -> Result<Self> {
        let storage = match self.lent() {
            Some(lent) => Storage::owned(lent.fetch(ids)?),
            None => with_matrix!(self.rows(), m => Storage::owned(gathered(m, ids)?)),
        };
        let layout = Layout::dense(self.element_type(), ids.len(), self.dim());
        // Values of a checked base need no second check.
        Ok(Self { largest: self.largest.clone(), ..Self::new(storage, layout, None) })
    }

    /// The rows of `range`: without a copy, or copied to host memory if they lie on a device.
    ///
    /// # Errors
    /// If that device fails.
    pub(crate) fn part(&self, range: Range<usize>) -> Result<Self> {
        if self.lent().is_some() {
            let ids: Vec<u32> = collected(range.map(|row| row as u32))?;
            return self.select(&ids);
        }
        let part = Self { bytes: OnceLock::new(), repeated: OnceLock::new(), ..self.clone() };
        // Replicas number the rows of the whole storage.
        if let Some(picked) = &self.picked {
            let layout = Layout { rows: range.len(), ..self.layout };
            return Ok(Self { layout, picked: Some(picked[range].into()), ..part });
        }
        let Layout { offset, stride, .. } = self.layout;
        let layout = Layout { rows: range.len(), offset: offset + range.start * stride, ..self.layout };
        Ok(Self { layout, replicas: None, ..part })
    }

    /// The rows `ids` alone, at least one, in ascending order: read where they lie in host memory,
    /// or copied on the device that holds them.
    ///
    /// # Errors
    /// If that device lacks memory or fails.
    pub(crate) fn only(&self, ids: &[u32]) -> Result<Self> {
        if let Some(lent) = self.lent() {
            let lent = lent.select(ids)?;
            let layout = lent.layout();
            return Ok(Self { largest: self.largest.clone(), ..Self::of_lent(lent, layout) });
        }
        let picked = Some(ids.iter().map(|&id| self.place(id as usize) as u32).collect());
        let layout = Layout { rows: ids.len(), ..self.layout };
        let mut only = Self { layout, picked, repeated: OnceLock::new(), ..self.clone() };
        // Some of the rows may be all bytes though others are not.
        if only.bytes.get() == Some(&false) {
            only.bytes.take();
        }
        Ok(only)
    }

    /// The number of row `index` in storage.
    pub(in crate::vectors) fn place(&self, index: usize) -> usize {
        self.picked.as_ref().map_or(index, |picked| picked[index] as usize)
    }

    /// At most 1,024 evenly spread rows in host memory, the first and the last included; all rows
    /// if that is where they are.
    ///
    /// # Errors
    /// If they lie on a device that fails.
    pub(crate) fn spread(&self) -> Result<(Cow<'_, Self>, Vec<usize>)> {
        let rows: Vec<usize> = spread_rows(self.len()).collect();
        if self.lent().is_none() {
            return Ok((Cow::Borrowed(self), rows));
        }
        let ids: Vec<u32> = rows.iter().map(|&row| row as u32).collect();
        Ok((Cow::Owned(self.select(&ids)?), (0..rows.len()).collect()))
    }
}

/// The rows `ids` of a matrix, without gaps.
fn gathered<T: Element>(matrix: Matrix<'_, T>, ids: &[u32]) -> Result<Vec<T>> {
    let mut values = zeros(ids.len() * matrix.dim)?;
    let to = at_least(256, rows_mut(&mut values, matrix.dim));
    for_each((to, ids), |(to, &id)| to.copy_from_slice(matrix.row(id as usize)));
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DataShape, Progress};

    /// The numbers of rows of a ramp.
    fn numbers(vectors: &Vectors) -> Vec<f32> {
        (0..vectors.len()).map(|row| vectors.host_row(row)[0]).collect()
    }

    #[test]
    fn rows_alone_are_read_where_they_lie() {
        let ramp = Vectors::from_f32((0..40).map(|i| i as f32).collect(), 2).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.fvecs");
        ramp.save(&path).unwrap();
        for base in [&ramp, &Vectors::open(&path).unwrap()] {
            let odd: Vec<u32> = (1..20).step_by(2).collect();
            let alone = base.only(&odd).unwrap();
            assert_eq!(numbers(&alone), (1..20).step_by(2).map(|row| 2.0 * row as f32).collect::<Vec<_>>());
            assert_eq!(alone.storage.bytes().as_ptr(), base.storage.bytes().as_ptr());
            alone.validate(&Progress::silent()).unwrap();
            // Rows of those, and a range of them.
            let again = alone.only(&[0, 3, 9]).unwrap();
            assert_eq!(numbers(&again), [2.0, 14.0, 38.0]);
            assert_eq!(numbers(&again.part(1..3).unwrap()), [14.0, 38.0]);
            assert_eq!(numbers(&alone.select(&[9, 0]).unwrap()), [38.0, 2.0]);
            assert_eq!(again.to_f32().unwrap(), [2.0, 3.0, 14.0, 15.0, 38.0, 39.0]);
            assert_eq!(again.into_vec::<f32>().unwrap(), [2.0, 3.0, 14.0, 15.0, 38.0, 39.0]);
        }
    }

    #[test]
    fn rows_of_whole_numbers_are_bytes_whatever_the_other_rows_are() {
        let mut values: Vec<f32> = (0..40).map(|i| i as f32).collect();
        let are_bytes = |base: &Vectors| DataShape::inspect(base, &Progress::silent()).unwrap().bytes;
        let whole = Vectors::from_f32(values.clone(), 2).unwrap();
        values[1] = 0.5;
        let mixed = Vectors::from_f32(values, 2).unwrap();
        assert_eq!([&whole, &mixed].map(are_bytes), [true, false]);
        for base in [&whole, &mixed] {
            assert!(are_bytes(&base.only(&[1, 5, 19]).unwrap()));
        }
        assert!(!are_bytes(&mixed.only(&[0, 1]).unwrap()));
    }

    #[test]
    fn a_wrong_value_is_named_by_its_row_of_all() {
        let mut values = vec![1.0; 40];
        values[2 * 7 + 1] = f32::NAN;
        let base = Vectors::from_f32(values, 2).unwrap();
        let error = base.only(&[1, 5, 7, 9]).unwrap().validate(&Progress::silent()).unwrap_err();
        assert!(error.to_string().contains("row 7"), "{error}");
        base.only(&[1, 5, 9]).unwrap().validate(&Progress::silent()).unwrap();
    }
}
