//! Vectors on a device in the form that exact search, cells and descent read.

use cuda_std::f16;
use cuda_std::memory::Global;

use super::{OnDevice, stride};
use crate::gpu::{Buffer, MemoryPlan, Reservation};
use crate::{Metric, Result};

/// Vectors on a device, with the rounded copy and the biases for tiles.
pub(crate) struct Side<T: OnDevice> {
    pub values: Buffer<T>,
    /// Components from one vector to the next: rows begin at multiples of 16 bytes.
    pub stride: usize,
    /// The rounded copy, with its stride; a single unused value without one.
    pub(super) rounded: Buffer<f16>,
    pub(super) rounded_stride: usize,
    pub biases: Buffer<T::Sum>,
    pub errors: Buffer<f32>,
    /// Whether tiles read the rounded copy, else the values.
    pub(super) is_rounded: bool,
}

/// Vectors as tiles read them: f16 or bytes.
#[derive(Clone, Copy)]
pub(crate) struct TileVectors {
    pub vectors: Global<u8>,
    /// Bytes from one to the next, a multiple of 16.
    pub stride: u32,
}

/// `count` tile vectors of `dim` components.
#[derive(Clone, Copy)]
pub(crate) struct TileRows {
    pub tiles: TileVectors,
    pub count: usize,
    pub dim: usize,
}

impl TileVectors {
    /// The first `count` vectors, of `dim` components.
    pub(crate) fn rows(self, count: usize, dim: usize) -> TileRows {
        TileRows { tiles: self, count, dim }
    }

    /// Units of 16 bytes per vector.
    pub(crate) fn units(self) -> u32 {
        self.stride / 16
    }
}

/// Names of a side's buffers in a plan.
#[derive(Clone, Copy)]
pub(crate) struct Names {
    values: &'static str,
    rounded: &'static str,
    biases: &'static str,
    errors: &'static str,
}

/// Names for the base.
pub(crate) const ROWS: Names =
    Names { values: "rows", rounded: "rounded rows", biases: "row biases", errors: "row errors" };

/// Names for queries.
pub(crate) const QUERIES: Names =
    Names { values: "queries", rounded: "rounded queries", biases: "query norms", errors: "query errors" };

/// Arguments of a preparation.
#[derive(Clone, Copy)]
pub(crate) struct Preparation<'a> {
    pub count: usize,
    pub dim: usize,
    pub mean: &'a Buffer<f32>,
    /// Factor of the vectors, unless they are queries of inner products.
    pub scale: f32,
    pub metric: Metric,
    pub role: Role,
}

/// What vectors are prepared for.
#[derive(Clone, Copy)]
pub(crate) enum Role {
    /// Products among themselves.
    Points,
    /// Rows of an exact search. The bounds of queries account for this rounding error.
    Rows(f32),
    /// Queries of an exact search.
    Queries,
}

impl Preparation<'_> {
    /// 1 if biases are squared norms, 0 if not.
    pub(super) fn norm_weight(&self) -> i32 {
        i32::from(self.metric != Metric::InnerProduct || self.is_of_queries())
    }

    /// The rounding error that the bounds of queries account for; infinite without bounds.
    pub(super) fn error_limit(&self) -> f32 {
        if let Role::Rows(limit) = self.role { limit } else { f32::INFINITY }
    }

    /// Whether zero vectors get a bias that no query finds.
    pub(super) fn skips_zero(&self) -> bool {
        self.metric == Metric::Cosine && !self.is_of_queries()
    }

    /// Whether each vector is scaled to one norm.
    pub(super) fn is_unit(&self) -> bool {
        self.metric == Metric::InnerProduct && self.is_of_queries()
    }

    fn is_of_queries(&self) -> bool {
        matches!(self.role, Role::Queries)
    }
}

impl<T: OnDevice> Side<T> {
    /// Adds room for `count` vectors to a plan, with a copy that is `rounded`, or without one.
    pub(crate) fn plan(
        plan: MemoryPlan,
        names: Names,
        count: usize,
        dim: usize,
        rounded: bool,
    ) -> MemoryPlan {
        let (stride, rounded_stride) = strides::<T>(dim, rounded);
        plan.with::<T>(names.values, count * stride)
            .with::<f16>(names.rounded, (count * rounded_stride).max(1))
            .with::<T::Sum>(names.biases, count)
            .with::<f32>(names.errors, count)
    }

    /// Takes the planned buffers.
    pub(crate) fn new(memory: &Reservation, names: Names, dim: usize, rounded: bool) -> Result<Self> {
        let (stride, rounded_stride) = strides::<T>(dim, rounded);
        let mut errors: Buffer<f32> = memory.buffer(names.errors)?;
        // Types that are not rounded have no errors.
        errors.fill(0)?;
        Ok(Self {
            values: memory.buffer(names.values)?,
            stride,
            rounded: memory.buffer(names.rounded)?,
            rounded_stride,
            biases: memory.buffer(names.biases)?,
            errors,
            is_rounded: rounded,
        })
    }

    /// The values, their stride and their errors; frees the rest.
    pub(crate) fn into_original(self) -> (Buffer<T>, usize, Buffer<f32>) {
        (self.values, self.stride, self.errors)
    }

    /// Bytes from one tile vector of `dim` components to the next.
    pub(crate) fn tile_bytes(dim: usize) -> usize {
        let (stride, rounded_stride) = strides::<T>(dim, T::ROUNDED);
        if T::ROUNDED { rounded_stride * 2 } else { stride * size_of::<T>() }
    }

    /// Units of 16 bytes of a tile vector of `dim` components.
    pub(crate) fn tile_units(dim: usize) -> u32 {
        (Self::tile_bytes(dim) / 16) as u32
    }

    /// The vectors as tiles read them.
    pub(crate) fn tiles(&self) -> TileVectors {
        let (vectors, bytes) = if self.is_rounded {
            (self.rounded.view().cast(), self.rounded_stride * 2)
        } else {
            (self.values.view().cast(), self.stride * size_of::<T>())
        };
        TileVectors { vectors, stride: bytes as u32 }
    }
}

/// The strides of vectors of `dim` components: of the values, and of the copy if it is `rounded`.
fn strides<T: OnDevice>(dim: usize, rounded: bool) -> (usize, usize) {
    (stride::<T>(dim), if rounded { dim.next_multiple_of(8) } else { 0 })
}
