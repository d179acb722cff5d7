//! Beam search.

use std::collections::BTreeSet;

use cuda_std::f16;
use cuda_std::launch::Kernel;
use tagore_device::block::exact::Metric;
use tagore_device::block::rows::Rows;
use tagore_device::key::{self, Key, NONE};
use tagore_device::search::beam::search::*;
use tagore_device::search::beam::stop::Stop;
use tagore_device::search::beam::walk::*;

use crate::device::TestDevice;
use crate::exact::{Value, exact_distance, padded, padded_rows};
use crate::{SEEDS, integers};

/// Vectors with lifts. Rows in `zero` count as zero vectors.
pub struct Data<T> {
    pub values: Vec<T>,
    pub lifts: Vec<f32>,
    pub dim: usize,
}

impl<T: Value> Data<T> {
    pub fn new(count: usize, dim: usize, zero: &[usize], seed: u64) -> Self {
        let mut values = padded_rows::<T>(count, dim, seed);
        let stride = padded::<T>(dim);
        if count > 20 {
            // Equal rows.
            values.copy_within(3 * stride..4 * stride, 11 * stride);
            values.copy_within(3 * stride..4 * stride, 17 * stride);
        }
        let lifts = (0..count).map(|row| if zero.contains(&row) { -1.0 } else { 0.0 }).collect();
        Self { values, lifts, dim }
    }

    pub fn row(&self, id: usize) -> &[T] {
        &self.values[id * padded::<T>(self.dim)..][..self.dim]
    }

    /// The list distance from `row`, zero or not, to row `id`.
    pub fn distance(&self, metric: Metric, row: &[T], is_zero: bool, id: usize) -> f32 {
        let zero = is_zero || self.lifts[id] < 0.0;
        if metric == Metric::Cosine && zero { 1.0 } else { exact_distance(metric, row, self.row(id)) }
    }

    /// Uploads the rows.
    pub fn rows(&self, device: &TestDevice) -> Rows<T> {
        Rows {
            values: device.input(&self.values),
            lifts: device.input(&self.lifts),
            stride: padded::<T>(self.dim) as u32,
            dim: self.dim as u32,
            lifted: u32::from(self.lifts.iter().any(|&lift| lift != 0.0)),
            square: -1.0,
        }
    }
}

/// Limits of a search.
pub struct Limits {
    pub beam: usize,
    /// Nodes expanded per step.
    pub width: usize,
    pub expansions: usize,
    pub stop: Stop,
}

/// The search by definition. Returns the keys of the beam and of all visited nodes.
pub fn search(
    neighbors: impl Fn(u32) -> Vec<u32>,
    key: impl Fn(u32) -> Key,
    entries: &[u32],
    Limits { beam, width, expansions, stop }: Limits,
) -> (Vec<Key>, BTreeSet<Key>) {
    let (mut met, mut expanded) = (BTreeSet::<Key>::new(), BTreeSet::<Key>::new());
    met.extend(entries.iter().map(|&id| key(id)));
    while expanded.len() < expansions {
        let at_rank = met.iter().take(beam).nth(stop.rank as usize);
        let bound =
            at_rank.map_or(f32::INFINITY, |&at_rank| stop.factor * key::distance(at_rank) + stop.slack);
        let is_near = |&met: &Key| key::distance(met) <= bound;
        let nearest = met.iter().take(beam).copied().filter(is_near).filter(|key| !expanded.contains(key));
        let parents: Vec<Key> = nearest.take(width.min(expansions - expanded.len())).collect();
        if parents.is_empty() {
            break;
        }
        expanded.extend(&parents);
        for parent in parents {
            met.extend(neighbors(parent as u32).into_iter().map(&key));
        }
    }
    (met.iter().take(beam).copied().collect(), met)
}

/// A random graph over `n` nodes with rows of up to `degree` edges, and entry nodes.
struct RandomGraph {
    edges: Vec<u32>,
    degree: usize,
    entries: Vec<u32>,
}

impl RandomGraph {
    fn new(n: usize, degree: usize, entries: usize, seed: u64) -> Self {
        let ids = |count: usize, seed: u64| -> Vec<u32> {
            integers(count, 0, n as i64 - 1, seed).into_iter().map(|id| id as u32).collect()
        };
        let (mut edges, entries) = (ids(n * degree, seed + 1), ids(entries, seed + 2));
        // Some rows are short.
        edges.iter_mut().enumerate().for_each(|(i, id)| {
            if i % degree > 1 && i % degree >= degree - i / degree % 3 {
                *id = u32::MAX;
            }
        });
        Self { edges, degree, entries }
    }

    fn neighbors(&self, node: u32) -> Vec<u32> {
        let row = &self.edges[node as usize * self.degree..][..self.degree];
        row.iter().copied().filter(|&id| id != u32::MAX).collect()
    }

    /// Uploads the edges.
    fn graph(&self, device: &TestDevice) -> Graph {
        let ids = device.input(&self.edges);
        // No test here has a graph over some of the nodes.
        Graph { ids, places: device.input(&[0]), degree: self.degree as u32, shift: 0 }
    }
}

/// Searches with kernel `K`: `[n, dim, degree, entries]` and `[beam, width, threads]`.
fn check<T: Value, K: Kernel<Arguments = (BeamSearch<T>,)>>(
    metric: Metric,
    [n, dim, degree, entries]: [usize; 4],
    [beam, width, threads]: [u32; 3],
    stop: Stop,
    seed: u64,
) {
    let queries = 3;
    let (base, points) =
        (Data::<T>::new(n, dim, &[5, 9], seed), Data::<T>::new(queries, dim, &[1], seed + 9));
    let graph = RandomGraph::new(n, degree, entries, seed);
    let device = TestDevice::new(seed);
    let k = beam.min(7);
    let found = device.room::<Key>(queries * k as usize);
    let computed = device.upload(&[0u64; SEARCH_COUNTERS as usize]);
    let is_wide = K::NAME.contains("wide");
    let slots = if is_wide { least_slots(beam, step_ids(degree as u32, width)) } else { 64 };
    let arguments = BeamSearch {
        walk: BeamWalk {
            base: base.rows(&device),
            graph: graph.graph(&device),
            entries: device.input(&graph.entries),
            entry_count: entries as u32,
            entry_stride: 0,
            entry_shift: 0,
            beam,
            width,
            expansions: u32::MAX,
            slots,
            metric: metric as u32,
            stop,
        },
        queries: points.rows(&device),
        found: found.view(),
        computed: computed.view(),
        k,
        is_partial: 0,
    };
    device.launch::<K>(queries as u32, threads, (arguments,));
    let found = found.values::<Key>().unwrap();
    let mut least = 0;
    for (query, found) in found.chunks_exact(k as usize).enumerate() {
        let (point, is_zero) = (points.row(query), points.lifts[query] < 0.0);
        let key = |id: u32| key::pack(base.distance(metric, point, is_zero, id as usize), id);
        let norm = || (-exact_distance(metric, point, point)).sqrt();
        let of_query = if stop.takes_norm() { stop.of_query(norm()) } else { stop };
        let limits =
            Limits { beam: beam as usize, width: width as usize, expansions: usize::MAX, stop: of_query };
        let (mut expected, met) = search(|node| graph.neighbors(node), key, &graph.entries, limits);
        expected.resize(k as usize, NONE);
        assert_eq!(
            found, expected,
            "{metric:?}, query {query}, {n} x {dim}, {degree}, {beam}, {width}, {stop:?}"
        );
        least += met.len() as u64;
    }
    let computed: u64 = computed.values::<u64>().unwrap().iter().sum();
    // Forgotten distances are computed again.
    assert!(computed >= least, "{computed} distances of {least} nodes");
    if is_wide && n as u32 + step_ids(degree as u32, width) < slots / 4 * 3 {
        assert_eq!(computed, least, "the table holds all nodes");
    }
}

pub const METRICS: [Metric; 3] = [Metric::L2, Metric::InnerProduct, Metric::Cosine];

#[test]
fn a_beam_holds_the_nodes_of_the_search_by_definition() {
    for (seed, metric) in SEEDS.into_iter().zip(METRICS) {
        check::<f32, beam_search_64_f32>(metric, [300, 97, 7, 3], [50, 1, 32], Stop::NEVER, seed);
        check::<u8, beam_search_64_u8>(metric, [250, 33, 40, 1], [64, 1, 32], Stop::NEVER, seed);
        check::<f16, beam_search_64_f16>(metric, [60, 1, 3, 2], [1, 1, 32], Stop::NEVER, seed);
        check::<i8, beam_search_64_i8>(metric, [90, 130, 4, 200], [10, 1, 32], Stop::NEVER, seed);
    }
}

#[test]
fn tables_that_fill_are_emptied() {
    check::<u8, beam_search_64_u8>(Metric::L2, [900, 8, 24, 5], [33, 1, 32], Stop::NEVER, 4);
}

#[test]
fn wide_beams_hold_more() {
    check::<u8, beam_search_128_u8>(Metric::L2, [300, 5, 6, 1], [70, 1, 32], Stop::NEVER, 1);
    check::<f32, beam_search_256_f32>(Metric::L2, [300, 5, 6, 1], [256, 1, 32], Stop::NEVER, 2);
    check::<i8, beam_search_512_i8>(Metric::L2, [300, 5, 6, 40], [300, 1, 32], Stop::NEVER, 3);
}

#[test]
fn several_warps_expand_several_nodes_in_a_step() {
    for (seed, (width, threads)) in SEEDS.into_iter().zip([(4, 128), (3, 32), (8, 256)]) {
        check::<u8, beam_search_wide_u8>(
            Metric::L2,
            [300, 20, 9, 3],
            [40, width, threads],
            Stop::NEVER,
            seed,
        );
        check::<f32, beam_search_wide_f32>(
            Metric::L2,
            [500, 20, 40, 3],
            [130, width, threads],
            Stop::NEVER,
            seed,
        );
    }
}

#[test]
fn a_search_stops_beyond_its_bound() {
    for (seed, factor) in SEEDS.into_iter().zip([1.0, 1.1, 1.4]) {
        let stop = |rank| Stop { rank, factor, slack: 0.0 };
        check::<f32, beam_search_64_f32>(Metric::L2, [300, 7, 7, 3], [50, 1, 32], stop(9), seed);
        check::<u8, beam_search_128_u8>(Metric::Cosine, [300, 5, 6, 1], [70, 1, 32], stop(0), seed);
        check::<f32, beam_search_256_f32>(Metric::L2, [300, 5, 6, 1], [200, 1, 32], stop(199), seed);
        check::<i8, beam_search_512_i8>(Metric::L2, [300, 5, 6, 40], [300, 1, 32], stop(77), seed);
        check::<u8, beam_search_wide_u8>(Metric::L2, [300, 20, 9, 3], [40, 4, 128], stop(19), seed);
        let product = Stop { rank: 9, factor: 1.0, slack: factor - 0.9 };
        check::<f32, beam_search_64_f32>(Metric::InnerProduct, [300, 33, 7, 3], [60, 1, 32], product, seed);
        check::<i8, beam_search_128_i8>(Metric::InnerProduct, [300, 5, 6, 1], [70, 1, 32], product, seed);
    }
}
