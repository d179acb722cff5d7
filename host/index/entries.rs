//! Random entry points.

use tagore_device::random::{Draws, Stage};

/// The number of random entry points.
pub(crate) const RANDOM_ENTRIES: usize = 32;

/// Different random nodes; all nodes if there are few.
pub(crate) fn random_entries(nodes: usize, seed: u64) -> Vec<u32> {
    if nodes <= RANDOM_ENTRIES {
        return (0..nodes as u32).collect();
    }
    let draws = Draws::new(seed, Stage::Entry, 0, 0);
    let mut entries = Vec::with_capacity(RANDOM_ENTRIES);
    for draw in 0.. {
        let node = draws.below(draw, nodes as u64) as u32;
        if !entries.contains(&node) {
            entries.push(node);
        }
        if entries.len() == RANDOM_ENTRIES {
            break;
        }
    }
    entries
}
