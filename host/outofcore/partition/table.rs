//! The table of clusters.

use serde::{Deserialize, Serialize};

use crate::Vectors;
use crate::outofcore::plan::RECORD_HEAD;
use crate::outofcore::store::{Checkpoint, Checksums, Piece, RepeatedPieces};
use crate::vectors::embedding::Embedding;

/// The places of all clusters on disk.
#[derive(Serialize, Deserialize)]
pub(crate) struct Table {
    pub(super) members: Vec<Vec<Piece>>,
    /// Whether records have no vectors, which are rows of the base.
    pub(super) reads_base: bool,
    /// Bytes of the file of members.
    pub bytes: u64,
    /// Two clusters, the smaller number first, and the number of shared nodes.
    pub(super) shared: Vec<(u32, u32, u64)>,
    /// Bits of the mean's values.
    pub(super) mean: Vec<u64>,
    /// Checksums of the base.
    pub checksums: Checksums,
    pub(super) repeated: RepeatedPieces,
}

impl Table {
    /// Bytes of the file of repeated rows.
    pub(crate) fn repeated_bytes(&self) -> u64 {
        self.repeated.bytes()
    }

    /// Whether all clusters were built and merged at a checkpoint: their members are not needed any
    /// more, and their file may be empty.
    pub(crate) fn is_merged(&self, done: &Checkpoint) -> bool {
        let is_built = |cluster: u32| done.entries.get(cluster as usize).is_some_and(Option::is_some);
        done.base == self.checksums.digest()
            && done.merged.len() == self.shared.len()
            && self.shared.iter().all(|&(a, b, _)| is_built(a) && is_built(b))
    }

    /// Whether all numbers are in range, fit one another, and fit clusters of `base` of at most
    /// `most` members.
    pub(crate) fn is_sound(&self, base: &Vectors, embedding: &Embedding, most: usize) -> bool {
        let Some((sizes, nodes)) = self.cluster_sizes(base.len() as u64) else { return false };
        let vector = if self.reads_base { 0 } else { base.element_type().row_bytes(base.dim()) };
        let record = RECORD_HEAD + vector;
        let is_cluster = |(pieces, &size): (&Vec<Piece>, &u64)| {
            let bytes = pieces.iter().try_fold(0u64, |bytes, piece| bytes.checked_add(piece.bytes()));
            let sound = pieces.iter().all(|piece| piece.is_sound(self.bytes, record));
            sound && size <= most as u64 && bytes == Some(size * record as u64)
        };
        self.repeated.is_sound()
            && nodes.checked_add(self.repeated.len()) == Some(base.len() as u64)
            && self.members.iter().zip(&sizes).all(is_cluster)
            && self.mean.len() == embedding.dim(base.dim())
            && self.mean.iter().all(|&bits| f64::from_bits(bits).is_finite())
            && self.checksums.is_of(base.len())
    }

    /// The sizes of the clusters, and the number of nodes in them. `None` if the pairs are unsound
    /// or share more than `rows` nodes.
    fn cluster_sizes(&self, rows: u64) -> Option<(Vec<u64>, u64)> {
        let mut sizes = vec![0u64; self.members.len()];
        let mut nodes = 0u64;
        for &(a, b, shared) in &self.shared {
            if a >= b || b as usize >= sizes.len() || !(1..=rows).contains(&shared) {
                return None;
            }
            nodes += shared;
            // Checked at each pair, so sums do not overflow.
            if nodes > rows {
                return None;
            }
            sizes[a as usize] += shared;
            sizes[b as usize] += shared;
        }
        Some((sizes, nodes))
    }
}
