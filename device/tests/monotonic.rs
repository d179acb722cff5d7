//! Monotonic rows.

use cuda_std::launch::Kernel;
use tagore_device::block::exact::Metric;
use tagore_device::block::rows::Rows;
use tagore_device::key::{self, Key};
use tagore_device::prune::monotonic::*;

use crate::device::{TestDevice, part};
use crate::exact::{Value, exact_distance, padded, padded_rows};
use crate::{SEEDS, integers};

/// Rows with duplicates, and with lifts in odd cases: zero vectors under cosine have them.
struct Base<T> {
    values: Vec<T>,
    lifts: Vec<f32>,
    count: usize,
    dim: usize,
}

impl<T: Value> Base<T> {
    fn new(count: usize, dim: usize, seed: u64) -> Self {
        let stride = padded::<T>(dim);
        let mut values = padded_rows::<T>(count, dim, seed);
        if count > 3 {
            values.copy_within(..stride, (count - 1) * stride);
            values.copy_within(..stride, 2 * stride);
        }
        let lifts = if seed == 1 { integers(count, -1, 0, seed) } else { Vec::new() };
        Self { values, lifts: lifts.into_iter().map(|lift| lift as f32).collect(), count, dim }
    }

    fn distance(&self, a: usize, b: usize) -> f32 {
        let is_zero = |id: usize| self.lifts.get(id).is_some_and(|&lift| lift < 0.0);
        let row = |id: usize| &self.values[id * padded::<T>(self.dim)..][..self.dim];
        if is_zero(a) || is_zero(b) { 2.0 } else { exact_distance(Metric::L2, row(a), row(b)) }
    }

    /// The edges of a node by the rule, nearest first.
    fn edges(&self, node: usize, most: usize) -> Vec<u32> {
        let others = (0..self.count).filter(|&other| other != node);
        let mut keys: Vec<Key> =
            others.map(|other| key::pack(self.distance(node, other), other as u32)).collect();
        keys.sort_unstable();
        let mut edges: Vec<u32> = Vec::new();
        for key in keys {
            let other = key::id(key) as usize;
            if edges.iter().all(|&edge| self.distance(edge as usize, other) >= key::distance(key)) {
                edges.push(other as u32);
            }
        }
        edges.resize(edges.len().max(most), u32::MAX);
        edges.truncate(most);
        edges
    }
}

/// Launches `K` for some nodes and compares with the rule, one serial test after another.
fn check<T: Value, K: Kernel<Arguments = (Monotonic<T>,)>>() {
    for (seed, (count, dim, most)) in SEEDS.into_iter().zip([(700, 17, 128), (257, 33, 5), (32, 1, 40)]) {
        let base = Base::<T>::new(count, dim, seed);
        let device = TestDevice::new(seed);
        let (first, nodes, blocks) = (count - 7, 7, 3);
        let left = device.room::<Key>(blocks * monotonic_slots(count as u32) as usize);
        let edges = device.room::<u32>(nodes * most);
        let arguments = Monotonic {
            rows: Rows {
                values: device.input(&base.values),
                lifts: device.input(&[&base.lifts[..], &[0.0]].concat()),
                stride: padded::<T>(dim) as u32,
                dim: dim as u32,
                lifted: u32::from(!base.lifts.is_empty()),
                square: -1.0,
            },
            left: left.view(),
            edges: edges.view(),
            count: count as u32,
            first: first as u32,
            nodes: nodes as u32,
            most: most as u32,
        };
        device.launch::<K>(blocks as u32, MONOTONIC_THREADS, (arguments,));
        for place in 0..nodes {
            let found = part::<u32>(&edges, place * most, most);
            assert_eq!(
                found,
                base.edges(first + place, most),
                "{} of {}, seed {seed}",
                K::NAME,
                first + place
            );
        }
    }
}

#[test]
fn edges_are_those_of_the_rule_over_all_rows() {
    check::<f32, prune_monotonic_f32>();
    check::<cuda_std::f16, prune_monotonic_f16>();
    check::<u8, prune_monotonic_u8>();
    check::<i8, prune_monotonic_i8>();
}

#[test]
fn a_single_row_has_no_edges() {
    let device = TestDevice::new(0);
    let left = device.room::<Key>(monotonic_slots(1) as usize);
    let edges = device.room::<u32>(3);
    let rows = Rows {
        values: device.input(&padded_rows::<f32>(1, 5, 0)),
        lifts: device.input(&[0.0f32]),
        stride: padded::<f32>(5) as u32,
        dim: 5,
        lifted: 0,
        square: -1.0,
    };
    let (left, view) = (left.view(), edges.view());
    let arguments = Monotonic { rows, left, edges: view, count: 1, first: 0, nodes: 1, most: 3 };
    device.launch::<prune_monotonic_f32>(1, MONOTONIC_THREADS, (arguments,));
    assert_eq!(part::<u32>(&edges, 0, 3), [u32::MAX; 3]);
}
