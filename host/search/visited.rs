//! The set of visited nodes of a search or a gather.

use crate::gpu::MemoryPlan;

/// A set of node ids, cleared in time proportional to its size.
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
