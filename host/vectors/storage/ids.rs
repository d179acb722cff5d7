//! Tables of a caller's own ids.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use rayon::prelude::*;

use crate::atomic_file::AtomicFile;
use crate::loops::find_first;
use crate::vectors::construct::check_rows;
use crate::vectors::npy;
use crate::vectors::open::OpenedFile;
use crate::vectors::storage::Storage;
use crate::{Error, Result};

/// Bytes of an id.
const ID: usize = size_of::<u64>();

/// The caller's own ids of the rows of a data set: a `u64` per row.
///
/// An index and its searches name a vector by its row, a `u32`. A table beside the index says which
/// document, key or object that is. It may hold any numbers, in any order, repeated or not.
///
/// ```
/// use tagore::Ids;
/// let ids = Ids::new(vec![7_000_000_001, 12, 5])?;
/// assert_eq!(ids.get(1), Some(12));
/// assert_eq!(ids.row_of(7_000_000_001), Some(0));
/// # Ok::<(), tagore::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Ids {
    storage: Storage,
    /// Byte of the first id.
    offset: usize,
    path: Option<PathBuf>,
    /// Rows by id, then row; none if the ids ascend. Made by the first look-up.
    order: OnceLock<Option<Arc<[u32]>>>,
}

/// Compares ids, not files.
impl PartialEq for Ids {
    fn eq(&self, other: &Self) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl Eq for Ids {}

impl Ids {
    /// A table of `ids`, one per row.
    ///
    /// # Errors
    /// If there are more than [`MAX_ROWS`](crate::MAX_ROWS).
    pub fn new(ids: Vec<u64>) -> Result<Self> {
        Self::from_owner(ids)
    }

    /// A table of the ids of `owner`, which are not copied; see
    /// [`Vectors::from_owner`](crate::Vectors::from_owner).
    ///
    /// # Errors
    /// If there are more than [`MAX_ROWS`](crate::MAX_ROWS).
    pub fn from_owner(owner: impl AsRef<[u64]> + Send + Sync + 'static) -> Result<Self> {
        check_rows(owner.as_ref().len())?;
        Ok(Self::at(Storage::from_owner::<u64>(owner), 0, None))
    }

    fn at(storage: Storage, offset: usize, path: Option<PathBuf>) -> Self {
        Self { storage, offset, path, order: OnceLock::new() }
    }

    /// Opens a file of ids by its extension: `u64bin` (the numbers of rows and columns, n and 1, as
    /// two u32 or two u64, then n little-endian u64) or `npy` (an array of n or n x 1 integers).
    /// The file is read to memory.
    ///
    /// # Errors
    /// If the file cannot be read, has another extension, shape or type, its size contradicts its
    /// header, an i64 is negative, or memory is short.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let kind = Kind::from_path(path)?;
        let file = OpenedFile::read(path)?;
        let (offset, kind) = match kind {
            Kind::U64bin => (file.bin(ID, 1)?.offset, npy::Integer::U64),
            Kind::Npy => npy_ids(&file)?,
        };
        let (storage, offset) = if kind.size == ID && offset.is_multiple_of(ID) {
            (Storage::new(file.into_content()), offset)
        } else {
            // An npy header may have any length. Unaligned and narrow ids cannot be used in place.
            (Storage::from_owner::<u64>(file.widened(kind, offset)?), 0)
        };
        let table = Self::at(storage, offset, Some(path.to_owned()));
        let is_negative = |row: &usize| kind.is_signed && table.as_slice()[*row] > i64::MAX as u64;
        match find_first(0..table.len(), |row| Some(row).filter(is_negative)) {
            Some(row) => {
                let found = format!("the id {} in row {row}", table.as_slice()[row] as i64);
                Err(Error::file(path, found, "ids of at least 0"))
            }
            None => Ok(table),
        }
    }

    /// Writes the table as `u64bin` or `npy`, by the extension of `path`. The file appears only
    /// when it is complete.
    ///
    /// # Errors
    /// If the extension is another, or the file cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let header = match Kind::from_path(path)? {
            Kind::U64bin => bytemuck::cast_slice(&[self.len() as u32, 1]).to_vec(),
            Kind::Npy => npy::header("<u8", self.len() as u64, None),
        };
        let mut file = AtomicFile::create(path)?;
        file.write_all(&header)?;
        file.write_all(bytemuck::cast_slice(self.as_slice()))?;
        file.commit()
    }

    /// The number of rows.
    pub fn len(&self) -> usize {
        self.as_slice().len()
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All ids, by row.
    pub fn as_slice(&self) -> &[u64] {
        bytemuck::cast_slice(&self.storage.bytes()[self.offset..])
    }

    /// The file that the table was opened from.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// The id of `row`; none past the last, such as for `u32::MAX` in a result with too few rows.
    pub fn get(&self, row: u32) -> Option<u64> {
        self.as_slice().get(row as usize).copied()
    }

    /// The first row with this id, if any. The first call sorts the table unless it ascends, which
    /// takes 4 bytes of memory per row; later calls search it by bisection.
    pub fn row_of(&self, id: u64) -> Option<u32> {
        let ids = self.as_slice();
        let sort = || {
            (!ids.is_sorted()).then(|| {
                let mut rows: Vec<u32> = (0..ids.len() as u32).collect();
                rows.par_sort_unstable_by_key(|&row| (ids[row as usize], row));
                rows.into()
            })
        };
        let row = match self.order.get_or_init(sort) {
            Some(rows) => *rows.get(rows.partition_point(|&row| ids[row as usize] < id))?,
            None => ids.partition_point(|&own| own < id) as u32,
        };
        (self.get(row) == Some(id)).then_some(row)
    }

    /// Checks that the table has an id for each of `rows` rows, such as those of an index.
    ///
    /// # Errors
    /// If it has another number of ids.
    pub fn check_len(&self, rows: usize) -> Result<()> {
        if self.len() == rows {
            return Ok(());
        }
        let name = self.path().map_or_else(|| "ids".to_owned(), |path| path.display().to_string());
        Err(Error::mismatch(name, format_args!("{} ids", self.len()), format_args!("{rows}, one per row")))
    }
}

/// The format of a file of ids.
enum Kind {
    U64bin,
    Npy,
}

impl Kind {
    fn from_path(path: &Path) -> Result<Self> {
        let extension = path.extension().map(|name| name.to_string_lossy().to_ascii_lowercase());
        match extension.as_deref() {
            Some("u64bin") => Ok(Self::U64bin),
            Some("npy") => Ok(Self::Npy),
            Some(other) => Err(Error::file(path, format_args!("the extension .{other}"), "u64bin or npy")),
            None => Err(Error::file(path, "no extension", "u64bin or npy")),
        }
    }
}

/// The byte of the first id of an npy file, and the type of the ids.
fn npy_ids(file: &OpenedFile<'_>) -> Result<(usize, npy::Integer)> {
    const EXPECTED: &str = "an array of n or n x 1 integers";
    let path = file.path();
    let Some(header) = npy::parse(file.bytes()) else {
        return Err(Error::file(path, "no npy header of a plain array", EXPECTED));
    };
    // One column is in the same order in C and in Fortran.
    let (&[rows] | &[rows, 1], Some(kind)) = (&header.shape[..], npy::Integer::named(&header.descr)) else {
        let found = format!("a {}-D array of {}", header.shape.len(), header.descr);
        return Err(Error::file(path, found, EXPECTED));
    };
    let expected = u128::from(rows) * kind.size as u128 + header.offset as u128;
    if expected != file.bytes().len() as u128 {
        let found = format!("{} bytes", file.bytes().len());
        return Err(Error::file(path, found, format_args!("{expected}, by its header")));
    }
    check_rows(rows as usize)?;
    Ok((header.offset, kind))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn tables_round_trip_and_answer_both_ways() {
        let folder = tempfile::tempdir().unwrap();
        for ids in [vec![], vec![u64::MAX], vec![3, 5, 5, 9], vec![9, 5, 1 << 40, 5, 0]] {
            let table = Ids::new(ids.clone()).unwrap();
            for name in ["x.u64bin", "x.npy", "y.NPY"] {
                let path = folder.path().join(name);
                table.save(&path).unwrap();
                let read = Ids::open(&path).unwrap();
                assert!(read == table && read.path() == Some(&path), "{name}");
                for id in [0, 3, 4, 5, 9, 10, 1 << 40, u64::MAX] {
                    let expected = ids.iter().position(|&own| own == id).map(|row| row as u32);
                    assert_eq!(read.row_of(id), expected, "{id} of {ids:?}");
                }
                assert_eq!(read.get(u32::MAX), None);
                assert_eq!(read.get(0), ids.first().copied());
            }
        }
        let error = Ids::new(vec![1, 2]).unwrap().check_len(3).unwrap_err().to_string();
        assert_eq!(error, "ids: found 2 ids, expected 3, one per row");
    }

    #[test]
    fn arrays_of_numpy_in_other_shapes_are_read_and_faulty_ones_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ids.npy");
        let text = |header: Vec<u8>, ids: &[i64]| {
            fs::write(&path, [&header[..], bytemuck::cast_slice(ids)].concat()).unwrap();
            Ids::open(&path)
                .map(|ids| ids.as_slice().to_vec())
                .map_err(|error| error.to_string().replace(&folder.path().display().to_string(), ""))
        };
        assert_eq!(text(npy::header("<i8", 2, None), &[4, 3]), Ok(vec![4, 3]));
        assert_eq!(text(npy::header("<u8", 2, Some(1)), &[4, 3]), Ok(vec![4, 3]));
        assert_eq!(text(npy::header("<u4", 4, None), &[4, -3]), Ok(vec![4, 0, (1 << 32) - 3, (1 << 32) - 1]));
        assert_eq!(text(npy::header("<i2", 4, None), &[4]), Ok(vec![4, 0, 0, 0]));
        // A header of another length, as other writers make.
        let mut header = npy::header("<u8", 2, None);
        header.insert(10, b' ');
        header[8] += 1;
        assert_eq!(text(header, &[4, 3]), Ok(vec![4, 3]));
        let expected = "expected an array of n or n x 1 integers";
        for (header, ids, refused) in [
            (
                npy::header("<i8", 2, None),
                &[4, -3][..],
                "found the id -3 in row 1, expected ids of at least 0",
            ),
            (npy::header("<u8", 1, Some(2)), &[4, 3], &format!("found a 2-D array of <u8, {expected}")),
            (npy::header("<f8", 2, None), &[4, 3], &format!("found a 1-D array of <f8, {expected}")),
            (npy::header("<u8", 3, None), &[4, 3], "found 144 bytes, expected 152, by its header"),
            (b"text".to_vec(), &[], &format!("found no npy header of a plain array, {expected}")),
        ] {
            assert_eq!(text(header, ids), Err(format!("/ids.npy: {refused}")));
        }
        let path = folder.path().join("ids.u64bin");
        fs::write(&path, bytemuck::cast_slice(&[3u32, 1, 7, 0])).unwrap();
        let error = Ids::open(&path).unwrap_err().to_string();
        assert!(error.ends_with("found 16 bytes, expected 32 (8 + 3 x 1 x 8, by its header)"), "{error}");
        let error = Ids::open(folder.path().join("ids.csv")).unwrap_err().to_string();
        assert!(error.ends_with("ids.csv: found the extension .csv, expected u64bin or npy"), "{error}");
    }
}
