//! The devices of a build.

use super::{Builder, Target};
use crate::gpu::Gpu;
use crate::vectors::space::Space;
use crate::{DataShape, Device, Result, Vectors};

/// Minimum number of rows of a build that several GPUs share. With fewer, it takes longer to open
/// another GPU and to exchange what each finds than sharing saves: 4,000,000 x 96 take two H200s
/// 1.22 s and one 1.03 (CAGRA), or 1.38 and 1.34 (Vamana); 20,000,000 take 3.84 and 4.31, or 4.84
/// and 6.09.
const MIN_SHARED: usize = 8_000_000;

impl Builder {
    /// Whether all [devices](Self::devices) build an index of `data` in memory together. The index
    /// is that of one device, byte for byte. They share builds of at least 8,000,000 rows that
    /// start from cells ([`Start::Cells`](crate::Start::Cells)); if they do not, the first builds
    /// alone. Emulators share builds of any size.
    ///
    /// # Errors
    /// If a parameter is out of its range.
    pub fn shares(&self, data: &DataShape) -> Result<bool> {
        if self.others.is_empty() {
            return Ok(false);
        }
        let k = self.with_knn(true, data).descent.k_of(data.rows, "the data set")?;
        Ok(self.shares_lists(data, k))
    }

    /// As [`shares`](Self::shares), of lists of `k`.
    pub(super) fn shares_lists(&self, data: &DataShape, k: usize) -> bool {
        let devices: Vec<Device> = self.all_devices().collect();
        let is_emulated = devices.iter().all(|device| device.is_emulated());
        let are_gpus = is_emulated || devices.iter().all(|device| matches!(device, Device::Cuda(_)));
        let is_small = data.rows < MIN_SHARED && !is_emulated;
        let can_share = devices.len() > 1 && are_gpus && !is_small && !self.descent.is_of_cluster();
        can_share && self.descent.starts_from_cells(data, k)
    }

    /// The GPU that builds and prunes lists of `k`, with room for it unless the graph `is_given`;
    /// none if the CPU prunes. Rows for the CPU come to the host.
    pub(super) fn gpu_with_room(
        &self,
        base: &Vectors,
        space: &Space<'_>,
        k: usize,
        is_given: bool,
    ) -> Result<Option<Gpu>> {
        if let Some(gpu) = self.descent.gpu(base.len(), base.dim())? {
            let data = DataShape::new(base.len(), base.dim(), base.element_type())?;
            let recipe = self.resolve(&data, k, Target::opened(&gpu)?);
            if recipe.prunes_on_gpu {
                if !is_given {
                    recipe.check_fits(&gpu, base)?;
                }
                return Ok(Some(gpu));
            }
            if k > 0 {
                self.warn_of_cpu(&gpu, &data, k);
            }
        }
        base.on_host()?;
        space.vectors().on_host()?;
        Ok(None)
    }

    fn warn_of_cpu(&self, gpu: &Gpu, data: &DataShape, k: usize) {
        let device = gpu.name();
        if self.strategy.filters_on_gpu(gpu.takes_ptx()) {
            let (requested, allowed) =
                (self.pruning(data.rows, data.dim, k).block_bytes(), gpu.shared_memory());
            tracing::warn!(device, requested, allowed, "pruning on the CPU: too little shared memory");
        } else {
            tracing::warn!(device, "pruning on the CPU: the rule has no PTX");
        }
    }

    /// As [`gpu_with_room`](Self::gpu_with_room): all GPUs that build the graph together.
    pub(super) fn gpus_with_room(
        &self,
        base: &Vectors,
        space: &Space<'_>,
        k: usize,
        is_given: bool,
    ) -> Result<Vec<Gpu>> {
        let mut gpus = Vec::from_iter(self.gpu_with_room(base, space, k, is_given)?);
        let data = DataShape::new(base.len(), base.dim(), base.element_type())?;
        // Rows on a device are on one alone.
        if gpus.is_empty() || is_given || base.lent().is_some() || !self.shares(&data)? {
            return Ok(gpus);
        }
        let on = |device: &Device| self.clone().device(*device).gpu_with_room(base, space, k, is_given);
        let others: Option<Vec<Gpu>> = self.others.iter().map(on).collect::<Result<_>>()?;
        gpus.extend(others.into_iter().flatten());
        Ok(gpus)
    }

    /// The devices for builds of parts of `nodes` nodes.
    pub(crate) fn devices_for(&self, nodes: usize) -> Result<Vec<Device>> {
        self.all_devices().map(|device| device.for_graph(nodes)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prune::{GraphRows, Pruned};
    use crate::{Metric, Progress, Start, Strategy, Synth};

    /// The rows of a graph that `gpus` build together.
    fn rows(builder: &Builder, base: &Vectors, gpus: Vec<Gpu>) -> GraphRows {
        let space = Space::new(base, Metric::L2, &Progress::silent()).unwrap();
        let graph = builder.graph_on(&space, 24, gpus, None).unwrap();
        let Pruned { rows, .. } = builder.prune(&space, graph).unwrap().0;
        rows
    }

    // Streams of one device share its memory, and else are as two devices.
    #[test]
    fn two_streams_of_a_gpu_build_as_one() {
        let Some(gpu) = Gpu::cuda_for_tests() else { return };
        let base = Synth::new(30_000, 48, 3).unwrap().base();
        for strategy in Strategy::all() {
            let builder = Builder::new(strategy).start(Start::Cells).knn(24);
            let alone = rows(&builder, &base, vec![gpu.clone()]);
            for count in [2, 3] {
                let streams = (1..count).map(|_| gpu.fork().unwrap());
                let streams = std::iter::once(gpu.clone()).chain(streams).collect();
                let together = rows(&builder, &base, streams);
                assert!(together.padded() == alone.padded(), "{}, {count}", builder.strategy().kind());
            }
        }
    }
}
