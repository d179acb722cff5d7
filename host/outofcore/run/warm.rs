//! Compiles kernels and pins memory in advance.

use super::lists::WaitingLists;
use super::local::LocalIndex;
use crate::gpu::Gpu;
use crate::outofcore::partition::Cluster;
use crate::outofcore::plan::Crew;
use crate::vectors::embedding::Embedding;
use crate::{Builder, DataShape, Result, Target, Vectors};

/// Rows of the throw-away build: with fewer rows, builds use other kernels.
const ROWS: usize = 16_384;

/// Adjacent rows of the sample: a disk that is busy with the partition reads few runs sooner than
/// many rows.
const RUN: usize = 256;

/// Builds and drops the index of a sample of `base`, as clusters of `size` vectors are built on
/// `devices` devices. The driver compiles each kernel on its first launch: 1 to 2 s in all.
pub(super) fn warm(
    builder: &Builder,
    base: &Vectors,
    embedding: &Embedding,
    size: usize,
    devices: usize,
) -> Result<()> {
    let rows = ROWS.min(size);
    let descent = builder.descent.of_part(rows);
    let k = descent.k_of(rows, "the sample")?;
    let data = DataShape::inspect(base, &builder.descent.progress)?.part(size);
    let start = builder.of_clusters().plan_of(&data, k, Target::cuda()).start;
    let descent = descent.forked()?;
    if let Some(gpu) = descent.gpu(size, base.dim())? {
        pin(&gpu, Crew::of_gpus(devices))?;
    }
    let builder = builder.clone().descent(descent).start(start);
    let step = base.len() / rows.div_ceil(RUN);
    let sample: Vec<u32> = (0..rows).map(|row| (row / RUN * step + row % RUN) as u32).collect();
    let cluster = Cluster {
        number: 0,
        ids: (0..rows as u32).collect(),
        others: vec![1; rows],
        vectors: base.select(&sample)?,
        is_small: false,
    };
    let mean = vec![0.0; embedding.dim(base.dim())];
    let mut lists = LocalIndex::build(&builder, cluster, embedding, &mean, |_| true)?.lists;
    let first = lists.get(0..rows)?;
    lists.merge(&[WaitingLists { places: 0..rows, lists: &first }]).map(drop)
}

/// Pins memory for the copies of all threads of a device.
fn pin(gpu: &Gpu, crew: Crew) -> Result<()> {
    let forks = (1..crew.threads).map(|_| gpu.fork()).collect::<Result<Vec<_>>>()?;
    for fork in &forks {
        fork.buffer::<u8>("byte", 1)?.upload(&[0])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Device, Metric, Progress, Strategy, Synth};

    #[test]
    fn samples_of_any_base_build() {
        for (rows, size, metric) in
            [(90, 40, Metric::L2), (50, 1, Metric::Cosine), (70, 30, Metric::InnerProduct)]
        {
            let base = Synth::new(rows, 5, 0).unwrap().base();
            let builder = Builder::new(Strategy::vamana()).metric(metric).knn(64).device(Device::Emulated);
            warm(&builder, &base, &Embedding::new(&base, metric, &Progress::silent()).unwrap(), size, 1)
                .unwrap();
        }
    }
}
