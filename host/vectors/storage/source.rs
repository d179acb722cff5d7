//! Data sets from stores that lend no slice of all rows.
//!
//! A source is read once, in order, so that a cursor of a database is enough. A build out of core
//! reads rows in any order, for samples, equal rows and layers. So a source that memory does not
//! hold is first written to a file without a name, and mapped.

use std::ops::Range;
use std::path::Path;

use crate::vectors::construct::{check_dim, check_rows};
use crate::vectors::spool::Spool;
use crate::vectors::storage::Storage;
use crate::vectors::{Component, Element, Layout, Vectors};
use crate::{Error, Progress, Result, StoreError};

/// Bytes of rows per call of [`Source::fill`], unless a row has more.
const PIECE: usize = 1 << 20;

/// A store of vectors that copies rows into a buffer, such as a database.
///
/// A source is read once, from the first row to the last, on one thread: a cursor is enough, and
/// the source needs no locks. [`Vectors::from_source`] reads it into memory, [`Vectors::spooled`]
/// into a file.
///
/// ```
/// use tagore::{Progress, Source, StoreError, Vectors};
///
/// /// Rows of two values, as strings.
/// struct Lines<'a>(std::str::Lines<'a>);
///
/// impl Source for Lines<'_> {
///     type Value = f32;
///
///     fn rows(&self) -> usize {
///         3
///     }
///
///     fn dim(&self) -> usize {
///         2
///     }
///
///     fn fill(&mut self, _first: usize, rows: &mut [f32]) -> Result<(), StoreError> {
///         for row in rows.chunks_exact_mut(2) {
///             let line = self.0.next().ok_or("too few lines")?;
///             let (x, y) = line.split_once(' ').ok_or("one value in a line")?;
///             (row[0], row[1]) = (x.parse()?, y.parse()?);
///         }
///         Ok(())
///     }
/// }
///
/// let read = |text: &str| Vectors::from_source(&mut Lines(text.lines()), &Progress::silent());
/// assert_eq!(read("1 2\n3 4\n5 6")?.to_f32()?, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
/// assert!(read("1 2\n3 four\n5 6").is_err());
/// # Ok::<(), tagore::Error>(())
/// ```
pub trait Source {
    /// The type of the components.
    type Value: Component;

    /// The number of rows, n; the same at every call.
    fn rows(&self) -> usize;

    /// Components per row; the same at every call.
    fn dim(&self) -> usize;

    /// Writes rows `first`, `first + 1` and so on over all of `rows`, row-major: whole rows of
    /// [`dim`](Self::dim) values, or of the bytes that hold as many bits. All are zero beforehand.
    ///
    /// `first` is 0 in the first call, and then the row after those of the call before.
    ///
    /// # Errors
    /// Any error of the store. It ends the work with [`Error::Store`], which carries it, and
    /// `fill` is not called again.
    fn fill(&mut self, first: usize, rows: &mut [Self::Value]) -> Result<(), StoreError>;
}

impl Vectors {
    /// Reads all rows of `source` into memory: one buffer, which the source fills and a build uses.
    /// Under cosine a build holds the normalised rows beside it, as for any data set.
    ///
    /// # Errors
    /// If the dimension is 0 or above the [largest](crate::ElementType::max_dim), there are more
    /// than [`MAX_ROWS`](crate::MAX_ROWS) rows, memory is short, the source fails
    /// ([`Error::Store`]), or the work is cancelled.
    pub fn from_source<S: Source + ?Sized>(source: &mut S, progress: &Progress) -> Result<Self> {
        let (rows, dim) = shape(source)?;
        let mut values: Vec<S::Value> = Vec::new();
        let row = S::Value::TYPE.values(dim);
        if values.try_reserve_exact(rows * row).is_err() {
            let found = format!("{rows} x {dim} {}", S::Value::TYPE);
            return Err(Error::mismatch("source", found, "vectors that fit memory, or a spool file"));
        }
        let stage = progress.stage("read", rows as u64);
        for piece in pieces::<S>(rows, row) {
            progress.check()?;
            values.resize(piece.end * row, bytemuck::Zeroable::zeroed());
            fill(source, piece.start, &mut values[piece.start * row..])?;
            stage.advance(piece.len() as u64)?;
        }
        Ok(Self::new(Storage::owned(values), Layout::dense(S::Value::TYPE, rows, dim), None))
    }

    /// Reads all rows of `source` into a file in `folder`, and maps it: for data larger than
    /// memory, which [`OutOfCore`](crate::outofcore::OutOfCore) builds. It reads rows in any order,
    /// so a source alone is not enough.
    ///
    /// The file has as many bytes as the rows. On Unix it has no name, so the system frees it with
    /// the last clone of these vectors, even after a kill; elsewhere it is removed then.
    ///
    /// # Errors
    /// If there are no rows, the shape is out of range as for [`from_source`](Self::from_source),
    /// the file cannot be written, the source fails ([`Error::Store`]), or the work is cancelled.
    pub fn spooled<S: Source + ?Sized>(source: &mut S, folder: &Path, progress: &Progress) -> Result<Self> {
        let (rows, dim) = shape(source)?;
        if rows == 0 {
            return Err(Error::mismatch("source", "no rows", "at least one row to write to a file"));
        }
        let mut spool = Spool::create(folder)?;
        let mut values: Vec<S::Value> = Vec::new();
        let stage = progress.stage("spool", rows as u64);
        let row = S::Value::TYPE.values(dim);
        for piece in pieces::<S>(rows, row) {
            progress.check()?;
            values.clear();
            values.resize(piece.len() * row, bytemuck::Zeroable::zeroed());
            fill(source, piece.start, &mut values)?;
            spool.write_all(bytemuck::cast_slice(&values))?;
            stage.advance(piece.len() as u64)?;
        }
        let storage = Storage::new(spool.map()?);
        Ok(Self::new(storage, Layout::dense(S::Value::TYPE, rows, dim), None))
    }
}

/// The checked shape of `source`.
fn shape<S: Source + ?Sized>(source: &S) -> Result<(usize, usize)> {
    let (rows, dim) = (source.rows(), source.dim());
    check_dim(dim, S::Value::TYPE)?;
    check_rows(rows)?;
    Ok((rows, dim))
}

/// Ranges of rows, of `row` values, for calls of [`Source::fill`].
fn pieces<S: Source + ?Sized>(rows: usize, row: usize) -> impl Iterator<Item = Range<usize>> {
    let step = (PIECE / (row * size_of::<S::Value>())).max(1);
    (0..rows).step_by(step).map(move |first| first..rows.min(first + step))
}

fn fill<S: Source + ?Sized>(source: &mut S, first: usize, rows: &mut [S::Value]) -> Result<()> {
    source.fill(first, rows).map_err(|error| Error::store("source", first, error))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Counts up, and fails at a row.
    struct Counting {
        rows: usize,
        dim: usize,
        next: usize,
        fails_at: usize,
    }

    impl Source for Counting {
        type Value = u8;

        fn rows(&self) -> usize {
            self.rows
        }

        fn dim(&self) -> usize {
            self.dim
        }

        fn fill(&mut self, first: usize, rows: &mut [u8]) -> Result<(), StoreError> {
            assert!(first == self.next && rows.len().is_multiple_of(self.dim) && !rows.is_empty());
            assert!(rows.iter().all(|&x| x == 0));
            self.next += rows.len() / self.dim;
            if (first..self.next).contains(&self.fails_at) {
                return Err(std::fmt::Error.into());
            }
            (first * self.dim..).zip(rows).for_each(|(value, x)| *x = value as u8);
            Ok(())
        }
    }

    fn counting(rows: usize, dim: usize) -> Counting {
        Counting { rows, dim, next: 0, fails_at: usize::MAX }
    }

    #[test]
    fn a_source_is_read_once_in_order() {
        let folder = tempfile::tempdir().unwrap();
        // One piece, one row per piece, and a short last piece.
        for (rows, dim) in [(1, 1), (1000, 3), (700, 4096), (PIECE + 1, 1)] {
            let expected: Vec<u8> = (0..rows * dim).map(|value| value as u8).collect();
            let mut source = counting(rows, dim);
            let read = Vectors::from_source(&mut source, &Progress::silent()).unwrap();
            assert_eq!((read.len(), read.dim(), source.next), (rows, dim, rows));
            assert!(read.into_vec::<u8>().unwrap() == expected, "{rows} x {dim}");
            let source: &mut dyn Source<Value = u8> = &mut counting(rows, dim);
            let spooled = Vectors::spooled(source, folder.path(), &Progress::silent()).unwrap();
            assert!(spooled.into_vec::<u8>().unwrap() == expected, "{rows} x {dim}, spooled");
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn errors_of_a_source_are_carried() {
        let folder = tempfile::tempdir().unwrap();
        let failing = || Counting { fails_at: 600, ..counting(700, 4096) };
        for error in [
            Vectors::from_source(&mut failing(), &Progress::silent()).unwrap_err(),
            Vectors::spooled(&mut failing(), folder.path(), &Progress::silent()).unwrap_err(),
        ] {
            let Error::Store { place: "source", row: 512, source } = &error else { panic!("{error}") };
            assert!(source.is::<std::fmt::Error>());
            assert!(std::error::Error::source(&error).is_some_and(|source| source.is::<std::fmt::Error>()));
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        // An error of this library stays what it is.
        struct Cancelled;
        impl Source for Cancelled {
            type Value = f32;
            fn rows(&self) -> usize {
                1
            }
            fn dim(&self) -> usize {
                1
            }
            fn fill(&mut self, _: usize, _: &mut [f32]) -> Result<(), StoreError> {
                Err(Error::Cancelled)?
            }
        }
        let error = Vectors::from_source(&mut Cancelled, &Progress::silent()).unwrap_err();
        assert!(matches!(error, Error::Cancelled));
    }

    #[test]
    fn shapes_are_checked_before_reading_and_work_can_be_cancelled() {
        let silent = &Progress::silent();
        for (rows, dim, expected) in [
            (5, 0, "dim: found 0, expected 1 to 4096"),
            (usize::MAX, 1, "rows: found 18446744073709551615, expected at most 4294967294"),
        ] {
            let error = Vectors::from_source(&mut counting(rows, dim), silent).unwrap_err();
            assert_eq!(error.to_string(), expected);
        }
        assert!(Vectors::from_source(&mut counting(0, 3), silent).unwrap().is_empty());
        let folder = tempfile::tempdir().unwrap();
        assert!(Vectors::spooled(&mut counting(0, 3), folder.path(), silent).is_err());
        let missing = folder.path().join("missing");
        let error = Vectors::spooled(&mut counting(1, 1), &missing, silent).unwrap_err();
        assert!(matches!(error, Error::Io { .. }), "{error}");
        let cancelled = Progress::silent();
        cancelled.cancel();
        let mut source = counting(700, 4096);
        assert!(matches!(Vectors::from_source(&mut source, &cancelled), Err(Error::Cancelled)));
        assert!(matches!(Vectors::spooled(&mut source, folder.path(), &cancelled), Err(Error::Cancelled)));
        assert_eq!(source.next, 0);
    }
}
