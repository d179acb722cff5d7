//! The two clusters of each vector, and its records.

use std::collections::HashMap;

use bytemuck::cast_slice;

use crate::cluster::cpu::Centres;
use crate::outofcore::store::Gather;
use crate::vectors::with_matrix;
use crate::{Result, Vectors};

/// A pair of clusters, the smaller number first, and the number of nodes that they share.
pub(super) type SharedNodes = HashMap<(u32, u32), u64>;

/// Embedded rows of the base in ascending order of ids, with their two nearest centres.
pub(super) struct Chunk {
    pub ids: Vec<u32>,
    pub rows: Vectors,
    pub nearest: Vec<[u32; 2]>,
}

/// Puts chunks into clusters of at most `most` members.
pub(super) struct Placing<'a> {
    pub base: &'a Vectors,
    pub centres: &'a Centres,
    /// Maximum size of a cluster.
    pub most: usize,
    pub sizes: Vec<usize>,
    pub shared: SharedNodes,
    pub records: Gather,
}

impl Placing<'_> {
    /// Gathers the records of the next chunk, and passes full buffers to `write`.
    ///
    /// Rows are placed in their order. So the same rows find a cluster full on any number of
    /// threads.
    pub(super) fn place(
        &mut self,
        chunk: &Chunk,
        mut write: impl FnMut(usize, &mut Vec<u8>) -> Result<()>,
    ) -> Result<()> {
        for (index, (&id, &nearest)) in chunk.ids.iter().zip(&chunk.nearest).enumerate() {
            let full = |&cluster: &u32| self.sizes[cluster as usize] == self.most;
            let [a, b] = if nearest.iter().any(full) {
                nearest_with_room(&self.centres.distances(&chunk.rows.row(index)), &self.sizes, self.most)
            } else {
                nearest
            };
            *self.shared.entry((a.min(b), a.max(b))).or_default() += 1;
            for [cluster, other] in [[a, b], [b, a]] {
                self.sizes[cluster as usize] += 1;
                let head = [id, other];
                with_matrix!(self.base.rows(), m => {
                    let record = [cast_slice(&head), cast_slice(m.row(id as usize))];
                    self.records.append(cluster as usize, &record, &mut write)
                })?;
            }
        }
        Ok(())
    }
}

/// The two nearest clusters with room. The plan guarantees two.
fn nearest_with_room(distances: &[f32], sizes: &[usize], most: usize) -> [u32; 2] {
    let mut open: Vec<usize> = (0..sizes.len()).filter(|&cluster| sizes[cluster] < most).collect();
    let order = |&a: &usize, &b: &usize| distances[a].total_cmp(&distances[b]).then(a.cmp(&b));
    open.select_nth_unstable_by(1, order);
    [open[0] as u32, open[1] as u32]
}
