//! Exact search on a GPU: tensor cores filter all rows; reranking computes exact distances of the
//! survivors (`device/src/search/exact/`).
//!
//! The base goes to the device in pieces that fit its memory. The rows of a piece are visited in
//! ranges that grow as the bounds of the queries tighten, so that survivors fill about a sixth of
//! their capacity. A few queries may overflow it, as in a dense spot with distances below the
//! rounding error. These are searched again by themselves. If many overflow, the range is visited
//! again in smaller parts. Several GPUs share a search (`shared.rs`).

mod batch;
mod pass;
mod shared;

use std::ops::Range;

use tagore_device::block::tile;
use tagore_device::key::{self, Key};

use batch::Batch;
use pass::Pass;
pub(crate) use pass::{ExactKernels, kernels};
pub(crate) use shared::{SharedSearch, nearest_of_subset};

use crate::gpu::{Buffer, Gpu, MemoryPlan};
use crate::memory::collected_in_parallel;
use crate::progress::StageProgress;
use crate::search::gpu::OnGpu;
use crate::vectors::gpu::{
    OnDevice, Origin, Pick, Preparation, QUERIES, ROWS, Role, Rounding, Side, narrowed, with_typed,
};
use crate::vectors::queries::Queries;
use crate::vectors::shape::{all_are_read, with_device_type};
use crate::vectors::space::Space;
use crate::{Error, Metric, Progress, Result, Vectors};

/// The largest k: a query's list and the keys merged into it share the memory of a block.
pub(crate) const MAX_K: usize = 1024;

/// Queries per batch.
const BATCH: usize = 16_384;

/// Minimum batch of a search for the neighbours of all rows; larger from four times as many rows
/// on.
const MIN_BATCH: usize = 1024;

/// The queries of a search.
pub(crate) struct QuerySet<'a> {
    vectors: &'a Vectors,
    /// The row of each query, if the queries are nodes of the base; no node finds itself.
    nodes: Option<&'a [u32]>,
    zero: &'a [bool],
    /// The row of the first query, unless they are nodes.
    first: usize,
    count: usize,
    /// The base of these nodes on the device of the search, if it is there.
    there: Option<&'a OnGpu>,
}

impl<'a> QuerySet<'a> {
    pub(crate) fn of_queries(queries: &'a Queries<'_>) -> Self {
        let (vectors, zero) = (queries.vectors(), queries.zero());
        Self { vectors, nodes: None, zero, first: 0, count: queries.len(), there: None }
    }

    pub(crate) fn of_nodes(space: &'a Space<'_>, nodes: &'a [u32]) -> Self {
        let (vectors, zero) = (space.vectors(), space.zero());
        Self { vectors, nodes: Some(nodes), zero, first: 0, count: nodes.len(), there: None }
    }

    /// As [`of_nodes`](Self::of_nodes), for a search on the device that holds the base.
    pub(crate) fn of_nodes_there(space: &'a Space<'_>, nodes: &'a [u32], there: &'a OnGpu) -> Self {
        Self { there: Some(there), ..Self::of_nodes(space, nodes) }
    }

    /// The queries of `range`.
    fn part(&self, range: Range<usize>) -> Self {
        let nodes = self.nodes.map(|nodes| &nodes[range.clone()]);
        Self { nodes, first: self.first + range.start, count: range.len(), ..*self }
    }

    fn row_of(&self, query: usize) -> usize {
        self.nodes.map_or(self.first + query, |nodes| nodes[query] as usize)
    }

    fn is_zero(&self, query: usize) -> bool {
        self.zero.get(self.row_of(query)).copied().unwrap_or(false)
    }
}

/// Maximum number of survivors per query between two rerankings.
pub(crate) fn capacity(k: usize) -> usize {
    (8 * k).next_power_of_two().clamp(1024, 4096)
}

/// Batch of a search for the neighbours of all `n` rows: at most a quarter, so that survivors take
/// no more memory than the kept buffers.
pub(crate) fn batch_of_all(n: usize) -> usize {
    n.div_ceil(4).clamp(MIN_BATCH, BATCH).min(n)
}

/// Device memory of a search for the `k` nearest of every row, with all `n` rows of `dim`
/// components on the device.
pub(crate) fn all_pairs_plan<T: OnDevice>(n: usize, dim: usize, k: usize) -> MemoryPlan {
    device_plan::<T>(n, batch_of_all(n), dim, k)
}

/// Minimum device memory of a search for the `k` nearest of some of `n` rows.
pub(crate) fn least_plan<T: OnDevice>(n: usize, dim: usize, k: usize) -> MemoryPlan {
    let side = n.min(tile::SIDE as usize);
    device_plan::<T>(side, side, dim, k)
}

/// Device memory of a search for the `k` nearest, with `rows` rows of `dim` components on the
/// device at a time, and `queries` queries in batches.
fn device_plan<T: OnDevice>(rows: usize, queries: usize, dim: usize, k: usize) -> MemoryPlan {
    let queries = queries.min(BATCH);
    let plan = Side::<T>::plan(MemoryPlan::new(), ROWS, rows, dim, T::ROUNDED);
    Side::<T>::plan(plan, QUERIES, queries, dim, T::ROUNDED)
        .with::<u32>("excluded ids", queries)
        .with::<T::Sum>("bounds", queries)
        .with::<u32>("counts", queries)
        .with::<u32>("survivors", queries * capacity(k))
        .with::<Key>("lists", queries * k)
        .with::<f32>("mean", dim)
        .with::<u32>("overflow", 1)
}

/// Some rows of a base that lies on the device of a search.
#[derive(Clone, Copy)]
pub(crate) struct Subset<'a> {
    pub there: &'a OnGpu,
    /// The rows, ascending.
    pub ids: &'a [u32],
}

/// An exact search on a GPU.
pub(crate) struct GpuSearch<'a> {
    pub gpu: &'a Gpu,
    /// The base, with at least `k` rows to find.
    pub space: &'a Space<'a>,
    /// The rows that [`run_among`](Self::run_among) searches, unless all; keys then hold places in
    /// their list.
    pub subset: Option<Subset<'a>>,
    pub queries: &'a QuerySet<'a>,
    /// Neighbours per query.
    pub k: usize,
    /// Maximum bytes of device memory to use, if limited.
    pub budget: Option<u64>,
    pub progress: &'a Progress,
}

impl GpuSearch<'_> {
    /// Finds the `k` smallest keys of each query among all rows, as the CPU computes them.
    ///
    /// # Errors
    /// If `k` is out of range, the device lacks memory or fails, or the work is cancelled.
    pub(crate) fn run(&self) -> Result<Vec<Key>> {
        let Self { space, queries, k, .. } = *self;
        self.check_k()?;
        let stage = self.progress.stage("exact search", self.pairs());
        let mut keys = self.run_among(0..space.len(), &stage)?;
        add_zero_vectors(space, None, queries, k, &mut keys);
        Ok(keys)
    }

    fn check_k(&self) -> Result<()> {
        if (1..=MAX_K).contains(&self.k) {
            return Ok(());
        }
        Err(Error::argument("k", self.k, format_args!("1 to {MAX_K} on a GPU")))
    }

    /// Pairs of a row and a query: the units of progress.
    fn pairs(&self) -> u64 {
        self.space.len() as u64 * self.queries.count as u64
    }

    /// Finds the `k` smallest keys of each query among some rows, without zero vectors under
    /// cosine. [`key::NONE`] is in the last slots where there are fewer.
    fn run_among(&self, among: Range<usize>, stage: &StageProgress<'_>) -> Result<Vec<Key>> {
        if self.queries.count == 0 {
            return Ok(Vec::new());
        }
        if let Some(Subset { there, .. }) = self.subset {
            let queries = self.queries.vectors;
            if let Some(rows) = there.bytes_of_floats()
                && let Some(queries) = narrowed(self.gpu, queries, false)?
            {
                return self.run_as(&queries, &rows, among, stage);
            }
            return with_typed!(there.rows_as_given(self.space)?, rows => {
                self.run_as(&Origin::new(self.gpu, queries)?, &rows, among, stage)
            });
        }
        if let Some(there) = self.queries.there {
            return with_typed!(there.rows(), rows => self.run_as(&rows, &rows, among, stage));
        }
        let (gpu, queries, rows) = (self.gpu, self.queries.vectors, self.space.vectors());
        // As bytes if both are bytes in f32, and no more is read for that than by a `DataShape`.
        if self.space.metric() != Metric::Cosine
            && all_are_read(rows)
            && let Some(rows) = narrowed(gpu, rows, false)?
            && let Some(queries) = narrowed(gpu, queries, false)?
        {
            return self.run_as(&queries, &rows, among, stage);
        }
        with_device_type!(rows.element_type(), T => {
            self.run_as::<T>(&Origin::new(gpu, queries)?, &Origin::new(gpu, rows)?, among, stage)
        })
    }

    /// Maximum number of survivors per query between two rerankings.
    fn capacity(&self) -> usize {
        capacity(self.k)
    }

    /// The plan for `rows` rows at a time and `queries` queries.
    fn plan<T: OnDevice>(&self, rows: usize, queries: usize) -> MemoryPlan {
        device_plan::<T>(rows, queries, self.space.dim(), self.k)
    }

    /// Queries per batch, and rows on the device at a time, for a search among `n` rows.
    fn pieces<T: OnDevice>(&self, n: usize) -> Result<(usize, usize)> {
        let free = self.gpu.free_memory()?;
        // Left for the driver and its compiler, whose memory is unknown.
        let free = free.saturating_sub((free / 20).min(1 << 30));
        let room = self.budget.map_or(free, |budget| budget.min(free));
        let (side, count) = (tile::SIDE as usize, self.queries.count);
        let is_all = self.queries.nodes.is_some() && count == self.space.len();
        let mut queries = if is_all { batch_of_all(n) } else { count.min(BATCH) };
        // Half of the room is for rows.
        while queries > side && self.plan::<T>(side, queries).bytes() > room / 2 {
            queries = (queries / 2).max(side);
        }
        let rows = side.min(n);
        let (least, two) =
            (self.plan::<T>(rows, queries).bytes(), self.plan::<T>(rows + side, queries).bytes());
        if least > room {
            return Err(self.gpu.error(format_args!("needs {least} bytes of device memory, free {room}")));
        }
        let pieces = ((room - least) / (two - least).max(1)) as usize + 1;
        Ok((queries, pieces.saturating_mul(side).min(n)))
    }

    fn run_as<T: ExactKernels>(
        &self,
        queries: &Origin<'_, T>,
        rows: &Origin<'_, T>,
        among: Range<usize>,
        stage: &StageProgress<'_>,
    ) -> Result<Vec<Key>> {
        let (count, k, dim) = (self.queries.count, self.k, self.space.dim());
        let (batch, piece) = self.pieces::<T>(among.len())?;
        let memory = self.plan::<T>(piece, batch).reserve(self.gpu)?;
        let mut side = Side::<T>::new(&memory, ROWS, dim, T::ROUNDED)?;
        let mut batch_memory = Batch::<T> {
            side: Side::new(&memory, QUERIES, dim, T::ROUNDED)?,
            excluded: memory.buffer("excluded ids")?,
            bounds: memory.buffer("bounds")?,
            counts: memory.buffer("counts")?,
            survivors: memory.buffer("survivors")?,
            lists: memory.buffer("lists")?,
            overflow: memory.buffer("overflow")?,
            count: 0,
        };
        let ids = self.subset.map(|subset| subset.ids);
        let row = |place: usize| ids.map_or(place as u32, |ids| ids[place]);
        let places = Rounding::few_places::<T>(among.len()).map(|place| row(among.start + place));
        let of_rows = rows.sample(self.gpu, places.collect())?;
        let metric = self.space.metric();
        let sampled = if metric == Metric::InnerProduct { 0 } else { count };
        let places = Rounding::few_places::<T>(sampled).map(|query| self.queries.row_of(query) as u32);
        let of_queries = queries.sample(self.gpu, places.collect())?;
        let rounding = Rounding::choose(metric, dim, &of_rows.rows(), &of_queries.rows());
        drop((of_rows, of_queries));
        let mut mean: Buffer<f32> = memory.buffer("mean")?;
        mean.upload(&rounding.mean)?;

        let all_queries: Vec<u32> = (0..count as u32).collect();
        let mut keys = collected_in_parallel(0..count * k, |_| key::NONE)?;
        for first in among.clone().step_by(piece) {
            let rows_here = piece.min(among.end - first);
            let here = first..first + rows_here;
            let pick = ids.map_or(Pick::Range(here.clone()), |ids| Pick::Ids(&ids[here]));
            rows.copy(self.gpu, pick, &mut side.values, side.stride)?;
            let task =
                |count, role| Preparation { count, dim, mean: &mean, scale: rounding.scale, metric, role };
            T::prepare(self.gpu, &mut side, &task(rows_here, Role::Rows(rounding.error_limit)))?;
            let seen = first - among.start;
            let pass = Pass { search: self, rounding: &rounding, side: &side, first, seen };
            let mut visit = |members: &[u32], may_close: bool, keys: &mut [Key]| -> Result<Vec<u32>> {
                batch_memory.start(self, members, queries, keys, seen == 0)?;
                T::prepare(self.gpu, &mut batch_memory.side, &task(members.len(), Role::Queries))?;
                let advance =
                    |rows| stage.advance(if may_close { rows as u64 * members.len() as u64 } else { 0 });
                let stragglers = pass.run(&mut batch_memory, rows_here, may_close, advance)?;
                batch_memory.finish(self, members, &stragglers, keys)?;
                Ok(stragglers.into_iter().map(|index| members[index]).collect())
            };
            let visits = all_queries.chunks(batch).map(|members| visit(members, true, &mut keys));
            let stragglers = visits.collect::<Result<Vec<_>>>()?.concat();
            // Those of all batches together: each takes many short launches.
            for members in stragglers.chunks(batch) {
                visit(members, false, &mut keys)?;
            }
        }
        Ok(keys)
    }
}

/// Adds zero vectors, which are at cosine distance 1 from all and which the device skips: of all
/// rows, or of those `ids`, whose places keys hold.
pub(crate) fn add_zero_vectors(
    space: &Space<'_>,
    ids: Option<&[u32]>,
    queries: &QuerySet<'_>,
    k: usize,
    keys: &mut [Key],
) {
    if space.metric() != Metric::Cosine || space.zero().is_empty() && queries.zero.is_empty() {
        return;
    }
    let (zero, count) = (space.zero(), ids.map_or(space.len(), <[u32]>::len) as u32);
    let is_zero = |row: usize| zero.get(row).copied().unwrap_or(false);
    let is_zero = |&place: &u32| is_zero(ids.map_or(place, |ids| ids[place as usize]) as usize);
    let zero_rows: Vec<u32> = (0..count).filter(is_zero).take(k + 1).collect();
    for (query, list) in keys.chunks_exact_mut(k).enumerate() {
        let itself = queries.nodes.map(|nodes| nodes[query]);
        let others = |row: &u32| Some(*row) != itself;
        if queries.is_zero(query) {
            let ids = (0..count).filter(others);
            list.iter_mut().zip(ids).for_each(|(key, id)| *key = key::pack(1.0, id));
        } else if !zero_rows.is_empty() {
            let zeros = zero_rows.iter().copied().filter(others).map(|id| key::pack(1.0, id));
            let mut merged: Vec<Key> = list.iter().copied().chain(zeros).collect();
            merged.sort_unstable();
            list.copy_from_slice(&merged[..k]);
        }
    }
}
