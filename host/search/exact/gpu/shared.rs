//! Exact search that several GPUs share.
//!
//! If the base fits each GPU, all get a copy, and each takes a part of the queries. Else each
//! takes a part of the base for all queries, and the host merges their lists: so the base is read
//! once, whatever its size. The same holds for few queries, since a tile takes as long for one
//! query as for all that it has room for.
//!
//! Keys order by distance and id, so the merged lists of parts are those of the whole base.

use std::ops::Range;

use tagore_device::block::tile;
use tagore_device::key::Key;

use super::{GpuSearch, QuerySet, Subset, add_zero_vectors};
use crate::gpu::{Gpu, Gpus};
use crate::loops::{for_each_with, numbered, rows_mut};
use crate::parallel::shares;
use crate::progress::StageProgress;
use crate::search::gpu::{OnGpu, OnGpus};
use crate::vectors::shape::with_device_type;
use crate::vectors::space::Space;
use crate::{Progress, Result};

/// An exact search on one or more GPUs.
pub(crate) struct SharedSearch<'a> {
    pub gpus: &'a Gpus,
    /// The base, with at least `k` rows to find.
    pub space: &'a Space<'a>,
    pub queries: &'a QuerySet<'a>,
    /// Neighbours per query.
    pub k: usize,
    /// Maximum bytes of memory to use of each device, if limited.
    pub budget: Option<u64>,
    pub progress: &'a Progress,
}

impl SharedSearch<'_> {
    /// Finds the `k` smallest keys of each query, as the CPU computes them.
    ///
    /// # Errors
    /// As [`GpuSearch::run`].
    pub(crate) fn run(&self) -> Result<Vec<Key>> {
        let Self { gpus, space, queries, k, progress, .. } = *self;
        let all = self.on(gpus.first(), queries);
        if gpus.all().len() == 1 {
            return all.run();
        }
        all.check_k()?;
        let stage = progress.stage("exact search", all.pairs());
        let mut keys = if self.divides_base()? { self.by_rows(&stage) } else { self.by_queries(&stage) }?;
        add_zero_vectors(space, None, queries, k, &mut keys);
        Ok(keys)
    }

    /// The search of one GPU.
    fn on<'s>(&'s self, gpu: &'s Gpu, queries: &'s QuerySet<'s>) -> GpuSearch<'s> {
        let &Self { space, k, budget, progress, .. } = self;
        GpuSearch { gpu, space, subset: None, queries, k, budget, progress }
    }

    /// Whether the GPUs take parts of the base, not of the queries.
    fn divides_base(&self) -> Result<bool> {
        let (gpus, count) = (self.gpus.all(), self.queries.count);
        if count < gpus.len() * tile::SIDE as usize {
            return Ok(true);
        }
        let share = self.queries.part(0..count.div_ceil(gpus.len()));
        let n = self.space.len();
        for gpu in gpus {
            let search = self.on(gpu, &share);
            let element = self.space.vectors().element_type();
            if with_device_type!(element, T => search.pieces::<T>(n))?.1 < n {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Each GPU searches the whole base for a part of the queries.
    fn by_queries(&self, stage: &StageProgress<'_>) -> Result<Vec<Key>> {
        let n = self.space.len();
        let search = |(gpu, range): (&Gpu, Range<usize>)| {
            self.on(gpu, &self.queries.part(range)).run_among(0..n, stage)
        };
        let gpus = self.gpus.all();
        let parts = gpus.iter().zip(shares(self.queries.count, gpus.len())).collect();
        Ok(self.gpus.run_stage(stage, parts, search)?.concat())
    }

    /// Each GPU searches a part of the base for all queries.
    fn by_rows(&self, stage: &StageProgress<'_>) -> Result<Vec<Key>> {
        let search = |(gpu, rows): (&Gpu, Range<usize>)| self.on(gpu, self.queries).run_among(rows, stage);
        let gpus = self.gpus.all();
        let parts = gpus.iter().zip(shares(self.space.len(), gpus.len())).collect();
        let mut lists = self.gpus.run_stage(stage, parts, search)?;
        let (k, mut keys) = (self.k, lists.pop().unwrap_or_default());
        for_each_with(numbered(rows_mut(&mut keys, k)), Vec::new, |both, (query, list)| {
            for other in &lists {
                both.clear();
                both.extend_from_slice(list);
                both.extend_from_slice(&other[query * k..][..k]);
                // Two ascending runs; keys order by distance, then by id.
                both.sort();
                list.copy_from_slice(&both[..k]);
            }
        });
        Ok(keys)
    }
}

/// Finds the `k` nearest of some rows for each of `queries`, on GPUs that hold the base; each takes
/// a part of the queries. Keys hold places in `ids`.
///
/// # Errors
/// As [`GpuSearch::run`].
pub(crate) fn nearest_of_subset(
    there: &OnGpus,
    space: &Space<'_>,
    ids: &[u32],
    queries: &QuerySet<'_>,
    k: usize,
    progress: &Progress,
) -> Result<Vec<Key>> {
    let stage = progress.stage("exact search", ids.len() as u64 * queries.count as u64);
    let search = |(there, range): (&OnGpu, Range<usize>)| {
        let (subset, queries) = (Some(Subset { there, ids }), &queries.part(range));
        let search = GpuSearch { gpu: there.gpu(), space, subset, queries, k, budget: None, progress };
        search.run_among(0..ids.len(), &stage)
    };
    let copies = there.copies();
    let parts = copies.iter().zip(shares(queries.count, copies.len())).collect();
    let mut keys = there.gpus().run_stage(&stage, parts, search)?.concat();
    add_zero_vectors(space, Some(ids), queries, k, &mut keys);
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Metric, Synth};

    #[test]
    fn the_base_is_divided_if_it_does_not_fit_or_queries_are_few() {
        let gpus = Gpus::new((0..2).map(Gpu::emulated).collect()).unwrap();
        let silent = Progress::silent();
        let synth = Synth::new(300, 6, 1).unwrap();
        let base = synth.base();
        let space = Space::new(&base, Metric::L2, &silent).unwrap();
        let divides = |queries: usize, budget| {
            let queries = synth.queries(queries);
            let queries = space.queries(&queries, &silent).unwrap();
            let queries = &QuerySet::of_queries(&queries);
            SharedSearch { gpus: &gpus, space: &space, queries, k: 9, budget, progress: &silent }
                .divides_base()
                .unwrap()
        };
        assert!(divides(255, None) && !divides(256, None));
        // As in tests/gpu/several.rs: room for a tile of rows.
        assert!(!divides(257, Some(1 << 20)) && divides(257, Some(555_000)));
    }
}
