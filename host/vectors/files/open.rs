//! Opening of vector and id files. Sizes are checked against headers before any allocation.

use std::fs::File;
use std::path::Path;

use bytemuck::AnyBitPattern;
use tagore_device::key::NO_ID;

use crate::memory::with_capacity;
use crate::vectors::content::{Content, check_len};
use crate::vectors::format::Framing;
use crate::vectors::mapped::MappedFile;
use crate::vectors::shape::with_type;
use crate::vectors::storage::Storage;
use crate::vectors::{ElementType, Format, Layout, MAX_DIM, MAX_ROWS, Vectors, npy};
use crate::{Error, Progress, Result, regular_file};

impl Vectors {
    /// Reads a file of vectors to memory, in the format of its extension ([`Format::from_path`]).
    ///
    /// What happens to the file afterwards changes nothing. Large files are better
    /// [mapped](Self::map). [`validate`](Self::validate) checks the values.
    ///
    /// # Errors
    /// If the file cannot be read, its extension names no vector format, its size contradicts its
    /// header, the dimension is not in 1..=4096 (of bits, 1..=32768), there are more than
    /// [`MAX_ROWS`] rows, or memory is short.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        // A folder, or no file at all, is told before a wrong extension.
        let format = regular_file::open(path).and_then(|_| Format::from_path(path))?;
        Self::open_as(path, format)
    }

    /// Reads a file of vectors in `format`, whatever its extension; see [`open`](Self::open).
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_as(path: impl AsRef<Path>, format: Format) -> Result<Self> {
        OpenedFile::read(path.as_ref())?.vectors(format)
    }

    /// Maps a file of vectors in the format of its extension (see [`Format::from_path`]).
    ///
    /// The file is not read: mapping takes constant time and memory for any size.
    /// [`validate`](Self::validate) checks the values.
    ///
    /// # Safety
    /// - No one changes or truncates the file while the vectors, or clones of them, exist. Another
    ///   file may be renamed over it. On Unix, a read past the end of a truncated file raises
    ///   SIGBUS.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub unsafe fn map(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let format = regular_file::open(path).and_then(|_| Format::from_path(path))?;
        // SAFETY: the caller's promise.
        unsafe { Self::map_as(path, format) }
    }

    /// Maps a file of vectors in `format`, whatever its extension; see [`map`](Self::map).
    ///
    /// # Safety
    /// - As of [`map`](Self::map).
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub unsafe fn map_as(path: impl AsRef<Path>, format: Format) -> Result<Self> {
        let path = path.as_ref();
        // SAFETY: the caller's promise.
        let content = Content::Mapped(unsafe { map(path) }?);
        OpenedFile { path, content }.vectors(format)
    }
}

/// Maps the first `rows` rows, at least one, of a file of rows without gaps.
///
/// # Safety
/// - The file has these rows. No one changes them, or cuts the file short before their end, while
///   the vectors, or clones of them, exist. Bytes after them may change.
///
/// # Errors
/// If the system refuses.
pub(crate) unsafe fn map_rows(
    file: &File,
    path: &Path,
    rows: usize,
    dim: usize,
    element: ElementType,
) -> Result<Vectors> {
    let layout = Layout::dense(element, rows, dim);
    // SAFETY: the caller's promise.
    let map = unsafe { MappedFile::beginning(file, rows * layout.stride) }.map_err(Error::io(path))?;
    Ok(Vectors::new(Storage::new(Content::Mapped(map)), layout, None))
}

/// A matrix of ids from a file, row-major.
#[derive(Debug)]
pub(crate) struct IdMatrix {
    pub rows: usize,
    pub cols: usize,
    pub ids: Vec<u32>,
}

/// Reads a file of ids in `format`: ivecs, ibin or npy of any integer type. Signed ids of 32 bits
/// are reinterpreted; −1 of any type is `u32::MAX`, none.
///
/// # Errors
/// If the file cannot be read, its size contradicts its header, memory is short, or the work is
/// cancelled.
pub(crate) fn open_ids_as(path: &Path, format: Format, progress: &Progress) -> Result<IdMatrix> {
    OpenedFile::map_to_copy(path)?.ids(format, progress)
}

/// Maps a regular file that is not empty.
///
/// # Safety
/// - No one changes or truncates the file while it is mapped. Or all that is taken from the map are
///   copies of numbers, and nothing is checked in the map that is used later: then a change gives
///   other numbers, as if it had come before or after.
///
/// # Errors
/// If the file cannot be opened, is not a regular file, or is empty.
pub(crate) unsafe fn map(path: &Path) -> Result<MappedFile> {
    let file = regular_file::open(path)?;
    // SAFETY: the caller's promise.
    let map = unsafe { MappedFile::new(&file, path) }.map_err(Error::io(path))?;
    check_len(path, map.len() as u64)?;
    Ok(map)
}

/// A file that is not empty, mapped or read.
pub(in crate::vectors) struct OpenedFile<'a> {
    path: &'a Path,
    content: Content,
}

/// The header of a `bin` file.
#[derive(Clone, Copy)]
pub(in crate::vectors) struct BinHeader {
    /// Size of the header: 8 or 16 bytes.
    pub bytes: usize,
    pub rows: u64,
    pub cols: u64,
}

impl BinHeader {
    /// This header with columns of values that hold `per_value` components each.
    fn of_values(self, per_value: usize) -> Self {
        Self { cols: self.cols.div_ceil(per_value as u64), ..self }
    }

    /// File size with this header and `size` bytes per element.
    pub(in crate::vectors) fn file_size(&self, size: usize) -> u128 {
        let elements = u128::from(self.rows) * u128::from(self.cols);
        elements.saturating_mul(size as u128).saturating_add(self.bytes as u128)
    }
}

/// A checked shape: rows, columns, and the byte offset of the first value.
pub(in crate::vectors) struct Shape {
    pub rows: usize,
    pub cols: usize,
    pub offset: usize,
}

impl<'a> OpenedFile<'a> {
    pub(in crate::vectors) fn read(path: &'a Path) -> Result<Self> {
        Ok(Self { path, content: Content::read(path)? })
    }

    /// Maps a file for as long as its numbers are [copied](Self::copied).
    pub(in crate::vectors) fn map_to_copy(path: &'a Path) -> Result<Self> {
        // SAFETY: callers copy numbers, and check the copies. Sizes are those of the map, which
        // does not change.
        Ok(Self { path, content: Content::Mapped(unsafe { map(path) }?) })
    }

    pub(in crate::vectors) fn path(&self) -> &'a Path {
        self.path
    }

    pub(in crate::vectors) fn bytes(&self) -> &[u8] {
        &self.content
    }

    pub(in crate::vectors) fn into_content(self) -> Content {
        self.content
    }

    fn vectors(self, format: Format) -> Result<Vectors> {
        let (element, shape) = match (format.framing(), format.element()) {
            (Framing::Npy, _) => {
                let named = |element| Some((npy::name(element)?, ElementType::size(element), element));
                // `numpy.save` writes bf16 under this name or that of `npy::name`, by its version.
                let other = ("|V2", 2, ElementType::Bf16);
                let types: Vec<_> = ElementType::ALL.into_iter().filter_map(named).chain([other]).collect();
                self.npy(&types, MAX_DIM)?
            }
            (Framing::Vecs, Some(element)) => (element, self.vecs(element.size(), MAX_DIM)?),
            (Framing::Bin, Some(element)) => {
                (element, self.bin_of(element.size(), element.per_value(), element.max_dim())?)
            }
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
        let stride = element.row_bytes(dim) + if prefixed { PREFIX } else { 0 };
        let path = Some(self.path.to_owned());
        if offset.is_multiple_of(element.size()) {
            let layout = Layout { element, rows, dim, offset, stride, prefixed };
            return Ok(Vectors::new(Storage::new(self.content), layout, path));
        }
        // An npy header may have any length. Unaligned values cannot be used in place.
        let (values, silent) = (&self.content[offset..], &Progress::silent());
        let storage = with_type!(element, T => Storage::owned(self.copied::<T>(values, silent)?));
        Ok(Vectors::new(storage, Layout::dense(element, rows, dim), path))
    }

    pub(in crate::vectors) fn ids(&self, format: Format, progress: &Progress) -> Result<IdMatrix> {
        if !format.may_hold_ids() {
            let expected = format!("ids: {}", Format::id_names());
            return Err(Error::file(self.path, format_args!("vectors ({format})"), expected));
        }
        let Shape { rows, cols, offset } = match format.framing() {
            Framing::Vecs => self.vecs(ID, i32::MAX as usize)?,
            Framing::Bin => self.bin(ID, u32::MAX as usize)?,
            Framing::Npy => {
                let (kind, shape) = self.npy(&npy::Integer::ALL, u32::MAX as usize)?;
                if kind.size != ID {
                    return self.converted_ids(kind, &shape, progress);
                }
                shape
            }
        };
        let ids = if format.framing() == Framing::Vecs {
            let mut ids = with_capacity(rows * cols)?;
            for (row, bytes) in self.content.chunks_exact(PREFIX + cols * ID).enumerate() {
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
            self.copied(&self.content[offset..], progress)?
        };
        Ok(IdMatrix { rows, cols, ids })
    }

    /// Converts the ids of an npy file from another type than 32 bits.
    fn converted_ids(&self, kind: npy::Integer, shape: &Shape, progress: &Progress) -> Result<IdMatrix> {
        let &Shape { rows, cols, offset } = shape;
        let mut ids = with_capacity(rows * cols)?;
        for piece in self.content[offset..].chunks(PIECE) {
            progress.check()?;
            for number in kind.numbers(piece) {
                let id = if number == -1 { Some(NO_ID) } else { u32::try_from(number).ok() };
                let Some(id) = id else {
                    let found = format!("the id {number} in row {}", ids.len() / cols);
                    return Err(Error::file(self.path, found, format_args!("ids of 0 to {}", u32::MAX)));
                };
                ids.push(id);
            }
        }
        Ok(IdMatrix { rows, cols, ids })
    }

    /// The integers from byte `offset` on as u64; negative ones wrap.
    pub(in crate::vectors) fn widened(&self, kind: npy::Integer, offset: usize) -> Result<Vec<u64>> {
        let bytes = &self.content[offset..];
        let mut values = with_capacity(bytes.len() / kind.size)?;
        values.extend(kind.numbers(bytes).map(|number| number as u64));
        Ok(values)
    }

    /// Copies these `bytes` of the file as numbers.
    pub(in crate::vectors) fn copied<T: AnyBitPattern>(
        &self,
        bytes: &[u8],
        progress: &Progress,
    ) -> Result<Vec<T>> {
        let mut values = with_capacity(bytes.len() / size_of::<T>())?;
        for piece in bytes.chunks(PIECE) {
            progress.check()?;
            values.extend(piece.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned::<T>));
        }
        Ok(values)
    }

    /// The headers that the file may start with: 8 bytes and, if it is long enough, 16.
    pub(in crate::vectors) fn bin_headers(&self) -> Result<Vec<BinHeader>> {
        let bytes: &[u8] = &self.content;
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

    /// The shape of a `bin` file with `size` bytes per element and at most `widest` columns.
    pub(in crate::vectors) fn bin(&self, size: usize, widest: usize) -> Result<Shape> {
        self.bin_of(size, 1, widest)
    }

    /// The shape of a `bin` file of values with `size` bytes and `per_value` components, and of at
    /// most `widest` components per row.
    fn bin_of(&self, size: usize, per_value: usize, widest: usize) -> Result<Shape> {
        let headers = self.bin_headers()?;
        let bytes = |header: &BinHeader| header.of_values(per_value).file_size(size);
        // No file matches both: read as a short header, a long one has no columns.
        if let Some(header) = headers.iter().find(|header| bytes(header) == self.content.len() as u128) {
            return self.shape(header.rows, header.cols, header.bytes, widest);
        }
        let stated = headers.iter().find(|header| header.cols != 0).unwrap_or(&headers[0]);
        Err(self.wrong_size(&stated.of_values(per_value), size))
    }

    /// The shape of a `vecs` file with `size` bytes per element and at most `widest` elements per
    /// row.
    fn vecs(&self, size: usize, widest: usize) -> Result<Shape> {
        let bytes = self.content.len();
        let Some(prefix) = self.content.first_chunk::<PREFIX>() else {
            return Err(Error::file(self.path, format_args!("{bytes} bytes"), "rows with a 4-byte length"));
        };
        let cols = i32::from_le_bytes(*prefix);
        let row = PREFIX as u64 + u64::try_from(cols).unwrap_or(0) * size as u64;
        let shape = self.shape(bytes as u64 / row, cols, PREFIX, widest)?;
        if (bytes as u64).is_multiple_of(row) {
            return Ok(shape);
        }
        let expected = format!("a multiple of {row}, the bytes of a row of {cols} values");
        Err(Error::file(self.path, format_args!("{bytes} bytes"), expected))
    }

    /// The shape and type of an npy file of one of `types`, each given as NumPy name, size and
    /// value.
    fn npy<T: Copy>(&self, types: &[(&str, usize, T)], widest: usize) -> Result<(T, Shape)> {
        let names: Vec<&str> = types.iter().map(|(name, ..)| *name).collect();
        let expected = format!("a 2-D array in C order of {}", names.join(", "));
        let Some(header) = npy::parse(&self.content) else {
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
        let stated = BinHeader { bytes: header.offset, rows, cols };
        if stated.file_size(size) != self.content.len() as u128 {
            return Err(self.wrong_size(&stated, size));
        }
        Ok((kind, self.shape(rows, cols, header.offset, widest)?))
    }

    fn wrong_size(&self, stated: &BinHeader, size: usize) -> Error {
        let BinHeader { bytes, rows, cols } = stated;
        let expected =
            format!("{} ({bytes} + {rows} x {cols} x {size}, by its header)", stated.file_size(size));
        Error::file(self.path, format_args!("{} bytes", self.content.len()), expected)
    }

    /// Checks the numbers of a header against the limits.
    fn shape(&self, rows: u64, cols: impl Into<i128>, offset: usize, widest: usize) -> Result<Shape> {
        let cols = cols.into();
        let Some(cols) = usize::try_from(cols).ok().filter(|cols| (1..=widest).contains(cols)) else {
            return Err(Error::file(
                self.path,
                format_args!("{cols} values per row"),
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

/// Bytes of the length before each row of a `vecs` file.
const PREFIX: usize = 4;

/// Bytes of an id.
const ID: usize = 4;

/// Bytes copied between two checks for cancellation; a multiple of every element size.
const PIECE: usize = 16 << 20;

/// The first four bytes as u32; 0 if there are fewer.
fn word(bytes: &[u8]) -> u32 {
    bytes.first_chunk().map_or(0, |&word| u32::from_le_bytes(word))
}
