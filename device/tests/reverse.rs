//! Reverse edges.

use emulator::Allocation;
use tagore_device::key::{self, Key, NONE};
use tagore_device::prune::reverse::*;
use tagore_device::sort::{scan_threads, sort_scan};

use crate::device::TestDevice;
use crate::{SEEDS, integers};

/// `width` slots for each of `rows` rows, some empty. Every other row has an edge to row 0.
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

/// Sorts `count` keys by their upper half, stably, as the host does.
fn sort(keys: &Allocation, count: usize, device: &TestDevice) -> Allocation {
    let mut values = keys.values::<u64>().unwrap();
    assert_eq!(values.len(), count);
    values.sort_by_key(|key| key >> 32);
    device.upload(&values)
}

/// The edges of `forward` as (target, rank, source), in order.
fn reversed(forward: &[Key], width: usize, by_place: bool) -> Vec<(u32, u32, u32)> {
    let mut edges: Vec<(u32, u32, u32)> = (forward.iter().enumerate())
        .filter(|edge| *edge.1 != NONE)
        .map(|(slot, &key)| {
            let rank = if by_place { (slot % width) as u32 } else { (key >> 32) as u32 };
            (key as u32, rank, (slot / width) as u32)
        })
        .collect();
    edges.sort_unstable();
    edges
}

#[test]
fn edges_are_reversed() {
    for (rows, width) in [(1, 1), (5, 3), (300, 7), (130, 40)] {
        for (seed, by_place) in SEEDS.into_iter().zip([false, true, true]) {
            check(rows, width, by_place, seed);
        }
    }
}

fn check(rows: usize, width: usize, by_place: bool, seed: u64) {
    let edges = forward(rows, width, seed);
    let expected = reversed(&edges, width, by_place);
    let device = TestDevice::new(seed);
    let forward = device.input(&edges);
    let blocks = ((rows * width) as u32).div_ceil(EDGE_SLOTS);
    let (starts, total) = (device.room::<u32>(blocks as usize), device.room::<u32>(1));
    let keys = device.room::<u64>(expected.len());
    let arguments = Edges {
        forward,
        starts: starts.view(),
        keys: keys.view(),
        rows: rows as u32,
        width: width as u32,
        by_place: u32::from(by_place),
        padding: 0,
    };
    device.launch::<prune_edges_count>(blocks, EDGE_THREADS, (arguments,));
    device.launch::<sort_scan>(1, scan_threads(blocks), (starts.view(), total.view(), blocks));
    let count = total.values::<u32>().unwrap()[0];
    assert_eq!(count as usize, expected.len(), "edges of {rows} rows, seed {seed}");
    if count == 0 {
        return;
    }
    device.launch::<prune_edges>(blocks, EDGE_THREADS, (arguments,));
    let mut keys = keys;
    let blocks = count.div_ceil(EDGE_THREADS);
    if !by_place {
        keys = sort(&keys, expected.len(), &device);
        device.launch::<prune_edge_targets>(blocks, EDGE_THREADS, (keys.view(), forward, count));
    }
    let keys = sort(&keys, expected.len(), &device);
    let (found, offsets) = (device.room::<Key>(expected.len()), device.room::<u32>(rows + 1));
    let sources = Sources {
        keys: keys.view::<u64>().read_only(),
        forward,
        sources: found.view(),
        offsets: offsets.view(),
        count,
        rows: rows as u32,
        width: width as u32,
        by_place: u32::from(by_place),
    };
    device.launch::<prune_edge_sources>(blocks, EDGE_THREADS, (sources,));
    let key = |&(_, rank, source): &(u32, u32, u32)| u64::from(rank) << 32 | u64::from(source);
    let expected_keys: Vec<Key> = expected.iter().map(key).collect();
    assert_eq!(found.values::<Key>().unwrap(), expected_keys, "{rows} rows, seed {seed}");
    let begin = |row: u32| expected.partition_point(|edge| edge.0 < row) as u32;
    assert_eq!(offsets.values::<u32>().unwrap(), (0..=rows as u32).map(begin).collect::<Vec<_>>());
}
