//! Vectors on a GPU, and what the kernels' tiles need of them.

mod base;

use bytemuck::Pod;
use cuda_std::f16;
use cuda_std::launch::Kernel;
use cuda_std::memory::{Global, GlobalMut};
use tagore_device::block::element::{self, TileSum};
use tagore_device::block::exact;
use tagore_device::block::rows::Rows;
use tagore_device::cluster::{
    Assign, Means, Pairs, cluster_assign_f16, cluster_assign_i8, cluster_assign_u8, cluster_mean_f16,
    cluster_mean_i8, cluster_mean_u8, cluster_pairs_f16, cluster_pairs_i8, cluster_pairs_u8,
};
use tagore_device::descent::cells::{
    CrossCellJoin, Finish, IntraCellJoin, cells_cross_join_f16, cells_cross_join_i8, cells_cross_join_u8,
    cells_finish_f16, cells_finish_f32, cells_finish_i8, cells_finish_u8, cells_intra_join_f16,
    cells_intra_join_i8, cells_intra_join_u8,
};
use tagore_device::descent::expand::{Expand, descent_expand_f16, descent_expand_i8, descent_expand_u8};
use tagore_device::descent::join::{Join, descent_join_f16, descent_join_i8, descent_join_u8};
use tagore_device::lists::lengths::{
    Lengths, lists_lengths_f16, lists_lengths_f32, lists_lengths_i8, lists_lengths_u8,
};
use tagore_device::lists::merge::{
    MergeLists, lists_merge_f16, lists_merge_f32, lists_merge_i8, lists_merge_u8,
};
use tagore_device::prune::collect::{
    Collect, prune_collect_f16, prune_collect_f32, prune_collect_i8, prune_collect_u8,
};
use tagore_device::prune::kernels::RuleElement;
use tagore_device::prune::medoid::{
    Nearest, medoid_nearest_f16, medoid_nearest_f32, medoid_nearest_i8, medoid_nearest_u8, medoid_sums_f16,
    medoid_sums_f32, medoid_sums_i8, medoid_sums_u8,
};
use tagore_device::prune::path::{Paths, prune_path_f16, prune_path_f32, prune_path_i8, prune_path_u8};
use tagore_device::search::beam::search::{
    BeamSearch, beam_search_64_f16, beam_search_64_f32, beam_search_64_i8, beam_search_64_u8,
    beam_search_128_f16, beam_search_128_f32, beam_search_128_i8, beam_search_128_u8, beam_search_256_f16,
    beam_search_256_f32, beam_search_256_i8, beam_search_256_u8, beam_search_512_f16, beam_search_512_f32,
    beam_search_512_i8, beam_search_512_u8, beam_search_layer_f16, beam_search_layer_f32,
    beam_search_layer_i8, beam_search_layer_u8,
};
use tagore_device::search::exact::{
    ExactFilter, ExactSettle, Norms, PREPARE_THREADS, PREPARE_VECTORS, Prepare, exact_filter_f16,
    exact_filter_i8, exact_filter_u8, exact_norms_i8, exact_norms_u8, exact_prepare_f16, exact_prepare_f32,
    exact_settle_f16, exact_settle_f32, exact_settle_i8, exact_settle_u8, total_error,
};

use rayon::prelude::*;

use super::shape::{byte, sums_are_exact};
use super::space::Space;
use super::{Element, Matrix};
pub(crate) use base::{Base, DeviceBase, with_base};

use crate::gpu::{Buffer, Gpu, Plan, Reservation};
use crate::{Metric, Result};

/// Rows whose values decide how vectors are rounded.
const SAMPLE: usize = 16_384;

/// The largest magnitude in the sample, but for a few, after scaling: f16 goes 16 times further.
const MAGNITUDE: f32 = 4096.0;

/// Element types with their kernels.
pub(crate) trait OnDevice: Element + element::Element + RuleElement {
    type Sum: TileSum + Pod;
    type Filter: Kernel<Arguments = (ExactFilter<Self::Sum>,)>;
    type IntraCellJoin: Kernel<Arguments = (IntraCellJoin<Self::Sum>,)>;
    type CrossCellJoin: Kernel<Arguments = (CrossCellJoin<Self::Sum>,)>;
    type Settle: Kernel<Arguments = (ExactSettle<Self, Self::Sum>,)>;
    type Finish: Kernel<Arguments = (Finish<Self>,)>;
    type Join: Kernel<Arguments = (Join<Self::Sum>,)>;
    type Expand: Kernel<Arguments = (Expand<Self::Sum>,)>;
    type Assign: Kernel<Arguments = (Assign<Self::Sum>,)>;
    type Pairs: Kernel<Arguments = (Pairs<Self::Sum>,)>;
    type Mean: Kernel<Arguments = (Means<Self::Sum>,)>;
    type Collect: Kernel<Arguments = (Collect<Self>,)>;
    type Path: Kernel<Arguments = (Paths<Self>,)>;
    type MedoidSums: Kernel<Arguments = (Rows<Self>, GlobalMut<f64>, u32)>;
    type MedoidNearest: Kernel<Arguments = (Nearest<Self>,)>;
    type Lengths: Kernel<Arguments = (Lengths<Self>,)>;
    type MergeLists: Kernel<Arguments = (MergeLists<Self>,)>;
    type Beam64: Kernel<Arguments = (BeamSearch<Self>,)>;
    type BeamLayer: Kernel<Arguments = (BeamSearch<Self>,)>;
    type Beam128: Kernel<Arguments = (BeamSearch<Self>,)>;
    type Beam256: Kernel<Arguments = (BeamSearch<Self>,)>;
    type Beam512: Kernel<Arguments = (BeamSearch<Self>,)>;

    /// Whether tiles take a rounded copy of the vectors, of f16.
    const ROUNDED: bool;

    /// The base, whose type the value then says.
    fn device_base(base: Base<Self>) -> DeviceBase;

    /// What a product is multiplied by.
    fn weight(metric: Metric) -> Self::Sum;

    /// Computes what the filter needs of `side`'s vectors.
    fn prepare(gpu: &Gpu, side: &mut Side<Self>, task: &Preparation<'_>) -> Result<()>;
}

/// Vectors on the device, and what the filter needs of them.
pub(crate) struct Side<T: OnDevice> {
    pub values: Buffer<T>,
    /// Components from one vector to the next: rows begin at multiples of 16 bytes.
    pub stride: usize,
    /// The rounded copy, with its stride; of one half if there is none.
    rounded: Buffer<f16>,
    rounded_stride: usize,
    pub biases: Buffer<T::Sum>,
    pub errors: Buffer<f32>,
}

/// Vectors as tiles take them: f16 or bytes.
#[derive(Clone, Copy)]
pub(crate) struct TileVectors {
    pub vectors: Global<u8>,
    /// Bytes from one to the next, a multiple of 16.
    pub stride: u32,
}

impl TileVectors {
    /// Units of 16 bytes per vector.
    pub(crate) fn units(self) -> u32 {
        self.stride / 16
    }
}

/// The names of a side's buffers in a plan.
#[derive(Clone, Copy)]
pub(crate) struct Names {
    values: &'static str,
    rounded: &'static str,
    biases: &'static str,
    errors: &'static str,
}

/// The base.
pub(crate) const ROWS: Names =
    Names { values: "rows", rounded: "rounded rows", biases: "row biases", errors: "row errors" };

/// The points whose neighbours are wanted.
pub(crate) const POINTS: Names =
    Names { values: "points", rounded: "rounded points", biases: "point norms", errors: "point errors" };

/// How vectors are prepared.
#[derive(Clone, Copy)]
pub(crate) struct Preparation<'a> {
    pub count: usize,
    pub dim: usize,
    pub mean: &'a Buffer<f32>,
    /// Where the largest squared norm goes.
    pub largest: GlobalMut<u32>,
    pub scale: f32,
    pub error_limit: f32,
    /// 1 if biases are norms, 0 if there are none.
    pub norm_weight: i32,
    pub skip_zero: bool,
}

macro_rules! rounded_types {
    ($($type:ty, $variant:ident, $prepare:ty { $($kind:ident = $kernel:ty,)* })*) => {$(
        impl OnDevice for $type {
            type Sum = f32;
            type Filter = exact_filter_f16;
            type IntraCellJoin = cells_intra_join_f16;
            type CrossCellJoin = cells_cross_join_f16;
            type Join = descent_join_f16;
            type Expand = descent_expand_f16;
            type Assign = cluster_assign_f16;
            type Pairs = cluster_pairs_f16;
            type Mean = cluster_mean_f16;
            $(type $kind = $kernel;)*

            const ROUNDED: bool = true;

            fn device_base(base: Base<Self>) -> DeviceBase {
                DeviceBase::$variant(base)
            }

            fn weight(metric: Metric) -> f32 {
                if metric == Metric::InnerProduct { -1.0 } else { -2.0 }
            }

            fn prepare(gpu: &Gpu, side: &mut Side<Self>, task: &Preparation<'_>) -> Result<()> {
                let prepare = Prepare {
                    values: side.values.view(),
                    mean: task.mean.view(),
                    rounded: side.rounded.view_mut(),
                    biases: side.biases.view_mut(),
                    errors: side.errors.view_mut(),
                    largest: task.largest,
                    count: task.count as u32,
                    dim: task.dim as u32,
                    stride: side.stride as u32,
                    rounded_stride: side.rounded_stride as u32,
                    scale: task.scale,
                    norm_weight: task.norm_weight as f32,
                    error_limit: task.error_limit,
                    skip_zero: u32::from(task.skip_zero),
                };
                // SAFETY: the buffers hold `count` vectors of these strides, and outlive the work.
                unsafe { gpu.launch::<$prepare>([blocks(task.count), 1, 1], PREPARE_THREADS, (prepare,))? };
                let bytes = side.stride * size_of::<Self>() + side.rounded_stride * 2 + 8;
                gpu.count_work::<$prepare>((task.count * bytes) as u64, 0);
                Ok(())
            }
        }
    )*};
}

rounded_types! {
    f32, F32, exact_prepare_f32 {
        Settle = exact_settle_f32,
        Finish = cells_finish_f32,
        Collect = prune_collect_f32,
        Path = prune_path_f32,
        MedoidSums = medoid_sums_f32,
        MedoidNearest = medoid_nearest_f32,
        Lengths = lists_lengths_f32,
        MergeLists = lists_merge_f32,
        Beam64 = beam_search_64_f32,
        BeamLayer = beam_search_layer_f32,
        Beam128 = beam_search_128_f32,
        Beam256 = beam_search_256_f32,
        Beam512 = beam_search_512_f32,
    }
    f16, F16, exact_prepare_f16 {
        Settle = exact_settle_f16,
        Finish = cells_finish_f16,
        Collect = prune_collect_f16,
        Path = prune_path_f16,
        MedoidSums = medoid_sums_f16,
        MedoidNearest = medoid_nearest_f16,
        Lengths = lists_lengths_f16,
        MergeLists = lists_merge_f16,
        Beam64 = beam_search_64_f16,
        BeamLayer = beam_search_layer_f16,
        Beam128 = beam_search_128_f16,
        Beam256 = beam_search_256_f16,
        Beam512 = beam_search_512_f16,
    }
}

macro_rules! byte_types {
    ($($type:ty, $variant:ident, $norms:ty { $($kind:ident = $kernel:ty,)* })*) => {$(
        impl OnDevice for $type {
            type Sum = i32;
            $(type $kind = $kernel;)*

            const ROUNDED: bool = false;

            fn device_base(base: Base<Self>) -> DeviceBase {
                DeviceBase::$variant(base)
            }

            fn weight(metric: Metric) -> i32 {
                if metric == Metric::InnerProduct { -1 } else { -2 }
            }

            fn prepare(gpu: &Gpu, side: &mut Side<Self>, task: &Preparation<'_>) -> Result<()> {
                let norms = Norms {
                    values: side.values.view(),
                    norms: side.biases.view_mut(),
                    count: task.count as u32,
                    dim: task.dim as u32,
                    stride: side.stride as u32,
                    weight: task.norm_weight,
                };
                // SAFETY: the buffers hold `count` vectors of this stride, and outlive the work.
                unsafe { gpu.launch::<$norms>([blocks(task.count), 1, 1], PREPARE_THREADS, (norms,))? };
                gpu.count_work::<$norms>((task.count * (side.stride + 4)) as u64, 0);
                Ok(())
            }
        }
    )*};
}

byte_types! {
    u8, U8, exact_norms_u8 {
        Filter = exact_filter_u8,
        IntraCellJoin = cells_intra_join_u8,
        CrossCellJoin = cells_cross_join_u8,
        Settle = exact_settle_u8,
        Finish = cells_finish_u8,
        Join = descent_join_u8,
        Expand = descent_expand_u8,
        Assign = cluster_assign_u8,
        Pairs = cluster_pairs_u8,
        Mean = cluster_mean_u8,
        Collect = prune_collect_u8,
        Path = prune_path_u8,
        MedoidSums = medoid_sums_u8,
        MedoidNearest = medoid_nearest_u8,
        Lengths = lists_lengths_u8,
        MergeLists = lists_merge_u8,
        Beam64 = beam_search_64_u8,
        BeamLayer = beam_search_layer_u8,
        Beam128 = beam_search_128_u8,
        Beam256 = beam_search_256_u8,
        Beam512 = beam_search_512_u8,
    }
    i8, I8, exact_norms_i8 {
        Filter = exact_filter_i8,
        IntraCellJoin = cells_intra_join_i8,
        CrossCellJoin = cells_cross_join_i8,
        Settle = exact_settle_i8,
        Finish = cells_finish_i8,
        Join = descent_join_i8,
        Expand = descent_expand_i8,
        Assign = cluster_assign_i8,
        Pairs = cluster_pairs_i8,
        Mean = cluster_mean_i8,
        Collect = prune_collect_i8,
        Path = prune_path_i8,
        MedoidSums = medoid_sums_i8,
        MedoidNearest = medoid_nearest_i8,
        Lengths = lists_lengths_i8,
        MergeLists = lists_merge_i8,
        Beam64 = beam_search_64_i8,
        BeamLayer = beam_search_layer_i8,
        Beam128 = beam_search_128_i8,
        Beam256 = beam_search_256_i8,
        Beam512 = beam_search_512_i8,
    }
}

/// Blocks that prepare `count` vectors.
fn blocks(count: usize) -> u32 {
    count.div_ceil(PREPARE_VECTORS as usize) as u32
}

impl<T: OnDevice> Side<T> {
    /// Adds room for `count` vectors to a plan.
    pub(crate) fn plan(plan: Plan, names: Names, count: usize, dim: usize) -> Plan {
        let (stride, rounded_stride) = strides::<T>(dim);
        plan.with::<T>(names.values, count * stride)
            .with::<f16>(names.rounded, (count * rounded_stride).max(1))
            .with::<T::Sum>(names.biases, count)
            .with::<f32>(names.errors, count)
    }

    /// Takes what was planned.
    pub(crate) fn new(memory: &Reservation, names: Names, dim: usize) -> Result<Self> {
        let (stride, rounded_stride) = strides::<T>(dim);
        let mut errors: Buffer<f32> = memory.buffer(names.errors)?;
        // Bytes are taken as they are.
        errors.fill(0)?;
        Ok(Self {
            values: memory.buffer(names.values)?,
            stride,
            rounded: memory.buffer(names.rounded)?,
            rounded_stride,
            biases: memory.buffer(names.biases)?,
            errors,
        })
    }

    /// The values, with their stride, and the errors; the rest goes.
    pub(crate) fn into_original(self) -> (Buffer<T>, usize, Buffer<f32>) {
        (self.values, self.stride, self.errors)
    }

    /// Bytes of the tiles' vectors of `dim` components from one to the next.
    pub(crate) fn tile_bytes(dim: usize) -> usize {
        let (stride, rounded_stride) = strides::<T>(dim);
        if T::ROUNDED { rounded_stride * 2 } else { stride * size_of::<T>() }
    }

    /// The vectors as tiles take them.
    pub(crate) fn tiles(&self) -> TileVectors {
        let (vectors, bytes) = if T::ROUNDED {
            (self.rounded.view().cast(), self.rounded_stride * 2)
        } else {
            (self.values.view().cast(), self.stride * size_of::<T>())
        };
        TileVectors { vectors, stride: bytes as u32 }
    }
}

/// Components from one vector of `dim` components to the next: rows begin at multiples of 16 bytes.
pub(crate) fn stride<T: OnDevice>(dim: usize) -> usize {
    dim.next_multiple_of(16 / size_of::<T>())
}

/// The strides of vectors of `dim` components: of the values, and of the rounded copy.
fn strides<T: OnDevice>(dim: usize) -> (usize, usize) {
    (stride::<T>(dim), if T::ROUNDED { dim.next_multiple_of(8) } else { 0 })
}

/// How vectors become f16: `(x - mean) * scale`.
pub(crate) struct Rounding {
    pub mean: Vec<f32>,
    pub row_scale: f32,
    pub point_scale: f32,
    /// Rows that rounding moves further are not worth a comparison: they are always settled.
    pub error_limit: f32,
}

impl Rounding {
    /// How vectors are best rounded, by a sample of the `n` rows and of the `points`; `point` says which
    /// row of `points` each is.
    pub(crate) fn of<T: OnDevice>(
        metric: Metric,
        (rows, n): (Matrix<'_, T>, usize),
        (points, count): (Matrix<'_, T>, usize),
        point: impl Fn(usize) -> usize + Sync,
    ) -> Self {
        let dim = rows.dim();
        if !T::ROUNDED {
            return Self { mean: vec![0.0; dim], row_scale: 1.0, point_scale: 1.0, error_limit: 0.0 };
        }
        let sample = |count: usize| (0..count).step_by(count.div_ceil(SAMPLE).max(1));
        let product = metric == Metric::InnerProduct;
        let mut mean = vec![0f32; dim];
        if !product {
            let mut sums = vec![0f64; dim];
            for row in sample(n) {
                rows.row(row).iter().zip(&mut sums).for_each(|(x, sum)| *sum += f64::from(x.to_f32()));
            }
            let count = sample(n).count() as f64;
            mean.iter_mut().zip(sums).for_each(|(mean, sum)| *mean = (sum / count) as f32);
        }
        let magnitude = |row: &[T]| {
            let distances = row.iter().zip(&mean).map(|(x, mean)| (x.to_f32() - mean).abs());
            distances.fold(0f32, f32::max)
        };
        // A few that are far out are left out of it: they are cut if need be, and their errors say so.
        let most = |mut magnitudes: Vec<f32>| {
            magnitudes.sort_unstable_by(f32::total_cmp);
            let place = (magnitudes.len().saturating_sub(1) as f64 * 0.999) as usize;
            magnitudes.get(place).copied().unwrap_or(0.0)
        };
        let all = |count: usize| (0..count).into_par_iter().step_by(count.div_ceil(SAMPLE).max(1));
        let of_rows = most(all(n).map(|row| magnitude(rows.row(row))).collect());
        let of_points = most(all(count).map(|index| magnitude(points.row(point(index)))).collect());
        let (row_scale, point_scale) = if product {
            (scale(of_rows), scale(of_points))
        } else {
            let both = scale(of_rows.max(of_points));
            (both, both)
        };
        let error = |row: &[T]| {
            let (mut norm, mut error) = (0f64, 0f64);
            for (x, mean) in row.iter().zip(&mean) {
                let exact = (x.to_f32() - mean) * row_scale;
                norm += f64::from(exact).powi(2);
                error += f64::from(exact - f16::from_f32(exact).to_f32()).powi(2);
            }
            total_error(error.sqrt() as f32, norm.sqrt() as f32)
        };
        let largest = sample(n).step_by(8).map(|row| error(rows.row(row))).fold(0f32, f32::max);
        // Rows beyond it are few, if the sample is like the rest.
        Self { mean, row_scale, point_scale, error_limit: 1.25 * largest }
    }
}

/// The power of two that takes `magnitude` to half of [`MAGNITUDE`] or up to it, as far as the square of a scale, and products
/// with values that the sample lacks, stay finite.
fn scale(magnitude: f32) -> f32 {
    if magnitude > 0.0 { (MAGNITUDE / magnitude).log2().floor().clamp(-60.0, 40.0).exp2() } else { 1.0 }
}

/// Vectors of whole numbers from 0 to 255 as bytes, a row to `dim`: their distances are the same bits, and a
/// quarter of the memory. None if they are of other numbers, or have so many components that sums of f32 are
/// rounded.
pub(crate) fn as_bytes(rows: Matrix<'_, f32>, count: usize) -> Option<Vec<u8>> {
    let dim = rows.dim();
    if !sums_are_exact(dim) {
        return None;
    }
    let mut bytes = vec![0; count * dim];
    let convert = |(row, to): (usize, &mut [u8])| {
        rows.row(row).iter().zip(to).all(|(&x, to)| byte(x).inspect(|&byte| *to = byte).is_some())
    };
    bytes.par_chunks_exact_mut(dim).enumerate().with_min_len(1024).all(convert).then_some(bytes)
}

/// The rows of a space as [`as_bytes`] gives them; unit vectors are none.
pub(crate) fn bytes_of(space: &Space<'_>, rows: Matrix<'_, f32>) -> Option<Vec<u8>> {
    if space.metric() == Metric::Cosine { None } else { as_bytes(rows, space.len()) }
}

/// Evaluates an expression with the rows of a space as a matrix of the type in which they go to a device.
macro_rules! with_device_rows {
    ($space:expr, $rows:ident => $body:expr) => {
        match $space.rows() {
            $crate::vectors::Rows::F32(floats) => match $crate::vectors::gpu::bytes_of($space, floats) {
                Some(bytes) => {
                    let $rows = $crate::vectors::Matrix::new(&bytes, floats.dim(), floats.dim());
                    $body
                }
                None => {
                    let $rows = floats;
                    $body
                }
            },
            $crate::vectors::Rows::F16($rows) => $body,
            $crate::vectors::Rows::U8($rows) => $body,
            $crate::vectors::Rows::I8($rows) => $body,
        }
    };
}
pub(crate) use with_device_rows;

/// The number of a metric that kernels take.
pub(crate) fn metric_number(metric: Metric) -> u32 {
    match metric {
        Metric::L2 => exact::Metric::L2 as u32,
        Metric::InnerProduct => exact::Metric::InnerProduct as u32,
        Metric::Cosine => exact::Metric::Cosine as u32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_are_powers_of_two_within_f16() {
        for magnitude in [1e-30f32, 0.3, 1.0, 255.0, 1e20] {
            let scaled = magnitude * scale(magnitude);
            assert!(scaled <= MAGNITUDE && scale(magnitude).log2().fract() == 0.0, "{magnitude}");
        }
        assert_eq!(scale(0.0), 1.0);
    }
}
