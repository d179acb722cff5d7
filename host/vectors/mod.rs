//! Data sets: element types, file formats, metrics and distances.

mod advice;
pub(crate) mod distance;
mod element;
pub(crate) mod embedding;
mod format;
pub(crate) mod gpu;
mod metric;
pub(crate) mod npy;
mod open;
mod pair;
mod save;
pub(crate) mod shape;
pub(crate) mod space;
mod synth;
mod truth;

use std::borrow::Cow;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use half::f16;
use memmap2::Mmap;
use rayon::prelude::*;

pub(crate) use advice::{Access, advise, far_apart};
pub(crate) use element::Element;
pub use element::ElementType;
pub use format::Format;
pub use metric::Metric;
pub(crate) use open::{map, open_ids_as};
pub use shape::DataShape;
pub use synth::Synth;
pub use truth::GroundTruth;

use crate::{Error, Result};

/// The largest number of rows a data set may have: ids are `u32`, and `u32::MAX` means none.
pub const MAX_ROWS: usize = u32::MAX as usize - 1;

/// The largest dimension.
pub const MAX_DIM: usize = 4096;

/// A data set: rows of one dimension and one element type, in memory or mapped from a file.
///
/// ```
/// use tagore::Vectors;
/// let vectors = Vectors::from_f32(vec![0.0, 1.0, 2.0, 3.0, 4.0, 5.0], 3)?;
/// assert_eq!((vectors.len(), vectors.dim()), (2, 3));
/// # Ok::<(), tagore::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Vectors {
    storage: Storage,
    layout: Layout,
    path: Option<PathBuf>,
    /// Set once all values have been found finite (and the rows of a `vecs` file of one dimension).
    checked: OnceLock<()>,
}

#[derive(Clone, Debug)]
enum Storage {
    Mapped(Arc<Mmap>),
    F32(Vec<f32>),
    F16(Vec<f16>),
    U8(Vec<u8>),
    I8(Vec<i8>),
}

/// Where the rows lie in the storage: row `i` starts at byte `offset + i * stride`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub element: ElementType,
    pub rows: usize,
    pub dim: usize,
    pub offset: usize,
    pub stride: usize,
    /// Each row is preceded by its dimension as an i32 (fvecs, bvecs).
    pub prefixed: bool,
}

impl Layout {
    /// Rows one after another from byte 0.
    pub(crate) fn dense(element: ElementType, rows: usize, dim: usize) -> Self {
        Self { element, rows, dim, offset: 0, stride: dim * element.size(), prefixed: false }
    }
}

/// Rows of one type: row `i` is `data[i * stride..][..dim]`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matrix<'a, T> {
    data: &'a [T],
    stride: usize,
    dim: usize,
}

impl<'a, T: Element> Matrix<'a, T> {
    pub(crate) fn new(data: &'a [T], stride: usize, dim: usize) -> Self {
        Self { data, stride, dim }
    }

    pub(crate) fn dim(&self) -> usize {
        self.dim
    }

    #[inline(always)]
    pub(crate) fn row(&self, index: usize) -> &'a [T] {
        let start = index * self.stride;
        &self.data[start..start + self.dim]
    }
}

/// Rows of any type.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rows<'a> {
    F32(Matrix<'a, f32>),
    F16(Matrix<'a, f16>),
    U8(Matrix<'a, u8>),
    I8(Matrix<'a, i8>),
}

/// Evaluates `$body` with `$matrix` bound to the matrix of whichever type the rows have.
macro_rules! with_matrix {
    ($rows:expr, $matrix:ident => $body:expr) => {
        match $rows {
            $crate::vectors::Rows::F32($matrix) => $body,
            $crate::vectors::Rows::F16($matrix) => $body,
            $crate::vectors::Rows::U8($matrix) => $body,
            $crate::vectors::Rows::I8($matrix) => $body,
        }
    };
}
pub(crate) use with_matrix;

macro_rules! from_values {
    ($name:ident, $type:ty, $variant:ident) => {
        #[doc = concat!("A data set of `", stringify!($type), "` values, row after row, `dim` to a row.")]
        ///
        /// # Errors
        /// If `dim` is not in 1..=4096 or does not divide the number of values.
        pub fn $name(values: Vec<$type>, dim: usize) -> Result<Self> {
            check_dim(dim)?;
            if values.len() % dim != 0 {
                return Err(Error::argument(
                    "values",
                    values.len(),
                    format_args!("a multiple of dim = {dim}"),
                ));
            }
            let layout = Layout::dense(ElementType::$variant, values.len() / dim, dim);
            check_rows(layout.rows)?;
            Ok(Self::new(Storage::$variant(values), layout, None))
        }
    };
}

/// At most 1,024 of `rows` rows: the first, the last, and the others evenly between them.
pub(crate) fn spread_rows(rows: usize) -> impl Iterator<Item = usize> {
    let taken = rows.min(1024);
    (0..taken).map(move |index| if taken == 1 { 0 } else { index * (rows - 1) / (taken - 1) })
}

fn check_dim(dim: usize) -> Result<()> {
    if (1..=MAX_DIM).contains(&dim) { Ok(()) } else { Err(Error::argument("dim", dim, "1 to 4096")) }
}

fn check_rows(rows: usize) -> Result<()> {
    if rows <= MAX_ROWS {
        Ok(())
    } else {
        Err(Error::argument("rows", rows, format_args!("at most {MAX_ROWS}")))
    }
}

impl Vectors {
    from_values!(from_f32, f32, F32);
    from_values!(from_f16, f16, F16);
    from_values!(from_u8, u8, U8);
    from_values!(from_i8, i8, I8);

    /// Rows of a dimension that is known to be in range and to divide the number of values.
    pub(crate) fn dense_f32(values: Vec<f32>, dim: usize) -> Self {
        let layout = Layout::dense(ElementType::F32, values.len() / dim, dim);
        Self::new(Storage::F32(values), layout, None)
    }

    fn new(storage: Storage, layout: Layout, path: Option<PathBuf>) -> Self {
        Self { storage, layout, path, checked: OnceLock::new() }
    }

    /// The number of rows, n.
    pub fn len(&self) -> usize {
        self.layout.rows
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Components per row.
    pub fn dim(&self) -> usize {
        self.layout.dim
    }

    /// The type of the components.
    pub fn element_type(&self) -> ElementType {
        self.layout.element
    }

    /// The file these vectors were opened from.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Row `index` as f32, converted if the type differs.
    ///
    /// # Panics
    /// If `index >= len()`.
    pub fn row(&self, index: usize) -> Cow<'_, [f32]> {
        assert!(index < self.len(), "row {index} of {}", self.len());
        match self.rows() {
            Rows::F32(matrix) => Cow::Borrowed(matrix.row(index)),
            rows => {
                with_matrix!(rows, m => m.row(index).iter().map(|&x| Element::to_f32(x)).collect())
            }
        }
    }

    /// Has the system begin to read the rows of `range`, as far as there are such, if they are mapped from a file.
    pub(crate) fn prefetch(&self, range: Range<usize>) {
        let Layout { rows, offset, stride, .. } = self.layout;
        let (first, end) = (range.start.min(rows), range.end.min(rows));
        if let Storage::Mapped(map) = &self.storage
            && first < end
        {
            let begin = offset + first * stride;
            advice::prefetch(map, begin..(offset + end * stride).min(map.len()));
        }
    }

    /// Tells the system how rows are read from here on, if they are mapped from a file.
    pub(crate) fn advise(&self, access: Access) {
        if let Storage::Mapped(map) = &self.storage {
            advise(map, access);
        }
    }

    /// Copies of the rows `ids`.
    pub(crate) fn select(&self, ids: &[u32]) -> Self {
        macro_rules! gather {
            ($matrix:expr) => {
                ids.iter().flat_map(|&id| $matrix.row(id as usize)).copied().collect()
            };
        }
        let storage = match self.rows() {
            Rows::F32(m) => Storage::F32(gather!(m)),
            Rows::F16(m) => Storage::F16(gather!(m)),
            Rows::U8(m) => Storage::U8(gather!(m)),
            Rows::I8(m) => Storage::I8(gather!(m)),
        };
        Self::new(storage, Layout::dense(self.element_type(), ids.len(), self.dim()), None)
    }

    /// What to call these vectors in an error: their file, or `vectors`.
    pub(crate) fn describe(&self) -> String {
        self.path().map_or_else(|| "vectors".to_owned(), |p| p.display().to_string())
    }

    pub(crate) fn rows(&self) -> Rows<'_> {
        match &self.storage {
            Storage::Mapped(map) => match self.layout.element {
                ElementType::F32 => Rows::F32(self.matrix(map)),
                ElementType::F16 => Rows::F16(self.matrix(map)),
                ElementType::U8 => Rows::U8(self.matrix(map)),
                ElementType::I8 => Rows::I8(self.matrix(map)),
            },
            Storage::F32(values) => Rows::F32(Matrix::new(values, self.dim(), self.dim())),
            Storage::F16(values) => Rows::F16(Matrix::new(values, self.dim(), self.dim())),
            Storage::U8(values) => Rows::U8(Matrix::new(values, self.dim(), self.dim())),
            Storage::I8(values) => Rows::I8(Matrix::new(values, self.dim(), self.dim())),
        }
    }

    fn matrix<'a, T: Element>(&self, map: &'a Mmap) -> Matrix<'a, T> {
        let Layout { rows, dim, offset, stride, .. } = self.layout;
        let end = if rows == 0 { offset } else { offset + (rows - 1) * stride + dim * size_of::<T>() };
        // Opening checked that the file is this long and that every row is aligned.
        Matrix::new(bytemuck::cast_slice(&map[offset..end]), stride / size_of::<T>(), dim)
    }

    /// Checks that every value is finite and that every row of an fvecs or bvecs file has the
    /// dimension of the first. Reads all of the data the first time, nothing after that; building
    /// and searching call it.
    ///
    /// # Errors
    /// [`Error::Value`] or [`Error::File`] for the first row at fault.
    pub fn validate(&self) -> Result<()> {
        if self.checked.get().is_none() {
            self.check_values((0..self.len()).into_par_iter().with_min_len(1024))?;
            self.validated();
        }
        Ok(())
    }

    /// Checks as [`validate`](Self::validate) does, but only some rows, which are about to be read anyway.
    pub(crate) fn validate_rows(
        &self,
        rows: impl IndexedParallelIterator<Item = usize> + Clone,
    ) -> Result<()> {
        if self.checked.get().is_some() { Ok(()) } else { self.check_values(rows) }
    }

    /// Says that all rows have been checked.
    pub(crate) fn validated(&self) {
        self.checked.get_or_init(|| ());
    }

    /// Checks as [`validate`](Self::validate) does, but only 1,024 rows spread over all: however large the file is, this takes
    /// no time.
    ///
    /// # Errors
    /// As [`validate`](Self::validate).
    pub fn spot_check(&self) -> Result<()> {
        self.far_apart(|| self.check_values(spread_rows(self.len()).collect::<Vec<_>>().into_par_iter()))
    }

    /// Runs `read`, which reads rows that are far apart.
    pub(crate) fn far_apart<R>(&self, read: impl FnOnce() -> R) -> R {
        match &self.storage {
            Storage::Mapped(map) => far_apart(map, read),
            _ => read(),
        }
    }

    fn check_values(&self, rows: impl IndexedParallelIterator<Item = usize> + Clone) -> Result<()> {
        self.check_prefixes(rows.clone())?;
        match self.rows() {
            Rows::F32(matrix) => self.check_finite(matrix, rows),
            Rows::F16(matrix) => self.check_finite(matrix, rows),
            Rows::U8(_) | Rows::I8(_) => Ok(()),
        }
    }

    fn check_finite<T: Element>(
        &self,
        matrix: Matrix<'_, T>,
        rows: impl IndexedParallelIterator<Item = usize>,
    ) -> Result<()> {
        let finite = |row: &usize| matrix.row(*row).iter().all(|x| x.is_finite());
        let bad = rows.find_first(|row| !finite(row));
        let Some(row) = bad else { return Ok(()) };
        let values = matrix.row(row);
        let dim = values.iter().position(|x| !x.is_finite()).unwrap_or(0);
        Err(self.bad_value(row, dim, values[dim], "a finite number"))
    }

    fn bad_value(&self, row: usize, dim: usize, value: impl ToString, expected: &'static str) -> Error {
        Error::Value { path: self.path.clone(), row, dim, value: value.to_string(), expected }
    }

    fn check_prefixes(&self, rows: impl IndexedParallelIterator<Item = usize>) -> Result<()> {
        let (Storage::Mapped(map), true) = (&self.storage, self.layout.prefixed) else {
            return Ok(());
        };
        let Layout { dim, stride, .. } = self.layout;
        let prefix = |row: usize| {
            let start = row * stride;
            i32::from_le_bytes([map[start], map[start + 1], map[start + 2], map[start + 3]])
        };
        let bad = rows.find_first(|&row| prefix(row) != dim as i32);
        let (Some(row), Some(path)) = (bad, &self.path) else {
            return Ok(());
        };
        Err(Error::file(
            path,
            format_args!("dimension {} in row {row}", prefix(row)),
            format_args!("{dim} as in row 0"),
        ))
    }
}
