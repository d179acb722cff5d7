//! The two clusters of each vector, and its records.

use std::collections::HashMap;

use bytemuck::cast_slice;

use super::assign::Chunk;
use crate::cluster::cpu::Centres;
use crate::outofcore::store::Gather;
use crate::vectors::with_matrix;
use crate::{Result, Vectors};

/// A pair of clusters, the smaller number first, and the number of nodes that they share.
pub(crate) type SharedNodes = HashMap<(u32, u32), u64>;

/// Clusters of at most `most` members, filled in the order of the rows.
pub(crate) struct Filling {
    most: usize,
    sizes: Vec<usize>,
    pub shared: SharedNodes,
}

impl Filling {
    /// Empty clusters.
    pub(crate) fn new(clusters: usize, most: usize) -> Self {
        Self { most, sizes: vec![0; clusters], shared: SharedNodes::new() }
    }

    /// Puts the next row into its two `nearest` clusters. Where one is full, the nearest cluster
    /// with room takes its place, by the `distances` to all centres. Returns the two clusters.
    pub(crate) fn put(&mut self, nearest: [u32; 2], distances: impl FnOnce() -> Vec<f32>) -> [u32; 2] {
        let is_full = |&cluster: &u32| self.sizes[cluster as usize] == self.most;
        let [a, b] = if nearest.iter().any(is_full) {
            nearest_with_room(&distances(), &self.sizes, self.most)
        } else {
            nearest
        };
        self.add([a, b], 1);
        [a, b]
    }

    /// Puts the next rows into their nearest clusters if all of them have room, and returns whether
    /// they have. `pairs` counts the rows by their two clusters.
    pub(crate) fn put_all(&mut self, pairs: impl Iterator<Item = ([u32; 2], u64)> + Clone) -> bool {
        let mut sizes = self.sizes.clone();
        for (pair, rows) in pairs.clone() {
            pair.iter().for_each(|&cluster| sizes[cluster as usize] += rows as usize);
        }
        let have_room = sizes.iter().all(|&size| size <= self.most);
        if have_room {
            pairs.for_each(|(pair, rows)| self.add(pair, rows));
        }
        have_room
    }

    fn add(&mut self, [a, b]: [u32; 2], rows: u64) {
        *self.shared.entry((a.min(b), a.max(b))).or_default() += rows;
        self.sizes[a as usize] += rows as usize;
        self.sizes[b as usize] += rows as usize;
    }
}

/// Puts chunks into clusters, and gathers their records.
pub(super) struct Placing<'a> {
    pub base: &'a Vectors,
    pub centres: &'a Centres,
    pub filling: Filling,
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
        let Self { base, centres, filling, records } = self;
        for (index, (&id, &nearest)) in chunk.ids.iter().zip(&chunk.nearest).enumerate() {
            let pair = filling.put(nearest, || centres.distances(&chunk.rows.row(index)));
            write_records(base, id, pair, |cluster, record| records.append(cluster, &record, &mut write))?;
        }
        Ok(())
    }
}

/// Passes the two records of row `id` to `append`: for each cluster of `pair` the parts of a record
/// of the id, the other cluster, and the vector.
pub(crate) fn write_records(
    base: &Vectors,
    id: u32,
    [a, b]: [u32; 2],
    mut append: impl FnMut(usize, [&[u8]; 2]) -> Result<()>,
) -> Result<()> {
    [[a, b], [b, a]].into_iter().try_for_each(|[cluster, other]| {
        let head = [id, other];
        with_matrix!(base.rows(), m => append(cluster as usize, [cast_slice(&head), cast_slice(m.row(id as usize))]))
    })
}

/// The two nearest clusters with room. The plan guarantees two.
fn nearest_with_room(distances: &[f32], sizes: &[usize], most: usize) -> [u32; 2] {
    let mut open: Vec<usize> = (0..sizes.len()).filter(|&cluster| sizes[cluster] < most).collect();
    let order = |&a: &usize, &b: &usize| distances[a].total_cmp(&distances[b]).then(a.cmp(&b));
    open.select_nth_unstable_by(1, order);
    [open[0] as u32, open[1] as u32]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_place_rows_as_the_rows_do() {
        let rows: Vec<[u32; 2]> = (0..60).map(|row| [row % 3, (row % 3 + 1 + row / 3 % 2) % 3]).collect();
        let distances = || vec![3.0, 1.0, 2.0, 4.0, 0.5];
        for most in [30, 33, 40, 60] {
            let mut one_by_one = Filling::new(5, most);
            let expected: Vec<_> = rows.iter().map(|&row| one_by_one.put(row, distances)).collect();
            let mut by_counts = Filling::new(5, most);
            let mut found = Vec::new();
            for part in rows.chunks(7) {
                if by_counts.put_all(part.iter().map(|&row| (row, 1))) {
                    found.extend_from_slice(part);
                } else {
                    found.extend(part.iter().map(|&row| by_counts.put(row, distances)));
                }
            }
            assert_eq!(found, expected, "at most {most}");
            assert_eq!((by_counts.sizes, by_counts.shared), (one_by_one.sizes, one_by_one.shared));
        }
    }
}
