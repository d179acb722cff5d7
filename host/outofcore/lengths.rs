//! The lengths of a local index's edges.

use rayon::prelude::*;
use tagore_device::descent::key::{self, Key};
use tagore_device::prune::lengths::{LENGTH_ROWS, LENGTH_THREADS, Lengths};

use crate::gpu::{Buffer, Gpu, Plan};
use crate::parallel::for_each_row;
use crate::progress::StageProgress;
use crate::vectors::Matrix;
use crate::vectors::gpu::{Base, OnDevice, with_device_rows};
use crate::vectors::space::Space;
use crate::{Device, Index, Result};

/// The neighbours of each node in ascending order, as keys of their rule distances, padded with [`key::NONE`].
pub(super) fn lengths(
    index: &Index,
    space: &Space<'_>,
    device: Device,
    stage: &StageProgress<'_>,
) -> Result<Vec<Key>> {
    let stride = index.max_degree();
    let mut keys = vec![key::NONE; index.len() * stride];
    match device.gpu_for_graph(index.len())? {
        Some(gpu) => {
            with_device_rows!(space, rows => on_device(&gpu, space, rows, index, &mut keys))?;
            keys.par_chunks_exact_mut(stride).for_each(<[Key]>::sort_unstable);
        }
        None => for_each_row(&mut keys, stride, stage, Vec::new, |distances, node, row| {
            let neighbors = index.neighbors(node as usize);
            space.rule_distances(node, neighbors, distances);
            let found = neighbors.iter().zip(distances.iter());
            row.iter_mut().zip(found).for_each(|(key, (&id, &distance))| *key = key::pack(distance, id));
            row.sort_unstable();
        })?,
    }
    Ok(keys)
}

/// The device memory of it, beside the base.
fn plan(edges: usize) -> Plan {
    Plan::new().with::<u32>("edges", edges).with::<Key>("edge lengths", edges)
}

/// Writes the keys of all edges, in the order of the index.
fn on_device<T: OnDevice>(
    gpu: &Gpu,
    space: &Space<'_>,
    rows: Matrix<'_, T>,
    index: &Index,
    keys: &mut [Key],
) -> Result<()> {
    let base = Base::upload(gpu, space, rows)?;
    let memory = plan(keys.len()).reserve(gpu)?;
    let mut ids: Buffer<u32> = memory.buffer("edges")?;
    let mut lengths: Buffer<Key> = memory.buffer("edge lengths")?;
    ids.upload(index.padded_rows()?)?;
    let (n, stride) = (index.len() as u32, index.max_degree() as u32);
    let arguments =
        Lengths { rows: base.rows(), ids: ids.view(), keys: lengths.view_mut(), count: n, stride };
    // SAFETY: the rows' ids are nodes of the base, as many as the index has; all memory outlives the download.
    unsafe { gpu.launch::<T::Lengths>([n.div_ceil(LENGTH_ROWS), 1, 1], LENGTH_THREADS, (arguments,))? };
    let edges = u64::from(n) * u64::from(stride);
    let bytes = edges * (base.row_bytes() + size_of::<u32>() + size_of::<Key>()) as u64;
    gpu.count_work::<T::Lengths>(bytes, edges * 3 * space.dim() as u64);
    lengths.download(keys)
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::*;
    use crate::{Builder, Metric, Progress, Strategy, Synth, Vectors};

    #[test]
    fn lengths_on_a_device_are_those_of_the_cpu() {
        let progress = Progress::silent();
        let floats: Vec<f32> = {
            let base = Synth::new(61, 9, 3).unwrap().base();
            (0..61).flat_map(|row| base.row(row).to_vec()).map(|x| (x * 4.0).round()).collect()
        };
        let bytes = || floats.iter().map(|&x| x as i8);
        let mut zero = floats.clone();
        zero[9..18].fill(0.0);
        for (base, metric) in [
            (Vectors::from_f32(floats.clone(), 9), Metric::L2),
            (Vectors::from_f32(floats.clone(), 9), Metric::InnerProduct),
            (Vectors::from_f32(zero, 9), Metric::Cosine),
            (Vectors::from_f16(floats.iter().map(|&x| f16::from_f32(x)).collect(), 9), Metric::L2),
            (Vectors::from_i8(bytes().collect(), 9), Metric::L2),
            (Vectors::from_u8(bytes().map(|x| x as u8).collect(), 9), Metric::InnerProduct),
        ] {
            let base = base.unwrap();
            // Rows of several warps' widths, few of them full.
            let strategy = Strategy::nsg().degree(40);
            let builder = Builder::new(strategy).knn(45).metric(metric).device(Device::Cpu);
            let index = builder.build(&base).unwrap();
            let space = Space::new(&base, metric).unwrap().lifted_to(1e5);
            let stage = progress.stage("build", 0);
            let found = |device| lengths(&index, &space, device, &stage).unwrap();
            assert!(found(Device::Emulated) == found(Device::Cpu), "{metric} {}", base.element_type());
        }
    }
}
