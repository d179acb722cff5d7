//! Every kernel, and the pieces that kernels share, on the emulator against plain references.
#![expect(clippy::unwrap_used, reason = "a test stops at the first error")]

mod beam;
mod cells;
mod cluster;
mod descent;
mod detours;
mod device;
mod exact;
mod intra_cell;
mod known;
mod members;
mod path;
mod prepare;
mod prune;
mod renumber;
mod rerank;
mod reverse;
mod settle;
mod sort;
mod store;
mod vectors;

use cuda_std::memory::Plain;
use emulator::{Allocation, Emulator};
use tagore_device::random::{Draws, Stage};

/// Seeds of the orders of lanes and blocks that every test tries.
const SEEDS: [u64; 3] = [0, 1, 2];

/// Random integers from `low` to `high`.
fn integers(count: usize, low: i64, high: i64, seed: u64) -> Vec<i64> {
    let draws = Draws::new(seed, Stage::Test, 7, 0);
    (0..count as u64).map(|i| low + draws.below(i, (high - low + 1) as u64) as i64).collect()
}

/// Allocates `count` unwritten values.
fn room<T: Plain>(emulator: &Emulator, count: usize) -> Allocation {
    emulator.allocate((count * size_of::<T>()).max(1))
}
