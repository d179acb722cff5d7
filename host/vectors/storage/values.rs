//! The values of a data set, as slices and vectors.

use crate::loops::{numbered, rows_mut, try_for_each};
use crate::memory::zeros;
use crate::vectors::{Component, Matrix, Vectors, with_matrix};
use crate::{Error, Result};

impl Vectors {
    /// All rows in place, as slices of `dim` values of their own type, or of the bytes of bits.
    ///
    /// Like all functions that give all values, this copies those of a [device](Self::device) to
    /// the host, once.
    ///
    /// ```
    /// use tagore::Vectors;
    /// let vectors = Vectors::from_u8(vec![0, 1, 2, 3], 2)?;
    /// assert_eq!(vectors.rows_as::<u8>()?.nth(1), Some(&[2, 3][..]));
    /// # Ok::<(), tagore::Error>(())
    /// ```
    ///
    /// # Errors
    /// If `T` is another type, or a device that holds the values fails.
    pub fn rows_as<T: Component>(&self) -> Result<impl ExactSizeIterator<Item = &[T]>> {
        let matrix: Matrix<'_, T> = self.typed()?;
        Ok((0..self.len()).map(move |row| matrix.row(row)))
    }

    /// The values in place, and the distance between two rows in values: row `i` starts at value
    /// `i * stride`, as in [`from_strided`](Self::from_strided). Rows of an fvecs file are further
    /// apart than their dimension.
    ///
    /// # Errors
    /// If `T` is another type, or a device that holds the values fails.
    pub fn strided_as<T: Component>(&self) -> Result<(&[T], usize)> {
        let Matrix { data, stride, .. } = self.typed()?;
        Ok((data, stride))
    }

    /// All values, row-major. Does not copy if these vectors came from a `Vec` without gaps between
    /// rows and have no clones.
    ///
    /// # Errors
    /// If `T` is another type than that of the values, or a device that holds them fails.
    pub fn into_vec<T: Component>(self) -> Result<Vec<T>> {
        self.typed::<T>()?;
        let row = T::TYPE.row_bytes(self.dim());
        let (dense, whole) = (self.layout.stride == row, self.len() * row == self.storage.bytes().len());
        if !(dense && whole) || self.picked.is_some() {
            return Ok(self.rows_as()?.flatten().copied().collect());
        }
        let Self { storage, layout, path, largest, bytes, repeated, picked, replicas } = self;
        match storage.into_vec() {
            Ok(values) => Ok(values),
            Err(storage) => {
                let shared = Self { storage, layout, path, largest, bytes, repeated, picked, replicas };
                Ok(shared.rows_as()?.flatten().copied().collect())
            }
        }
    }

    /// All values as f32, row-major. Every type converts exactly.
    ///
    /// # Errors
    /// If memory is short, or a device that holds the values fails.
    pub fn to_f32(&self) -> Result<Vec<f32>> {
        self.floats(|_| Ok(()))
    }

    /// All values as f32, row-major, with rows as `finish` leaves them.
    ///
    /// # Errors
    /// One of `finish`; if memory is short, or a device that holds the values fails.
    pub(in crate::vectors) fn floats(
        &self,
        finish: impl Fn(&mut [f32]) -> Result<()> + Sync,
    ) -> Result<Vec<f32>> {
        self.on_host()?;
        let dim = self.dim();
        let mut values: Vec<f32> = zeros(self.len() * dim)?;
        let rows = self.rows();
        try_for_each(numbered(rows_mut(&mut values, dim)), |(row, out)| {
            with_matrix!(rows, matrix => {
                out.iter_mut().zip(matrix.components(row)).for_each(|(out, x)| *out = x);
            });
            finish(out)
        })?;
        Ok(values)
    }

    fn typed<T: Component>(&self) -> Result<Matrix<'_, T>> {
        if T::TYPE == self.element_type() {
            self.on_host()?;
            return Ok(self.matrix());
        }
        let expected = format!("{}, or a conversion", T::TYPE);
        Err(Error::mismatch(self.describe(), format_args!("{} values", self.element_type()), expected))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use half::f16;

    use super::*;

    #[test]
    fn a_vector_comes_back_without_a_copy_unless_it_is_shared() {
        let values = vec![1.0f32, 2.0, 3.0, 4.0];
        let place = values.as_ptr();
        let vectors = Vectors::from_f32(values, 2).unwrap();
        let clone = vectors.clone();
        let copied = vectors.into_vec::<f32>().unwrap();
        assert!(copied.as_ptr() != place && copied == [1.0, 2.0, 3.0, 4.0]);
        let same = clone.into_vec::<f32>().unwrap();
        assert_eq!(same.as_ptr(), place);
        // Other owners, and gaps between rows.
        let wide = Vectors::from_strided(vec![1u8, 2, 3, 4, 5], 2, 2, 3).unwrap();
        assert_eq!(wide.strided_as::<u8>().unwrap(), (&[1, 2, 3, 4, 5][..], 3));
        let shared: Arc<[u8]> = Arc::from([1, 2, 3, 4, 5]);
        let strided = Vectors::from_strided(Arc::clone(&shared), 2, 2, 3).unwrap();
        assert_eq!(strided.clone().into_vec::<u8>().unwrap(), [1, 2, 4, 5]);
        assert_eq!(
            Vectors::from_strided(vec![1u8, 2, 3, 4, 5], 2, 2, 3).unwrap().to_f32().unwrap(),
            strided.to_f32().unwrap()
        );
        let gaps = Vectors::from_strided(vec![1u8, 2, 3, 4, 5], 2, 2, 2).unwrap();
        assert_eq!(gaps.into_vec::<u8>().unwrap(), [1, 2, 3, 4]);
        assert_eq!(Vectors::from_owner(shared, 5).unwrap().into_vec::<u8>().unwrap(), [1, 2, 3, 4, 5]);
    }

    #[test]
    fn values_come_back_in_their_own_type_or_as_f32() {
        let halves = Vectors::from_f16([0.5, -1.0].map(f16::from_f32).to_vec(), 1).unwrap();
        assert_eq!(halves.to_f32().unwrap(), [0.5, -1.0]);
        assert_eq!(halves.rows_as::<f16>().unwrap().len(), 2);
        let error = halves.rows_as::<u8>().err().unwrap().to_string();
        assert_eq!(error, "vectors: found f16 values, expected u8, or a conversion");
        assert!(halves.into_vec::<f32>().is_err());
    }
}
