//! The cluster graph of a data set in memory.

use std::time::Instant;

use crate::cluster::{self, ClusterKernels, Clustering, cpu};
use crate::gpu::{Buffer, Gpu, MemoryPlan};
use crate::outofcore::plan::ClusterGraph;
use crate::vectors::Vectors;
use crate::vectors::gpu::{Origin, Pick, Preparation, ROWS, Role, Rounding, Side};
use crate::vectors::range::check_smallest;
use crate::vectors::shape::{wide, with_device_type};
use crate::{Device, Error, Metric, Progress, Result};

/// Statistics of finding the cluster graph of a data set.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OverlapStats {
    /// The device, such as `cpu` or `cuda:0`.
    pub device: String,
    /// Seconds, copies to the device and compilation of kernels included.
    pub seconds: f64,
}

impl ClusterGraph {
    /// The cluster graph of `base`: each vector is in the clusters of its two nearest (L2) centres.
    ///
    /// K-means finds `clusters` centres on a sample. Clusters are numbered in the order of their
    /// first vectors in the base. A GPU rounds vectors of floats and centres of bytes, so its
    /// clusters differ a little from the CPU's.
    ///
    /// # Errors
    /// If `clusters` is less than 2 or exceeds the number of vectors; if a value of the base is not
    /// finite, the device has too little memory for the base, or the work is cancelled.
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
            Some(gpu) => {
                let base = wide(base, progress)?;
                with_device_type!(base.element_type(), T => nearest_two::<T>(gpu, &base, clusters, seed))?
            }
            None => cpu::nearest_two(base, clusters, seed, progress)?,
        };
        number_by_appearance(&mut pairs, clusters);
        let graph = Self::new(clusters, pairs.iter().map(|&[a, b]| (a, b, 1)));
        let device = gpu.as_ref().map_or("cpu", Gpu::name).to_owned();
        Ok((graph, OverlapStats { device, seconds: began.elapsed().as_secs_f64() }))
    }
}

/// Renumbers clusters in the order in which they are first the nearest of a vector.
///
/// The order is the same on all devices, and independent of the places of the centres. Clusters
/// that are nearest to no vector come last.
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

/// The two nearest centres of each row, the nearest first.
fn nearest_two<T: ClusterKernels>(
    gpu: &Gpu,
    base: &Vectors,
    clusters: usize,
    seed: u64,
) -> Result<Vec<[u32; 2]>> {
    let (n, dim, rows) = (base.len(), base.dim(), Origin::<T>::new(gpu, base)?);
    let memory =
        Side::<T>::plan(MemoryPlan::new(), ROWS, n, dim, T::ROUNDED).with::<f32>("mean", dim).reserve(gpu)?;
    let mut side = Side::<T>::new(&memory, ROWS, dim, T::ROUNDED)?;
    let sample = rows.sample(gpu, Rounding::places::<T>(n).map(|row| row as u32).collect())?;
    let rounding = Rounding::choose(Metric::L2, dim, &sample.rows(), &sample.rows());
    let mut mean: Buffer<f32> = memory.buffer("mean")?;
    mean.upload(&rounding.mean)?;
    let stride = side.stride;
    rows.copy(gpu, Pick::Range(0..n), &mut side.values, stride)?;
    let task = Preparation {
        count: n,
        dim,
        mean: &mean,
        scale: rounding.scale,
        metric: Metric::L2,
        role: Role::Points,
    };
    T::prepare(gpu, &mut side, &task)?;
    let cells =
        cluster::cells::<T>(gpu, side.tiles().rows(n, dim), Clustering::new(clusters, 2), seed, None)?;
    let mut members = vec![0; 2 * n];
    cells.members.download(&mut members)?;
    let mut nearest = vec![[0; 2]; n];
    // Each cluster has two groups: members by their nearest centre, then by their second.
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
    fn devices_find_the_clusters_of_the_cpu() {
        // Six shuffled clumps on a line, at growing distances.
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
    fn clusters_are_numbered_by_their_first_vectors() {
        let mut pairs = [[4, 1], [4, 0], [2, 4], [0, 2]];
        number_by_appearance(&mut pairs, 5);
        assert_eq!(pairs, [[0, 3], [0, 2], [1, 0], [2, 1]]);
    }

    #[test]
    fn equal_vectors_and_one_vector_per_cluster_work() {
        let base = Vectors::from_f32(vec![1.5; 3 * 12], 3).unwrap();
        for device in [Device::Cpu, Device::Emulated] {
            for clusters in [2, 12] {
                assert_eq!(graph(&base, clusters, device).0.nodes(), 12, "{clusters} clusters on {device}");
            }
        }
    }

    #[test]
    fn impossible_numbers_of_clusters_are_errors() {
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
