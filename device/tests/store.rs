//! Rows of an index from forward and reverse edges.

use tagore_device::key::{self, Key, NONE};
use tagore_device::prune::store::*;

use crate::device::TestDevice;
use crate::{SEEDS, integers};

/// The distance of two nodes, symmetric and with many ties.
fn distance(a: usize, b: usize) -> f32 {
    (a.abs_diff(b) % 50) as f32
}

/// Forward keys in any order, `width` per row, and ascending reverse keys. Row 2 has none, row 0
/// all.
struct Edges {
    forward: Vec<Vec<Key>>,
    reverse: Vec<Vec<Key>>,
    width: usize,
}

impl Edges {
    fn new(rows: usize, width: usize, seed: u64) -> Self {
        let edges = |row: usize, count: usize, seed: u64| -> Vec<Key> {
            let mut ids: Vec<usize> = (0..rows).filter(|&id| id != row).collect();
            let values = integers(rows, 0, i64::MAX / 2, seed * 1000 + row as u64);
            ids.sort_by_key(|&id| values[id]);
            ids.truncate(count);
            ids.into_iter().map(|id| key::pack(distance(row, id), id as u32)).collect()
        };
        let forward = (0..rows).map(|row| edges(row, if row == 2 { 0 } else { width - row % 2 }, seed));
        let count = |row: usize| match row {
            0 => rows - 1,
            2 => 0,
            _ => row * 7 % (3 * width),
        };
        let reverse = (0..rows).map(|row| {
            let mut keys = edges(row, count(row), seed + 1);
            keys.sort_unstable();
            keys
        });
        Self { forward: forward.collect(), reverse: reverse.collect(), width }
    }

    fn padded(&self) -> Vec<Key> {
        let row = |keys: &Vec<Key>| {
            let mut keys = keys.clone();
            keys.resize(self.width, NONE);
            keys
        };
        self.forward.iter().flat_map(row).collect()
    }

    fn offsets(&self) -> Vec<u32> {
        let ends = self.reverse.iter().scan(0, |end, keys| {
            *end += keys.len() as u32;
            Some(*end)
        });
        std::iter::once(0).chain(ends).collect()
    }
}

#[test]
fn rows_are_filled_in_turn() {
    for (rows, width, degree, first) in [(5, 1, 1, 1), (40, 7, 7, 4), (200, 33, 33, 17), (90, 20, 40, 20)] {
        for seed in SEEDS {
            let edges = Edges::new(rows, width, seed);
            let device = TestDevice::new(seed);
            let ids = device.room::<u32>(rows * degree);
            let store = Store {
                forward: device.input(&edges.padded()),
                reverse: device.input(&edges.reverse.concat()),
                offsets: device.input(&edges.offsets()),
                ids: ids.view(),
                rows: rows as u32,
                width: width as u32,
                degree: degree as u32,
                first: first as u32,
            };
            device.launch::<prune_store>((rows as u32).div_ceil(STORE_ROWS), STORE_THREADS, (store,));
            let found = ids.values::<u32>().unwrap();
            for row in 0..rows {
                let forward = &edges.forward[row];
                let first = first.min(forward.len());
                let all = forward[..first].iter().chain(&edges.reverse[row]).chain(&forward[first..]);
                let mut expected: Vec<u32> = Vec::new();
                for id in all.map(|&key| key as u32) {
                    if !expected.contains(&id) && expected.len() < degree {
                        expected.push(id);
                    }
                }
                expected.resize(degree, u32::MAX);
                assert_eq!(found[row * degree..][..degree], expected, "row {row} of {rows}, seed {seed}");
            }
        }
    }
}

#[test]
fn forward_and_reverse_edges_are_merged() {
    for (rows, width) in [(5, 1), (80, 7), (700, 50)] {
        for seed in SEEDS {
            let edges = Edges::new(rows, width, seed);
            // A few nodes are enough; node 0 has the most edges.
            let nodes = [4u32, 0, 2, rows as u32 - 1];
            let device = TestDevice::new(seed);
            let merged = device.room::<Key>(nodes.len() * MERGED as usize);
            let merge = MergeReverse {
                forward: device.input(&edges.padded()),
                reverse: device.input(&edges.reverse.concat()),
                offsets: device.input(&edges.offsets()),
                nodes: device.input(&nodes),
                merged: merged.view(),
                width: width as u32,
                padding: 0,
            };
            device.launch::<prune_merge>(nodes.len() as u32, MERGE_THREADS, (merge,));
            let found = merged.values::<Key>().unwrap();
            for (node, found) in nodes.into_iter().zip(found.chunks_exact(MERGED as usize)) {
                let (forward, reverse) = (&edges.forward[node as usize], &edges.reverse[node as usize]);
                let mut expected = [&forward[..], reverse].concat();
                expected.sort_unstable();
                expected.dedup();
                expected.resize(expected.len().max(MERGED as usize), NONE);
                assert_eq!(found, &expected[..MERGED as usize], "node {node} of {rows}, seed {seed}");
            }
        }
    }
}
