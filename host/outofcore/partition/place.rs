//! The two clusters of each vector, and its records.

use std::collections::HashMap;

use bytemuck::cast_slice;

use super::assign::{Chunk, count_pairs};
use crate::cluster::cpu::Centres;
use crate::loops::{numbered, try_for_each};
use crate::outofcore::store::Gather;
use crate::vectors::embedding::Embedding;
use crate::{Progress, Result, Vectors};

/// Rows that find clusters full at a time. When one becomes full, those after it are compared with
/// the centres again.
const AT_ONCE: usize = 1024;

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

    /// Puts the next rows into their two `nearest` clusters. Where one is full, the nearest cluster
    /// with room takes its place, by the `distances` of a row of `nearest` to all centres. Sets
    /// `nearest` to the clusters.
    ///
    /// Rows find clusters full in their order, on any number of threads.
    ///
    /// # Errors
    /// If the work is cancelled.
    pub(crate) fn put(
        &mut self,
        nearest: &mut [[u32; 2]],
        distances: impl Fn(usize) -> Vec<f32> + Sync,
        progress: &Progress,
    ) -> Result<()> {
        for (part, nearest) in nearest.chunks_mut(AT_ONCE).enumerate() {
            self.put_part(nearest, |index| distances(part * AT_ONCE + index), progress)?;
        }
        self.share(&count_pairs(nearest));
        Ok(())
    }

    fn put_part(
        &mut self,
        nearest: &mut [[u32; 2]],
        distances: impl Fn(usize) -> Vec<f32> + Sync,
        progress: &Progress,
    ) -> Result<()> {
        let mut first = 0;
        while first < nearest.len() {
            // Until the next cluster is full, the same ones have room, so rows move in parallel.
            let Self { sizes, most, .. } = &*self;
            let move_row = |(index, pair): (usize, &mut [u32; 2])| {
                if pair.iter().any(|&cluster| sizes[cluster as usize] == *most) {
                    progress.check()?;
                    *pair = nearest_with_room(&distances(first + index), sizes, *most);
                }
                Ok(())
            };
            try_for_each(numbered(&mut nearest[first..]), move_row)?;
            for &[a, b] in &nearest[first..] {
                first += 1;
                self.sizes[a as usize] += 1;
                self.sizes[b as usize] += 1;
                if self.sizes[a as usize].max(self.sizes[b as usize]) == self.most {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Puts the next rows into their nearest clusters if all of them have room, and returns whether
    /// they have. `pairs` are the rows' [counts](count_pairs).
    pub(crate) fn put_all(&mut self, pairs: &[[u32; 3]]) -> bool {
        let mut sizes = self.sizes.clone();
        for &[a, b, rows] in pairs {
            sizes[a as usize] += rows as usize;
            sizes[b as usize] += rows as usize;
        }
        let have_room = sizes.iter().all(|&size| size <= self.most);
        if have_room {
            self.sizes = sizes;
            self.share(pairs);
        }
        have_room
    }

    /// Counts the nodes that pairs of clusters share.
    fn share(&mut self, pairs: &[[u32; 3]]) {
        for &[a, b, rows] in pairs {
            *self.shared.entry((a, b)).or_default() += u64::from(rows);
        }
    }
}

/// Puts chunks into clusters, and gathers their records.
pub(super) struct Placing<'a> {
    pub base: &'a Vectors,
    pub embedding: &'a Embedding,
    pub centres: &'a Centres,
    pub filling: Filling,
    pub records: Gather,
    pub progress: &'a Progress,
}

impl Placing<'_> {
    /// Gathers the records of the next chunk, and passes full buffers to `write`.
    pub(super) fn place(
        &mut self,
        Chunk { ids, mut nearest }: Chunk,
        mut write: impl FnMut(usize, &mut Vec<u8>) -> Result<()>,
    ) -> Result<()> {
        let Self { base, embedding, centres, filling, records, progress } = self;
        filling.put(&mut nearest, |index| distances(centres, embedding, base, ids[index]), progress)?;
        for (id, pair) in ids.into_iter().zip(nearest) {
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
        append(cluster as usize, [cast_slice(&head), base.bytes_of_row(id as usize)])
    })
}

/// The squared distances of row `id` of `base` to all centres.
pub(crate) fn distances(centres: &Centres, embedding: &Embedding, base: &Vectors, id: u32) -> Vec<f32> {
    let mut row = vec![0.0; embedding.dim(base.dim())];
    embedding.embed(base, id as usize, &mut row);
    centres.distances(&row)
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

    /// Places rows one by one: the clusters of each row, and the size of each cluster.
    fn one_by_one(
        rows: &[[u32; 2]],
        most: usize,
        distances: impl Fn(usize) -> Vec<f32>,
    ) -> (Vec<[u32; 2]>, Vec<usize>) {
        let mut sizes = vec![0; 5];
        let place = |(row, &nearest): (usize, &[u32; 2])| {
            let is_full = nearest.iter().any(|&cluster| sizes[cluster as usize] == most);
            let pair = if is_full { nearest_with_room(&distances(row), &sizes, most) } else { nearest };
            pair.iter().for_each(|&cluster| sizes[cluster as usize] += 1);
            pair
        };
        (rows.iter().enumerate().map(place).collect(), sizes)
    }

    #[test]
    fn many_rows_find_clusters_full_as_row_by_row() {
        let rows: Vec<[u32; 2]> = (0..3 * AT_ONCE as u32).map(|row| [row % 2, 2 + row % 3]).collect();
        let distances = |row: usize| (0..5).map(|cluster| ((cluster * 7 + row * 3) % 11) as f32).collect();
        let (expected, sizes) = one_by_one(&rows, AT_ONCE + 300, distances);
        let (mut found, mut filling) = (rows.clone(), Filling::new(5, AT_ONCE + 300));
        filling.put(&mut found, distances, &Progress::silent()).unwrap();
        assert_eq!((found, &filling.sizes), (expected, &sizes));
        let cancelled = Progress::silent();
        cancelled.cancel();
        assert!(Filling::new(5, AT_ONCE + 300).put(&mut rows.clone(), distances, &cancelled).is_err());
    }

    #[test]
    fn parts_of_any_size_are_placed_as_row_by_row() {
        let rows: Vec<[u32; 2]> = (0..60).map(|row| [row % 3, (row % 3 + 1 + row / 3 % 2) % 3]).collect();
        // A row's distances in an order of its own.
        let distances = |row: usize| (0..5).map(|cluster| ((cluster * 7 + row * 3) % 11) as f32).collect();
        for most in [30, 33, 40, 60] {
            let (expected, sizes) = one_by_one(&rows, most, distances);
            let shared: SharedNodes =
                count_pairs(&expected).into_iter().map(|[a, b, rows]| ((a, b), rows.into())).collect();
            for part in [1, 7, 25, 60] {
                let (mut found, mut by_counts) = (rows.clone(), Filling::new(5, most));
                for (number, pairs) in found.chunks_mut(part).enumerate() {
                    if !by_counts.put_all(&count_pairs(pairs)) {
                        let distances = |index| distances(number * part + index);
                        by_counts.put(pairs, distances, &Progress::silent()).unwrap();
                    }
                }
                assert_eq!(found, expected, "at most {most}, parts of {part}");
                assert_eq!((&by_counts.sizes, &by_counts.shared), (&sizes, &shared));
            }
        }
    }
}
