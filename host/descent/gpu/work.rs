//! What the kernels of a descent have to do at the least, so that their times can be judged: bytes that come from
//! or go to memory if a vector is read once for each use of it, and the operations of its products.

use tagore_device::block::tile;
use tagore_device::descent::cells::{OFFERS, cells_merge_noted, cells_merge_offers};
use tagore_device::descent::key::Key;
use tagore_device::descent::merge::{CANDIDATES, descent_merge};
use tagore_device::descent::renumber::renumber_vectors;
use tagore_device::descent::sample::{GATHER, ROW, SAMPLE, descent_gather, descent_sample, descent_start};

use super::Build;
use super::cells::CellKernels;
use super::finish::FinishKernels;
use super::phases::PhaseKernels;
use crate::cluster::Cells;
use crate::descent::{DescentStats, Start};

/// Bytes of an id, a bias or a bound.
const WORD: u64 = 4;

/// Bytes of a row of ids.
const ROW_BYTES: u64 = ROW as u64 * WORD;

const KEY: u64 = size_of::<Key>() as u64;

impl Build<'_> {
    fn nodes(&self) -> u64 {
        self.space.len() as u64
    }

    fn list_bytes(&self) -> u64 {
        self.k as u64 * KEY
    }

    /// Operations of a product.
    fn operations(&self) -> u64 {
        2 * self.space.dim() as u64
    }

    /// Vectors, `stride` bytes each, that change places with their biases.
    pub(super) fn count_renumbering(&self, stride: u32) {
        let bytes = self.nodes() * (2 * u64::from(stride) + 4 * WORD);
        self.gpu.count_work::<renumber_vectors>(bytes, 0);
    }

    /// What the meetings in cells, and the mergings after them, have to do; returns how many pairs meet. In the `first`
    /// clustering members note each other, which later takes one pass more. Keys that are noted are not counted, nor
    /// lists that nothing is noted for.
    pub(super) fn count_cells<T: CellKernels>(
        &self,
        stride: u32,
        cells: &Cells<T>,
        (hosts, most): (usize, usize),
        (first, passes): (bool, usize),
    ) -> u64 {
        let m = cells.probes;
        let side = tile::SIDE as usize;
        // Vectors that are read, and pairs.
        let (mut own, mut visits) = ((0, 0), (0, 0));
        for cell in 0..cells.centres.count {
            let starts = &cells.starts[cell * m..=(cell + 1) * m];
            if first {
                let (members, rows) = (starts[1] - starts[0], (starts[1] - starts[0]).min(most));
                own = (own.0 + members.div_ceil(side) * rows + members, own.1 + members * rows);
            }
            for party in (starts[0]..starts[hosts]).step_by(side) {
                let (members, rows) =
                    (side.min(starts[hosts] - party), starts[m] - party.max(starts[usize::from(first)]));
                visits = (visits.0 + rows + passes * members, visits.1 + members * rows);
            }
        }
        let bytes = |vectors: usize| vectors as u64 * (u64::from(stride) + 2 * WORD);
        let (n, lists) = (self.nodes(), 2 * self.list_bytes());
        self.gpu.count_work::<T::CellFilter>(bytes(own.0), own.1 as u64 * self.operations());
        self.gpu.count_work::<cells_merge_noted>(u64::from(first) * n * (WORD + lists), 0);
        self.gpu.count_work::<T::Meet>(bytes(visits.0), visits.1 as u64 * self.operations());
        let offers = 2 * u64::from(OFFERS) * KEY;
        self.gpu.count_work::<cells_merge_offers>(passes as u64 * n * (offers + lists + WORD), 0);
        (own.1 + visits.1) as u64
    }

    /// What phase 1 had to do, as `stats` say. The device counts pairs; the vectors of a join are as many as give
    /// the pairs of an average join if all of them are new.
    pub(super) fn count_joins<T: PhaseKernels>(&self, stride: u32, start: Start, stats: &DescentStats) {
        let iterations = u64::from(stats.iterations.0);
        let joins = iterations * self.nodes();
        let random = u64::from(start == Start::Random && iterations > 0) * self.nodes();
        let ids = 2 * u64::from(SAMPLE) * WORD;
        self.gpu.count_work::<descent_start>(random * ids, 0);
        self.gpu.count_work::<descent_sample>((joins - random) * (self.list_bytes() + ROW_BYTES), 0);

        let pairs = stats.join_distances;
        let average = pairs as f64 / joins.max(1) as f64;
        let vectors = joins as f64 * f64::midpoint(1.0, (1.0 + 8.0 * average).sqrt());
        let bytes = joins * ROW_BYTES + (vectors * (u64::from(stride) + 2 * WORD) as f64) as u64;
        self.gpu.count_work::<T::Join>(bytes, pairs * self.operations());
        let candidates = 2 * u64::from(CANDIDATES) * KEY;
        self.gpu.count_work::<descent_merge>(joins * (candidates + 2 * self.list_bytes() + WORD), 0);
    }

    /// What one gathering has to do.
    pub(super) fn count_gathering(&self, unvisit: bool) {
        let read = if unvisit { 2 * self.list_bytes() } else { (self.k as u64).min(u64::from(GATHER)) * KEY };
        self.gpu.count_work::<descent_gather>(self.nodes() * (read + ROW_BYTES), 0);
    }

    /// What the expansions of phase 2 had to do, as `stats` say, if no node has run out of neighbours to expand.
    pub(super) fn count_expansions<T: PhaseKernels>(&self, stride: u32, stats: &DescentStats) {
        let expansions = u64::from(stats.iterations.1) * self.nodes();
        let parents = self.expand.min(self.k) as u64;
        let each = u64::from(stride) + 2 * self.list_bytes() + parents * ROW_BYTES;
        let bytes = expansions * each + stats.refine_distances * (u64::from(stride) + WORD);
        self.gpu.count_work::<T::Expand>(bytes, stats.refine_distances * self.operations());
    }

    /// What the exact distances of all lists have to do, of vectors of `stride` components.
    pub(super) fn count_finish<T: FinishKernels>(&self, stride: usize) {
        let (n, k) = (self.nodes(), self.k as u64);
        let vectors = n * (k + 1) * (stride * size_of::<T>()) as u64;
        let lists = n * (2 * self.list_bytes() + (k + 1) * WORD);
        self.gpu.count_work::<T::Finish>(vectors + lists, n * k * self.operations());
    }
}
