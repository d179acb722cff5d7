//! Collect by paths.

use cuda_std::f16;
use cuda_std::launch::Kernel;
use emulator::Emulator;
use tagore_device::block::exact::Metric;
use tagore_device::descent::key::{self, Key, NONE};
use tagore_device::prune::path::*;
use tagore_device::search::beam::walk::*;

use crate::beam::{Data, search};
use crate::exact::{Value, exact_distance};
use crate::{SEEDS, integers, room};

fn check<T: Value, K: Kernel<Arguments = (Paths<T>,)>>(
    metric: Metric,
    (n, dim, k, entries): (usize, usize, usize, usize),
    limit: usize,
    seed: u64,
) {
    const EXPANSIONS: u32 = 6;
    let mut base = Data::<T>::new(n, dim, &[5], seed);
    if dim == 1 {
        // Many ties.
        let stride = base.values.len() / n;
        (0..n).for_each(|row| base.values[row * stride] = T::of((row * row % 5) as i64));
    }
    // Inner products: any coordinate that is added. Cosine: a zero vector. L2: nothing.
    match metric {
        Metric::L2 => base.lifts.fill(0.0),
        Metric::InnerProduct => (0..n).for_each(|row| base.lifts[row] = row as f32 * 0.5),
        Metric::Cosine => {}
    }
    let list = |node: usize, other: usize| {
        key::pack(base.distance(metric, (base.row(node), base.lifts[node] < 0.0), other), other as u32)
    };
    // Candidates are ordered by squared L2 distances, but of inner products as the lists are.
    let order = |node: usize, other: usize| {
        if metric == Metric::InnerProduct {
            return list(node, other);
        }
        let lift = |row: usize| base.lifts[row];
        let squared = exact_distance(Metric::L2, base.row(node), base.row(other));
        let difference = lift(other) - lift(node);
        let distance =
            if lift(node).min(lift(other)) < 0.0 { 2.0 } else { squared + difference * difference };
        key::pack(distance, other as u32)
    };
    let lists: Vec<Key> = (0..n)
        .flat_map(|node| {
            let mut keys: Vec<Key> = (0..n)
                .filter(|&other| other != node && other % 3 == node % 3)
                .map(|other| list(node, other))
                .collect();
            keys.sort_unstable();
            // Some lists are short.
            keys.truncate(k - node % 2);
            keys.resize(k, NONE);
            keys
        })
        .collect();
    let entries: Vec<u32> =
        integers(entries, 0, n as i64 - 1, seed).into_iter().map(|id| id as u32).collect();
    let nodes: Vec<u32> = (0..n as u32).rev().step_by(5).collect();
    let emulator = Emulator::with_seed(seed);
    let (rows, _kept) = base.upload(&emulator);
    let (lists_there, entries_there, nodes_there) =
        (emulator.upload(&lists), emulator.upload(&entries), emulator.upload(&nodes));
    let candidates = room::<Key>(&emulator, nodes.len() * limit);
    let arguments = Paths {
        walk: BeamWalk {
            base: rows,
            graph: Graph {
                ids: lists_there.view::<u32>().read_only(),
                places: entries_there.view().read_only(),
                degree: k as u32,
                shift: 1,
            },
            entries: entries_there.view().read_only(),
            entry_count: entries.len() as u32,
            entry_stride: 0,
            entry_shift: 0,
            beam: 32,
            width: 1,
            expansions: EXPANSIONS,
            slots: path_slots(k as u32, entries.len() as u32, EXPANSIONS),
            metric: metric as u32,
        },
        nodes: nodes_there.view().read_only(),
        candidates: candidates.view(),
        limit: limit as u32,
        padding: 0,
    };
    emulator.launch::<K>([nodes.len() as u32, 1, 1], PATH_THREADS, (arguments,)).unwrap();
    let found = candidates.values::<Key>().unwrap();
    for (found, &node) in found.chunks_exact(limit).zip(&nodes) {
        let neighbors = |node: u32| -> Vec<u32> {
            let list = &lists[node as usize * k..][..k];
            list.iter().filter(|&&key| key != NONE).map(|&key| key as u32).collect()
        };
        let to = |id: u32| list(node as usize, id as usize);
        let (_, met) = search(neighbors, to, &entries, (32, 1, EXPANSIONS as usize));
        let mut ids: Vec<u32> = met.into_iter().map(|key| key as u32).chain(neighbors(node)).collect();
        ids.sort_unstable();
        ids.dedup();
        let others = ids.into_iter().filter(|&id| id != node);
        let mut expected: Vec<Key> = others.map(|id| order(node as usize, id as usize)).collect();
        expected.sort_unstable();
        expected.resize(limit, NONE);
        assert_eq!(found, expected, "{metric:?}, {n} x {dim}, k = {k}, limit {limit}, node {node}");
    }
}

#[test]
fn candidates_are_what_a_search_meets_and_the_own_list() {
    for seed in SEEDS {
        check::<f32, prune_path_f32>(Metric::InnerProduct, (70, 97, 13, 1), 20, seed);
        check::<u8, prune_path_u8>(Metric::L2, (200, 20, 40, 1), 30, seed);
        check::<f16, prune_path_f16>(Metric::Cosine, (60, 5, 9, 8), 200, seed);
    }
}

#[test]
fn candidates_at_one_distance_are_the_smallest_ids() {
    check::<i8, prune_path_i8>(Metric::L2, (180, 1, 50, 3), 5, 7);
}
