//! Collect by paths.

use cuda_std::f16;
use cuda_std::launch::Kernel;
use tagore_device::block::exact::Metric;
use tagore_device::key::{self, Key, NONE};
use tagore_device::prune::path::*;
use tagore_device::search::beam::stop::Stop;
use tagore_device::search::beam::walk::*;

use crate::beam::{Data, Limits, search};
use crate::device::TestDevice;
use crate::exact::{Value, exact_distance};
use crate::{SEEDS, integers};

const EXPANSIONS: u32 = 6;

/// A base, lists of each node within its residue class modulo 3, and entry nodes.
struct PathCase<T> {
    metric: Metric,
    base: Data<T>,
    k: usize,
    lists: Vec<Key>,
    entries: Vec<u32>,
    nodes: Vec<u32>,
}

impl<T: Value> PathCase<T> {
    fn new(metric: Metric, [n, dim, k, entries]: [usize; 4], seed: u64) -> Self {
        let mut base = Data::<T>::new(n, dim, &[5], seed);
        if dim == 1 {
            // Many ties.
            let stride = base.values.len() / n;
            (0..n).for_each(|row| base.values[row * stride] = T::of((row * row % 5) as i64));
        }
        // Lifts: none for L2, any for inner products, a zero vector for cosine.
        match metric {
            Metric::L2 => base.lifts.fill(0.0),
            Metric::InnerProduct => (0..n).for_each(|row| base.lifts[row] = row as f32 * 0.5),
            Metric::Cosine => {}
        }
        let entries = integers(entries, 0, n as i64 - 1, seed).into_iter().map(|id| id as u32).collect();
        let nodes = (0..n as u32).rev().step_by(5).collect();
        let mut case = Self { metric, base, k, lists: Vec::new(), entries, nodes };
        let lists = (0..n).flat_map(|node| case.list_of(node, n)).collect();
        case.lists = lists;
        case
    }

    /// The key of a pair by list distance.
    fn list_key(&self, node: usize, other: usize) -> Key {
        let is_zero = self.base.lifts[node] < 0.0;
        key::pack(self.base.distance(self.metric, self.base.row(node), is_zero, other), other as u32)
    }

    /// The key of a pair by order distance: squared L2, but list distance for inner products.
    fn order_key(&self, node: usize, other: usize) -> Key {
        if self.metric == Metric::InnerProduct {
            return self.list_key(node, other);
        }
        let lift = |row: usize| self.base.lifts[row];
        let squared = exact_distance(Metric::L2, self.base.row(node), self.base.row(other));
        let difference = lift(other) - lift(node);
        let is_zero = lift(node).min(lift(other)) < 0.0;
        key::pack(if is_zero { 2.0 } else { squared + difference * difference }, other as u32)
    }

    /// The `k` slots of a node's list.
    fn list_of(&self, node: usize, n: usize) -> Vec<Key> {
        let others = (0..n).filter(|&other| other != node && other % 3 == node % 3);
        let mut keys: Vec<Key> = others.map(|other| self.list_key(node, other)).collect();
        keys.sort_unstable();
        // Some lists are short.
        keys.truncate(self.k - node % 2);
        keys.resize(self.k, NONE);
        keys
    }

    fn neighbors(&self, node: u32) -> Vec<u32> {
        let list = &self.lists[node as usize * self.k..][..self.k];
        list.iter().filter(|&&key| key != NONE).map(|&key| key as u32).collect()
    }

    /// The arguments of the search.
    fn walk(&self, device: &TestDevice) -> BeamWalk<T> {
        let (k, entries) = (self.k as u32, device.input(&self.entries));
        BeamWalk {
            base: self.base.rows(device),
            graph: Graph { ids: device.input(&self.lists).cast(), places: entries, degree: k, shift: 1 },
            entries,
            entry_count: self.entries.len() as u32,
            entry_stride: 0,
            entry_shift: 0,
            beam: 32,
            width: 1,
            expansions: EXPANSIONS,
            slots: path_slots(k, self.entries.len() as u32, EXPANSIONS),
            metric: self.metric as u32,
            stop: Stop::NEVER,
        }
    }

    /// The candidates of a node by definition.
    fn expected(&self, node: u32, limit: usize) -> Vec<Key> {
        let to = |id: u32| self.list_key(node as usize, id as usize);
        let limits = Limits { beam: 32, width: 1, expansions: EXPANSIONS as usize, stop: Stop::NEVER };
        let (_, visited) = search(|node| self.neighbors(node), to, &self.entries, limits);
        let visited = visited.into_iter().map(|key| key as u32);
        let mut ids: Vec<u32> = visited.chain(self.neighbors(node)).filter(|&id| id != node).collect();
        ids.sort_unstable();
        ids.dedup();
        let mut keys: Vec<Key> =
            ids.into_iter().map(|id| self.order_key(node as usize, id as usize)).collect();
        keys.sort_unstable();
        keys.resize(limit, NONE);
        keys
    }
}

/// Collects with kernel `K`: `[n, dim, k, entries]`.
fn check<T: Value, K: Kernel<Arguments = (Paths<T>,)>>(
    metric: Metric,
    sizes: [usize; 4],
    limit: usize,
    seed: u64,
) {
    let case = PathCase::<T>::new(metric, sizes, seed);
    let device = TestDevice::new(seed);
    let candidates = device.room::<Key>(case.nodes.len() * limit);
    let arguments = Paths {
        walk: case.walk(&device),
        nodes: device.input(&case.nodes),
        candidates: candidates.view(),
        limit: limit as u32,
        padding: 0,
    };
    device.launch::<K>(case.nodes.len() as u32, PATH_THREADS, (arguments,));
    let found = candidates.values::<Key>().unwrap();
    for (found, &node) in found.chunks_exact(limit).zip(&case.nodes) {
        let expected = case.expected(node, limit);
        assert_eq!(found, expected, "{metric:?}, {sizes:?}, limit {limit}, node {node}, seed {seed}");
    }
}

#[test]
fn candidates_are_the_visited_nodes_and_the_own_list() {
    for seed in SEEDS {
        check::<f32, prune_path_f32>(Metric::InnerProduct, [70, 97, 13, 1], 20, seed);
        check::<u8, prune_path_u8>(Metric::L2, [200, 20, 40, 1], 30, seed);
        check::<f16, prune_path_f16>(Metric::Cosine, [60, 5, 9, 8], 200, seed);
    }
}

#[test]
fn candidates_at_one_distance_are_the_smallest_ids() {
    check::<i8, prune_path_i8>(Metric::L2, [180, 1, 50, 3], 5, 7);
}
