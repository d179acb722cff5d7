//! The neighbour lists of all nodes while descent improves them.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use tagore_device::key::{self, Key};

use crate::Result;
use crate::loops::{Rows, for_each, numbered, reduce, rows, rows_mut};
use crate::memory::{collected, collected_in_parallel, fetch, filled, with_capacity};
use crate::parallel::locked;

/// One list in this many is compared to estimate how much all lists change.
pub(super) const SAMPLED: usize = 16;

/// One sorted list of at most `k` keys per node; empty slots hold [`key::NONE`].
pub(super) struct NeighbourLists {
    k: usize,
    keys: Vec<Key>,
}

impl NeighbourLists {
    pub(super) fn new(nodes: usize, k: usize) -> Result<Self> {
        Ok(Self { k, keys: filled(key::NONE, nodes * k)? })
    }

    pub(super) fn k(&self) -> usize {
        self.k
    }

    pub(super) fn len(&self) -> usize {
        self.keys.len() / self.k
    }

    pub(super) fn row(&self, node: usize) -> &[Key] {
        &self.keys[node * self.k..][..self.k]
    }

    pub(super) fn rows(&self) -> Rows<&[Key]> {
        rows(&self.keys, self.k)
    }

    pub(super) fn rows_mut(&mut self) -> Rows<&mut [Key]> {
        rows_mut(&mut self.keys, self.k)
    }

    fn change(&mut self, change: impl Fn(Key) -> Key + Sync) {
        for_each(&mut self.keys[..], |k| *k = if *k == key::NONE { *k } else { change(*k) });
    }

    pub(super) fn into_keys(self) -> Vec<Key> {
        self.keys
    }

    /// Flags every neighbour as unvisited.
    pub(super) fn mark_unvisited(&mut self) {
        self.change(|k| k | key::UNVISITED);
    }

    /// Flags every neighbour as visited.
    pub(super) fn mark_visited(&mut self) {
        self.change(key::plain);
    }

    /// The share of all slots that hold an unvisited neighbour.
    pub(super) fn unvisited_share(&self) -> f64 {
        let is_unvisited = |&k: &Key| usize::from(k != key::NONE && key::is_unvisited(k));
        let unvisited = reduce(&self.keys[..], 0, is_unvisited, |a, b| a + b);
        unvisited as f64 / self.keys.len() as f64
    }

    /// Every [`SAMPLED`]th list.
    pub(super) fn sample(&self) -> Result<Vec<Key>> {
        let rows = self.keys.chunks_exact(self.k).step_by(SAMPLED);
        let mut sample = with_capacity(rows.len() * self.k)?;
        rows.for_each(|row| sample.extend(row.iter().map(|&k| key::plain(k))));
        Ok(sample)
    }

    /// The share of entries that were added since this [`sample`](Self::sample).
    pub(super) fn added_since(&self, sample: &[Key]) -> f64 {
        // Lists are sorted by plain keys.
        let added = |(number, before): (usize, &[Key])| {
            let row = self.row(number * SAMPLED);
            row.iter().filter(|&&k| before.binary_search(&key::plain(k)).is_err()).count()
        };
        reduce(numbered(rows(sample, self.k)), 0, added, |a, b| a + b) as f64 / sample.len() as f64
    }

    /// Opens the lists to proposals from many threads.
    pub(super) fn share(self) -> Result<SharedLists> {
        let worst = |row: &[Key]| AtomicU32::new((row[self.k - 1] >> 32) as u32);
        let worst = collected_in_parallel(self.rows(), worst)?;
        let locks = collected((0..self.len()).map(|_| Mutex::new(())))?;
        // In place.
        let keys = self.keys.into_iter().map(AtomicU64::new).collect();
        Ok(SharedLists { k: self.k, keys, worst, locks })
    }
}

/// [`NeighbourLists`] that accept proposals from any thread.
///
/// A list ends with the `k` smallest of its initial keys and all proposals, in any order of
/// proposals. So the result does not depend on the number of threads.
///
/// Nearly all proposals are in the list already. They are found without a lock, so that the
/// processor can wait for many lists at once, which it cannot across a lock. This halves the time
/// of a descent.
pub(super) struct SharedLists {
    k: usize,
    keys: Vec<AtomicU64>,
    /// Bound of each list: the ordered bits of its last distance.
    worst: Vec<AtomicU32>,
    /// A thread holds the lock of a list while it changes the list.
    locks: Vec<Mutex<()>>,
}

impl SharedLists {
    /// The distance that others must not exceed to enter the list of `node`, once it is full.
    pub(super) fn bound(&self, node: u32) -> Option<f32> {
        let bits = self.worst[node as usize].load(Ordering::Relaxed);
        (bits != (key::NONE >> 32) as u32).then(|| key::from_ordered(bits))
    }

    fn row(&self, node: u32) -> &[AtomicU64] {
        &self.keys[node as usize * self.k..][..self.k]
    }

    /// Whether a neighbour at `distance` is within the bound of the list of `node`.
    fn may_enter(&self, node: u32, distance: f32) -> bool {
        key::ordered(distance) <= self.worst[node as usize].load(Ordering::Relaxed)
    }

    /// Has the processor load the list of `node` for a proposal at `distance`.
    #[inline]
    pub(super) fn fetch(&self, node: u32, distance: f32) {
        if self.may_enter(node, distance) {
            fetch(self.row(node));
        }
    }

    /// Proposes the neighbour `id` at `distance` to the list of `node`.
    #[inline]
    pub(super) fn propose(&self, node: u32, id: u32, distance: f32) {
        // A stale bound is above the true one, and lists only improve: a proposal that fails either
        // check would fail it later too.
        if !self.may_enter(node, distance) {
            return;
        }
        let row = self.row(node);
        let new = key::pack(distance, id);
        // While another thread moves keys, this may miss a key of the list, and the lock is taken
        // in vain. It never finds a key that is not in the list.
        if place(row, new).is_some() {
            self.insert(node, row, new);
        }
    }

    #[cold]
    #[inline(never)]
    fn insert(&self, node: u32, row: &[AtomicU64], new: Key) {
        let _lock = locked(&self.locks[node as usize]);
        if let Some(place) = place(row, new) {
            for slot in (place + 1..row.len()).rev() {
                row[slot].store(row[slot - 1].load(Ordering::Relaxed), Ordering::Relaxed);
            }
            row[place].store(new | key::UNVISITED, Ordering::Relaxed);
            let worst = (row[row.len() - 1].load(Ordering::Relaxed) >> 32) as u32;
            self.worst[node as usize].store(worst, Ordering::Relaxed);
        }
    }

    /// Closes the lists.
    pub(super) fn into_lists(self) -> NeighbourLists {
        NeighbourLists { k: self.k, keys: self.keys.into_iter().map(AtomicU64::into_inner).collect() }
    }
}

/// The position of `new`, a key without a flag, in the sorted `row`; none if the row holds it
/// already or holds only smaller keys.
#[inline]
fn place(row: &[AtomicU64], new: Key) -> Option<usize> {
    /// Slots of a part. All of a part are smaller if its last one is.
    const PART: usize = 8;
    let plain = |slot: &AtomicU64| key::plain(slot.load(Ordering::Relaxed));
    // Unlike in a binary search, no address depends on a load: all loads are done at once.
    let is_less = |slot: &AtomicU64| usize::from(plain(slot) < new);
    let parts: usize = row.chunks_exact(PART).map(|part| is_less(&part[PART - 1])).sum();
    let part = &row[PART * parts..];
    let place = PART * parts + part[..part.len().min(PART)].iter().map(is_less).sum::<usize>();
    let held = row.get(place).map(plain)?;
    (held != new).then_some(place)
}

#[cfg(test)]
mod tests {
    use rayon::prelude::*;

    use super::*;
    use tagore_device::random::{Draws, Stage};

    #[test]
    fn the_order_of_proposals_does_not_matter() {
        for seed in 0..20 {
            let draws = Draws::new(seed, Stage::Test, 0, 0);
            let mut proposals: Vec<(u32, f32)> =
                (0..200).map(|i| draws.below(i, 60) as u32).map(|id| (id, (id % 7) as f32)).collect();
            let mut expected: Vec<Key> =
                proposals.iter().map(|&(id, d)| key::pack(d, id) | key::UNVISITED).collect();
            expected.sort_unstable();
            expected.dedup();
            expected.truncate(16);
            for rotation in [0, 50, 111] {
                proposals.rotate_left(rotation);
                let shared = NeighbourLists::new(1, 16).unwrap().share().unwrap();
                proposals.par_iter().for_each(|&(id, d)| shared.propose(0, id, d));
                let lists = shared.into_lists();
                assert_eq!(lists.row(0), expected, "seed {seed}, rotation {rotation}");
            }
        }
    }

    #[test]
    fn a_visited_neighbour_stays_visited_when_proposed_again() {
        let keys = vec![key::pack(1.0, 4), key::pack(2.0, 2), key::NONE];
        let shared = NeighbourLists { k: 3, keys }.share().unwrap();
        shared.propose(0, 2, 2.0);
        shared.propose(0, 1, 2.0);
        shared.propose(0, 0, 3.0);
        let lists = shared.into_lists();
        let new = key::pack(2.0, 1) | key::UNVISITED;
        assert_eq!(lists.row(0), [key::pack(1.0, 4), new, key::pack(2.0, 2)]);
    }
}
