//! Opening files: sizes are checked against the header before anything else, and rows stay where
//! they are in the mapped file.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use memmap2::Mmap;
use npyz::{DType, NpyFile, TypeChar};

use super::{Element, ElementType, Format, Layout, MAX_DIM, MAX_ROWS, Storage, Vectors};
use crate::{Error, Result};

impl Vectors {
    /// Opens a file in the format of its extension, without reading its rows: they are read where
    /// they lie when they are used. The file must not be changed or cut short while it is open.
    ///
    /// # Errors
    /// If the file cannot be opened, its extension is unknown, its header makes no sense, or its
    /// size is not what the header says. Values are checked by [`validate`](Self::validate).
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        Self::open_as(path, Format::of(path)?)
    }

    /// Opens a file in the given format; see [`open`](Self::open).
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_as(path: impl AsRef<Path>, format: Format) -> Result<Self> {
        let path = path.as_ref();
        let map = map(path)?;
        let layout = match format {
            Format::Fvecs => vecs_layout(path, &map, ElementType::F32)?,
            Format::Bvecs => vecs_layout(path, &map, ElementType::U8)?,
            Format::Fbin | Format::F16bin | Format::U8bin | Format::I8bin => {
                bin_layout(path, &map, format.element().unwrap_or(ElementType::F32))?
            }
            Format::Npy => npy_layout(path, &map)?,
            Format::Ivecs | Format::Ibin => {
                return Err(Error::file(path, format_args!("ids ({format})"), "vectors"));
            }
        };
        if !(1..=MAX_DIM).contains(&layout.dim) {
            return Err(Error::file(
                path,
                format_args!("dimension {}", layout.dim),
                format_args!("1 to {MAX_DIM}"),
            ));
        }
        if layout.rows > MAX_ROWS {
            return Err(Error::file(
                path,
                format_args!("{} rows", layout.rows),
                format_args!("at most {MAX_ROWS}"),
            ));
        }
        // Only an npy header of an odd length, from a foreign writer, leaves rows misaligned.
        if layout.offset % layout.element.size() != 0 {
            return Ok(copied(&map, layout, path));
        }
        Ok(Self::new(Storage::Mapped(Arc::new(map)), layout, Some(path.to_owned())))
    }
}

/// The rows of a map in memory of their own, which is aligned for their type.
fn copied(map: &Mmap, layout: Layout, path: &Path) -> Vectors {
    fn values<T: Element>(map: &Mmap, layout: Layout) -> Vec<T> {
        bytemuck::pod_collect_to_vec(&map[layout.offset..layout.offset + layout.rows * layout.stride])
    }
    let storage = match layout.element {
        ElementType::F32 => Storage::F32(values(map, layout)),
        ElementType::F16 => Storage::F16(values(map, layout)),
        ElementType::U8 => Storage::U8(values(map, layout)),
        ElementType::I8 => Storage::I8(values(map, layout)),
    };
    let dense = Layout::dense(layout.element, layout.rows, layout.dim);
    Vectors::new(storage, dense, Some(path.to_owned()))
}

/// Maps a file that is not empty.
pub(crate) fn map(path: &Path) -> Result<Mmap> {
    let file = File::open(path).map_err(Error::io(path))?;
    let metadata = file.metadata().map_err(Error::io(path))?;
    if !metadata.is_file() {
        return Err(Error::file(path, "no regular file", "a file"));
    }
    if metadata.len() == 0 {
        return Err(Error::file(path, "an empty file", "a header and rows"));
    }
    // SAFETY: the map is only read. That no one else changes or cuts the file meanwhile is what the
    // documentation of the functions that open files asks for; a program cannot enforce it.
    unsafe { Mmap::map(&file) }.map_err(Error::io(path))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?)))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// What a header of rows and columns means for values of `size` bytes each.
struct Bin {
    header: usize,
    rows: u64,
    cols: u64,
}

impl Bin {
    /// The bytes of a file of this shape; none if they do not fit 64 bits.
    fn bytes(&self, size: usize) -> Option<u64> {
        self.rows.checked_mul(self.cols)?.checked_mul(size as u64)?.checked_add(self.header as u64)
    }

    /// The headers a file may have: two u32, or two u64.
    fn candidates(bytes: &[u8]) -> impl Iterator<Item = Self> {
        let short = u32_at(bytes, 0).zip(u32_at(bytes, 4)).map(|(rows, cols)| Self { header: 8, rows, cols });
        let long = u64_at(bytes, 0).zip(u64_at(bytes, 8)).map(|(rows, cols)| Self { header: 16, rows, cols });
        short.into_iter().chain(long)
    }

    /// The header whose shape gives the size of the file.
    fn of(path: &Path, bytes: &[u8], size: usize) -> Result<Self> {
        let fits = |bin: &Self| bin.bytes(size) == Some(bytes.len() as u64);
        if let Some(bin) = Self::candidates(bytes).find(fits) {
            return Ok(bin);
        }
        let Some(bin) = Self::candidates(bytes).next() else {
            return Err(Error::file(
                path,
                format_args!("{} bytes", bytes.len()),
                "a header of at least 8 bytes",
            ));
        };
        let expected = bin.bytes(size).map_or("more than 2^64".to_owned(), |bytes| bytes.to_string());
        Err(Error::file(
            path,
            format_args!("{} bytes", bytes.len()),
            format_args!("{expected} for the {} x {} of its header", bin.rows, bin.cols),
        ))
    }
}

fn bin_layout(path: &Path, bytes: &[u8], element: ElementType) -> Result<Layout> {
    let bin = Bin::of(path, bytes, element.size())?;
    let (rows, dim) = (bin.rows as usize, bin.cols as usize);
    Ok(Layout { offset: bin.header, ..Layout::dense(element, rows, dim) })
}

fn vecs_layout(path: &Path, bytes: &[u8], element: ElementType) -> Result<Layout> {
    let Some(dim) = u32_at(bytes, 0) else {
        return Err(Error::file(
            path,
            format_args!("{} bytes", bytes.len()),
            "an i32 dimension before each row",
        ));
    };
    if !(1..=MAX_DIM as u64).contains(&dim) {
        return Err(Error::file(
            path,
            format_args!("dimension {}", dim as i32),
            format_args!("1 to {MAX_DIM}"),
        ));
    }
    let dim = dim as usize;
    let stride = 4 + dim * element.size();
    if bytes.len() % stride != 0 {
        return Err(Error::file(
            path,
            format_args!("{} bytes", bytes.len()),
            format_args!("a multiple of {stride}, a row of dimension {dim}"),
        ));
    }
    Ok(Layout { element, rows: bytes.len() / stride, dim, offset: 4, stride, prefixed: true })
}

fn npy_layout(path: &Path, bytes: &[u8]) -> Result<Layout> {
    let npy = Npy::of(path, bytes)?;
    let element = match (npy.kind, npy.size) {
        (TypeChar::Float, 4) => ElementType::F32,
        (TypeChar::Float, 2) => ElementType::F16,
        (TypeChar::Uint, 1) => ElementType::U8,
        (TypeChar::Int, 1) => ElementType::I8,
        _ => {
            return Err(Error::file(
                path,
                format_args!("type {}", npy.descr),
                "f4, f2, u1 or i1, little-endian",
            ));
        }
    };
    Ok(Layout { offset: npy.offset, ..Layout::dense(element, npy.rows, npy.cols) })
}

/// The header of a NumPy file of two dimensions in C order.
struct Npy {
    descr: String,
    kind: TypeChar,
    size: usize,
    rows: usize,
    cols: usize,
    offset: usize,
}

impl Npy {
    fn of(path: &Path, bytes: &[u8]) -> Result<Self> {
        let mut rest = bytes;
        let file = NpyFile::new(&mut rest).map_err(|error| {
            let what = error.to_string();
            Error::file(path, what.lines().next().unwrap_or("another file"), "a NumPy header")
        })?;
        let descr = file.dtype().descr();
        let DType::Plain(plain) = file.dtype() else {
            return Err(Error::file(path, format_args!("type {descr}"), "a plain number"));
        };
        if plain.endianness() == npyz::Endianness::Big {
            return Err(Error::file(path, format_args!("type {descr}"), "little-endian numbers"));
        }
        let (shape, order) = (file.shape().to_vec(), file.order());
        let &[rows, cols] = shape.as_slice() else {
            return Err(Error::file(path, format_args!("shape {shape:?}"), "two dimensions"));
        };
        if order != npyz::Order::C && rows > 1 && cols > 1 {
            return Err(Error::file(path, "Fortran order", "C order"));
        }
        let (kind, size) = (plain.type_char(), plain.size_field() as usize);
        drop(file);
        let offset = bytes.len() - rest.len();
        let bin = Bin { header: offset, rows, cols };
        if bin.bytes(size) != Some(bytes.len() as u64) {
            let expected = bin.bytes(size).map_or("more than 2^64".to_owned(), |bytes| bytes.to_string());
            return Err(Error::file(
                path,
                format_args!("{} bytes", bytes.len()),
                format_args!("{expected} for the shape {shape:?} of its header"),
            ));
        }
        Ok(Self { descr, kind, size, rows: rows as usize, cols: cols as usize, offset })
    }
}

/// Rows of ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct IdMatrix {
    pub rows: usize,
    pub cols: usize,
    pub ids: Vec<u32>,
}

/// Reads ids: ivecs or npy by extension, else ibin.
pub(crate) fn open_ids(path: &Path) -> Result<IdMatrix> {
    let map = map(path)?;
    match Format::of(path) {
        Ok(Format::Ivecs) => {
            let layout = vecs_layout(path, &map, ElementType::F32)?;
            let mut ids = Vec::with_capacity(layout.rows * layout.dim);
            for (row, bytes) in map.chunks_exact(layout.stride).enumerate() {
                if u32_at(bytes, 0) != Some(layout.dim as u64) {
                    return Err(Error::file(
                        path,
                        format_args!("another width in row {row}"),
                        format_args!("{} as in row 0", layout.dim),
                    ));
                }
                ids.extend(bytes[4..].chunks_exact(4).map(id));
            }
            Ok(IdMatrix { rows: layout.rows, cols: layout.dim, ids })
        }
        Ok(Format::Npy) => {
            let npy = Npy::of(path, &map)?;
            if npy.size != 4 || !matches!(npy.kind, TypeChar::Int | TypeChar::Uint) {
                return Err(Error::file(path, format_args!("type {}", npy.descr), "u4 or i4"));
            }
            let ids = map[npy.offset..].chunks_exact(4).map(id).collect();
            Ok(IdMatrix { rows: npy.rows, cols: npy.cols, ids })
        }
        _ => {
            let bin = Bin::of(path, &map, 4)?;
            let ids = map[bin.header..].chunks_exact(4).map(id).collect();
            Ok(IdMatrix { rows: bin.rows as usize, cols: bin.cols as usize, ids })
        }
    }
}

fn id(bytes: &[u8]) -> u32 {
    bytes.try_into().map_or(u32::MAX, u32::from_le_bytes)
}

/// Reads ids and distances in the big-ann layout: a header of rows and width, u32 ids, f32
/// distances. None if the size of the file is not that of this layout.
pub(crate) fn open_truth(path: &Path) -> Result<Option<(IdMatrix, Vec<f32>)>> {
    let map = map(path)?;
    let fits = |bin: &Bin| bin.bytes(8) == Some(map.len() as u64);
    Ok(Bin::candidates(&map).find(fits).map(|bin| {
        let (ids, distances) = map[bin.header..].split_at((map.len() - bin.header) / 2);
        let matrix = IdMatrix {
            rows: bin.rows as usize,
            cols: bin.cols as usize,
            ids: ids.chunks_exact(4).map(id).collect(),
        };
        (matrix, distances.chunks_exact(4).map(|bytes| f32::from_bits(id(bytes))).collect())
    }))
}
