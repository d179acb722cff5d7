//! Which clusters every vector of a data set is in, and so which clusters overlap.

use std::time::Instant;

use super::ClusterGraph;
use crate::cluster::{self, ClusterKernels, Clustering, cpu};
use crate::gpu::{Buffer, Gpu, MemoryPlan};
use crate::vectors::gpu::{Preparation, ROWS, Rounding, RowSet, Side};
use crate::vectors::range::check_smallest;
use crate::vectors::{Matrix, Vectors, with_matrix};
use crate::{Device, Error, Metric, Progress, Result};

/// What finding the clusters of a data set took.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OverlapStats {
    /// What ran it, such as `cpu` or `cuda:0`.
    pub device: String,
    /// Seconds, also those of copying to a device and of compiling kernels.
    pub seconds: f64,
}

impl ClusterGraph {
    /// The clusters of `base`: every vector is in those of its two nearest (L2) of `clusters` centres, which k-means
    /// finds on a sample. Clusters are numbered as the vectors that are nearest to their centres first come. A device
    /// rounds vectors of floats, and centres of bytes, so that its clusters differ a little from the CPU's.
    ///
    /// # Errors
    /// If there are less than 2 clusters, or more than vectors; if a value of the base is not finite, the device has no
    /// room for the base, or the work is cancelled.
    pub fn of_vectors(
        base: &Vectors,
        clusters: usize,
        seed: u64,
        device: Device,
        progress: &Progress,
    ) -> Result<(Self, OverlapStats)> {
        let n = base.len();
        if !(2..=n).contains(&clusters) {
            return Err(Error::argument(
                "clusters",
                clusters,
                format_args!("2 to the {n} rows of {}", base.describe()),
            ));
        }
        let largest = base.validate_for(Metric::L2, progress)?;
        check_smallest(base, largest, Metric::L2)?;
        let began = Instant::now();
        let gpu = device.gpu_for_graph(n)?;
        let mut pairs = match &gpu {
            Some(gpu) => with_matrix!(base.rows(), rows => nearest_two(gpu, rows, n, clusters, seed))?,
            None => cpu::nearest_two(base, clusters, seed, progress)?,
        };
        number_by_appearance(&mut pairs, clusters);
        let graph = Self::new(clusters, pairs.iter().map(|&[a, b]| (a, b, 1)));
        let device = gpu.as_ref().map_or("cpu", Gpu::name).to_owned();
        Ok((graph, OverlapStats { device, seconds: began.elapsed().as_secs_f64() }))
    }
}

/// Numbers the clusters of vectors as they are first the nearest of one: an order that has nothing to do with where
/// centres lie, and is the same on all devices. The clusters that are no vector's nearest come last.
fn number_by_appearance(pairs: &mut [[u32; 2]], clusters: usize) {
    let mut numbers = vec![None; clusters];
    let mut next = 0..;
    for cluster in pairs.iter().map(|pair| pair[0]).chain(0..clusters as u32) {
        let number = &mut numbers[cluster as usize];
        *number = number.or_else(|| next.next());
    }
    for cluster in pairs.iter_mut().flatten() {
        *cluster = numbers[*cluster as usize].unwrap_or_default();
    }
}

/// The clusters of the two nearest centres of each of the `n` rows, the nearest first.
fn nearest_two<T: ClusterKernels>(
    gpu: &Gpu,
    rows: Matrix<'_, T>,
    n: usize,
    clusters: usize,
    seed: u64,
) -> Result<Vec<[u32; 2]>> {
    let dim = rows.dim();
    let memory = Side::<T>::plan(MemoryPlan::new(), ROWS, n, dim)
        .with::<f32>("mean", dim)
        .with::<u32>("largest norm", 1)
        .reserve(gpu)?;
    let mut side = Side::<T>::new(&memory, ROWS, dim)?;
    let all = RowSet { rows, count: n };
    let rounding = Rounding::of(Metric::L2, all, all, |row| row);
    let (mut mean, mut largest): (Buffer<f32>, Buffer<u32>) =
        (memory.buffer("mean")?, memory.buffer("largest norm")?);
    mean.upload(&rounding.mean)?;
    largest.fill(0)?;
    let stride = side.stride;
    side.values.upload_rows(n, stride, |row| rows.row(row))?;
    let task = Preparation {
        count: n,
        dim,
        mean: &mean,
        largest: largest.view_mut(),
        scale: rounding.row_scale,
        error_limit: f32::INFINITY,
        norm_weight: 1,
        skip_zero: false,
    };
    T::prepare(gpu, &mut side, &task)?;
    let cells =
        cluster::cells::<T>(gpu, side.tiles().rows(n, dim), Clustering::new(clusters, 2), seed, None)?;
    let mut members = vec![0; 2 * n];
    cells.members.download(&mut members)?;
    let mut nearest = vec![[0; 2]; n];
    // The members of each cluster by their nearest centre, then those by their second.
    for (group, range) in cells.starts.windows(2).enumerate() {
        for &member in &members[range[0]..range[1]] {
            nearest[member as usize][group % 2] = (group / 2) as u32;
        }
    }
    Ok(nearest)
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::*;
    use crate::Synth;

    fn graph(base: &Vectors, clusters: usize, device: Device) -> (ClusterGraph, OverlapStats) {
        ClusterGraph::of_vectors(base, clusters, 5, device, &Progress::silent()).unwrap()
    }

    #[test]
    fn a_device_finds_the_clusters_of_the_cpu() {
        // Six clumps on a line, further from each other the further they are out; in no order.
        let value = |i: usize| [0, 20, 42, 66, 92, 120][i * i % 97 % 6];
        let values: Vec<u8> = (0..240).map(value).collect();
        let floats: Vec<f32> = values.iter().map(|&x| f32::from(x)).collect();
        for base in [
            Vectors::from_u8(values.clone(), 1),
            Vectors::from_i8(values.iter().map(|&x| x as i8).collect(), 1),
            Vectors::from_f16(floats.iter().map(|&x| f16::from_f32(x)).collect(), 1),
            Vectors::from_f32(floats, 1),
        ] {
            let base = base.unwrap();
            let (cpu, stats) = graph(&base, 6, Device::Cpu);
            assert_eq!((cpu.nodes(), stats.device.as_str()), (240, "cpu"));
            let (device, stats) = graph(&base, 6, Device::Emulated);
            assert_eq!((device, stats.device.as_str()), (cpu, "emulated"));
        }
    }

    #[test]
    fn clusters_are_numbered_as_they_appear() {
        let mut pairs = [[4, 1], [4, 0], [2, 4], [0, 2]];
        number_by_appearance(&mut pairs, 5);
        assert_eq!(pairs, [[0, 3], [0, 2], [1, 0], [2, 1]]);
    }

    #[test]
    fn equal_vectors_and_as_many_clusters_as_vectors_are_fine() {
        let base = Vectors::from_f32(vec![1.5; 3 * 12], 3).unwrap();
        for device in [Device::Cpu, Device::Emulated] {
            for clusters in [2, 12] {
                assert_eq!(graph(&base, clusters, device).0.nodes(), 12, "{clusters} clusters on {device}");
            }
        }
    }

    #[test]
    fn clusters_that_cannot_be_are_refused() {
        let base = Synth::new(50, 4, 0).unwrap().base();
        for clusters in [0, 1, 51] {
            let error =
                ClusterGraph::of_vectors(&base, clusters, 0, Device::Cpu, &Progress::silent()).unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("clusters: found {clusters}, expected 2 to the 50 rows of vectors")
            );
        }
    }
}
