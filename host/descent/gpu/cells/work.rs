//! Minimum work of the joins in cells, to judge their times: bytes to and from memory if each use
//! of a vector reads it once, and operations of the products.

use cuda_std::launch::Kernel;
use tagore_device::block::tile;
use tagore_device::descent::cells::{
    PROPOSALS, cells_known_sets, cells_merge_candidates, cells_merge_proposals, known_bits,
};
use tagore_device::key::Key;

use super::super::WORD;
use super::{Build, CellKernels, Ranks};
use crate::vectors::gpu::ByChunks;

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
        let proposals = 2 * u64::from(PROPOSALS) * size_of::<Key>() as u64;
        // Keys that keep their places are not written.
        let merged = proposals + self.list_bytes() + WORD;
        self.count_shared(cells_merge_proposals::NAME, passes as u64 * n * merged, 0);
        (intra.pairs + cross.pairs) as u64
    }
}
