//! Data sets: element types, file formats, metrics and distances.

mod files;
pub(crate) mod gpu;
mod metric;
mod storage;
mod synth;

use std::borrow::Cow;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

pub(crate) use advice::{Access, advise, far_apart};
pub use bits::Bits;
pub(crate) use content::Content;
pub use element::{Component, ElementType};
pub(crate) use element::{Element, Scalar};
pub(crate) use files::npy;
use files::{advice, ahead, format, mapped, open, save, truth};
pub use format::Format;
pub use gpu::{DeviceMemory, DeviceResults, start_seconds};
pub use id_set::IdSet;
pub use ids::Ids;
pub use lent::DeviceRows;
pub(crate) use mapped::MappedFile;
pub use mapped::changed_while_read;
pub(crate) use matrix::{Matrix, TypedRows, with_matrix};
pub use metric::Metric;
pub(crate) use metric::{distance, embedding, mean, norms, panels, rotation, space};
pub(crate) use open::{map, map_rows, open_ids_as};
pub(crate) use query::QueryBuffer;
pub use repeated::Repeated;
pub use shape::DataShape;
pub use source::Source;
use storage::{bits, construct, content, element, hashes, id_set, ids, lent, matrix, query, source, spool};
pub(crate) use storage::{queries, range, repeated, shape};
pub use synth::{Fault, QueryKind, Synth, SynthKind};
pub use truth::GroundTruth;

use storage::Storage;

use crate::loops::{Items, try_for_each};
use crate::parallel::for_each_block;
use crate::{Error, Progress, Result};

/// Maximum number of rows of a data set: ids are `u32`, and `u32::MAX` means none.
pub const MAX_ROWS: usize = u32::MAX as usize - 1;

/// The largest dimension; of bits, eight times as many ([`ElementType::max_dim`]). With 8,192 the
/// widest beams, exact search of many neighbours and merging out of core would need more shared
/// memory than a block has on compute capability 8.6, 8.9 and 12.0.
pub const MAX_DIM: usize = 4096;

/// A data set: rows of one dimension and element type, in memory of any owner or mapped from a
/// file.
///
/// The values are read only. Clones share them, and `Vectors` is `Send` and `Sync`, so threads
/// share a data set without a lock. Values come from
///
/// - [`open`](Self::open): a file, read; [`map`](Self::map): a file, mapped;
/// - [`from_f32`](Self::from_f32) and the like, [`from_rows`](Self::from_rows): vectors and rows;
///   [`from_bits`](Self::from_bits): packed bits;
/// - [`from_owner`](Self::from_owner), [`from_strided`](Self::from_strided),
///   [`from_bytes`](Self::from_bytes): memory of another library, kept alive and not copied;
/// - [`from_source`](Self::from_source), [`spooled`](Self::spooled): a [`Source`], such as a
///   database, row by row.
///
/// [`rows_as`](Self::rows_as), [`into_vec`](Self::into_vec) and [`to_f32`](Self::to_f32) give them
/// back.
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
    /// Largest magnitude (0 unless the type is f32 or bf16). Set once all values are known to be
    /// finite and all rows of a `vecs` file to have the same dimension.
    largest: OnceLock<f32>,
    /// Whether all values are f32 or bf16, but bytes. Set once all have been read for it.
    bytes: OnceLock<bool>,
    /// The rows that repeat others, if they have been looked for.
    repeated: OnceLock<Arc<Repeated>>,
    /// The numbers of the rows in storage, ascending; all rows of the layout if none.
    picked: Option<Arc<[u32]>>,
    /// Copies of the storage's rows on devices.
    replicas: Option<Arc<gpu::Replicas>>,
}

/// Layout of the rows in storage: row `i` starts at byte `offset + i * stride`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub element: ElementType,
    pub rows: usize,
    pub dim: usize,
    pub offset: usize,
    pub stride: usize,
    /// Whether an i32 dimension precedes each row (fvecs, bvecs).
    pub prefixed: bool,
}

impl Layout {
    /// Rows without gaps, from byte 0.
    pub(crate) fn dense(element: ElementType, rows: usize, dim: usize) -> Self {
        Self { element, rows, dim, offset: 0, stride: element.row_bytes(dim), prefixed: false }
    }
}

/// At most 1,024 evenly spread rows of `rows`, the first and the last included.
pub(crate) fn spread_rows(rows: usize) -> impl Iterator<Item = usize> {
    let taken = rows.min(1024);
    (0..taken).map(move |index| if taken == 1 { 0 } else { index * (rows - 1) / (taken - 1) })
}

impl Vectors {
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

    /// The file that the vectors were opened from.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Row `index` as f32: borrowed if it lies in host memory as f32, else converted. Of vectors on
    /// a [device](Self::device) this row alone is copied, unless all [have
    /// been](Self::is_mirrored).
    ///
    /// # Errors
    /// If there is no such row, or the device fails.
    pub fn row_to_f32(&self, index: usize) -> Result<Cow<'_, [f32]>> {
        if index >= self.len() {
            return Err(Error::argument("row", index, format_args!("below {}", self.len())));
        }
        match self.lent().filter(|_| !self.is_readable()) {
            Some(lent) => {
                let layout = Layout::dense(self.element_type(), 1, self.dim());
                let row = Self::new(Storage::owned(lent.row(self.place(index))?), layout, None);
                Ok(Cow::Owned(row.host_row(0).into_owned()))
            }
            None => Ok(self.host_row(index)),
        }
    }

    /// Row `index` of values in host memory as f32, converted if needed.
    ///
    /// # Panics
    /// If `index >= len()`. If the values lie on a device that fails: [`on_host`](Self::on_host)
    /// comes first.
    pub(crate) fn host_row(&self, index: usize) -> Cow<'_, [f32]> {
        assert!(index < self.len(), "row {index} of {}", self.len());
        match self.rows() {
            TypedRows::F32(matrix) => Cow::Borrowed(matrix.row(index)),
            rows => {
                with_matrix!(rows, m => m.components(index).take(self.dim()).collect())
            }
        }
    }

    /// Starts reading the rows of `range` in the background, if they are mapped from a file. Rows
    /// past the end are ignored.
    pub(crate) fn prefetch(&self, range: Range<usize>) {
        self.with_bytes(range, advice::prefetch);
    }

    /// Reads the pages of rows and waits for them, if rows are mapped from a file and the system
    /// can.
    pub(crate) fn populate(&self, range: Range<usize>) {
        self.with_bytes(range, advice::populate);
    }

    /// Starts to read the whole file in the background, if rows are mapped from one: for a base
    /// that stays in memory.
    pub(crate) fn read_ahead(&self) {
        if let (Some(map), Some(path)) = (self.storage.mapped(), &self.path) {
            map.read_ahead(path);
        }
    }

    /// Passes the bytes of a range of rows to `advise`, if rows are mapped from a file.
    fn with_bytes(&self, range: Range<usize>, advise: impl FnOnce(&MappedFile, Range<usize>)) {
        let Layout { rows, offset, stride, .. } = self.layout;
        let (first, end) = (range.start.min(rows), range.end.min(rows));
        if let Some(map) = self.storage.mapped()
            && first < end
        {
            let (first, end) = (self.place(first), self.place(end - 1) + 1);
            let begin = offset + first * stride;
            advise(map, begin..(offset + end * stride).min(map.len()));
        }
    }

    /// Whether the rows are mapped from a file.
    pub(crate) fn is_mapped(&self) -> bool {
        self.storage.mapped().is_some()
    }

    /// Advises the kernel of the access pattern from here on, if rows are mapped from a file.
    pub(crate) fn advise(&self, access: Access) {
        if let Some(map) = self.storage.mapped() {
            advise(map, access);
        }
    }

    /// The only row in host memory, if these are one row on a device: a copy takes less time than
    /// to check and to prepare a row there.
    ///
    /// # Errors
    /// If the device fails.
    pub(crate) fn one_from_device(&self) -> Result<Option<Self>> {
        let Some(lent) = self.lent().filter(|lent| lent.rows() == 1) else { return Ok(None) };
        let layout = Layout::dense(self.element_type(), 1, self.dim());
        Ok(Some(Self::new(Storage::owned(lent.row(0)?), layout, None)))
    }

    /// The name of these vectors in an error: their file, or `vectors`.
    pub(crate) fn describe(&self) -> String {
        self.path().map_or_else(|| "vectors".to_owned(), |p| p.display().to_string())
    }

    /// The bytes of row `index` in host memory.
    #[inline]
    pub(crate) fn bytes_of_row(&self, index: usize) -> &[u8] {
        let Layout { element, dim, offset, stride, .. } = self.layout;
        let start = offset + self.place(index) * stride;
        &self.storage.bytes()[start..][..element.row_bytes(dim)]
    }

    pub(crate) fn rows(&self) -> TypedRows<'_> {
        match self.layout.element {
            ElementType::F32 => TypedRows::F32(self.matrix()),
            ElementType::F16 => TypedRows::F16(self.matrix()),
            ElementType::Bf16 => TypedRows::Bf16(self.matrix()),
            ElementType::U8 => TypedRows::U8(self.matrix()),
            ElementType::I8 => TypedRows::I8(self.matrix()),
            ElementType::B1 => TypedRows::B1(self.matrix()),
        }
    }

    #[inline]
    fn matrix<T: Element>(&self) -> Matrix<'_, T> {
        let Layout { element, rows, dim, offset, stride, .. } = self.layout;
        let values = element.values(dim);
        let end =
            if rows == 0 { offset } else { offset + self.place(rows - 1) * stride + values * size_of::<T>() };
        // Every constructor checked the length, and the alignment of every row.
        let data = bytemuck::cast_slice(&self.storage.bytes()[offset..end]);
        Matrix::new(data, stride / size_of::<T>(), values).picking(self.picked.as_deref())
    }

    /// Checks that all values are finite and that all rows of an fvecs or bvecs file have the same
    /// dimension. The first call reads all data, later ones none. Building and searching call it.
    ///
    /// # Errors
    /// [`Error::Value`] or [`Error::File`] for the first faulty row; [`Error::Cancelled`].
    pub fn validate(&self, progress: &Progress) -> Result<()> {
        self.check_all(None, progress).map(drop)
    }

    /// [`validate`](Self::validate), plus a check that no distance under `metric` overflows.
    /// Returns the largest magnitude (0 unless the type is f32 or bf16).
    ///
    /// # Errors
    /// As [`validate`](Self::validate).
    pub(crate) fn validate_for(&self, metric: Metric, progress: &Progress) -> Result<f32> {
        self.check_all(Some(metric), progress)
    }

    /// [`validate_for`](Self::validate_for) for some rows only, which are about to be read anyway.
    pub(crate) fn validate_rows(
        &self,
        items: impl Items<Item = usize>,
        row: impl Fn(usize) -> usize + Sync,
        metric: Metric,
    ) -> Result<f32> {
        let metric = Some(metric);
        if let Some(known) = self.known_largest(metric) {
            return Ok(known);
        }
        let largest = Largest::default();
        try_for_each(items, |item| self.check_rows(row(item)..row(item) + 1, metric, &largest))?;
        Ok(largest.get())
    }

    /// Marks all rows as checked, with the largest magnitude found.
    pub(crate) fn validated(&self, largest: f32) {
        self.largest.get_or_init(|| largest);
    }

    /// [`validate`](Self::validate) for 1,024 evenly spread rows only: constant time for any size.
    ///
    /// # Errors
    /// As [`validate`](Self::validate).
    pub fn spot_check(&self) -> Result<()> {
        let (vectors, rows) = self.spread()?;
        let largest = Largest::default();
        let check = |row| vectors.check_rows(row..row + 1, None, &largest);
        self.far_apart(|| rows.into_iter().try_for_each(check))
    }

    /// Runs `read`, which reads distant rows, without read-ahead.
    pub(crate) fn far_apart<R>(&self, read: impl FnOnce() -> R) -> R {
        match self.storage.mapped() {
            Some(map) => far_apart(map, read),
            None => read(),
        }
    }

    fn check_all(&self, metric: Option<Metric>, progress: &Progress) -> Result<f32> {
        progress.check()?;
        if let Some(known) = self.known_largest(metric) {
            return Ok(known);
        }
        let largest = Largest::default();
        // Every byte is a valid value, except for the bits past the dimension.
        let is_whole = self.dim().is_multiple_of(self.element_type().per_value());
        let all_are_sound = self.element_type().size() == 1 && is_whole && !self.layout.prefixed;
        if !all_are_sound {
            let stage = progress.stage("check", self.len() as u64);
            if let Some(largest) = self.check_on_device(metric)? {
                return Ok(largest);
            }
            for_each_block(self.len(), &stage, |rows| self.check_rows(rows, metric, &largest))?;
        }
        self.validated(largest.get());
        Ok(largest.get())
    }

    /// The largest magnitude, if all values are known to be in range under `metric`.
    fn known_largest(&self, metric: Option<Metric>) -> Option<f32> {
        self.largest.get().copied().filter(|&largest| largest <= range::most(metric, self.dim()))
    }

    fn check_rows(&self, rows: Range<usize>, metric: Option<Metric>, largest: &Largest) -> Result<()> {
        self.check_prefixes(rows.clone())?;
        match self.rows() {
            TypedRows::F32(matrix) => self.check_magnitudes(matrix, rows, metric, largest),
            TypedRows::Bf16(matrix) => self.check_magnitudes(matrix, rows, metric, largest),
            TypedRows::F16(matrix) => {
                let bad = |row: usize| Some((row, matrix.row(row).iter().position(|x| !x.is_finite())?));
                match rows.into_iter().find_map(bad) {
                    Some((row, dim)) => Err(self.bad_value(row, dim, matrix.row(row)[dim], FINITE)),
                    None => Ok(()),
                }
            }
            TypedRows::U8(_) | TypedRows::I8(_) => Ok(()),
            TypedRows::B1(matrix) => {
                let dim = self.dim();
                let past = |row: usize| matrix.components(row).skip(dim).position(|bit| bit != 0.0);
                match rows.into_iter().find_map(|row| Some((row, dim + past(row)?))) {
                    Some((row, place)) => {
                        let expected = format_args!("0: only padding follows the {dim} bits of a row");
                        Err(self.bad_value(row, place, 1, expected))
                    }
                    None => Ok(()),
                }
            }
        }
    }

    fn check_magnitudes<T: Scalar>(
        &self,
        matrix: Matrix<'_, T>,
        rows: Range<usize>,
        metric: Option<Metric>,
        largest: &Largest,
    ) -> Result<()> {
        let most = range::most(metric, self.dim());
        for row in rows {
            let values = matrix.row(row);
            let magnitude = magnitude_bits(values);
            if magnitude > most.to_bits() {
                return Err(self.value_beyond(most, row, values, metric));
            }
            largest.meet(magnitude);
        }
        Ok(())
    }

    /// The error for a row with a value beyond `most`.
    fn value_beyond<T: Scalar>(&self, most: f32, row: usize, values: &[T], metric: Option<Metric>) -> Error {
        let is_beyond = |x: &T| magnitude_bits(&[*x]) > most.to_bits();
        let dim = values.iter().position(is_beyond).unwrap_or(0);
        let expected = if values[dim].to_f32().is_finite() {
            range::expected(metric, self.dim())
        } else {
            FINITE.to_owned()
        };
        self.bad_value(row, dim, values[dim], expected)
    }

    fn bad_value(&self, row: usize, dim: usize, value: impl ToString, expected: impl ToString) -> Error {
        let (value, expected) = (value.to_string(), expected.to_string());
        Error::Value { path: self.path.clone(), row: self.place(row), dim, value, expected }
    }

    fn check_prefixes(&self, mut rows: Range<usize>) -> Result<()> {
        let Layout { dim, stride, prefixed, .. } = self.layout;
        if !prefixed {
            return Ok(());
        }
        let map = self.storage.bytes();
        let prefix = |row: usize| {
            let start = self.place(row) * stride;
            i32::from_le_bytes([map[start], map[start + 1], map[start + 2], map[start + 3]])
        };
        let bad = rows.find(|&row| prefix(row) != dim as i32);
        let (Some(row), Some(path)) = (bad, &self.path) else {
            return Ok(());
        };
        Err(Error::file(
            path,
            format_args!("dimension {} in row {}", prefix(row), self.place(row)),
            format_args!("{dim} as in row 0"),
        ))
    }
}

/// The values that every data set allows, for errors.
const FINITE: &str = "a finite number";

/// The largest magnitude as bits: those of non-negative floats sort as the floats do, and those of
/// infinities and NaNs come last.
fn magnitude_bits<T: Scalar>(values: &[T]) -> u32 {
    values.iter().fold(0, |largest, x| largest.max(x.to_f32().to_bits() & !(1 << 31)))
}

/// The largest magnitude over all threads, as bits.
#[derive(Default)]
struct Largest(AtomicU32);

impl Largest {
    fn meet(&self, bits: u32) {
        // Most values are no larger, and a load is cheaper than a write.
        if bits > self.0.load(Ordering::Relaxed) {
            self.0.fetch_max(bits, Ordering::Relaxed);
        }
    }

    fn get(&self) -> f32 {
        f32::from_bits(self.0.load(Ordering::Relaxed))
    }
}
