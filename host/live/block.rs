//! Recent rows of a live index, which searches compare one by one.

use std::sync::{Arc, Mutex};

use tagore_device::key::Key;

use super::version::{RowKind, bytes_of};
use crate::gpu::{Gpu, Gpus};
use crate::parallel::locked;
use crate::search::exact::{nearest, nearest_among_on};
use crate::vectors::space::Space;
use crate::{Metric, Progress, Result, Vectors};

/// Minimum number of multiply-adds for which a GPU compares the rows of a block: below, copying
/// them there takes longer.
pub(super) const WORTH_A_GPU: u64 = 1 << 28;

/// Recent rows that were inserted together, or joined since.
pub(super) struct Block {
    pub rows: Vectors,
    pub space: Space<'static>,
    pub ids: Vec<u64>,
    /// The rows on the GPU of the last search that compared them there.
    on_gpu: Mutex<Option<(String, Arc<Space<'static>>)>>,
}

impl Block {
    /// # Errors
    /// If the values cannot be used under the metric.
    pub(super) fn new(rows: Vectors, ids: Vec<u64>, metric: Metric) -> Result<Self> {
        let space = Space::owned(rows.clone(), metric, &Progress::silent())?;
        Ok(Self { rows, space, ids, on_gpu: Mutex::default() })
    }

    /// The `k` nearest of the rows at places `among`, of all if none, for each of `queries`:
    /// compared on these GPUs, if any.
    pub(super) fn nearest(
        &self,
        among: Option<&[u32]>,
        queries: &Vectors,
        k: usize,
        gpus: Option<&Gpus>,
        progress: &Progress,
    ) -> Result<Vec<Key>> {
        let own = self.space.queries(queries, progress)?;
        if let Some(gpus) = gpus
            && among != Some(&[])
        {
            let there = self.copied_to(gpus.first())?;
            let space = there.as_deref().unwrap_or(&self.space);
            let find = |rows: &Space<'_>, ids: &[u32]| nearest_among_on(gpus, rows, ids, &own, k, progress);
            return match among {
                Some(places) => find(&space.part(places)?, places),
                None => find(space, &(0..self.ids.len() as u32).collect::<Vec<_>>()),
            };
        }
        self.space.vectors().on_host()?;
        own.vectors().on_host()?;
        let query = |query| (own.query(query), None);
        nearest(&self.space, among, queries.len(), &query, k, progress)
    }

    /// The rows on `gpu`, copied there once; none if it does not take them as they are.
    fn copied_to(&self, gpu: &Gpu) -> Result<Option<Arc<Space<'static>>>> {
        let mut on_gpu = locked(&self.on_gpu);
        if let Some((name, there)) = &*on_gpu
            && name == gpu.name()
        {
            return Ok(Some(Arc::clone(there)));
        }
        let there = self.space.copied_to(gpu)?.map(Arc::new);
        *on_gpu = there.clone().map(|there| (gpu.name().to_owned(), there));
        Ok(there)
    }

    /// Joins `blocks`, at least one, into a single block.
    pub(super) fn joined(blocks: &[Arc<Self>]) -> Result<Self> {
        let Self { rows, space, .. } = &*blocks[0];
        let kind = RowKind { dim: rows.dim(), element: rows.element_type(), metric: space.metric() };
        let ids = blocks.iter().flat_map(|block| block.ids.iter().copied()).collect::<Vec<_>>();
        let rows = kind.copied(ids.len(), blocks.iter().flat_map(|block| bytes_of(&block.rows)))?;
        Self::new(rows, ids, kind.metric)
    }
}

/// The blocks, each with the number of its first row among the recent ones.
pub(super) fn numbered(blocks: &[Arc<Block>]) -> impl Iterator<Item = (u32, &Block)> {
    blocks.iter().scan(0, |next, block| {
        let first = *next;
        *next += block.ids.len() as u32;
        Some((first, &**block))
    })
}

#[cfg(test)]
mod tests {
    use tagore_device::key;

    use super::*;
    use crate::Synth;

    #[test]
    fn a_gpu_compares_recent_rows_as_the_cpu_does() {
        let silent = Progress::silent();
        let synth = Synth::new(90, 7, 2).unwrap();
        let (base, queries) = (synth.base(), synth.queries(4));
        let gpus = Gpus::new(vec![Gpu::emulated(3)]).unwrap();
        for metric in [Metric::L2, Metric::InnerProduct, Metric::Cosine] {
            let block = Block::new(base.clone(), (0..90).collect(), metric).unwrap();
            let some: Vec<u32> = (0..90).step_by(4).collect();
            for (among, k) in [(None, 12), (None, 100), (Some(&some[..]), 5), (Some(&some[..]), 30)] {
                let [there, here] =
                    [Some(&gpus), None].map(|gpus| block.nearest(among, &queries, k, gpus, &silent).unwrap());
                assert_eq!(there, here, "{metric}, {k}");
            }
            let none =
                [Some(&gpus), None].map(|gpus| block.nearest(Some(&[]), &queries, 3, gpus, &silent).unwrap());
            assert_eq!(none, [[key::NONE; 12], [key::NONE; 12]]);
            let part = |rows: std::ops::Range<usize>| {
                let ids = rows.clone().map(|row| row as u64).collect();
                Arc::new(Block::new(base.part(rows).unwrap(), ids, metric).unwrap())
            };
            let joined = Block::joined(&[part(0..40), part(40..41), part(41..90)]).unwrap();
            assert_eq!(joined.ids, block.ids);
            let [joined, whole] =
                [joined, block].map(|block| block.nearest(None, &queries, 9, None, &silent).unwrap());
            assert_eq!(joined, whole, "{metric}");
        }
    }
}
