//! Beam search.

use std::collections::BTreeSet;

use cuda_std::f16;
use cuda_std::launch::Kernel;
use emulator::Emulator;
use tagore_device::block::exact::Metric;
use tagore_device::block::rows::Rows;
use tagore_device::descent::key::{self, Key, NONE};
use tagore_device::search::beam::search::*;
use tagore_device::search::beam::walk::*;

use crate::exact::{Value, exact_distance, padded, padded_rows};
use crate::{SEEDS, integers, room};

/// Vectors as kernels read them; those of `zero` count as zero vectors.
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

    /// The list distance of `row` to row `id`.
    pub fn distance(&self, metric: Metric, (row, is_zero): (&[T], bool), id: usize) -> f32 {
        let zero = is_zero || self.lifts[id] < 0.0;
        if metric == Metric::Cosine && zero { 1.0 } else { exact_distance(metric, row, self.row(id)) }
    }

    /// On the device, kept by the two allocations.
    pub fn upload(&self, emulator: &Emulator) -> (Rows<T>, [emulator::Allocation; 2]) {
        let (values, lifts) = (emulator.upload(&self.values), emulator.upload(&self.lifts));
        let rows = Rows {
            values: values.view().read_only(),
            lifts: lifts.view().read_only(),
            stride: padded::<T>(self.dim) as u32,
            dim: self.dim as u32,
            lifted: u32::from(self.lifts.iter().any(|&lift| lift != 0.0)),
            square: -1.0,
        };
        (rows, [values, lifts])
    }
}

/// The search by definition: the keys of the beam, those of all nodes met, in steps of `width` nodes.
pub fn search(
    neighbors: impl Fn(u32) -> Vec<u32>,
    key: impl Fn(u32) -> Key,
    entries: &[u32],
    (beam, width, expansions): (usize, usize, usize),
) -> (Vec<Key>, BTreeSet<Key>) {
    let (mut met, mut expanded) = (BTreeSet::<Key>::new(), BTreeSet::<Key>::new());
    met.extend(entries.iter().map(|&id| key(id)));
    while expanded.len() < expansions {
        let nearest = met.iter().take(beam).copied().filter(|key| !expanded.contains(key));
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

/// Searches with kernel `K`: `(n, dim, degree, entries)`, and `(beam, width, threads)`.
fn check<T: Value, K: Kernel<Arguments = (BeamSearch<T>,)>>(
    metric: Metric,
    (n, dim, degree, entries): (usize, usize, usize, usize),
    (beam, width, threads): (u32, u32, u32),
    seed: u64,
) {
    let queries = 3;
    let (base, points) =
        (Data::<T>::new(n, dim, &[5, 9], seed), Data::<T>::new(queries, dim, &[1], seed + 9));
    let ids = |count: usize, seed: u64| -> Vec<u32> {
        integers(count, 0, n as i64 - 1, seed).into_iter().map(|id| id as u32).collect()
    };
    let (mut edges, entries) = (ids(n * degree, seed + 1), ids(entries, seed + 2));
    // Shorter rows.
    edges.iter_mut().enumerate().for_each(|(i, id)| {
        if i % degree > 1 && i % degree >= degree - i / degree % 3 {
            *id = u32::MAX;
        }
    });
    let emulator = Emulator::with_seed(seed);
    let (rows, _kept) = base.upload(&emulator);
    let (query_rows, _queries_kept) = points.upload(&emulator);
    let (edges_there, entries_there) = (emulator.upload(&edges), emulator.upload(&entries));
    let k = beam.min(7);
    let found = room::<Key>(&emulator, queries * k as usize);
    let computed = emulator.upload(&[0u64; SEARCH_COUNTERS as usize]);
    let slots = least_slots(beam, step_ids(degree as u32, width));
    let arguments = BeamSearch {
        walk: BeamWalk {
            base: rows,
            graph: Graph {
                ids: edges_there.view().read_only(),
                places: entries_there.view().read_only(),
                degree: degree as u32,
                shift: 0,
            },
            entries: entries_there.view().read_only(),
            entry_count: entries.len() as u32,
            entry_stride: 0,
            entry_shift: 0,
            beam,
            width,
            expansions: u32::MAX,
            slots,
            metric: metric as u32,
        },
        queries: query_rows,
        found: found.view(),
        computed: computed.view(),
        k,
        padding: 0,
    };
    emulator.launch::<K>([queries as u32, 1, 1], threads, (arguments,)).unwrap();
    let found = found.values::<Key>().unwrap();
    let mut least = 0;
    for (query, found) in found.chunks_exact(k as usize).enumerate() {
        let point = (points.row(query), points.lifts[query] < 0.0);
        let neighbors = |node: u32| -> Vec<u32> {
            let row = &edges[node as usize * degree..][..degree];
            row.iter().copied().filter(|&id| id != u32::MAX).collect()
        };
        let key = |id: u32| key::pack(base.distance(metric, point, id as usize), id);
        let limits = (beam as usize, width as usize, usize::MAX);
        let (mut expected, met) = search(neighbors, key, &entries, limits);
        expected.resize(k as usize, NONE);
        assert_eq!(found, expected, "{metric:?}, query {query}, {n} x {dim}, {degree}, {beam}, {width}");
        least += met.len() as u64;
    }
    let computed: u64 = computed.values::<u64>().unwrap().iter().sum();
    // What was forgotten is computed again.
    assert!(computed >= least, "{computed} of {least}");
    if n as u32 + step_ids(degree as u32, width) < slots / 4 * 3 {
        assert_eq!(computed, least);
    }
}

const METRICS: [Metric; 3] = [Metric::L2, Metric::InnerProduct, Metric::Cosine];

#[test]
fn a_beam_holds_what_the_search_by_definition_finds() {
    for (seed, metric) in SEEDS.into_iter().zip(METRICS) {
        check::<f32, beam_search_64_f32>(metric, (300, 97, 7, 3), (50, 1, 32), seed);
        check::<u8, beam_search_64_u8>(metric, (250, 33, 40, 1), (64, 1, 32), seed);
        check::<f16, beam_search_64_f16>(metric, (60, 1, 3, 2), (1, 1, 32), seed);
        check::<i8, beam_search_64_i8>(metric, (90, 130, 4, 200), (10, 1, 64), seed);
    }
}

#[test]
fn tables_that_fill_are_emptied() {
    check::<u8, beam_search_64_u8>(Metric::L2, (900, 8, 24, 5), (33, 1, 32), 4);
}

#[test]
fn wide_beams_hold_more() {
    check::<u8, beam_search_128_u8>(Metric::L2, (300, 5, 6, 1), (70, 1, 32), 1);
    check::<f32, beam_search_256_f32>(Metric::L2, (300, 5, 6, 1), (256, 1, 32), 2);
    check::<i8, beam_search_512_i8>(Metric::L2, (300, 5, 6, 40), (300, 1, 32), 3);
}

#[test]
fn several_warps_expand_several_nodes_in_a_step() {
    for (seed, (width, threads)) in SEEDS.into_iter().zip([(4, 128), (3, 32), (8, 256)]) {
        check::<u8, beam_search_64_u8>(Metric::L2, (300, 20, 9, 3), (40, width, threads), seed);
    }
}
