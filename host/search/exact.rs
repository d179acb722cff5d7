//! Exact search: every query against every row.

use rayon::prelude::*;
use tagore_device::descent::key::{self, Key};

use crate::progress::Progress;
use crate::vectors::space::{Point, Space};
use crate::{Error, GroundTruth, Metric, Result, Vectors};

/// Bytes of the base that stay in a core's cache while a block of queries passes over them.
const TILE_BYTES: usize = 256 << 10;

/// Queries that pass over a tile one after another.
const QUERIES: usize = 32;

/// The exact `k` nearest rows of `base` for every query, nearest first, ties by id.
///
/// # Errors
/// If `k` is 0 or above the rows of `base`, the dimensions differ, a value is not finite, or the
/// work is cancelled.
pub fn ground_truth(
    base: &Vectors,
    queries: &Vectors,
    metric: Metric,
    k: usize,
    progress: &Progress,
) -> Result<GroundTruth> {
    if k == 0 || k > base.len() {
        return Err(Error::argument(
            "k",
            k,
            format_args!("1 to the {} rows of {}", base.len(), base.describe()),
        ));
    }
    let space = Space::new(base, metric)?;
    let queries = space.queries(queries)?;
    let keys = nearest(&space, queries.len(), |query| (queries.point(query), None), k, progress)?;
    let ids = keys.par_iter().map(|&key| key as u32).collect();
    let distances = keys.par_iter().map(|&key| key::distance(key)).collect();
    GroundTruth::new(k, ids, Some(distances))
}

/// The exact k-NN lists of all nodes, `k` keys to a row.
pub(crate) fn all_pairs(space: &Space<'_>, k: usize, progress: &Progress) -> Result<Vec<Key>> {
    neighbors_of(space, &(0..space.len() as u32).collect::<Vec<_>>(), k, progress)
}

/// The exact k-NN lists of some nodes, `k` keys to a row; no node is its own neighbour.
pub(crate) fn neighbors_of(
    space: &Space<'_>,
    nodes: &[u32],
    k: usize,
    progress: &Progress,
) -> Result<Vec<Key>> {
    let point = |index: usize| (space.point(nodes[index]), Some(nodes[index]));
    nearest(space, nodes.len(), point, k, progress)
}

/// The `k` smallest keys (list distance, id) for each of `count` points; `point` gives a point and
/// the row, if any, that is not to be found. There are at least `k` rows to find.
fn nearest<'p>(
    space: &Space<'_>,
    count: usize,
    point: impl Fn(usize) -> (Point<'p>, Option<u32>) + Sync,
    k: usize,
    progress: &Progress,
) -> Result<Vec<Key>> {
    if k == 0 {
        return Ok(Vec::new());
    }
    let stage = progress.stage("exact search", count as u64);
    let tile = (TILE_BYTES / space.row_bytes()).clamp(64, 4096);
    let ids: Vec<u32> = (0..space.len() as u32).collect();
    let mut keys = vec![key::NONE; count * k];
    keys.par_chunks_mut(k * QUERIES).enumerate().try_for_each_init(
        Vec::new,
        |distances, (block, rows)| {
            let first = block * QUERIES;
            let mut best: Vec<Best> = (0..rows.len() / k).map(|_| Best::new(k)).collect();
            for tile in ids.chunks(tile) {
                progress.check()?;
                for (index, best) in best.iter_mut().enumerate() {
                    let (point, itself) = point(first + index);
                    space.list_distances(point, tile, distances);
                    for (&id, &distance) in tile.iter().zip(distances.iter()) {
                        if Some(id) != itself {
                            best.offer(key::pack(distance, id));
                        }
                    }
                }
            }
            stage.advance(best.len() as u64)?;
            for (row, best) in rows.chunks_exact_mut(k).zip(best) {
                row.copy_from_slice(&best.finish());
            }
            Ok(())
        },
    )?;
    Ok(keys)
}

/// The `k` smallest of the keys offered.
struct Best {
    k: usize,
    keys: Vec<Key>,
    /// No key from this on is among the `k` smallest.
    bound: Key,
}

impl Best {
    fn new(k: usize) -> Self {
        Self { k, keys: Vec::with_capacity(2 * k + 64), bound: Key::MAX }
    }

    #[inline]
    fn offer(&mut self, key: Key) {
        if key < self.bound {
            self.keys.push(key);
            if self.keys.len() == self.keys.capacity() {
                self.cut();
            }
        }
    }

    fn cut(&mut self) {
        if self.keys.len() > self.k {
            let (_, &mut last, _) = self.keys.select_nth_unstable(self.k - 1);
            self.bound = last;
            self.keys.truncate(self.k);
        }
    }

    fn finish(mut self) -> Vec<Key> {
        self.cut();
        self.keys.sort_unstable();
        self.keys
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tagore_device::random::{Draws, Stage};

    #[test]
    fn the_best_are_the_smallest() {
        for (count, k) in [(1, 1), (10, 10), (500, 3), (2000, 100)] {
            let draws = Draws::new(3, Stage::Test, count as u32, k as u64);
            let keys: Vec<Key> = (0..count).map(|i| draws.bits(i) >> 1).collect();
            let mut best = Best::new(k);
            keys.iter().for_each(|&key| best.offer(key));
            let mut sorted = keys;
            sorted.sort_unstable();
            sorted.truncate(k);
            assert_eq!(best.finish(), sorted, "{count} keys, k = {k}");
        }
    }
}
