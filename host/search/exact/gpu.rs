//! Exact search on a GPU: a filter of all rows on tensor cores, and exact distances for what passes it
//! (`device/src/search/exact/`).
//!
//! The base goes to the device in pieces that fit its memory. The rows of a piece are visited in ranges
//! that grow as the bounds of the queries tighten, so that about a third of the room for noted rows is
//! used. Where a few queries overflow it, as in a dense spot whose distances are below what rounding
//! moves, they are searched for again by themselves; where many do, the range is visited again in smaller
//! parts.

use tagore_device::block::element::TileSum;
use tagore_device::block::tile;
use tagore_device::descent::key::{self, Key};
use tagore_device::search::exact::{
    CLOSED, Filter, SETTLE_THREADS, Settle, Tiles, exact_filter_f16, exact_filter_i8, exact_filter_u8,
    exact_settle_f16, exact_settle_f32, exact_settle_i8, exact_settle_u8,
};

use crate::gpu::{Buffer, Gpu, MemoryPlan};
use crate::vectors::gpu::{
    OnDevice, Preparation, QUERIES, ROWS, Rounding, Side, metric_number, stage_kernels,
};
use crate::vectors::space::{Queries, Space};
use crate::vectors::{Matrix, TypedRows};
use crate::{Error, Metric, Progress, Result};

stage_kernels! {
    /// Kernels of exact search.
    pub(crate) trait ExactKernels {
        Filter (Filter<Self::Sum>,): exact_filter_f16 exact_filter_f16 exact_filter_u8 exact_filter_i8;
        Settle (Settle<Self, Self::Sum>,): exact_settle_f32 exact_settle_f16 exact_settle_u8 exact_settle_i8;
    }
}

/// The largest k: the list of a query and what is merged into it share a block's memory.
pub(crate) const MAX_K: usize = 1024;

/// Queries that are searched for together.
const BATCH: usize = 16_384;

/// Rows whose neighbours are searched for together, unless there are more than four times as many.
const LEAST_BATCH: usize = 1024;

/// One query in so many may be given up in a pass.
const STRAGGLERS: usize = 8;

/// The queries whose neighbours are wanted.
pub(crate) struct QuerySet<'a> {
    rows: TypedRows<'a>,
    /// The row of each query, if the queries are nodes of the base; no node finds itself.
    nodes: Option<&'a [u32]>,
    zero: &'a [bool],
    count: usize,
}

impl<'a> QuerySet<'a> {
    pub(crate) fn of_queries(queries: &'a Queries<'_>) -> Self {
        Self { rows: queries.rows(), nodes: None, zero: queries.zero(), count: queries.len() }
    }

    pub(crate) fn of_nodes(space: &'a Space<'_>, nodes: &'a [u32]) -> Self {
        Self { rows: space.rows(), nodes: Some(nodes), zero: space.zero(), count: nodes.len() }
    }

    fn row_of(&self, query: usize) -> usize {
        self.nodes.map_or(query, |nodes| nodes[query] as usize)
    }

    fn is_zero(&self, query: usize) -> bool {
        self.zero.get(self.row_of(query)).copied().unwrap_or(false)
    }
}

/// The `k` smallest keys of each query, as the CPU computes them; of device memory at most `budget`
/// bytes are used, if given. There are at least `k` rows to find.
pub(crate) fn nearest(
    gpu: &Gpu,
    space: &Space<'_>,
    queries: &QuerySet<'_>,
    k: usize,
    budget: Option<u64>,
    progress: &Progress,
) -> Result<Vec<Key>> {
    if k == 0 || k > MAX_K {
        return Err(Error::argument("k", k, format_args!("1 to {MAX_K} on a GPU")));
    }
    let search = Search { gpu, space, queries, k, budget, progress };
    let mut keys = match (queries.rows, space.rows()) {
        (TypedRows::F32(queries), TypedRows::F32(rows)) => search.run(queries, rows),
        (TypedRows::F16(queries), TypedRows::F16(rows)) => search.run(queries, rows),
        (TypedRows::U8(queries), TypedRows::U8(rows)) => search.run(queries, rows),
        (TypedRows::I8(queries), TypedRows::I8(rows)) => search.run(queries, rows),
        _ => unreachable!("queries are cast to the element type of the base"),
    }?;
    add_zero_vectors(space, queries, k, &mut keys);
    Ok(keys)
}

/// Rows that may be noted for a query between two settlings.
pub(crate) fn capacity(k: usize) -> usize {
    (8 * k).next_power_of_two().clamp(1024, 4096)
}

/// The rows of a base of `n` that are searched for together where all are: no more than a quarter of them, so that what
/// is noted for them takes no more than what stays.
pub(crate) fn batch_of_all(n: usize) -> usize {
    n.div_ceil(4).clamp(LEAST_BATCH, BATCH).min(n)
}

/// What a search of the `k` nearest of every row takes, with all `n` rows of `dim` components on the device.
pub(crate) fn all_pairs_plan<T: OnDevice>(n: usize, dim: usize, k: usize) -> MemoryPlan {
    device_plan::<T>(n, batch_of_all(n), dim, k)
}

/// The least that a search of the `k` nearest of some of `n` rows can do with.
pub(crate) fn least_plan<T: OnDevice>(n: usize, dim: usize, k: usize) -> MemoryPlan {
    let side = n.min(tile::SIDE as usize);
    device_plan::<T>(side, side, dim, k)
}

/// What a search of the `k` nearest takes with `rows` rows of `dim` components on the device at a time, and
/// `queries` queries in batches.
fn device_plan<T: OnDevice>(rows: usize, queries: usize, dim: usize, k: usize) -> MemoryPlan {
    let queries = queries.min(BATCH);
    let plan = Side::<T>::plan(MemoryPlan::new(), ROWS, rows, dim);
    Side::<T>::plan(plan, QUERIES, queries, dim)
        .with::<u32>("excluded ids", queries)
        .with::<T::Sum>("bounds", queries)
        .with::<u32>("counts", queries)
        .with::<u32>("noted rows", queries * capacity(k))
        .with::<Key>("lists", queries * k)
        .with::<f32>("mean", dim)
        .with::<u32>("largest norms", 2)
        .with::<u32>("overflow", 1)
}

struct Search<'a> {
    gpu: &'a Gpu,
    space: &'a Space<'a>,
    queries: &'a QuerySet<'a>,
    k: usize,
    budget: Option<u64>,
    progress: &'a Progress,
}

impl Search<'_> {
    /// Rows that may be noted for a query between two settlings.
    fn capacity(&self) -> usize {
        capacity(self.k)
    }

    /// The plan for `rows` rows at a time and `queries` queries.
    fn plan<T: OnDevice>(&self, rows: usize, queries: usize) -> MemoryPlan {
        device_plan::<T>(rows, queries, self.space.dim(), self.k)
    }

    /// Queries that are searched for together, and rows that are on the device at a time.
    fn pieces<T: OnDevice>(&self) -> Result<(usize, usize)> {
        let free = self.gpu.free_memory()?;
        // What the driver and the compiler of kernels take is not known before.
        let free = free.saturating_sub((free / 20).min(1 << 30));
        let room = self.budget.map_or(free, |budget| budget.min(free));
        let (side, n, count) = (tile::SIDE as usize, self.space.len(), self.queries.count);
        let is_all = self.queries.nodes.is_some() && count == n;
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

    fn run<T: ExactKernels>(&self, queries: Matrix<'_, T>, rows: Matrix<'_, T>) -> Result<Vec<Key>> {
        let (count, n, k, dim) = (self.queries.count, self.space.len(), self.k, self.space.dim());
        if count == 0 {
            return Ok(Vec::new());
        }
        let (batch, piece) = self.pieces::<T>()?;
        let memory = self.plan::<T>(piece, batch).reserve(self.gpu)?;
        let mut side = Side::<T>::new(&memory, ROWS, dim)?;
        let mut batch_memory = Batch::<T> {
            side: Side::new(&memory, QUERIES, dim)?,
            excluded: memory.buffer("excluded ids")?,
            bounds: memory.buffer("bounds")?,
            counts: memory.buffer("counts")?,
            noted: memory.buffer("noted rows")?,
            lists: memory.buffer("lists")?,
            overflow: memory.buffer("overflow")?,
            count: 0,
        };
        let row_of = |query: usize| self.queries.row_of(query);
        let rounding = Rounding::of(self.space.metric(), (rows, n), (queries, count), row_of);
        let mut mean: Buffer<f32> = memory.buffer("mean")?;
        mean.upload(&rounding.mean)?;
        let mut largest: Buffer<u32> = memory.buffer("largest norms")?;
        let largest_of_queries = largest.view_mut().offset(1);
        let metric = self.space.metric();
        let (is_product, is_cosine) = (metric == Metric::InnerProduct, metric == Metric::Cosine);

        let stage = self.progress.stage("exact search", (n * count.div_ceil(batch)) as u64);
        let everyone: Vec<u32> = (0..count as u32).collect();
        let mut keys = vec![key::NONE; count * k];
        for first in (0..n).step_by(piece) {
            let rows_here = piece.min(n - first);
            side.values.upload_rows(rows_here, side.stride, |row| rows.row(first + row))?;
            largest.fill(0)?;
            T::prepare(
                self.gpu,
                &mut side,
                &Preparation {
                    count: rows_here,
                    dim,
                    mean: &mean,
                    largest: largest.view_mut(),
                    scale: rounding.row_scale,
                    error_limit: rounding.error_limit,
                    norm_weight: i32::from(!is_product),
                    skip_zero: is_cosine,
                },
            )?;
            let pass = Pass { search: self, rounding: &rounding, side: &side, largest: &largest, first };
            for members in everyone.chunks(batch) {
                let task = Preparation {
                    count: members.len(),
                    dim,
                    mean: &mean,
                    // That of the queries is not asked for.
                    largest: largest_of_queries,
                    scale: rounding.query_scale,
                    error_limit: f32::INFINITY,
                    norm_weight: 1,
                    skip_zero: false,
                };
                batch_memory.start(self, members, queries, &keys)?;
                T::prepare(self.gpu, &mut batch_memory.side, &task)?;
                let advance = |rows| stage.advance(rows as u64);
                let stragglers = pass.run(&mut batch_memory, rows_here, true, advance)?;
                batch_memory.finish(self, members, &stragglers, &mut keys)?;
                if !stragglers.is_empty() {
                    let members: Vec<u32> = stragglers.iter().map(|&index| members[index]).collect();
                    let task = Preparation { count: members.len(), ..task };
                    batch_memory.start(self, &members, queries, &keys)?;
                    T::prepare(self.gpu, &mut batch_memory.side, &task)?;
                    pass.run(&mut batch_memory, rows_here, false, |_| self.progress.check())?;
                    batch_memory.finish(self, &members, &[], &mut keys)?;
                }
            }
        }
        Ok(keys)
    }
}

/// Zero vectors are at cosine distance 1 from all, and were not searched for on the device.
pub(crate) fn add_zero_vectors(space: &Space<'_>, queries: &QuerySet<'_>, k: usize, keys: &mut [Key]) {
    if space.metric() != Metric::Cosine || space.zero().is_empty() && queries.zero.is_empty() {
        return;
    }
    let zero = space.zero().iter().enumerate().filter(|row| *row.1);
    let zero_rows: Vec<u32> = zero.map(|(row, _)| row as u32).take(k + 1).collect();
    for (query, list) in keys.chunks_exact_mut(k).enumerate() {
        let itself = queries.nodes.map(|nodes| nodes[query]);
        let others = |row: &u32| Some(*row) != itself;
        if queries.is_zero(query) {
            let ids = (0..space.len() as u32).filter(others);
            list.iter_mut().zip(ids).for_each(|(key, id)| *key = key::pack(1.0, id));
        } else if !zero_rows.is_empty() {
            let zeros = zero_rows.iter().copied().filter(others).map(|id| key::pack(1.0, id));
            let mut merged: Vec<Key> = list.iter().copied().chain(zeros).collect();
            merged.sort_unstable();
            list.copy_from_slice(&merged[..k]);
        }
    }
}

/// Queries on the device, and what is known of their neighbours.
struct Batch<T: OnDevice> {
    side: Side<T>,
    excluded: Buffer<u32>,
    bounds: Buffer<T::Sum>,
    counts: Buffer<u32>,
    noted: Buffer<u32>,
    lists: Buffer<Key>,
    overflow: Buffer<u32>,
    count: usize,
}

impl<T: OnDevice> Batch<T> {
    /// Puts the queries `members` on the device, with their present lists, a list to a query in `keys`.
    fn start(
        &mut self,
        search: &Search<'_>,
        members: &[u32],
        queries: Matrix<'_, T>,
        keys: &[Key],
    ) -> Result<()> {
        let row_of = |index: usize| search.queries.row_of(members[index] as usize);
        self.count = members.len();
        self.side.values.upload_rows(self.count, self.side.stride, |index| queries.row(row_of(index)))?;
        if let Some(nodes) = search.queries.nodes {
            self.excluded.upload_rows(self.count, 1, |index| &nodes[members[index] as usize..][..1])?;
        }
        let k = search.k;
        self.lists.upload_rows(self.count, k, |index| &keys[members[index] as usize * k..][..k])?;
        self.counts.fill(0)?;
        self.overflow.fill(0)
    }

    /// Takes the lists of the queries `members` back to `keys`, but for the `stragglers` among them.
    fn finish(
        &self,
        search: &Search<'_>,
        members: &[u32],
        stragglers: &[usize],
        keys: &mut [Key],
    ) -> Result<()> {
        let k = search.k;
        let mut lists = vec![key::NONE; members.len() * k];
        self.lists.download(&mut lists)?;
        let mut stragglers = stragglers.iter().peekable();
        for (index, list) in lists.chunks_exact(k).enumerate() {
            if stragglers.next_if(|&&straggler| straggler == index).is_none() {
                keys[members[index] as usize * k..][..k].copy_from_slice(list);
            }
        }
        Ok(())
    }

    /// Closes the queries whose noted rows passed the capacity: nothing is noted for them any more.
    fn close(&mut self, counts: &mut [u32], closed: &[usize]) -> Result<()> {
        let mut bounds = vec![T::Sum::CLOSED; self.count];
        self.bounds.download(&mut bounds)?;
        for &index in closed {
            counts[index] = CLOSED;
            bounds[index] = T::Sum::CLOSED;
        }
        self.counts.upload(counts)?;
        self.bounds.upload(&bounds)
    }
}

/// The visit of all rows of a piece for a batch of queries.
struct Pass<'a, T: ExactKernels> {
    search: &'a Search<'a>,
    rounding: &'a Rounding,
    side: &'a Side<T>,
    largest: &'a Buffer<u32>,
    /// The id of the piece's first row.
    first: usize,
}

impl<T: ExactKernels> Pass<'_, T> {
    /// Visits all rows. With `may_close`, queries for which too much is noted while others go on well
    /// are given up and returned, ascending: they are better searched for by themselves.
    fn run(
        &self,
        batch: &mut Batch<T>,
        rows: usize,
        may_close: bool,
        mut advance: impl FnMut(usize) -> Result<()>,
    ) -> Result<Vec<usize>> {
        let side = tile::SIDE as usize;
        let (capacity, k) = (self.search.capacity(), self.search.k);
        let order = Order::of(rows);
        // Tiles that cannot overflow, whatever they hold.
        let safe = capacity / side;
        // Of `seen` rows k are nearer than the bound, so of the next r about k r / seen; few of them
        // may be many by chance.
        let ideal = capacity as f64 / (3 * k.max(32)) as f64;
        let mut growth = ideal;
        let mut done = 0;
        let mut closed = Vec::new();
        // The bounds, by the lists of earlier pieces.
        self.settle(batch)?;
        while done < order.tiles {
            let seen = self.first + done * side;
            let wanted = if seen == 0 {
                (2 * k).div_ceil(side).max(2)
            } else {
                (seen as f64 * growth) as usize / side
            };
            let mut range = wanted.max(1).min(order.tiles - done);
            loop {
                self.filter(batch, &order, done, range)?;
                let mut overflow = [0];
                batch.overflow.download(&mut overflow)?;
                if overflow[0] == 0 {
                    break;
                }
                batch.overflow.fill(0)?;
                let mut counts = vec![0; batch.count];
                batch.counts.download(&mut counts)?;
                let over = |&index: &usize| counts[index] > capacity as u32 && counts[index] != CLOSED;
                let over: Vec<usize> = (0..batch.count).filter(over).collect();
                if may_close && (closed.len() + over.len()) * STRAGGLERS <= batch.count {
                    batch.close(&mut counts, &over)?;
                    closed.extend(over);
                    break;
                }
                counts.iter_mut().filter(|count| **count != CLOSED).for_each(|count| *count = 0);
                batch.counts.upload(&counts)?;
                range = (range / 4).max(safe);
                growth = (growth / 2.0).max(0.01);
            }
            self.settle(batch)?;
            done += range;
            growth = (growth * 1.25).min(ideal);
            advance((range * side).min(rows))?;
        }
        closed.sort_unstable();
        Ok(closed)
    }

    fn filter(&self, batch: &mut Batch<T>, order: &Order, done: usize, range: usize) -> Result<()> {
        let gpu = self.search.gpu;
        let query_tiles = batch.count.div_ceil(tile::SIDE as usize);
        // Blocks for the device some times over, each of many tiles, and no more than a grid may have.
        let blocks = gpu.multiprocessors() as usize * 16;
        let per_block = (range * query_tiles / blocks).clamp(1, 64).max(range.div_ceil(65_535));
        let rows = self.side.tiles();
        let filter = Filter::<T::Sum> {
            tiles: Tiles {
                queries: batch.side.tiles().vectors,
                rows: rows.vectors,
                biases: self.side.biases.view(),
                query_stride: rows.stride,
                row_stride: rows.stride,
                units: rows.units(),
                weight: T::weight(self.search.space.metric()),
            },
            bounds: batch.bounds.view(),
            counts: batch.counts.view_mut(),
            found: batch.noted.view_mut(),
            overflow: batch.overflow.view_mut(),
            capacity: self.search.capacity() as u32,
            query_count: batch.count as u32,
            row_count: order.rows as u32,
            first_position: done as u32,
            position_count: range as u32,
            positions_per_block: per_block as u32,
            tile_count: order.tiles as u32,
            tile_step: order.step as u32,
        };
        let grid = [query_tiles as u32, range.div_ceil(per_block) as u32, 1];
        // SAFETY: both sides hold as many vectors of this stride, prepared; the buffers of the batch
        // have a place for each of its queries and outlive the work.
        unsafe { gpu.launch::<T::Filter>(grid, tile::THREADS, (filter,)) }
    }

    fn settle(&self, batch: &mut Batch<T>) -> Result<()> {
        let search = self.search;
        let metric = search.space.metric();
        let Rounding { row_scale, query_scale, error_limit, .. } = *self.rounding;
        let settle = Settle::<T, T::Sum> {
            rows: self.side.values.view(),
            queries: batch.side.values.view(),
            found: batch.noted.view(),
            counts: batch.counts.view_mut(),
            excluded: batch.excluded.view(),
            lists: batch.lists.view_mut(),
            bounds: batch.bounds.view_mut(),
            norms: batch.side.biases.view(),
            errors: batch.side.errors.view(),
            largest: self.largest.view(),
            row_stride: self.side.stride as u32,
            query_stride: batch.side.stride as u32,
            dim: search.space.dim() as u32,
            capacity: search.capacity() as u32,
            k: search.k as u32,
            first_id: self.first as u32,
            exclude: u32::from(search.queries.nodes.is_some()),
            metric: metric_number(metric),
            row_error: error_limit,
            scale: if metric == Metric::InnerProduct { row_scale * query_scale } else { row_scale },
        };
        // SAFETY: as for the filter; the noted rows are rows of this piece.
        unsafe { search.gpu.launch::<T::Settle>([batch.count as u32, 1, 1], SETTLE_THREADS, (settle,)) }
    }
}

/// The tiles of a piece's rows, and the order in which they are visited.
struct Order {
    rows: usize,
    tiles: usize,
    /// From one visited tile to the next, coprime to their number.
    step: usize,
}

impl Order {
    fn of(rows: usize) -> Self {
        let tiles = rows.div_ceil(tile::SIDE as usize);
        let divisor = |mut a: usize, mut b: usize| {
            while b > 0 {
                (a, b) = (b, a % b);
            }
            a
        };
        // The golden ratio leaves no run of nearby tiles, so that sorted data come mixed.
        let from = ((tiles as f64 * 0.618_034) as usize).max(1);
        let step = (from..=tiles).find(|&step| divisor(step, tiles) == 1).unwrap_or(1);
        Self { rows, tiles, step }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tile_is_visited_once() {
        for tiles in (1..200).chain([1024, 7813, 65_536]) {
            let step = Order::of(128 * tiles - 5).step;
            let mut visited: Vec<usize> = (0..tiles).map(|position| position * step % tiles).collect();
            visited.sort_unstable();
            assert!(visited.iter().enumerate().all(|(index, &tile)| index == tile), "{tiles} by {step}");
            assert!(step <= tiles);
        }
    }
}
