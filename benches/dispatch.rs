//! The order of clusters out of core, beside the orders that the paper compares it with: `cargo
//! bench --bench dispatch`. A number as argument scales the clusters of the sample to that many
//! vectors. Prints hits over second visits.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark stops at the first error")]

use std::collections::VecDeque;

use tagore::outofcore::{ClusterGraph, Dispatch};
use tagore::{Device, Progress, Synth};

const CLUSTERS: usize = 400;

/// Vectors of the sample per cluster.
const SAMPLE: usize = 500;

const DIM: usize = 32;

/// Clusters that Gorder looks back at, as its authors choose.
const WINDOW: usize = 5;

/// The steps of `sequence` with the oldest cluster evicted.
fn oldest_first(sequence: &[u32], cache: usize) -> Vec<Dispatch> {
    let mut resident = VecDeque::new();
    let step = |&load| {
        let evict = if resident.len() == cache { resident.pop_front() } else { None };
        resident.push_back(load);
        Dispatch { load, evict }
    };
    sequence.iter().map(step).collect()
}

/// A random permutation of the clusters.
fn random(clusters: u32) -> Vec<u32> {
    let mut sequence: Vec<u32> = (0..clusters).collect();
    let mut state = 1u64;
    for left in (1..clusters as usize).rev() {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        sequence.swap(left, (state >> 33) as usize % (left + 1));
    }
    sequence
}

/// The next cluster shares most nodes with the last `window` clusters (Wei et al., *Speedup Graph
/// Processing by Graph Ordering*, SIGMOD 2016, without its count of common neighbours).
fn gorder(graph: &ClusterGraph, window: usize) -> Vec<u32> {
    let mut sequence = vec![0];
    while sequence.len() < graph.clusters() {
        let last = &sequence[sequence.len().saturating_sub(window)..];
        let shared = |cluster: u32| -> u64 {
            let shared = graph.neighbors(cluster).iter().filter(|(other, _)| last.contains(other));
            shared.map(|&(_, nodes)| nodes).sum()
        };
        let waiting = (0..graph.clusters() as u32).filter(|cluster| !sequence.contains(cluster));
        sequence.push(waiting.rev().max_by_key(|&cluster| shared(cluster)).unwrap());
    }
    sequence
}

fn main() {
    let rows = CLUSTERS * SAMPLE;
    let nodes = std::env::args().skip(1).find_map(|argument| argument.parse().ok()).unwrap_or(rows as u64);
    let base = Synth::new(nodes as usize, DIM, 0).unwrap().rows(0..rows as u64).unwrap();
    let (graph, _) =
        ClusterGraph::of_vectors(&base, CLUSTERS, 0, Device::auto(), &Progress::silent()).unwrap();
    let graph = graph.scaled(nodes).unwrap();
    println!("{nodes} x {DIM} in {CLUSTERS} clusters");
    println!("cache sequential random gorder gorder-of-cache cluster spilled-GiB");
    for cache in [16, 32, 64, 80] {
        let sequences: [Vec<u32>; 4] = [
            (0..CLUSTERS as u32).collect(),
            random(CLUSTERS as u32),
            gorder(&graph, WINDOW),
            gorder(&graph, cache - 1),
        ];
        let ratios = sequences.map(|sequence| graph.simulate(&oldest_first(&sequence, cache)).hit_ratio());
        let ours = graph.simulate(&graph.dispatch(cache).unwrap());
        // Lists of 32 neighbours, 8 bytes each.
        let spilled = ours.spilled_bytes(32 * 8) as f64 / f64::from(1 << 30);
        let [sequential, random, gorder_5, gorder_cache] = ratios;
        println!(
            "{cache:>5} {sequential:>10.3} {random:>6.3} {gorder_5:>6.3} {gorder_cache:>15.3} {:>7.3} {spilled:>11.1}",
            ours.hit_ratio()
        );
    }
}
