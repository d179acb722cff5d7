//! Sets of known neighbours.

use emulator::Emulator;
use tagore_device::descent::cells::*;
use tagore_device::descent::merge::{MERGE_NODES, MERGE_THREADS};
use tagore_device::key::{self, Key, NONE, UNVISITED};

use crate::{SEEDS, integers, room};

#[test]
fn known_sets_hold_the_last_four_of_a_bucket() {
    for (seed, k) in SEEDS.into_iter().zip([1usize, 97, 200]) {
        let (nodes, salt, bits) = (11usize, 5, known_bits(k as u32));
        let lists: Vec<Key> = integers(nodes * k, 0, 1 << 20, seed + 80)
            .into_iter()
            .enumerate()
            .map(|(i, id)| {
                let is_empty = i % k >= k - i / k % 3 * k / 3;
                let flag = if id % 3 == 0 { UNVISITED } else { 0 };
                if is_empty { NONE } else { key::pack(0.5, id as u32) | flag }
            })
            .collect();
        let emulator = Emulator::with_seed(seed);
        let (lists_there, sets) = (emulator.upload(&lists), room::<u32>(&emulator, nodes << bits));
        let arguments = KnownSets {
            lists: lists_there.view().read_only(),
            sets: sets.view(),
            nodes: nodes as u32,
            k: k as u32,
            bits,
            salt,
        };
        let grid = [(nodes as u32).div_ceil(MERGE_NODES), 1, 1];
        emulator.launch::<cells_known_sets>(grid, MERGE_THREADS, (arguments,)).unwrap();
        let mut expected = vec![0u32; nodes << bits];
        for (i, &key) in lists.iter().enumerate().filter(|(_, key)| **key != NONE) {
            let hash = known_hash(key::id(key), salt, bits);
            let word = &mut expected[((i / k) << bits) + (hash >> 8) as usize];
            *word = *word << 8 | hash & 0xff;
        }
        assert_eq!(sets.values::<u32>().unwrap(), expected, "k {k}");
    }
}
