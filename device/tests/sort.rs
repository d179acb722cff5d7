//! Sorting and merging of keys, in a block and in global memory.

use cuda_std::prelude::*;
use cuda_std::shared;
use cuda_std::thread::{block_dim_x, sync_threads, thread_idx_x};
use emulator::Emulator;
use tagore_device::block::sort::{SortedKeys, merge, rank, sort_block};
use tagore_device::block::threads::Threads;
use tagore_device::key::{Key, NONE};
use tagore_device::reduce::{MARKED_KEYS, REDUCE_KEYS, REDUCE_THREADS, reduce_marks, reduce_min};
use tagore_device::sort::{
    DIGIT_BITS, DIGITS, Pass, SCAN_THREADS, SORT_KEYS, SORT_THREADS, scan_threads, sort_count, sort_scan,
    sort_scatter,
};

use crate::device::TestDevice;
use crate::{SEEDS, integers, room};

/// Arguments of [`sort_and_merge`].
#[derive(Clone, Copy)]
#[repr(C)]
struct SortAndMerge {
    /// In: `len` keys.
    keys: Global<Key>,
    /// In: `k` ascending keys.
    list: Global<Key>,
    /// Out: `len` keys, ascending.
    sorted: GlobalMut<Key>,
    /// Out: per sorted key its rank in `list`.
    ranks: GlobalMut<u32>,
    /// Out: the least `k` of all keys, ascending.
    out: GlobalMut<Key>,
    len: u32,
    k: u32,
}

/// Sorts keys and merges them into a list.
#[kernel(unsafe, block = 32..=256, shared = 8 * (2 * p.len + p.k))]
unsafe fn sort_and_merge(p: SortAndMerge) {
    let here: Shared<Key> = shared::dynamic(0);
    let spare = here.offset(p.len as usize);
    let old = spare.offset(p.len as usize);
    let mut i = thread_idx_x();
    while i < p.len {
        here.set(i as usize, p.keys.get(i as usize));
        i += block_dim_x();
    }
    let mut i = thread_idx_x();
    while i < p.k {
        old.set(i as usize, p.list.get(i as usize));
        i += block_dim_x();
    }
    sync_threads();
    let result = sort_block(here, spare, p.len);
    let mut i = thread_idx_x();
    while i < p.len {
        p.sorted.set(i as usize, result.get(i as usize));
        p.ranks.set(i as usize, rank(old, p.k, result.get(i as usize)));
        i += block_dim_x();
    }
    let threads = Threads::new(thread_idx_x(), block_dim_x());
    let (old, result) = (SortedKeys::new(old, p.k), SortedKeys::new(result, p.len));
    merge(old, result, threads, |place, key| p.out.set(place as usize, key));
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
            let device = TestDevice::new(seed);
            let (sorted, ranks) = (device.room::<Key>(len), device.room::<u32>(len));
            let out = device.room::<Key>(k);
            let arguments = SortAndMerge {
                keys: device.input(&all),
                list: device.input(&list),
                sorted: sorted.view(),
                ranks: ranks.view(),
                out: out.view(),
                len: len as u32,
                k: k as u32,
            };
            device.launch::<sort_and_merge>(1, block, (arguments,));
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

/// Sorts as the host does: digit by digit, between two buffers in turn.
fn sorted_on_device(keys: &[u64], bits: std::ops::Range<u32>, seed: u64) -> Vec<u64> {
    let emulator = Emulator::with_seed(seed);
    let blocks = (keys.len() as u32).div_ceil(SORT_KEYS);
    let (mut from, mut to) = (emulator.upload(keys), room::<u64>(&emulator, keys.len()));
    let counts = room::<u32>(&emulator, (DIGITS * blocks) as usize);
    let totals = room::<u32>(&emulator, DIGITS as usize);
    for shift in bits.clone().step_by(DIGIT_BITS as usize) {
        let pass = Pass {
            keys: from.view().read_only(),
            sorted: to.view(),
            counts: counts.view(),
            totals: totals.view(),
            count: keys.len() as u32,
            blocks,
            shift,
            mask: (1 << DIGIT_BITS.min(bits.end - shift)) - 1,
        };
        emulator.launch::<sort_count>([blocks, 1, 1], SORT_THREADS, (pass,)).unwrap();
        let lines = (pass.counts, pass.totals, blocks);
        emulator.launch::<sort_scan>([DIGITS, 1, 1], scan_threads(blocks), lines).unwrap();
        emulator.launch::<sort_scatter>([blocks, 1, 1], SORT_THREADS, (pass,)).unwrap();
        (from, to) = (to, from);
    }
    from.values().unwrap()
}

#[test]
fn keys_in_global_memory_are_sorted_stably() {
    // The other bits of a key are its original place, so the test sees the order of equal digits.
    let cases = [(1, 20..28), (1023, 20..23), (1024, 20..33), (1025, 28..44), (4096, 20..21), (9000, 20..29)];
    for (len, bits) in cases {
        for seed in SEEDS {
            let width = bits.end - bits.start;
            // Distinct digits, three digits, one digit.
            let most = [(1i64 << width) - 1, 2.min((1 << width) - 1), 0][seed as usize];
            let keys: Vec<u64> = integers(len, 0, most, seed + len as u64)
                .into_iter()
                .enumerate()
                .map(|(i, digit)| (digit as u64) << bits.start | i as u64 | (i as u64 % 5) << bits.end)
                .collect();
            let mut expected = keys.clone();
            expected.sort_by_key(|key| key >> bits.start & ((1 << width) - 1));
            assert!(
                sorted_on_device(&keys, bits.clone(), seed) == expected,
                "{len} keys, {bits:?}, seed {seed}"
            );
        }
    }
}

#[test]
fn more_blocks_than_threads_scan_them_are_summed() {
    // Counts alone: sorting that many keys is slow on the emulator.
    let emulator = Emulator::with_seed(1);
    let blocks = 2 * SCAN_THREADS + 77;
    let values: Vec<u32> =
        integers((2 * blocks) as usize, 0, 4096, 5).into_iter().map(|count| count as u32).collect();
    let (counts, totals) = (emulator.upload(&values), room::<u32>(&emulator, 2));
    let lines = (counts.view(), totals.view(), blocks);
    emulator.launch::<sort_scan>([2, 1, 1], SCAN_THREADS, lines).unwrap();
    let found = counts.values::<u32>().unwrap();
    for (digit, total) in totals.values::<u32>().unwrap().into_iter().enumerate() {
        let line = digit * blocks as usize..(digit + 1) * blocks as usize;
        let mut sum = 0;
        for (&value, &before) in values[line.clone()].iter().zip(&found[line]) {
            assert_eq!(before, sum);
            sum += value;
        }
        assert_eq!(total, sum);
    }
}

#[test]
fn the_lesser_key_of_two_devices_stays() {
    for (seed, count) in SEEDS.into_iter().zip([1usize, 1024, 20_500]) {
        let keys = |salt| -> Vec<Key> {
            integers(count, 0, 5, seed + salt).iter().map(|&x| if x == 5 { NONE } else { x as Key }).collect()
        };
        let (own, others) = (keys(0), keys(100));
        let emulator = Emulator::with_seed(seed);
        let (own_there, others_there) = (emulator.upload(&own), emulator.upload(&others));
        let marks = emulator.allocate(4 * count.div_ceil(MARKED_KEYS as usize));
        let grid = [(count as u32).div_ceil(REDUCE_KEYS), 1, 1];
        let arguments = (others_there.view().read_only(), marks.view(), count as u32);
        emulator.launch::<reduce_marks>(grid, REDUCE_THREADS, arguments).unwrap();
        let (others_there, marks) = (others_there.view().read_only(), marks.view().read_only());
        let arguments = (own_there.view(), others_there, marks, count as u32);
        emulator.launch::<reduce_min>(grid, REDUCE_THREADS, arguments).unwrap();
        let expected: Vec<Key> = own.into_iter().zip(others).map(|(a, b)| a.min(b)).collect();
        assert_eq!(own_there.values::<Key>().unwrap(), expected);
    }
}
