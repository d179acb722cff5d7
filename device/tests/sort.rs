//! Sorting and merging of keys.

use cuda_std::prelude::*;
use cuda_std::shared;
use cuda_std::thread::{block_dim_x, sync_threads, thread_idx_x};
use emulator::Emulator;
use tagore_device::block::sort::{merge_block, rank, sort_block};
use tagore_device::descent::key::{Key, NONE};

use crate::{SEEDS, integers, room};

/// Sorts `keys` and merges them into `list`; `ranks` gets the rank of each key in the list.
#[kernel(block = 32..=256, shared = 8 * (2 * len + k))]
unsafe fn sort_and_merge(
    keys: Global<Key>,
    len: u32,
    list: Global<Key>,
    k: u32,
    sorted: GlobalMut<Key>,
    ranks: GlobalMut<u32>,
    out: GlobalMut<Key>,
) {
    let here: Shared<Key> = shared::dynamic(0);
    let spare = here.offset(len as usize);
    let old = spare.offset(len as usize);
    let mut i = thread_idx_x();
    while i < len {
        here.set(i as usize, keys.get(i as usize));
        i += block_dim_x();
    }
    let mut i = thread_idx_x();
    while i < k {
        old.set(i as usize, list.get(i as usize));
        i += block_dim_x();
    }
    sync_threads();
    let result = sort_block(here, spare, len);
    let mut i = thread_idx_x();
    while i < len {
        sorted.set(i as usize, result.get(i as usize));
        ranks.set(i as usize, rank(old, k, result.get(i as usize)));
        i += block_dim_x();
    }
    merge_block(old, k, result, len, out);
}

#[test]
fn keys_are_sorted_and_merged() {
    let sizes = [(0, 1), (1, 1), (2, 5), (31, 8), (32, 32), (33, 100), (100, 1), (257, 64), (700, 1000)];
    for (len, k) in sizes {
        for (seed, block) in SEEDS.into_iter().zip([32, 96, 256]) {
            let mut all: Vec<Key> = integers(len + k, 0, i64::MAX / 2, seed + len as u64)
                .into_iter()
                .enumerate()
                .map(|(i, key)| (key as u64) << 16 | i as u64)
                .collect();
            let mut list = all.split_off(len);
            // A list that is not full yet.
            let full = if seed == 1 { k / 2 } else { k };
            list.truncate(full);
            list.sort_unstable();
            list.resize(k, NONE);
            let emulator = Emulator::with_seed(seed);
            let (keys, old) = (emulator.upload(&all), emulator.upload(&list));
            let (sorted, ranks, out) =
                (room::<Key>(&emulator, len), room::<u32>(&emulator, len), room::<Key>(&emulator, k));
            let arguments = (
                keys.view::<Key>().read_only(),
                len as u32,
                old.view::<Key>().read_only(),
                k as u32,
                sorted.view(),
                ranks.view(),
                out.view(),
            );
            emulator.launch::<sort_and_merge>([1, 1, 1], block, arguments).unwrap();
            let mut expected = all.clone();
            expected.sort_unstable();
            if len > 0 {
                assert_eq!(sorted.values::<Key>().unwrap(), expected, "len {len}, seed {seed}");
                let below = |key: &Key| list.iter().filter(|other| *other < key).count() as u32;
                assert_eq!(ranks.values::<u32>().unwrap(), expected.iter().map(below).collect::<Vec<_>>());
            }
            let mut merged = [list, expected].concat();
            merged.sort_unstable();
            assert_eq!(out.values::<Key>().unwrap(), merged[..k], "len {len}, k {k}, seed {seed}");
        }
    }
}
