//! Reverse edges.

use emulator::{Allocation, Emulator};
use tagore_device::key::{self, Key, NONE};
use tagore_device::prune::reverse::*;
use tagore_device::sort::{scan_threads, sort_scan};

use crate::{SEEDS, integers, room};

/// Slots of `width` for each of `rows`, some of them empty; half of the edges go to row 0.
fn forward(rows: usize, width: usize, seed: u64) -> Vec<Key> {
    let values = integers(2 * rows * width, 0, 5, seed);
    (0..rows)
        .flat_map(|row| {
            let full = if row % 7 == 3 { 0 } else { width - row % 3 % width };
            let target = move |i: usize| if i == 0 && row % 2 == 1 { 0 } else { (row + 1 + i) % rows };
            let values = &values;
            (0..width).map(move |i| match i < full {
                true => key::pack(values[row * width + i] as f32, target(i) as u32),
                false => NONE,
            })
        })
        .collect()
}

/// Sorts as the host does.
fn sort(keys: &Allocation, count: usize, by: impl Fn(&u64) -> u64, emulator: &Emulator) -> Allocation {
    let mut values = keys.values::<u64>().unwrap();
    assert_eq!(values.len(), count);
    values.sort_by_key(by);
    emulator.upload(&values)
}

#[test]
fn edges_are_turned_round() {
    for (rows, width) in [(1, 1), (5, 3), (300, 7), (130, 40)] {
        for (seed, by_place) in SEEDS.into_iter().zip([false, true, true]) {
            let edges = forward(rows, width, seed);
            let slots = rows * width;
            // What is to come out: (target, rank, source).
            let mut expected: Vec<(u32, u32, u32)> = (edges.iter().enumerate())
                .filter(|edge| *edge.1 != NONE)
                .map(|(slot, &key)| {
                    let rank = if by_place { (slot % width) as u32 } else { (key >> 32) as u32 };
                    (key as u32, rank, (slot / width) as u32)
                })
                .collect();
            expected.sort_unstable();

            let emulator = Emulator::with_seed(seed);
            let forward = emulator.upload(&edges);
            let blocks = (slots as u32).div_ceil(EDGE_SLOTS);
            let (starts, total) = (room::<u32>(&emulator, blocks as usize), room::<u32>(&emulator, 1));
            let keys = room::<u64>(&emulator, expected.len());
            let arguments = Edges {
                forward: forward.view::<Key>().read_only(),
                starts: starts.view(),
                keys: keys.view(),
                rows: rows as u32,
                width: width as u32,
                by_place: u32::from(by_place),
                padding: 0,
            };
            emulator.launch::<prune_edges_count>([blocks, 1, 1], EDGE_THREADS, (arguments,)).unwrap();
            let scan = (starts.view(), total.view(), blocks);
            emulator.launch::<sort_scan>([1, 1, 1], scan_threads(blocks), scan).unwrap();
            let count = total.values::<u32>().unwrap()[0];
            assert_eq!(count as usize, expected.len());
            if count == 0 {
                continue;
            }
            emulator.launch::<prune_edges>([blocks, 1, 1], EDGE_THREADS, (arguments,)).unwrap();
            let mut keys = keys;
            let grid = [count.div_ceil(EDGE_THREADS), 1, 1];
            if !by_place {
                keys = sort(&keys, expected.len(), |key| key >> 32, &emulator);
                let arguments = (keys.view(), forward.view::<Key>().read_only(), count);
                emulator.launch::<prune_edge_targets>(grid, EDGE_THREADS, arguments).unwrap();
            }
            let keys = sort(&keys, expected.len(), |key| key >> 32, &emulator);
            let (found, offsets) = (room::<Key>(&emulator, expected.len()), room::<u32>(&emulator, rows + 1));
            let sources = Sources {
                keys: keys.view::<u64>().read_only(),
                forward: forward.view::<Key>().read_only(),
                sources: found.view(),
                offsets: offsets.view(),
                count,
                rows: rows as u32,
                width: width as u32,
                by_place: u32::from(by_place),
            };
            emulator.launch::<prune_edge_sources>(grid, EDGE_THREADS, (sources,)).unwrap();
            let key = |&(_, rank, source): &(u32, u32, u32)| u64::from(rank) << 32 | u64::from(source);
            let expected_keys: Vec<Key> = expected.iter().map(key).collect();
            assert_eq!(found.values::<Key>().unwrap(), expected_keys, "{rows} rows, seed {seed}");
            let begin = |row: u32| expected.partition_point(|edge| edge.0 < row) as u32;
            assert_eq!(offsets.values::<u32>().unwrap(), (0..=rows as u32).map(begin).collect::<Vec<_>>());
        }
    }
}
