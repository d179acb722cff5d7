//! The launches of exact search: a pass of a batch of queries over the rows of a piece.

use cuda_std::launch::Kernel;
use tagore_device::block::tile;
use tagore_device::block::tile_walk::Tiles;
use tagore_device::search::exact::{
    CLOSED, ExactFilter, ExactRerank, RERANK_THREADS, exact_filter_1_f16, exact_filter_1_i8,
    exact_filter_1_u8, exact_filter_2_f16, exact_filter_2_i8, exact_filter_2_u8, exact_filter_many_f16,
    exact_filter_many_i8, exact_filter_many_u8, exact_rerank_f16, exact_rerank_f32, exact_rerank_i8,
    exact_rerank_u8,
};

use super::GpuSearch;
use super::batch::Batch;
use crate::Result;
use crate::vectors::gpu::{ByChunks, Rounding, Side, metric_number, stage_kernels, tile_kernels};

/// At most one query in this many is closed in a pass.
const STRAGGLERS: usize = 8;

tile_kernels! {
    /// The filter of exact search.
    pub(crate) trait FilterKernels {
        Filter (ExactFilter<Self::Sum>,):
            (exact_filter_1_f16, exact_filter_2_f16, exact_filter_many_f16),
            (exact_filter_1_u8, exact_filter_2_u8, exact_filter_many_u8),
            (exact_filter_1_i8, exact_filter_2_i8, exact_filter_many_i8);
    }
}

stage_kernels! {
    /// The end of exact search.
    pub(crate) trait SettleKernels {
        Rerank (ExactRerank<Self, Self::Sum>,): exact_rerank_f32 exact_rerank_f16 exact_rerank_u8 exact_rerank_i8;
    }
}

/// Kernels of exact search.
pub(crate) trait ExactKernels: FilterKernels + SettleKernels {}

impl<T: FilterKernels + SettleKernels> ExactKernels for T {}

/// The kernels of an exact search in vectors of `dim` components.
pub(crate) fn kernels<T: ExactKernels>(dim: usize) -> [&'static str; 3] {
    [T::PREPARATION, T::Filter::name(Side::<T>::tile_units(dim)), T::Rerank::NAME]
}

/// A pass over all rows of a piece for a batch of queries.
pub(super) struct Pass<'a, T: ExactKernels> {
    pub search: &'a GpuSearch<'a>,
    pub rounding: &'a Rounding,
    pub side: &'a Side<T>,
    /// The id of the piece's first row.
    pub first: usize,
    /// Rows of earlier pieces.
    pub seen: usize,
}

impl<T: ExactKernels> Pass<'_, T> {
    /// Visits all rows. With `may_close`, closes the few queries whose survivors overflow and
    /// returns them, ascending, to be searched by themselves.
    pub(super) fn run(
        &self,
        batch: &mut Batch<T>,
        rows: usize,
        may_close: bool,
        mut advance: impl FnMut(usize) -> Result<()>,
    ) -> Result<Vec<usize>> {
        let side = tile::SIDE as usize;
        let (capacity, k) = (self.search.capacity(), self.search.k);
        let order = Order::new(rows);
        // Tiles that cannot overflow for any data.
        let safe = capacity / side;
        // k of `seen` rows are below the bound, so about k r / seen of the next r rows are. A small
        // k varies more, hence the maximum. Smaller ranges meet tighter bounds: with a sixth of the
        // capacity instead of a third a fifth fewer rows survive, in 10 launches instead of 7.
        let ideal = capacity as f64 / (6 * k.max(32)) as f64;
        let mut growth = ideal;
        let mut done = 0;
        let mut closed = Vec::new();
        // Settling sets the bounds from the lists of earlier pieces.
        self.rerank_exactly(batch)?;
        while done < order.tiles {
            let seen = self.seen + done * side;
            let tiles = if seen == 0 {
                (2 * k).div_ceil(side).max(2)
            } else {
                (seen as f64 * growth) as usize / side
            };
            let mut range = tiles.max(1).min(order.tiles - done);
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
            self.rerank_exactly(batch)?;
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
        // Several times the blocks that the device runs at a time, each with many tiles, within the
        // limit of a grid.
        let blocks = gpu.multiprocessors() as usize * 16;
        let per_block = (range * query_tiles / blocks).clamp(1, 64).max(range.div_ceil(65_535));
        let rows = self.side.tiles();
        let filter = ExactFilter::<T::Sum> {
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
            survivors: batch.survivors.view_mut(),
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
        // SAFETY: both sides hold prepared vectors of this stride. The buffers of the batch have a
        // slot per query and outlive the work.
        unsafe { T::Filter::launch(gpu, rows.units(), grid, tile::THREADS, (filter,)) }
    }

    fn rerank_exactly(&self, batch: &mut Batch<T>) -> Result<()> {
        let search = self.search;
        let Rounding { scale, error_limit, .. } = *self.rounding;
        let rerank = ExactRerank::<T, T::Sum> {
            rows: self.side.values.view(),
            queries: batch.side.values.view(),
            survivors: batch.survivors.view(),
            counts: batch.counts.view_mut(),
            excluded: batch.excluded.view(),
            lists: batch.lists.view_mut(),
            bounds: batch.bounds.view_mut(),
            norms: batch.side.biases.view(),
            errors: batch.side.errors.view(),
            row_stride: self.side.stride as u32,
            query_stride: batch.side.stride as u32,
            dim: search.space.dim() as u32,
            capacity: search.capacity() as u32,
            k: search.k as u32,
            first_id: self.first as u32,
            exclude: u32::from(search.queries.nodes.is_some()),
            metric: metric_number(search.space.metric()),
            row_error: error_limit,
            scale,
        };
        // SAFETY: as for the filter; the survivors are rows of this piece.
        unsafe { search.gpu.launch::<T::Rerank>([batch.count as u32, 1, 1], RERANK_THREADS, (rerank,)) }
    }
}

/// The tiles of a piece's rows, and their order of visits.
struct Order {
    rows: usize,
    tiles: usize,
    /// Tiles from one visit to the next, coprime to their number.
    step: usize,
}

impl Order {
    fn new(rows: usize) -> Self {
        let tiles = rows.div_ceil(tile::SIDE as usize);
        let divisor = |mut a: usize, mut b: usize| {
            while b > 0 {
                (a, b) = (b, a % b);
            }
            a
        };
        // A step by the golden ratio visits no nearby tiles in a row, which mixes sorted data.
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
            let step = Order::new(128 * tiles - 5).step;
            let mut visited: Vec<usize> = (0..tiles).map(|position| position * step % tiles).collect();
            visited.sort_unstable();
            assert!(visited.iter().enumerate().all(|(index, &tile)| index == tile), "{tiles} by {step}");
            assert!(step <= tiles);
        }
    }
}
