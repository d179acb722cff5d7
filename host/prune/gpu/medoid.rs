//! The medoid on a GPU.

use cuda_std::memory::GlobalMut;
use tagore_device::block::rows::Rows;
use tagore_device::prune::medoid::{
    MEDOID_THREADS, Nearest, SUM_ROWS, medoid_nearest_f16, medoid_nearest_f32, medoid_nearest_i8,
    medoid_nearest_u8, medoid_sums_f16, medoid_sums_f32, medoid_sums_i8, medoid_sums_u8,
};

use crate::Result;
use crate::gpu::{Buffer, Gpu, MemoryPlan};
use crate::vectors::gpu::{Base, stage_kernels};
use crate::vectors::space::Space;

stage_kernels! {
    /// Kernels of the medoid.
    pub(crate) trait MedoidKernels {
        MedoidSums (Rows<Self>, GlobalMut<f64>, u32):
            medoid_sums_f32 medoid_sums_f16 medoid_sums_u8 medoid_sums_i8;
        MedoidNearest (Nearest<Self>,):
            medoid_nearest_f32 medoid_nearest_f16 medoid_nearest_u8 medoid_nearest_i8;
    }
}

/// Maximum number of blocks that search for the nearest row: several times the number that any
/// device runs at a time.
const BLOCKS: usize = 2048;

/// Blocks that search for the nearest of `n` rows, and their warps.
fn blocks(n: usize) -> (usize, usize) {
    let blocks = n.div_ceil(MEDOID_THREADS as usize).min(BLOCKS);
    (blocks, blocks * (MEDOID_THREADS / 32) as usize)
}

/// Device memory of the medoid of `n` rows.
pub(super) fn plan(n: usize, dim: usize) -> MemoryPlan {
    let warps = blocks(n).1;
    MemoryPlan::new()
        .with::<f64>("sums", n.div_ceil(SUM_ROWS as usize) * dim)
        .with::<f64>("mean", dim)
        .with::<u64>("least distances", warps)
        .with::<u32>("nearest rows", warps)
}

/// The row of [`Space::medoid`]: sums are added in the same order, and ties go to the same row.
pub(super) fn medoid<T: MedoidKernels>(gpu: &Gpu, space: &Space<'_>, base: &Base<T>) -> Result<u32> {
    let (n, dim) = (space.len(), space.dim());
    let pieces = n.div_ceil(SUM_ROWS as usize);
    let (blocks, warps) = blocks(n);
    let memory = plan(n, dim).reserve(gpu)?;
    let mut sums: Buffer<f64> = memory.buffer("sums")?;
    let mut mean: Buffer<f64> = memory.buffer("mean")?;
    let mut distances: Buffer<u64> = memory.buffer("least distances")?;
    let mut nearest_rows: Buffer<u32> = memory.buffer("nearest rows")?;

    let grid = [pieces as u32, dim.div_ceil(MEDOID_THREADS as usize) as u32, 1];
    let arguments = (base.rows(), sums.view_mut(), n as u32);
    // SAFETY: `sums` has room for a sum per piece and component, and outlives the work.
    unsafe { gpu.launch::<T::MedoidSums>(grid, MEDOID_THREADS, arguments)? };
    let mut of_pieces = vec![0f64; pieces * dim];
    sums.download(&mut of_pieces)?;
    let mut total = vec![0f64; dim];
    for piece in of_pieces.chunks_exact(dim) {
        total.iter_mut().zip(piece).for_each(|(total, sum)| *total += sum);
    }
    total.iter_mut().for_each(|total| *total /= n as f64);
    mean.upload(&total)?;

    let lift_mean = space.lift_mean();
    let nearest = Nearest {
        // Only lifts of inner products count; under cosine lifts mark zero vectors.
        rows: Rows { lifted: u32::from(lift_mean.is_some()), ..base.rows() },
        mean: mean.view(),
        distances: distances.view_mut(),
        nearest: nearest_rows.view_mut(),
        lift_mean: lift_mean.unwrap_or(0.0),
        count: n as u32,
        padding: 0,
    };
    // SAFETY: the buffers have a slot per warp and outlive the work.
    unsafe { gpu.launch::<T::MedoidNearest>([blocks as u32, 1, 1], MEDOID_THREADS, (nearest,))? };
    let (mut least, mut nearest) = (vec![0u64; warps], vec![0u32; warps]);
    distances.download(&mut least)?;
    nearest_rows.download(&mut nearest)?;
    Ok(least.into_iter().zip(nearest).min().map_or(0, |(_, row)| row))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Progress;
    use crate::prune::gpu::testing::{cases, devices};
    use crate::vectors::gpu::Origin;
    use crate::vectors::shape::with_device_type;
    use crate::vectors::{Metric, Vectors};
    use tagore_device::random::{Draws, Stage};

    fn check<T: MedoidKernels>(space: &Space<'_>) {
        for gpu in devices() {
            let rows = Origin::<T>::new(&gpu, space.vectors()).unwrap();
            let base = Base::upload(&gpu, space, &rows).unwrap();
            assert_eq!(
                medoid(&gpu, space, &base).unwrap(),
                space.medoid(&Progress::silent()).unwrap(),
                "{} rows",
                space.len()
            );
        }
    }

    #[test]
    fn medoids_match_the_cpu() {
        let check =
            |space: &Space<'_>| with_device_type!(space.vectors().element_type(), T => check::<T>(space));
        cases(|space, _| check(space));
        // Several pieces, the last of them short.
        let draws = Draws::new(6, Stage::Test, 2, 0);
        let values = (0..9001).map(|i| draws.unit(i) as f32).collect();
        let base = Vectors::from_f32(values, 1).unwrap();
        for metric in [Metric::L2, Metric::InnerProduct] {
            check(&Space::new(&base, metric, &Progress::silent()).unwrap());
        }
    }
}
