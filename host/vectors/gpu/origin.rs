//! The rows that a device reads: in host memory, or in memory of the device itself.

use std::borrow::Cow;
use std::marker::PhantomData;

use cuda_std::memory::GlobalMut;

use super::{Family, OnDevice, Pick, RowsAt, Typed};
use crate::gpu::{Borrowed, Buffer, Gpu, MemoryPlan};
use crate::vectors::shape::{hold_bytes, with_device_type};
use crate::vectors::space::Space;
use crate::vectors::{Bits, DataShape, Matrix, Vectors};
use crate::{ElementType, Error, Metric, Progress, Result};

/// Maximum bytes of bits that are on the device at a time.
const PIECE: usize = 64 << 20;

/// Rows on the way to a device.
pub(crate) enum Origin<'a, T> {
    /// Rows in host memory.
    Host(Matrix<'a, T>),
    /// Rows of bytes in host memory, which holds them as f32.
    Wide(Matrix<'a, f32>),
    /// Rows of bits in host memory, and their dimension: bytes on the device.
    Bits(Matrix<'a, Bits>, usize),
    /// Rows in memory of the device. With `picked`, only the rows with these numbers; with
    /// `narrowed`, values that become bytes. `_memory` keeps the rows there.
    Device { rows: RowsAt, picked: Option<&'a [u32]>, narrowed: bool, _memory: Option<Borrowed> },
}

/// The family of [`Origin`].
pub(crate) struct Origins<'a>(PhantomData<&'a ()>);

impl<'a> Family for Origins<'a> {
    type Of<T: OnDevice> = Origin<'a, T>;
}

/// Rows of any element type.
pub(crate) type AnyOrigin<'a> = Typed<Origins<'a>>;

/// Some rows in host memory.
pub(crate) struct Sample<'a, T: OnDevice> {
    values: Cow<'a, [T]>,
    stride: usize,
    dim: usize,
    places: Vec<u32>,
}

impl<'a, T: OnDevice> Sample<'a, T> {
    /// The rows.
    pub(crate) fn rows(&self) -> Vec<&[T]> {
        let Self { values, stride, dim, places } = self;
        places.iter().map(|&place| &values[place as usize * stride..][..*dim]).collect()
    }
}

impl<'a, T: OnDevice> Origin<'a, T> {
    /// The rows of `vectors`, whose type `T` is; of bits, zeros and ones in bytes, whose distances
    /// are the same.
    ///
    /// # Errors
    /// If they have another type, or the device fails.
    pub(crate) fn new(gpu: &Gpu, vectors: &'a Vectors) -> Result<Self> {
        let element = vectors.element_type();
        let is_bits = element == ElementType::B1;
        if T::TYPE != if is_bits { ElementType::U8 } else { element } {
            return Err(Error::mismatch(vectors.describe(), element, T::TYPE));
        }
        // Bits lie on the host alone.
        if let Some((lent, picked)) = vectors.on(gpu).filter(|_| !is_bits) {
            let (memory, rows) = lent.at(gpu)?;
            return Ok(Self::Device { rows, picked, narrowed: false, _memory: Some(memory) });
        }
        vectors.on_host()?;
        Ok(if is_bits { Self::Bits(vectors.matrix(), vectors.dim()) } else { Self::Host(vectors.matrix()) })
    }

    /// Copies rows to the start of `to`, `stride` values apart, with zeros between them.
    ///
    /// # Errors
    /// If the device fails.
    pub(crate) fn copy(&self, gpu: &Gpu, pick: Pick<'_>, to: &mut Buffer<T>, stride: usize) -> Result<()> {
        self.copy_at(gpu, pick, to, 0, stride)
    }

    /// As [`copy`](Self::copy), to the place of row `first` on.
    ///
    /// # Errors
    /// If the device fails.
    pub(crate) fn copy_at(
        &self,
        gpu: &Gpu,
        pick: Pick<'_>,
        to: &mut Buffer<T>,
        first: usize,
        stride: usize,
    ) -> Result<()> {
        let room = to.len() - first * stride;
        match self {
            Self::Device { rows, picked, narrowed, .. } => {
                let of_all: Vec<u32>;
                let pick = match (picked, pick) {
                    (None, pick) => pick,
                    (Some(picked), Pick::Range(range)) => Pick::Ids(&picked[range]),
                    (Some(picked), Pick::Ids(ids)) => {
                        of_all = ids.iter().map(|&id| picked[id as usize]).collect();
                        Pick::Ids(&of_all)
                    }
                };
                assert!(pick.len() * stride <= room, "{} rows of {stride} to {room}", pick.len());
                let to = to.view_mut().offset(first * stride);
                rows.copy(gpu, pick, to.cast(), stride * size_of::<T>(), *narrowed)
            }
            Self::Bits(rows, dim) => {
                widen(gpu, *rows, *dim, &pick, to.view_mut().offset(first * stride).cast(), stride)
            }
            Self::Wide(rows) => to.write_rows(first, pick.len(), stride, |place, room| {
                let row = rows.row(pick.row(place));
                let (bytes, gap) = room.split_at_mut(row.len());
                bytes.iter_mut().zip(row).for_each(|(to, &x)| *to = x as u8);
                gap.fill(0);
            }),
            Self::Host(rows) => to.upload_rows(first, pick.len(), stride, |places| {
                let place = |place: usize| rows.place(pick.row(place));
                let begin = place(places.start);
                let is_next = |&(step, next): &(usize, usize)| place(next) == begin + step;
                let is_dense = [stride, rows.stride] == [rows.dim; 2];
                let run = if is_dense { places.enumerate().take_while(is_next).count() } else { 1 };
                &rows.data[begin * rows.stride..][..run * rows.dim]
            }),
        }
    }

    /// Some rows in host memory; rows there are not copied.
    ///
    /// # Errors
    /// If the device fails.
    pub(crate) fn sample(&self, gpu: &Gpu, ids: Vec<u32>) -> Result<Sample<'_, T>> {
        let dim = match self {
            Self::Device { rows, .. } => rows.dim,
            Self::Bits(_, dim) => *dim,
            Self::Wide(rows) => rows.dim,
            Self::Host(rows) => {
                let places = ids.into_iter().map(|id| rows.place(id as usize) as u32).collect();
                let &Matrix { data, stride, dim, .. } = rows;
                return Ok(Sample { values: Cow::Borrowed(data), stride, dim, places });
            }
        };
        let count = ids.len();
        let mut room: Buffer<T> = gpu.buffer("sample", count * dim)?;
        self.copy(gpu, Pick::Ids(&ids), &mut room, dim)?;
        let mut values = vec![T::zeroed(); count * dim];
        room.download(&mut values)?;
        Ok(Sample { values: Cow::Owned(values), stride: dim, dim, places: (0..count as u32).collect() })
    }
}

impl<'a> AnyOrigin<'a> {
    /// The rows of a space in the type that a device holds: f32 values that are bytes as bytes,
    /// except under cosine, where rows are unit vectors.
    ///
    /// # Errors
    /// If the device fails.
    pub(crate) fn of_space(gpu: &Gpu, space: &'a Space<'_>) -> Result<Self> {
        let rows = space.vectors();
        if space.metric() != Metric::Cosine
            && let Some(bytes) = narrowed(gpu, rows, false)?
        {
            return Ok(Self::U8(bytes));
        }
        with_device_type!(rows.element_type(), T => Ok(T::wrap(Origin::new(gpu, rows)?)))
    }
}

/// Rows of bits that are copied at a time, of `count` rows of `dim` bits.
fn rows_at_once(count: usize, dim: usize) -> usize {
    (PIECE / dim.div_ceil(8)).clamp(1, count.max(1))
}

/// Device memory of the bits of `count` rows of `dim` bits while they become bytes.
pub(crate) fn bits_plan(count: usize, dim: usize) -> MemoryPlan {
    MemoryPlan::new().with::<Bits>("bits", rows_at_once(count, dim) * dim.div_ceil(8))
}

/// Copies rows of `dim` bits to the device, and widens them to bytes there, `stride` apart.
fn widen(
    gpu: &Gpu,
    bits: Matrix<'_, Bits>,
    dim: usize,
    pick: &Pick<'_>,
    to: GlobalMut<u8>,
    stride: usize,
) -> Result<()> {
    let (count, row) = (pick.len(), dim.div_ceil(8));
    if count == 0 {
        return Ok(());
    }
    let at_once = rows_at_once(count, dim);
    let mut piece: Buffer<Bits> = bits_plan(count, dim).reserve(gpu)?.buffer("bits")?;
    for first in (0..count).step_by(at_once) {
        let here = at_once.min(count - first);
        piece.upload_rows(0, here, row, |places| &bits.row(pick.row(first + places.start))[..row])?;
        let values = piece.view().cast();
        let rows = RowsAt { values, stride: row, count: here, dim, size: 1 };
        rows.widen(gpu, to.offset(first * stride), stride)?;
    }
    Ok(())
}

/// The rows of f32 vectors as bytes, whose distances have the same bits; none for other types and
/// values, or if f32 rounds sums of as many terms. Rows on the device are taken for bytes if they
/// are `early`: still being checked.
///
/// # Errors
/// If the device fails.
pub(crate) fn narrowed<'a>(gpu: &Gpu, vectors: &'a Vectors, early: bool) -> Result<Option<Origin<'a, u8>>> {
    if vectors.element_type() != ElementType::F32 {
        return Ok(None);
    }
    let is_bytes = if vectors.lent().is_some_and(|lent| lent.is_on(gpu)) {
        early || DataShape::inspect(vectors, &Progress::silent())?.bytes
    } else {
        vectors.on_host()?;
        hold_bytes(vectors)
    };
    if !is_bytes {
        return Ok(None);
    }
    if let Some((lent, picked)) = vectors.on(gpu) {
        let (memory, rows) = lent.at(gpu)?;
        return Ok(Some(Origin::Device { rows, picked, narrowed: true, _memory: Some(memory) }));
    }
    Ok(Some(Origin::Wide(vectors.matrix())))
}
