//! Opening files of vectors and of ids. A file's size is checked against its header before anything
//! is allocated.

use std::fs::{self, File, Metadata};
use std::path::Path;
use std::sync::Arc;

use bytemuck::AnyBitPattern;

use super::format::Framing;
use super::mapped::MappedFile;
use super::{ElementType, Format, Layout, MAX_DIM, MAX_ROWS, Storage, Vectors, npy};
use crate::{Error, Progress, Result};

impl Vectors {
    /// Opens a file of vectors, its format told by its extension (see [`Format::of`]).
    ///
    /// The file is mapped, not read: opening takes no time and no memory, however large it is. It
    /// must not be changed or truncated while the vectors are in use; replacing it by renaming
    /// another file over it is fine. Values are checked by [`validate`](Self::validate), not here.
    ///
    /// # Errors
    /// If the file cannot be opened, its extension is not that of a format of vectors, its size is
    /// not what its header says, the dimension is not in 1..=4096, or there are more than
    /// [`MAX_ROWS`] rows.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let source = Source::open(path)?;
        source.vectors(Format::of(path)?)
    }

    /// Opens a file of vectors of the given format, whatever its extension; see
    /// [`open`](Self::open).
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_as(path: impl AsRef<Path>, format: Format) -> Result<Self> {
        Source::open(path.as_ref())?.vectors(format)
    }
}

/// A matrix of ids read from a file, row after row.
#[derive(Debug)]
pub(crate) struct IdMatrix {
    pub rows: usize,
    pub cols: usize,
    pub ids: Vec<u32>,
}

/// Reads a file of ids of the given format: ivecs, ibin or npy. Signed ids are taken bit by bit, so
/// that −1 is `u32::MAX`, none.
///
/// # Errors
/// If the file cannot be read, its size is not what its header says, there is no memory for it, or
/// the work is cancelled.
pub(crate) fn open_ids_as(path: &Path, format: Format, progress: &Progress) -> Result<IdMatrix> {
    Source::open(path)?.ids(format, progress)
}

/// Opens a regular file for reading. Nothing else is waited for: opening a pipe would wait for its
/// other end.
///
/// # Errors
/// If it cannot be opened or is not a regular file.
pub(crate) fn open_regular(path: &Path) -> Result<File> {
    // Asked before opening, which may do something to a device.
    check_regular(path, &fs::metadata(path).map_err(Error::io(path))?)?;
    let mut options = File::options();
    options.read(true);
    // And after it: something else may have taken the name by then.
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(
        &mut options,
        rustix::fs::OFlags::NONBLOCK.bits().cast_signed(),
    );
    let file = options.open(path).map_err(Error::io(path))?;
    check_regular(path, &file.metadata().map_err(Error::io(path))?)?;
    Ok(file)
}

fn check_regular(path: &Path, metadata: &Metadata) -> Result<()> {
    if metadata.is_file() { Ok(()) } else { Err(Error::file(path, kind(metadata), "a regular file")) }
}

/// What it is that is not a regular file.
fn kind(metadata: &Metadata) -> &'static str {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        let kind = metadata.file_type();
        if kind.is_fifo() {
            return "a pipe";
        }
        if kind.is_socket() {
            return "a socket";
        }
    }
    if metadata.is_dir() { "a folder" } else { "a device" }
}

/// Maps a regular file that is not empty.
///
/// # Errors
/// If it cannot be opened, is not a regular file, or is empty.
pub(crate) fn map(path: &Path) -> Result<MappedFile> {
    let file = open_regular(path)?;
    // SAFETY: the map is only read. That no one truncates or changes the file while it is mapped is
    // asked of the user by `Vectors::open`; our own writers replace files, they never change them.
    let map = unsafe { MappedFile::new(&file, path) }.map_err(Error::io(path))?;
    if map.is_empty() {
        return Err(Error::file(path, "an empty file", "a header or rows"));
    }
    Ok(map)
}

/// A mapped file that is not empty.
pub(super) struct Source<'a> {
    path: &'a Path,
    map: Arc<MappedFile>,
}

/// The numbers before the rows of a `bin` file.
#[derive(Clone, Copy)]
pub(super) struct BinHeader {
    /// Bytes of the header itself: 8 or 16.
    pub bytes: usize,
    pub rows: u64,
    pub cols: u64,
}

impl BinHeader {
    /// The size of a file with this header and `size` bytes per element.
    pub(super) fn file_size(&self, size: usize) -> u128 {
        let elements = u128::from(self.rows) * u128::from(self.cols);
        elements.saturating_mul(size as u128).saturating_add(self.bytes as u128)
    }
}

/// What the checks of a size found: the rows, their length, and the byte at which the first value
/// is.
struct Shape {
    rows: usize,
    cols: usize,
    offset: usize,
}

impl<'a> Source<'a> {
    pub(super) fn open(path: &'a Path) -> Result<Self> {
        Ok(Self { path, map: Arc::new(map(path)?) })
    }

    pub(super) fn path(&self) -> &'a Path {
        self.path
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.map
    }

    fn vectors(self, format: Format) -> Result<Vectors> {
        let (element, shape) = match (format.framing(), format.element()) {
            (Framing::Npy, _) => {
                self.npy(&ELEMENTS.map(|element| (npy::name(element), element.size(), element)), MAX_DIM)?
            }
            (Framing::Vecs, Some(element)) => (element, self.vecs(element.size(), MAX_DIM)?),
            (Framing::Bin, Some(element)) => (element, self.bin(element.size(), MAX_DIM)?),
            (_, None) => {
                let found = format!("ids ({format})");
                return Err(Error::file(
                    self.path,
                    found,
                    format_args!("vectors: {}", Format::vector_names()),
                ));
            }
        };
        let Shape { rows, cols: dim, offset } = shape;
        let prefixed = format.framing() == Framing::Vecs;
        let stride = dim * element.size() + if prefixed { PREFIX } else { 0 };
        let path = Some(self.path.to_owned());
        if offset.is_multiple_of(element.size()) {
            let layout = Layout { element, rows, dim, offset, stride, prefixed };
            return Ok(Vectors::new(Storage::Mapped(self.map), layout, path));
        }
        // The header of an npy file may be of any length. Values that are not aligned cannot be
        // used where they lie.
        let (values, silent) = (&self.map[offset..], &Progress::silent());
        let storage = match element {
            ElementType::F32 => Storage::F32(self.copied(values, silent)?),
            ElementType::F16 => Storage::F16(self.copied(values, silent)?),
            ElementType::U8 => Storage::U8(self.copied(values, silent)?),
            ElementType::I8 => Storage::I8(self.copied(values, silent)?),
        };
        Ok(Vectors::new(storage, Layout::dense(element, rows, dim), path))
    }

    pub(super) fn ids(&self, format: Format, progress: &Progress) -> Result<IdMatrix> {
        if !format.may_hold_ids() {
            let expected = format!("ids: {}", Format::id_names());
            return Err(Error::file(self.path, format_args!("vectors ({format})"), expected));
        }
        let Shape { rows, cols, offset } = match format.framing() {
            Framing::Vecs => self.vecs(ID, i32::MAX as usize)?,
            Framing::Bin => self.bin(ID, u32::MAX as usize)?,
            Framing::Npy => self.npy(&[("<u4", ID, ()), ("<i4", ID, ())], u32::MAX as usize)?.1,
        };
        let ids = if format.framing() == Framing::Vecs {
            let mut ids = self.room(rows * cols)?;
            for (row, bytes) in self.map.chunks_exact(PREFIX + cols * ID).enumerate() {
                progress.check()?;
                let found = word(bytes);
                if found as usize != cols {
                    let expected = format!("{cols} as in row 0");
                    return Err(Error::file(self.path, format_args!("{found} ids in row {row}"), expected));
                }
                ids.extend(bytes[PREFIX..].chunks_exact(ID).map(word));
            }
            ids
        } else {
            self.copied(&self.map[offset..], progress)?
        };
        Ok(IdMatrix { rows, cols, ids })
    }

    /// The numbers that `bytes` of the file are.
    pub(super) fn copied<T: AnyBitPattern>(&self, bytes: &[u8], progress: &Progress) -> Result<Vec<T>> {
        let mut values = self.room(bytes.len() / size_of::<T>())?;
        for piece in bytes.chunks(PIECE) {
            progress.check()?;
            values.extend(piece.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned::<T>));
        }
        Ok(values)
    }

    /// An empty vector with room for `count` values.
    fn room<T>(&self, count: usize) -> Result<Vec<T>> {
        let mut values = Vec::new();
        match values.try_reserve_exact(count) {
            Ok(()) => Ok(values),
            Err(_) => {
                let found = format!("{} bytes to read", count.saturating_mul(size_of::<T>()));
                Err(Error::file(self.path, found, "as much free memory"))
            }
        }
    }

    /// The headers that the first bytes may be: of 8 bytes and, if there are as many, of 16.
    pub(super) fn bin_headers(&self) -> Result<Vec<BinHeader>> {
        let bytes: &[u8] = &self.map;
        let Some(short) = bytes.first_chunk::<8>() else {
            return Err(Error::file(
                self.path,
                format_args!("{} bytes", bytes.len()),
                "a header of 8 or 16 bytes",
            ));
        };
        let mut headers =
            vec![BinHeader { bytes: 8, rows: word(short).into(), cols: word(&short[4..]).into() }];
        if let Some((low, rest)) = bytes.split_first_chunk::<8>()
            && let Some(high) = rest.first_chunk::<8>()
        {
            let (rows, cols) = (u64::from_le_bytes(*low), u64::from_le_bytes(*high));
            headers.push(BinHeader { bytes: 16, rows, cols });
        }
        Ok(headers)
    }

    /// A `bin` file with `size` bytes per element and at most `widest` columns.
    fn bin(&self, size: usize, widest: usize) -> Result<Shape> {
        let headers = self.bin_headers()?;
        // No file fits both: the short header of a file with a long one says there are no columns.
        if let Some(header) = headers.iter().find(|header| header.file_size(size) == self.map.len() as u128) {
            return self.shape(header.rows, header.cols, header.bytes, widest);
        }
        let told = headers.iter().find(|header| header.cols != 0).unwrap_or(&headers[0]);
        Err(self.wrong_size(told, size))
    }

    /// A `vecs` file with `size` bytes per element and at most `widest` elements to a row.
    fn vecs(&self, size: usize, widest: usize) -> Result<Shape> {
        let bytes = self.map.len();
        let Some(prefix) = self.map.first_chunk::<PREFIX>() else {
            return Err(Error::file(
                self.path,
                format_args!("{bytes} bytes"),
                "rows after their length in 4 bytes",
            ));
        };
        let cols = i32::from_le_bytes(*prefix);
        let row = PREFIX as u64 + u64::try_from(cols).unwrap_or(0) * size as u64;
        let shape = self.shape(bytes as u64 / row, cols, PREFIX, widest)?;
        if (bytes as u64).is_multiple_of(row) {
            return Ok(shape);
        }
        let expected = format!("a multiple of {row}, the bytes of a row of {cols} as the first is");
        Err(Error::file(self.path, format_args!("{bytes} bytes"), expected))
    }

    /// An npy file of one of `types`, each with its NumPy name and bytes per element; says which.
    fn npy<T: Copy>(&self, types: &[(&str, usize, T)], widest: usize) -> Result<(T, Shape)> {
        let names: Vec<&str> = types.iter().map(|(name, ..)| *name).collect();
        let expected = format!("a 2-D array in C order of {}", names.join(", "));
        let Some(header) = npy::parse(&self.map) else {
            return Err(Error::file(self.path, "no npy header of a plain array", expected));
        };
        let known = types.iter().find(|(name, ..)| *name == header.descr);
        let (Some(&(_, size, kind)), &[rows, cols], false) =
            (known, header.shape.as_slice(), header.fortran_order)
        else {
            let order = if header.fortran_order { "Fortran" } else { "C" };
            let found = format!("a {}-D array in {order} order of {}", header.shape.len(), header.descr);
            return Err(Error::file(self.path, found, expected));
        };
        let told = BinHeader { bytes: header.offset, rows, cols };
        if told.file_size(size) != self.map.len() as u128 {
            return Err(self.wrong_size(&told, size));
        }
        Ok((kind, self.shape(rows, cols, header.offset, widest)?))
    }

    fn wrong_size(&self, told: &BinHeader, size: usize) -> Error {
        let BinHeader { bytes, rows, cols } = told;
        let expected =
            format!("{} ({bytes} + {rows} x {cols} x {size}, by its header)", told.file_size(size));
        Error::file(self.path, format_args!("{} bytes", self.map.len()), expected)
    }

    /// Checks what a header says against the limits.
    fn shape(&self, rows: u64, cols: impl Into<i128>, offset: usize, widest: usize) -> Result<Shape> {
        let cols = cols.into();
        let Some(cols) = usize::try_from(cols).ok().filter(|cols| (1..=widest).contains(cols)) else {
            return Err(Error::file(
                self.path,
                format_args!("{cols} values to a row"),
                format_args!("1 to {widest}"),
            ));
        };
        let Some(rows) = usize::try_from(rows).ok().filter(|&rows| rows <= MAX_ROWS) else {
            return Err(Error::file(
                self.path,
                format_args!("{rows} rows"),
                format_args!("at most {MAX_ROWS}"),
            ));
        };
        Ok(Shape { rows, cols, offset })
    }
}

/// The types of vectors.
const ELEMENTS: [ElementType; 4] = [ElementType::F32, ElementType::F16, ElementType::U8, ElementType::I8];

/// Bytes of the length before each row of a `vecs` file.
const PREFIX: usize = 4;

/// Bytes of an id.
const ID: usize = 4;

/// Bytes copied between two looks at whether the work was cancelled; a multiple of the size of any
/// number.
const PIECE: usize = 16 << 20;

/// The u32 in the first four bytes; 0 where there are fewer.
fn word(bytes: &[u8]) -> u32 {
    bytes.first_chunk().map_or(0, |&word| u32::from_le_bytes(word))
}
