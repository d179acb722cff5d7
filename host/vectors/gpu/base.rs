//! The base on a device.

use tagore_device::block::rows;

use super::{Family, OnDevice, Origin, Pick, RowsAt, Typed, stride};
use crate::gpu::{Buffer, Gpu, MemoryPlan};
use crate::vectors::space::Space;
use crate::{Metric, Result};

/// The base on a device, for pruning and search: vectors in full precision.
pub(crate) struct Base<T: OnDevice> {
    values: Buffer<T>,
    /// Components from one vector to the next: rows begin at multiples of 16 bytes.
    stride: usize,
    dim: usize,
    /// A number per row (see [`rows::Rows::lifts`]), or a single unused one.
    lifts: Buffer<f32>,
    lifted: bool,
    /// As [`rows::Rows::square`].
    square: f32,
}

impl<T: OnDevice> Base<T> {
    /// Maximum memory of `n` rows of `dim` components. Under cosine only a base with zero vectors
    /// has lifts.
    pub(crate) fn plan(n: usize, dim: usize, metric: Metric) -> MemoryPlan {
        Self::values(n, dim).and(&Self::lifts(if metric == Metric::L2 { 0 } else { n }))
    }

    fn values(n: usize, dim: usize) -> MemoryPlan {
        MemoryPlan::new().with::<T>("rows", n * stride::<T>(dim))
    }

    /// The lifts of `count` rows.
    pub(crate) fn lifts(count: usize) -> MemoryPlan {
        MemoryPlan::new().with::<f32>("lifts", count.max(1))
    }

    /// Copies the rows of `space` to the device; `rows` are those of the space, or their values as
    /// bytes.
    pub(crate) fn upload(gpu: &Gpu, space: &Space<'_>, rows: &Origin<'_, T>) -> Result<Self> {
        let stride = stride::<T>(space.dim());
        let memory = Self::values(space.len(), space.dim()).reserve(gpu)?;
        let mut values: Buffer<T> = memory.buffer("rows")?;
        rows.copy(gpu, Pick::Range(0..space.len()), &mut values, stride)?;
        Self::new(gpu, space, values, stride)
    }

    /// The base of `space`, with its rows already on the device as `values`.
    pub(crate) fn new(gpu: &Gpu, space: &Space<'_>, values: Buffer<T>, stride: usize) -> Result<Self> {
        let lifts = space.lifts();
        let memory = Self::lifts(lifts.len()).reserve(gpu)?;
        let mut on_device: Buffer<f32> = memory.buffer("lifts")?;
        on_device.upload(&lifts)?;
        let (lifted, square) = (!lifts.is_empty(), space.square());
        Ok(Self { values, stride, dim: space.dim(), lifts: on_device, lifted, square })
    }

    /// A base of `rows` of this one, in their order.
    ///
    /// # Errors
    /// If the device lacks memory or fails.
    pub(crate) fn select(&self, gpu: &Gpu, rows: &[u32]) -> Result<Self> {
        let &Self { stride, dim, lifted, square, .. } = self;
        let lifts = Self::lifts(if lifted { rows.len() } else { 0 });
        let memory = Self::values(rows.len(), dim).and(&lifts).reserve(gpu)?;
        let (mut values, mut lifts) = (memory.buffer("rows")?, memory.buffer("lifts")?);
        self.origin().copy(gpu, Pick::Ids(rows), &mut values, stride)?;
        if lifted {
            let (from, count, size) = (self.lifts.view().cast(), self.lifts.len(), size_of::<f32>());
            let from = RowsAt { values: from, stride: size, count, dim: 1, size };
            from.copy(gpu, Pick::Ids(rows), lifts.view_mut().cast(), size, false)?;
        } else {
            lifts.fill(0)?;
        }
        Ok(Self { values, stride, dim, lifts, lifted, square })
    }

    /// Replaces the lifts under inner product: one per row, with the squared norm of all lifted
    /// rows.
    pub(crate) fn lift(&mut self, lifts: &[f32], square: f32) -> Result<()> {
        debug_assert!(self.lifted && lifts.len() == self.lifts.len());
        self.square = square;
        self.lifts.upload(lifts)
    }

    /// Bytes from one vector to the next.
    pub(crate) fn row_bytes(&self) -> usize {
        self.stride * size_of::<T>()
    }

    /// The values as rows that copies read.
    pub(crate) fn origin(&self) -> Origin<'_, T> {
        let (values, stride) = (self.values.view().cast(), self.row_bytes());
        let count = self.values.len() / self.stride;
        let rows = RowsAt { values, stride, count, dim: self.dim, size: size_of::<T>() };
        Origin::Device { rows, picked: None, narrowed: false, _memory: None }
    }

    /// The rows as kernels read them.
    pub(crate) fn rows(&self) -> rows::Rows<T> {
        rows::Rows {
            values: self.values.view(),
            lifts: self.lifts.view(),
            stride: self.stride as u32,
            dim: self.dim as u32,
            lifted: u32::from(self.lifted),
            square: self.square,
        }
    }
}

/// The family of [`Base`].
pub(crate) enum Bases {}

impl Family for Bases {
    type Of<T: OnDevice> = Base<T>;
}

/// The base on a device, in any element type.
pub(crate) type DeviceBase = Typed<Bases>;
