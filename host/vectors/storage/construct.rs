//! Data sets from values, rows, and memory of other owners.

use std::path::PathBuf;
use std::sync::OnceLock;

use half::{bf16, f16};

use crate::vectors::shape::with_type;
use crate::vectors::storage::Storage;
use crate::vectors::{Component, ElementType, Layout, MAX_ROWS, Vectors};
use crate::{Error, Result};

pub(in crate::vectors) fn check_dim(dim: usize, element: ElementType) -> Result<()> {
    let most = element.max_dim();
    if (1..=most).contains(&dim) {
        Ok(())
    } else {
        Err(Error::argument("dim", dim, format_args!("1 to {most}")))
    }
}

pub(in crate::vectors) fn check_rows(rows: usize) -> Result<()> {
    if rows <= MAX_ROWS {
        Ok(())
    } else {
        Err(Error::argument("rows", rows, format_args!("at most {MAX_ROWS}")))
    }
}

impl Vectors {
    /// A data set of f32 values, row-major, `dim` per row.
    ///
    /// # Errors
    /// If `dim` is not in 1..=4096 or does not divide the number of values.
    pub fn from_f32(values: Vec<f32>, dim: usize) -> Result<Self> {
        Self::from_owner(values, dim)
    }

    /// As [`from_f32`](Self::from_f32), of f16 values.
    ///
    /// # Errors
    /// As [`from_f32`](Self::from_f32).
    pub fn from_f16(values: Vec<f16>, dim: usize) -> Result<Self> {
        Self::from_owner(values, dim)
    }

    /// As [`from_f32`](Self::from_f32), of bf16 values.
    ///
    /// # Errors
    /// As [`from_f32`](Self::from_f32).
    pub fn from_bf16(values: Vec<bf16>, dim: usize) -> Result<Self> {
        Self::from_owner(values, dim)
    }

    /// As [`from_f32`](Self::from_f32), of u8 values.
    ///
    /// # Errors
    /// As [`from_f32`](Self::from_f32).
    pub fn from_u8(values: Vec<u8>, dim: usize) -> Result<Self> {
        Self::from_owner(values, dim)
    }

    /// As [`from_f32`](Self::from_f32), of i8 values.
    ///
    /// # Errors
    /// As [`from_f32`](Self::from_f32).
    pub fn from_i8(values: Vec<i8>, dim: usize) -> Result<Self> {
        Self::from_owner(values, dim)
    }

    /// A data set of packed bits, `dim` per row: component `j` of a row is bit `j % 8`, from the
    /// least, of its byte `j / 8`, as of NumPy's `packbits(bitorder="little")`. Each row begins
    /// at a byte, and bits past the dimension are 0.
    ///
    /// The metric of bits is the Hamming distance: squared L2 ([`Metric::L2`](crate::Metric::L2)).
    ///
    /// ```
    /// use tagore::Vectors;
    /// let vectors = Vectors::from_bits(vec![0b101, 0b1, 0, 0b10], 9)?;
    /// assert_eq!(&vectors.row_to_f32(0)?[..], [1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0]);
    /// assert_eq!((vectors.len(), vectors.dim()), (2, 9));
    /// # assert!(vectors.validate(&tagore::Progress::silent()).is_err());
    /// # Ok::<(), tagore::Error>(())
    /// ```
    ///
    /// # Errors
    /// If `dim` is not in 1..=32768, or the bytes are not a whole number of rows.
    pub fn from_bits(bytes: Vec<u8>, dim: usize) -> Result<Self> {
        Self::from_bytes(bytes, ElementType::B1, dim)
    }

    /// A data set of the values of `owner`, row-major, `dim` per row. Nothing is copied: `owner` is
    /// kept until the last clone of the data set is dropped.
    ///
    /// An owner is anything that lends a slice, such as `Vec<f32>`, `Arc<[u8]>`, `&'static [i8]`,
    /// or a type of yours around an array of another library. It must lend the same values, at the
    /// same length, every time.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use tagore::Vectors;
    /// let shared: Arc<[f32]> = Arc::from([0.0, 1.0, 2.0, 3.0]);
    /// let vectors = Vectors::from_owner(Arc::clone(&shared), 2)?;
    /// assert_eq!(vectors.row_to_f32(1)?.as_ptr(), shared[2..].as_ptr());
    /// # Ok::<(), tagore::Error>(())
    /// ```
    ///
    /// Rows of [`Bits`](crate::Bits) have `dim / 8` values, rounded up.
    ///
    /// # Errors
    /// If `dim` is 0 or above [`ElementType::max_dim`], the values are not a whole number of rows,
    /// or there are more than [`MAX_ROWS`] rows.
    pub fn from_owner<T: Component>(
        owner: impl AsRef<[T]> + Send + Sync + 'static,
        dim: usize,
    ) -> Result<Self> {
        check_dim(dim, T::TYPE)?;
        let (values, row) = (owner.as_ref().len(), T::TYPE.values(dim));
        if !values.is_multiple_of(row) {
            let expected = match T::TYPE {
                ElementType::B1 => format!("a multiple of {row}, the bytes of {dim} bits"),
                _ => format!("a multiple of dim = {dim}"),
            };
            return Err(Error::argument("values", values, expected));
        }
        check_rows(values / row)?;
        Ok(Self::new(Storage::from_owner(owner), Layout::dense(T::TYPE, values / row, dim), None))
    }

    /// A data set of `rows` rows of `dim` values of `owner`: row `i` starts at value `i * stride`.
    /// The values between rows are skipped, as in the first columns of a wider array. Otherwise as
    /// [`from_owner`](Self::from_owner).
    ///
    /// # Errors
    /// If `dim` is 0 or above [`ElementType::max_dim`], `stride` is less than the values of a row,
    /// `owner` has too few values, or there are more than [`MAX_ROWS`] rows.
    pub fn from_strided<T: Component>(
        owner: impl AsRef<[T]> + Send + Sync + 'static,
        rows: usize,
        dim: usize,
        stride: usize,
    ) -> Result<Self> {
        check_dim(dim, T::TYPE)?;
        check_rows(rows)?;
        let row = T::TYPE.values(dim);
        if stride < row {
            let expected = match T::TYPE {
                ElementType::B1 => format!("at least the {row} bytes of {dim} bits"),
                _ => format!("at least dim = {dim} values"),
            };
            return Err(Error::argument("stride", stride, expected));
        }
        let values = owner.as_ref().len();
        // The last row needs no room after it.
        let needed = rows.checked_sub(1).map_or(Some(0), |gaps| gaps.checked_mul(stride)?.checked_add(row));
        if needed.is_none_or(|needed| needed > values) {
            let expected = format!("at least those of {rows} rows of {dim}, one every {stride}");
            return Err(Error::argument("values", values, expected));
        }
        let stride = stride.saturating_mul(size_of::<T>());
        let layout = Layout { stride, ..Layout::dense(T::TYPE, rows, dim) };
        Ok(Self::new(Storage::from_owner(owner), layout, None))
    }

    /// A data set of the bytes of `owner`: rows without gaps, `dim` little-endian components of
    /// type `element` each, or bits in whole bytes. Otherwise as [`from_owner`](Self::from_owner).
    ///
    /// # Errors
    /// If `dim` is 0 or above [`ElementType::max_dim`], the bytes do not start at an address that
    /// suits the type or are not a whole number of rows, or there are more than [`MAX_ROWS`] rows.
    pub fn from_bytes(
        owner: impl AsRef<[u8]> + Send + Sync + 'static,
        element: ElementType,
        dim: usize,
    ) -> Result<Self> {
        check_dim(dim, element)?;
        let bytes = owner.as_ref();
        let (size, row) = (bytes.len(), element.row_bytes(dim));
        if !size.is_multiple_of(row) {
            let expected = format!("a multiple of {row}, the bytes of a row of {dim} {element} values");
            return Err(Error::argument("bytes", size, expected));
        }
        if !with_type!(element, T => bytemuck::try_cast_slice::<u8, T>(bytes).is_ok()) {
            let past = bytes.as_ptr() as usize % element.size();
            let found = format!("an address {past} past a multiple of {}", element.size());
            let expected = format!("one aligned for {element}: copy the bytes to aligned memory");
            return Err(Error::argument("bytes", found, expected));
        }
        check_rows(size / row)?;
        Ok(Self::new(Storage::from_owner::<u8>(owner), Layout::dense(element, size / row, dim), None))
    }

    /// A data set of copies of `rows`, all of the length of the first. The dimension of rows of
    /// [`Bits`](crate::Bits) is a multiple of eight.
    ///
    /// ```
    /// use tagore::Vectors;
    /// let documents = vec![("a", vec![0.0f32, 1.0]), ("b", vec![2.0, 3.0])];
    /// let vectors = Vectors::from_rows(documents.iter().map(|(_, vector)| vector))?;
    /// assert_eq!((vectors.len(), vectors.dim()), (2, 2));
    /// # Ok::<(), tagore::Error>(())
    /// ```
    ///
    /// # Errors
    /// If there are no rows or more than [`MAX_ROWS`], the first row is not of 1 to 4,096 values,
    /// or a row has another length than the first.
    pub fn from_rows<T: Component, R: AsRef<[T]>>(rows: impl IntoIterator<Item = R>) -> Result<Self> {
        let mut rows = rows.into_iter();
        let Some(first) = rows.next() else {
            return Err(Error::argument("rows", "none", "at least one: its length is the dimension"));
        };
        let first = first.as_ref();
        let (length, dim) = (first.len(), first.len() * T::TYPE.per_value());
        check_dim(dim, T::TYPE)?;
        let mut values = Vec::with_capacity((rows.size_hint().0 + 1).saturating_mul(length));
        values.extend_from_slice(first);
        for (row, number) in rows.zip(1usize..) {
            let row = row.as_ref();
            if row.len() != length {
                let (found, expected) = (row.len(), format!("{length} as in row 0"));
                return Err(Error::mismatch(format_args!("values of row {number}"), found, expected));
            }
            check_rows(number + 1)?;
            values.extend_from_slice(row);
        }
        Self::from_owner(values, dim)
    }

    /// Rows of f32; the caller guarantees that `dim` is valid and divides the number of values.
    pub(crate) fn dense_f32(values: Vec<f32>, dim: usize) -> Self {
        let layout = Layout::dense(ElementType::F32, values.len() / dim, dim);
        Self::new(Storage::owned(values), layout, None)
    }

    /// Rows of `storage`; the caller has checked that it holds them, aligned.
    pub(in crate::vectors) fn new(storage: Storage, layout: Layout, path: Option<PathBuf>) -> Self {
        Self {
            storage,
            layout,
            path,
            largest: OnceLock::new(),
            bytes: OnceLock::new(),
            repeated: OnceLock::new(),
            picked: None,
            replicas: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{MAX_DIM, Progress};

    fn text<T>(result: Result<T>) -> String {
        result.err().map_or_else(|| "no error".to_owned(), |error| error.to_string())
    }

    /// An owner whose drop can be seen.
    struct Told {
        values: Vec<f32>,
        _alive: Arc<()>,
    }

    impl AsRef<[f32]> for Told {
        fn as_ref(&self) -> &[f32] {
            &self.values
        }
    }

    #[test]
    fn an_owner_lives_as_long_as_the_last_clone() {
        let alive = Arc::new(());
        let vectors =
            Vectors::from_owner(Told { values: vec![1.0, 2.0, 3.0, 4.0], _alive: Arc::clone(&alive) }, 2)
                .unwrap();
        let clone = vectors.clone();
        drop(vectors);
        assert_eq!(Arc::strong_count(&alive), 2);
        assert_eq!(&clone.host_row(1)[..], [3.0, 4.0]);
        drop(clone);
        assert_eq!(Arc::strong_count(&alive), 1);
    }

    #[test]
    fn strided_rows_are_read_in_place_and_checked() {
        let wide: Arc<[u8]> = (0..11).collect();
        let vectors = Vectors::from_strided(Arc::clone(&wide), 3, 3, 4).unwrap();
        let rows: Vec<Vec<f32>> = (0..3).map(|row| vectors.host_row(row).into_owned()).collect();
        assert_eq!(rows, [[0.0, 1.0, 2.0], [4.0, 5.0, 6.0], [8.0, 9.0, 10.0]]);
        vectors.validate(&Progress::silent()).unwrap();
        assert_eq!(vectors.rows_as::<u8>().unwrap().nth(2).unwrap().as_ptr(), wide[8..].as_ptr());
        let refused = |rows, dim, stride| text(Vectors::from_strided(Arc::clone(&wide), rows, dim, stride));
        assert_eq!(refused(3, 3, 2), "stride: found 2, expected at least dim = 3 values");
        let few = "values: found 11, expected at least those of";
        assert_eq!(refused(4, 3, 4), format!("{few} 4 rows of 3, one every 4"));
        assert_eq!(refused(3, 3, usize::MAX), format!("{few} 3 rows of 3, one every {}", usize::MAX));
        assert_eq!(refused(3, 0, 4), "dim: found 0, expected 1 to 4096");
        assert!(Vectors::from_strided(Arc::clone(&wide), 0, 3, 4).unwrap().is_empty());
    }

    #[test]
    fn bytes_must_be_aligned_whole_rows() {
        let floats: &'static [f32] = &[1.5, -2.5, 3.5, 4.5];
        let bytes: &'static [u8] = bytemuck::cast_slice(floats);
        let vectors = Vectors::from_bytes(bytes, ElementType::F32, 2).unwrap();
        assert_eq!(&vectors.host_row(1)[..], [3.5, 4.5]);
        let refused = |bytes: &'static [u8], element, dim| text(Vectors::from_bytes(bytes, element, dim));
        assert_eq!(
            refused(&bytes[1..9], ElementType::F32, 2),
            "bytes: found an address 1 past a multiple of 4, expected one aligned for f32: copy the bytes to aligned \
             memory"
        );
        assert_eq!(
            refused(&bytes[..6], ElementType::F16, 2),
            "bytes: found 6, expected a multiple of 4, the bytes of a row of 2 f16 values"
        );
        // Bytes of any alignment are rows of u8.
        assert_eq!(
            &Vectors::from_bytes(&bytes[1..4], ElementType::I8, 3).unwrap().host_row(0)[..2],
            [0.0, -64.0]
        );
    }

    #[test]
    fn ragged_and_missing_rows_are_refused() {
        let rows = |rows: &[&[i8]]| Vectors::from_rows(rows);
        assert_eq!(&rows(&[&[1, 2], &[3, -4]]).unwrap().host_row(1)[..], [3.0, -4.0]);
        assert_eq!(text(rows(&[&[1, 2], &[3, 4], &[5]])), "values of row 2: found 1, expected 2 as in row 0");
        assert_eq!(text(rows(&[])), "rows: found none, expected at least one: its length is the dimension");
        assert_eq!(text(rows(&[&[]])), "dim: found 0, expected 1 to 4096");
        let wide: &[i8] = &[0; MAX_DIM + 1];
        assert_eq!(text(rows(&[wide])), "dim: found 4097, expected 1 to 4096");
    }
}
