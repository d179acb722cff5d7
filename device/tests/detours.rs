//! CAGRA's filter by detours.

use std::collections::HashMap;

use cuda_std::atomic::Scope;
use cuda_std::launch::Limits;
use cuda_std::prelude::*;
use cuda_std::shared;
use cuda_std::thread::{block_dim_x, sync_threads, thread_idx_x};
use emulator::{Allocation, Emulator};
use tagore_device::block::threads::Threads;
use tagore_device::key::{self, Key, NONE};
use tagore_device::prune::detours::*;
use tagore_device::prune::ids::{ID_ROWS, ID_THREADS, Ids, prune_ids};
use tagore_device::prune::places::{Places, table_words};

use crate::device::TestDevice;
use crate::{SEEDS, integers};

/// Looks up four `ids` per thread, the first and the third from place `least` on; counts how often
/// each place is found.
#[kernel(unsafe, block = 32..=128, shared = 4 * (table_words(len) + len))]
unsafe fn look_up(list: Global<u32>, len: u32, ids: Global<u32>, least: u32, counts: GlobalMut<u32>) {
    let (thread, threads) = (thread_idx_x(), block_dim_x());
    let table: Shared<u32> = shared::dynamic(0);
    let here = table.offset(table_words(len) as usize);
    let mut i = thread;
    while i < len {
        here.set(i as usize, list.get(i as usize));
        i += threads;
    }
    let table = Places::new(table, len);
    table.clear(Threads::new(thread, threads));
    sync_threads();
    table.enter(here, len, Threads::new(thread, threads));
    sync_threads();
    let asked = ids.get_quad(thread as usize * 4);
    table.find(asked, [least, 0, least, 0], |place| {
        counts.fetch_add(place as usize, 1, Scope::Device);
    });
}

#[test]
fn places_are_found_in_tables() {
    // 1 / 0x9e3779b1 modulo 2^32: its multiples have small hashes and share a slot.
    let inverse = (0..5).fold(1u32, |x, _| x.wrapping_mul(2u32.wrapping_sub(x.wrapping_mul(0x9e37_79b1))));
    let id =
        |i: u32, spread: bool| if spread { i * 7 % 0x7fff_ffff } else { i.wrapping_mul(inverse) >> 1 << 1 };
    for (len, block) in [(1u32, 32), (5, 64), (96, 128), (97, 96), (1500, 128), (8192, 128)] {
        for (seed, spread) in SEEDS.into_iter().zip([true, false, true]) {
            let len = if spread { len } else { len.min(100) };
            let list: Vec<u32> = (0..len).map(|i| id(i * 31 % len + i % 2 * len, spread)).collect();
            let places: HashMap<u32, u32> = list.iter().copied().zip(0..).collect();
            let asked: Vec<u32> = integers(4 * block as usize, 0, 3 * i64::from(len), seed)
                .into_iter()
                .map(|i| id(i as u32, spread))
                .collect();
            let least = seed as u32 * len / 3;
            let mut expected = vec![0; list.len()];
            for (i, id) in asked.iter().enumerate() {
                match places.get(id) {
                    Some(&place) if i % 2 == 1 || place >= least => expected[place as usize] += 1,
                    _ => {}
                }
            }
            let emulator = Emulator::with_seed(seed);
            // The largest table and its list exceed the default limit.
            let limits = Limits { shared: 128 << 10, ..emulator.limits() };
            let device = TestDevice::on(emulator.with_limits(limits));
            let counts = device.upload(&vec![0u32; list.len()]);
            let arguments = (device.input(&list), len, device.input(&asked), least, counts.view());
            device.launch::<look_up>(1, block, arguments);
            assert_eq!(counts.values::<u32>().unwrap(), expected, "{len} ids, spread {spread}");
        }
    }
}

/// Lists of `k` ids per row, and up to `count` candidates per row, with ties.
struct Case {
    rows: usize,
    k: usize,
    lists: Vec<Vec<u32>>,
    candidates: Vec<Vec<Key>>,
}

impl Case {
    fn new(rows: usize, k: usize, count: usize, seed: u64) -> Self {
        // Neighbours are near, so that lists have many ids in common.
        let other = |row: usize, i: usize| ((row + 1 + i * (1 + seed as usize % 2)) % rows) as u32;
        let lists: Vec<Vec<u32>> = (0..rows)
            .map(|row| {
                let values = integers(rows, 0, 1000, seed + row as u64);
                let mut ids: Vec<u32> = (0..(2 * k).min(rows - 1)).map(|i| other(row, i)).collect();
                ids.sort_unstable();
                ids.dedup();
                ids.retain(|&id| id as usize != row);
                ids.sort_by_key(|&id| values[id as usize]);
                // One list is short.
                ids.truncate(if row == 1 { k / 2 } else { k });
                ids
            })
            .collect();
        let candidates = (0..rows)
            .map(|row| {
                let values = integers(rows, 0, 30, 2 * seed + row as u64);
                let mut keys: Vec<Key> = (0..rows as u32)
                    .filter(|&id| id as usize != row)
                    .map(|id| key::pack(values[id as usize] as f32, id))
                    .collect();
                keys.sort_unstable();
                keys.truncate(if row % 5 == 4 { count / 3 } else { count });
                keys
            })
            .collect();
        Self { rows, k, lists, candidates }
    }

    /// The `most` accepted candidates of a row by definition, then NONE.
    fn accepted(&self, row: usize, strict: bool, limit: f32, most: usize) -> Vec<Key> {
        let candidates = &self.candidates[row];
        let detours = |place: usize| {
            let passes = |via: usize| {
                let list = &self.lists[candidates[via] as u32 as usize];
                let rank = list.iter().position(|&id| id == candidates[place] as u32);
                rank.is_some_and(|rank| !strict || rank < place)
            };
            (0..place).filter(|&via| passes(via)).count()
        };
        let mut order: Vec<(usize, usize)> =
            (0..candidates.len()).map(|place| (detours(place), place)).collect();
        order.retain(|&(detours, _)| detours as f32 <= limit);
        order.sort_unstable();
        let mut keys: Vec<Key> = order.into_iter().map(|(_, place)| candidates[place]).collect();
        keys.resize(most.max(keys.len()), NONE);
        keys.truncate(most);
        keys
    }

    /// The candidates of `rows`, `stride` slots each.
    fn padded(&self, rows: impl Iterator<Item = usize>, stride: usize) -> Vec<Key> {
        let row = |row: usize| {
            let mut keys = self.candidates[row].clone();
            keys.resize(stride, NONE);
            keys
        };
        rows.flat_map(row).collect()
    }

    /// The ids of the lists, `stride` per row, as `prune_ids` writes them.
    fn ids(&self, device: &TestDevice, stride: usize) -> Allocation {
        let keys: Vec<Key> = (self.lists.iter())
            .flat_map(|ids| (0..self.k).map(|i| ids.get(i).map_or(NONE, |&id| key::pack(0.5, id))))
            .collect();
        let lists = device.room::<u32>(self.rows * stride);
        let ids = Ids {
            keys: device.input(&keys),
            ids: lists.view(),
            rows: self.rows as u32,
            width: self.k as u32,
            stride: stride as u32,
            padding: 0,
        };
        device.launch::<prune_ids>((self.rows as u32).div_ceil(ID_ROWS), ID_THREADS, (ids,));
        lists
    }

    fn run(&self, seed: u64, most: usize, by_row: bool) {
        let (strict, limit) = (seed == 1, if seed == 2 { 2.0 } else { f32::INFINITY });
        // Row 0 is left out; nodes come in descending order.
        let nodes: Vec<u32> = (1..self.rows as u32).rev().step_by(self.rows.div_ceil(40)).collect();
        let count = self.candidates.iter().map(Vec::len).max().unwrap();
        let stride = count + 3;
        let candidates = if by_row {
            self.padded(0..self.rows, stride)
        } else {
            self.padded(nodes.iter().map(|&node| node as usize), stride)
        };
        let list_stride = self.k.next_multiple_of(4).max(4);
        let device = TestDevice::new(seed);
        let lists = self.ids(&device, list_stride);
        let forward = device.upload(&vec![7u64; self.rows * most]);
        let detours = Detours {
            candidates: device.input(&candidates),
            lists: lists.view::<u32>().read_only(),
            nodes: device.input(&nodes),
            forward: forward.view(),
            stride: stride as u32,
            count: count as u32,
            by_row: u32::from(by_row),
            list_stride: list_stride as u32,
            most: most as u32,
            strict: u32::from(strict),
            limit,
            pass_short: 0,
        };
        device.launch::<prune_detours>(nodes.len() as u32, DETOUR_THREADS, (detours,));
        let found = forward.values::<Key>().unwrap();
        assert!(found[..most].iter().all(|&key| key == 7), "row 0 is not in `nodes` but was written");
        for row in nodes.into_iter().map(|node| node as usize) {
            let expected = self.accepted(row, strict, limit, most);
            assert_eq!(found[row * most..][..most], expected, "row {row}, {} rows, k {}", self.rows, self.k);
        }
    }
}

#[test]
fn edges_with_few_detours_are_accepted() {
    for (rows, k, count, most) in
        [(2, 1, 1, 1), (7, 6, 6, 9), (40, 9, 9, 5), (60, 33, 59, 40), (140, 13, 139, 32)]
    {
        for seed in SEEDS {
            let case = Case::new(rows, k, count, seed);
            case.run(seed, most, seed == 0);
            case.run(seed, most, seed != 0);
        }
    }
}

#[test]
fn more_candidates_than_threads_are_filtered() {
    Case::new(300, 20, 280, 1).run(1, 50, true);
}
