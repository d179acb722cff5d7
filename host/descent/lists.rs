//! The neighbour lists of all nodes while descent improves them.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use rayon::prelude::*;
use tagore_device::descent::key::{self, Key};

/// One sorted list of at most `k` keys per node; empty slots hold [`key::NONE`].
pub(super) struct Lists {
    k: usize,
    keys: Vec<Key>,
}

impl Lists {
    pub(super) fn new(nodes: usize, k: usize) -> Self {
        Self {
            k,
            keys: vec![key::NONE; nodes * k],
        }
    }

    pub(super) fn k(&self) -> usize {
        self.k
    }

    pub(super) fn len(&self) -> usize {
        self.keys.len() / self.k
    }

    #[cfg(test)]
    fn row(&self, node: usize) -> &[Key] {
        &self.keys[node * self.k..][..self.k]
    }

    pub(super) fn rows(&self) -> rayon::slice::ChunksExact<'_, Key> {
        self.keys.par_chunks_exact(self.k)
    }

    pub(super) fn rows_mut(&mut self) -> rayon::slice::ChunksExactMut<'_, Key> {
        self.keys.par_chunks_exact_mut(self.k)
    }

    pub(super) fn into_keys(self) -> Vec<Key> {
        self.keys
    }

    /// Flags every neighbour as unvisited.
    pub(super) fn mark_unvisited(&mut self) {
        self.keys
            .par_iter_mut()
            .filter(|k| **k != key::NONE)
            .for_each(|k| *k |= key::UNVISITED);
    }

    /// The share of all slots that hold an unvisited neighbour.
    pub(super) fn unvisited_share(&self) -> f64 {
        let unvisited = self
            .keys
            .par_iter()
            .filter(|&&k| k != key::NONE && key::is_unvisited(k))
            .count();
        unvisited as f64 / self.keys.len() as f64
    }

    /// The last key of each list, which every insertion changes.
    pub(super) fn last_keys(&self) -> Vec<Key> {
        self.rows().map(|row| key::plain(row[self.k - 1])).collect()
    }

    /// Opens the lists to insertions from many threads.
    ///
    /// A list ends as the `k` smallest of what it held and all that was offered to it, whatever the
    /// order of the offers: that is why the result does not depend on the number of threads.
    pub(super) fn shared(&mut self) -> SharedLists<'_> {
        let worst = self
            .keys
            .par_chunks_exact(self.k)
            .map(|row| AtomicU32::new(worst(row)))
            .collect();
        SharedLists {
            rows: self
                .keys
                .par_chunks_exact_mut(self.k)
                .map(Mutex::new)
                .collect(),
            worst,
        }
    }
}

/// [`Lists`] that any thread can insert into.
pub(super) struct SharedLists<'a> {
    rows: Vec<Mutex<&'a mut [Key]>>,
    /// The ordered bits of the last distance of each list: what a candidate has to reach.
    worst: Vec<AtomicU32>,
}

impl SharedLists<'_> {
    /// Offers the neighbour `id` at `distance` to the list of `node`.
    #[inline]
    pub(super) fn offer(&self, node: u32, id: u32, distance: f32) {
        let worst_now = &self.worst[node as usize];
        // A stale value is greater than the true one, so nothing is lost by reading it unlocked.
        if key::ordered(distance) <= worst_now.load(Ordering::Relaxed) {
            let mut row = self.rows[node as usize]
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            if insert(&mut row, key::pack(distance, id) | key::UNVISITED) {
                worst_now.store(worst(&row), Ordering::Relaxed);
            }
        }
    }
}

fn worst(row: &[Key]) -> u32 {
    row.last().map_or(0, |last| (last >> 32) as u32)
}

/// Inserts `new` into the sorted `row`, whose last key falls out; false if it is in the row already
/// or does not reach it.
pub(super) fn insert(row: &mut [Key], new: Key) -> bool {
    let place = row.partition_point(|&k| key::plain(k) < key::plain(new));
    if place == row.len() || key::plain(row[place]) == key::plain(new) {
        return false;
    }
    row.copy_within(place..row.len() - 1, place + 1);
    row[place] = new;
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use tagore_device::random::{Draws, Stage};

    #[test]
    fn the_order_of_offers_does_not_matter() {
        for seed in 0..20 {
            let draws = Draws::new(seed, Stage::Test, 0, 0);
            let mut offers: Vec<(u32, f32)> = (0..200)
                .map(|i| draws.below(i, 60) as u32)
                .map(|id| (id, (id % 7) as f32))
                .collect();
            let mut expected: Vec<Key> = offers
                .iter()
                .map(|&(id, d)| key::pack(d, id) | key::UNVISITED)
                .collect();
            expected.sort_unstable();
            expected.dedup();
            expected.truncate(16);
            for rotation in [0, 50, 111] {
                offers.rotate_left(rotation);
                let mut lists = Lists::new(1, 16);
                let shared = lists.shared();
                offers
                    .par_iter()
                    .for_each(|&(id, d)| shared.offer(0, id, d));
                drop(shared);
                assert_eq!(lists.row(0), expected, "seed {seed}, rotation {rotation}");
            }
        }
    }

    #[test]
    fn an_old_neighbour_stays_old_when_offered_again() {
        let mut row = [key::pack(1.0, 4), key::pack(2.0, 2), key::NONE];
        assert!(!insert(&mut row, key::pack(2.0, 2) | key::UNVISITED));
        assert!(insert(&mut row, key::pack(2.0, 1) | key::UNVISITED));
        assert_eq!(
            row,
            [
                key::pack(1.0, 4),
                key::pack(2.0, 1) | key::UNVISITED,
                key::pack(2.0, 2)
            ]
        );
        assert!(!insert(&mut row, key::pack(3.0, 0)));
    }
}
