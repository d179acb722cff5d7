//! Having kernels compiled, and memory pinned, before they are needed.

use super::local::LocalIndex;
use super::partition::Cluster;
use super::pipeline::Crew;
use crate::gpu::{Gpu, MemoryPlan};
use crate::vectors::embedding::Embedding;
use crate::{Builder, DataShape, Result, Target, Vectors};

/// Rows that are built with for it: fewer would be done in another way.
const ROWS: usize = 16_384;

/// Builds a little of `base` on one of `devices` devices, as clusters of `size` vectors will be, and forgets it: a kernel is compiled when it is first
/// launched, all of them in a second or two.
pub(super) fn warm(
    builder: &Builder,
    base: &Vectors,
    embedding: &Embedding,
    (size, devices): (usize, usize),
) -> Result<()> {
    let rows = ROWS.min(size);
    let descent = builder.descent.of_part(rows);
    let k = descent.k_of(rows, "the sample")?;
    let start =
        builder.plan_of(&DataShape::of(base, &builder.descent.progress)?.part(size), k, Target::cuda()).start;
    let descent = descent.forked()?;
    if let Some(gpu) = descent.gpu(size)? {
        pin(&gpu, Crew::of_gpus(devices))?;
    }
    let builder = builder.clone().descent(descent).start(start);
    let sample: Vec<u32> = (0..rows).map(|row| (row * (base.len() / rows)) as u32).collect();
    let cluster = Cluster {
        number: 0,
        ids: (0..rows as u32).collect(),
        others: vec![1; rows],
        vectors: base.far_apart(|| base.select(&sample)),
    };
    let mean = vec![0.0; embedding.dim(base.dim())];
    let mut lists = LocalIndex::build(&builder, cluster, (embedding, &mean), |_| true)?.lists;
    let first = lists.get(0..rows)?;
    lists.merge(&[(0..rows, &first)]).map(drop)
}

/// Has memory pinned for the copies of all threads of a device.
fn pin(gpu: &Gpu, crew: Crew) -> Result<()> {
    let forks = (1..crew.threads).map(|_| gpu.fork()).collect::<Result<Vec<_>>>()?;
    for fork in &forks {
        let memory = MemoryPlan::new().with::<u8>("byte", 1).reserve(fork)?;
        memory.buffer::<u8>("byte")?.upload(&[0])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Device, Metric, Progress, Strategy, Synth};

    #[test]
    fn a_little_of_any_base_can_be_built() {
        for (rows, size, metric) in
            [(90, 40, Metric::L2), (50, 1, Metric::Cosine), (70, 30, Metric::InnerProduct)]
        {
            let base = Synth::new(rows, 5, 0).unwrap().base();
            let builder = Builder::new(Strategy::vamana()).metric(metric).knn(64).device(Device::Emulated);
            warm(&builder, &base, &Embedding::new(&base, metric, &Progress::silent()).unwrap(), (size, 1))
                .unwrap();
        }
    }
}
