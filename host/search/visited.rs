//! The set of visited nodes of a search or a gather.

use crate::gpu::MemoryPlan;

/// A set of node ids, cleared in time proportional to its size.
#[derive(Default)]
pub(crate) struct Visited {
    words: Vec<u64>,
    touched: Vec<u32>,
}

impl Visited {
    /// Memory of `sets` sets for ids below `nodes`.
    pub(crate) fn plan(nodes: usize, sets: usize) -> MemoryPlan {
        MemoryPlan::new().with::<u64>("visited nodes", sets * nodes.div_ceil(64))
    }

    /// An empty set for ids below `nodes`.
    pub(crate) fn new(nodes: usize) -> Self {
        Self { words: vec![0; nodes.div_ceil(64)], touched: Vec::new() }
    }

    /// Adds `id`; false if it was in the set.
    #[inline]
    pub(crate) fn insert(&mut self, id: u32) -> bool {
        let (word, bit) = (&mut self.words[id as usize / 64], 1 << (id % 64));
        if *word & bit != 0 {
            return false;
        }
        if *word == 0 {
            self.touched.push(id / 64);
        }
        *word |= bit;
        true
    }

    /// Adds `ids`, and writes those that were not in the set to `fresh`, in their order.
    ///
    /// About every other id of a search is fresh, in no order that a processor could predict: so
    /// there are no branches.
    pub(crate) fn insert_all(&mut self, ids: &[u32], fresh: &mut Vec<u32>) {
        fresh.resize(ids.len(), 0);
        let (mut count, mut touched) = (0, self.touched.len());
        self.touched.resize(touched + ids.len(), 0);
        for &id in ids {
            let (word, bit) = (&mut self.words[id as usize / 64], 1 << (id % 64));
            fresh[count] = id;
            count += usize::from(*word & bit == 0);
            self.touched[touched] = id / 64;
            touched += usize::from(*word == 0);
            *word |= bit;
        }
        fresh.truncate(count);
        self.touched.truncate(touched);
    }

    /// Whether `id` is in the set.
    #[inline]
    pub(crate) fn contains(&self, id: u32) -> bool {
        self.words[id as usize / 64] & 1 << (id % 64) != 0
    }

    /// Removes `id`.
    #[inline]
    pub(crate) fn remove(&mut self, id: u32) {
        self.words[id as usize / 64] &= !(1 << (id % 64));
    }

    /// Removes all ids.
    pub(crate) fn clear(&mut self) {
        for word in self.touched.drain(..) {
            self.words[word as usize] = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_ids_are_added_as_one_by_one() {
        let (mut all, mut single, mut fresh) = (Visited::new(130), Visited::new(130), vec![7; 3]);
        for round in 0..3 {
            for ids in [&[3, 129, 3, 64, 65][..], &[], &[64, 0, 129, 1, 1]] {
                all.insert_all(ids, &mut fresh);
                let expected: Vec<u32> = ids.iter().copied().filter(|&id| single.insert(id)).collect();
                assert_eq!((&fresh, all.touched.len()), (&expected, single.touched.len()), "{round}");
            }
            all.clear();
            single.clear();
        }
    }

    #[test]
    fn a_cleared_set_is_empty() {
        let mut visited = Visited::new(130);
        for _ in 0..3 {
            for id in [0, 63, 64, 129, 1] {
                assert!(visited.insert(id));
                assert!(!visited.insert(id));
            }
            visited.clear();
        }
    }
}
