//! Minimum work of the kernels of a descent, to judge their times: bytes to and from memory if each
//! use of a vector reads it once, and operations of the products.

use cuda_std::launch::Kernel;
use tagore_device::block::tile;
use tagore_device::descent::cells::{
    PROPOSALS, cells_finish_exact, cells_known_sets, cells_merge_candidates, cells_merge_proposals,
    known_bits,
};
use tagore_device::descent::merge::{JOIN_PROPOSALS, descent_merge};
use tagore_device::descent::renumber::renumber_vectors;
use tagore_device::descent::sample::{GATHER, ROW, SAMPLE, descent_gather, descent_sample, descent_start};
use tagore_device::key::Key;

use super::Build;
use super::cells::{CellKernels, Ranks};
use super::finish::FinishKernels;
use super::phases::PhaseKernels;
use crate::descent::{DescentStats, Start};
use crate::vectors::gpu::ByChunks;

/// Bytes of an id, a bias or a bound.
const WORD: u64 = 4;

/// Bytes of a row of ids.
const ROW_BYTES: u64 = ROW as u64 * WORD;

const KEY: u64 = size_of::<Key>() as u64;

/// The joins of one clustering.
#[derive(Clone, Copy)]
pub(super) struct JoinWork {
    /// Bytes of a tile vector.
    pub stride: u32,
    pub assignments: usize,
    /// Maximum number of members compared per rank.
    pub most: usize,
    /// Whether there was an intra-cell join.
    pub is_first: bool,
    pub passes: usize,
}

/// Vectors read, and pairs compared.
#[derive(Default)]
struct Compared {
    vectors: usize,
    pairs: usize,
}

impl Compared {
    fn add(&mut self, vectors: usize, pairs: usize) {
        self.vectors += vectors;
        self.pairs += pairs;
    }
}

impl Build<'_> {
    fn nodes(&self) -> u64 {
        self.space.len() as u64
    }

    fn list_bytes(&self) -> u64 {
        self.shape.k as u64 * KEY
    }

    /// Operations of a product.
    fn operations(&self) -> u64 {
        2 * self.space.dim() as u64
    }

    /// Counts work that all devices share.
    fn count_shared(&self, kernel: &'static str, bytes: u64, operations: u64) {
        if self.devices.is_first() {
            self.gpu.count_work(kernel, bytes, operations);
        }
    }

    /// Counts the work of copying vectors of `stride` bytes to their places, `copies` times.
    pub(super) fn count_renumbering(&self, stride: u32, copies: u64) {
        let bytes = self.nodes() * copies * 2 * u64::from(stride);
        self.gpu.count_work(renumber_vectors::NAME, bytes, 0);
    }

    /// Counts the work of both joins and of their merges; returns the pairs compared. Lists without
    /// proposals are counted too.
    pub(super) fn count_cells<T: CellKernels>(&self, ranks: Ranks<'_>, work: JoinWork) -> u64 {
        let JoinWork { stride, assignments, most, is_first, passes } = work;
        let side = tile::SIDE as usize;
        let (mut intra, mut cross) = (Compared::default(), Compared::default());
        for cell in 0..ranks.cells() {
            let own = ranks.members(cell, 0..1);
            if is_first {
                let rows = own.len().min(most);
                intra.add(own.len().div_ceil(side) * rows + own.len(), own.len() * rows);
            }
            let assigned = ranks.members(cell, 0..assignments);
            let probing = ranks.members(cell, usize::from(is_first)..ranks.probes);
            for first in assigned.clone().step_by(side) {
                let members = side.min(assigned.end - first);
                let rows = probing.end - first.max(probing.start);
                cross.add(rows + passes * members, members * rows);
            }
        }
        let units = stride / 16;
        let bytes = |vectors: usize| vectors as u64 * (u64::from(stride) + 2 * WORD);
        let n = self.nodes();
        let operations = |pairs: usize| pairs as u64 * self.operations();
        let distances = intra.pairs as u64 * WORD;
        self.count_shared(
            T::IntraCellJoin::name(units),
            bytes(intra.vectors) + distances,
            operations(intra.pairs),
        );
        let merged = u64::from(is_first) * n * (WORD + self.list_bytes());
        self.count_shared(cells_merge_candidates::NAME, distances + merged, 0);
        self.count_shared(T::CrossCellJoin::name(units), bytes(cross.vectors), operations(cross.pairs));
        let known = self.list_bytes() + (WORD << known_bits(self.shape.k as u32));
        self.count_shared(cells_known_sets::NAME, u64::from(!is_first) * n * known, 0);
        let proposals = 2 * u64::from(PROPOSALS) * KEY;
        // Keys that keep their places are not written.
        let merged = proposals + self.list_bytes() + WORD;
        self.count_shared(cells_merge_proposals::NAME, passes as u64 * n * merged, 0);
        (intra.pairs + cross.pairs) as u64
    }

    /// Counts the work of phase 1 from `stats`. The device counts pairs; the vectors per join are
    /// derived from the average number of pairs, as if all vectors were new.
    pub(super) fn count_joins<T: PhaseKernels>(&self, stride: u32, start: Start, stats: &DescentStats) {
        let iterations = u64::from(stats.iterations.0);
        let joins = iterations * self.nodes();
        let random = u64::from(start == Start::Random && iterations > 0) * self.nodes();
        let ids = 2 * u64::from(SAMPLE) * WORD;
        self.gpu.count_work(descent_start::NAME, random * ids, 0);
        self.gpu.count_work(descent_sample::NAME, (joins - random) * (self.list_bytes() + ROW_BYTES), 0);

        let pairs = stats.join_distances;
        let average = pairs as f64 / joins.max(1) as f64;
        let vectors = joins as f64 * f64::midpoint(1.0, (1.0 + 8.0 * average).sqrt());
        let bytes = joins * ROW_BYTES + (vectors * (u64::from(stride) + 2 * WORD) as f64) as u64;
        self.gpu.count_work(T::Join::NAME, bytes, pairs * self.operations());
        let candidates = 2 * u64::from(JOIN_PROPOSALS) * KEY;
        self.gpu.count_work(descent_merge::NAME, joins * (candidates + 2 * self.list_bytes() + WORD), 0);
    }

    /// Counts the work of one gathering.
    pub(super) fn count_gathering(&self, unvisit: bool) {
        let read =
            if unvisit { 2 * self.list_bytes() } else { (self.shape.k as u64).min(u64::from(GATHER)) * KEY };
        self.gpu.count_work(descent_gather::NAME, self.nodes() * (read + ROW_BYTES), 0);
    }

    /// Counts the work of phase 2, by kernel `K`, from `stats`, as if every node had neighbours
    /// left to expand.
    pub(super) fn count_expansions<K: Kernel>(&self, stride: u32, stats: &DescentStats) {
        let expansions = u64::from(stats.iterations.1) * self.nodes();
        let parents = self.expand.min(self.shape.k) as u64;
        let each = u64::from(stride) + 2 * self.list_bytes() + parents * ROW_BYTES;
        let bytes = expansions * each + stats.refine_distances * (u64::from(stride) + WORD);
        self.count_shared(K::NAME, bytes, stats.refine_distances * self.operations());
    }

    /// Counts the work of the exact distances of all lists, for vectors of `stride` components.
    pub(super) fn count_finish<T: FinishKernels>(&self, stride: usize) {
        let (n, k) = (self.nodes(), self.shape.k as u64);
        let vectors = n * (k + 1) * (stride * size_of::<T>()) as u64;
        let lists = n * (2 * self.list_bytes() + (k + 1) * WORD);
        self.gpu.count_work(T::Finish::NAME, vectors + lists, n * k * self.operations());
    }

    /// Counts the work of finishing lists whose keys hold exact values.
    pub(super) fn count_finish_exact(&self) {
        let bytes = self.nodes() * (2 * self.list_bytes() + 3 * WORD);
        self.gpu.count_work(cells_finish_exact::NAME, bytes, 0);
    }
}
