//! The kernels of exact search.

use cuda_std::f16;
use cuda_std::launch::Kernel;
use cuda_std::memory::Plain;
use emulator::Emulator;
use tagore_device::block::element::{Element, TileElement, TileSum};
use tagore_device::block::exact::Metric;
use tagore_device::block::tile;
use tagore_device::descent::key::{self, Key, NONE};
use tagore_device::search::exact::*;

use crate::{SEEDS, integers, room};

/// Element types that tests make values of.
pub trait Value: Plain + Element {
    fn of(integer: i64) -> Self;
    fn exactly(self) -> f64;
}

macro_rules! values {
    ($($type:ty: $of:expr, $exactly:expr;)*) => {$(
        impl Value for $type {
            fn of(integer: i64) -> Self {
                ($of)(integer)
            }
            fn exactly(self) -> f64 {
                ($exactly)(self)
            }
        }
    )*};
}

values! {
    f32: |i| i as f32 * 0.37, f64::from;
    f16: |i| f16::from_f32(i as f32 * 0.37), f16::to_f64;
    u8: |i: i64| (i + 128) as u8, f64::from;
    i8: |i| i as i8, f64::from;
}

pub fn rows<T: Value>(count: usize, stride: usize, seed: u64) -> Vec<T> {
    integers(count * stride, -128, 127, seed).into_iter().map(T::of).collect()
}

/// Components from one vector of exact distances to the next: they are read by 16 bytes.
pub fn padded<T>(dim: usize) -> usize {
    let unit = 16 / size_of::<T>();
    dim.next_multiple_of(unit) + unit
}

/// Rows of `dim` components, zeros after them.
pub fn padded_rows<T: Value>(count: usize, dim: usize, seed: u64) -> Vec<T> {
    let stride = padded::<T>(dim);
    let mut rows = rows::<T>(count, stride, seed);
    rows.chunks_exact_mut(stride).for_each(|row| row[dim..].fill(T::default()));
    rows
}

fn prepare<T: Value, K: Kernel<Arguments = (Prepare<T>,)>>() {
    for (seed, (count, dim)) in SEEDS.into_iter().zip([(1usize, 1usize), (13, 97), (9, 33)]) {
        let (stride, rounded_stride) = (dim + 3, dim.next_multiple_of(8));
        let mut values = rows::<T>(count, stride, seed);
        let zero = count / 2;
        values[zero * stride..][..dim].fill(T::of(0));
        let mean: Vec<f32> = (0..dim).map(|i| if seed == 0 { 0.0 } else { i as f32 * 0.3 }).collect();
        let scale = 4.0;
        // What is right, and vectors in the order of their errors.
        let exact = |row: usize, i: usize| (values[row * stride + i].exactly() as f32 - mean[i]) * scale;
        let error = |row: usize| {
            let squares = (0..dim).map(|i| {
                let exact = f64::from(exact(row, i));
                (exact - f16::from_f32(exact as f32).to_f64()).powi(2)
            });
            squares.sum::<f64>().sqrt()
        };
        let mut errors: Vec<f64> = (0..count).map(error).collect();
        errors.sort_by(f64::total_cmp);
        let limit = (errors[count / 2] * 1.05 + 0.01) as f32;

        let emulator = Emulator::with_seed(seed);
        let (from, means) = (emulator.upload(&values), emulator.upload(&mean));
        let (rounded, biases, errors, largest) = (
            room::<f16>(&emulator, count * rounded_stride),
            room::<f32>(&emulator, count),
            room::<f32>(&emulator, count),
            emulator.upload(&[0u32]),
        );
        let arguments = Prepare {
            values: from.view().read_only(),
            mean: means.view().read_only(),
            rounded: rounded.view(),
            biases: biases.view(),
            errors: errors.view(),
            largest: largest.view(),
            count: count as u32,
            dim: dim as u32,
            stride: stride as u32,
            rounded_stride: rounded_stride as u32,
            scale,
            norm_weight: 2.0,
            error_limit: limit,
            skip_zero: 1,
        };
        let blocks = (count as u32).div_ceil(PREPARE_VECTORS);
        emulator.launch::<K>([blocks, 1, 1], PREPARE_THREADS, (arguments,)).unwrap();

        let (rounded, biases) = (rounded.values::<f16>().unwrap(), biases.values::<f32>().unwrap());
        let errors = errors.values::<f32>().unwrap();
        let mut most = 0f64;
        for row in 0..count {
            let line = &rounded[row * rounded_stride..][..rounded_stride];
            for (i, &half) in line.iter().enumerate() {
                let expected = if i < dim { f16::from_f32(exact(row, i)) } else { f16::ZERO };
                assert_eq!(half.to_bits(), expected.to_bits(), "row {row}, {i}");
            }
            let norm: f64 = line.iter().map(|x| x.to_f64().powi(2)).sum();
            most = most.max(norm);
            let found = f64::from(errors[row]);
            assert!(found >= error(row) && found <= error(row) * 1.01 + 1e-3 * norm.sqrt(), "error of {row}");
            let bias = f64::from(biases[row]);
            if row == zero {
                assert_eq!(bias, f64::INFINITY);
            } else if errors[row] > limit {
                assert_eq!(bias, f64::NEG_INFINITY);
            } else {
                assert!((bias - 2.0 * norm).abs() <= 1e-5 * norm, "norm of {row}");
            }
        }
        let largest = f64::from(f32::from_bits(largest.values::<u32>().unwrap()[0]));
        assert!((largest - most).abs() <= 1e-5 * most);
    }
}

#[test]
fn vectors_are_rounded_with_norms_and_errors() {
    prepare::<f32, exact_prepare_f32>();
    prepare::<f16, exact_prepare_f16>();
}

fn norms<T: Value, K: Kernel<Arguments = (Norms<T>,)>>() {
    for (seed, (count, dim)) in SEEDS.into_iter().zip([(1, 1), (17, 97), (8, 4096)]) {
        let stride = dim + 5;
        let values = rows::<T>(count, stride, seed);
        let emulator = Emulator::with_seed(seed);
        let (from, norms) = (emulator.upload(&values), room::<i32>(&emulator, count));
        let arguments = Norms {
            values: from.view().read_only(),
            norms: norms.view(),
            count: count as u32,
            dim: dim as u32,
            stride: stride as u32,
            weight: 1 - seed as i32,
        };
        let blocks = (count as u32).div_ceil(PREPARE_VECTORS);
        emulator.launch::<K>([blocks, 1, 1], PREPARE_THREADS, (arguments,)).unwrap();
        let square = |row: &[T]| row[..dim].iter().map(|x| x.exactly().powi(2)).sum::<f64>();
        let expected: Vec<f64> =
            values.chunks_exact(stride).map(|row| (1.0 - seed as f64) * square(row)).collect();
        let found: Vec<f64> = norms.values::<i32>().unwrap().into_iter().map(f64::from).collect();
        assert_eq!(found, expected);
    }
}

#[test]
fn norms_of_bytes_are_exact() {
    norms::<u8, exact_norms_u8>();
    norms::<i8, exact_norms_i8>();
}

/// What a tile sums, from and to numbers that are exact in both types.
pub trait Sum: TileSum {
    /// Whether a vector of squared norm `own` asks for one of squared norm `other` at this distance less its own norm.
    fn asks(value: i64, own: i64, other: i64, bound: i64) -> bool;

    fn of(integer: i64) -> Self;
}

impl Sum for f32 {
    fn asks(value: i64, _: i64, _: i64, bound: i64) -> bool {
        value < bound
    }

    fn of(integer: i64) -> Self {
        integer as f32
    }
}

impl Sum for i32 {
    // Halves are rounded, so that some are asked for that are at the bound or one beyond it.
    fn asks(value: i64, own: i64, other: i64, bound: i64) -> bool {
        let nearness = ((own & 1) + (other & 1) - value - own) / 2;
        let asks = nearness > -((bound + own + 1) >> 1);
        assert!(asks || value >= bound);
        assert!(!asks || value <= bound + 1);
        asks
    }

    fn of(integer: i64) -> Self {
        integer as i32
    }
}

// Values are small integers, so that every product is exact in every type.
fn filter<E: TileElement<Sum: Sum>, K: Kernel<Arguments = (ExactFilter<E::Sum>,)>>(of: impl Fn(i64) -> E) {
    let per_unit = 16 / size_of::<E>();
    // Queries, rows, units: one chunk, two that stay, three that pass; tiles in part.
    for (seed, (query_count, row_count, units)) in
        SEEDS.into_iter().zip([(1, 1, 1), (130, 300, 11), (40, 520, 19)])
    {
        let dim = units * per_unit;
        let make = |count: usize, seed: u64| integers(count * dim, 0, 7, seed);
        let (queries, rows) = (make(query_count, seed + 10), make(row_count, seed + 20));
        let to = |values: &[i64]| values.iter().map(|&x| of(x)).collect::<Vec<E>>();
        let dot = |query: usize, row: usize| -> i64 {
            let pairs = queries[query * dim..][..dim].iter().zip(&rows[row * dim..][..dim]);
            pairs.map(|(x, y)| x * y).sum()
        };
        let weight = -2;
        let biases = integers(row_count, 0, 50, seed);
        // A bound that about one row in ten is below.
        let value = |query: usize, row: usize| biases[row] + weight * dot(query, row);
        let bound = |query: usize| {
            let mut values: Vec<i64> = (0..row_count).map(|row| value(query, row)).collect();
            values.sort_unstable();
            values[row_count / 10] + i64::from(row_count == 1)
        };
        let bounds: Vec<i64> = (0..query_count).map(bound).collect();
        let sums = |values: &[i64]| values.iter().map(|&x| E::Sum::of(x)).collect::<Vec<_>>();

        let (tile_count, tile_step) = (row_count.div_ceil(128), if row_count > 400 { 3 } else { 1 });
        // All tiles but the first of the order, if there are several.
        let first_position = usize::from(tile_count > 1);
        let capacity = if seed == 1 { 20 } else { 600 };
        let emulator = Emulator::with_seed(seed);
        let (queries_there, rows_there) = (emulator.upload(&to(&queries)), emulator.upload(&to(&rows)));
        let (biases_there, bounds_there) = (emulator.upload(&sums(&biases)), emulator.upload(&sums(&bounds)));
        let (counts, found) =
            (emulator.upload(&vec![0u32; query_count]), room::<u32>(&emulator, query_count * capacity));
        let overflow = emulator.upload(&[0u32]);
        let arguments = ExactFilter {
            tiles: Tiles {
                queries: queries_there.view().read_only(),
                rows: rows_there.view().read_only(),
                biases: biases_there.view().read_only(),
                query_stride: units as u32 * 16,
                row_stride: units as u32 * 16,
                units: units as u32,
                weight: E::Sum::of(weight),
            },
            bounds: bounds_there.view().read_only(),
            counts: counts.view(),
            found: found.view(),
            overflow: overflow.view(),
            capacity: capacity as u32,
            query_count: query_count as u32,
            row_count: row_count as u32,
            first_position: first_position as u32,
            position_count: (tile_count - first_position) as u32,
            positions_per_block: 2,
            tile_count: tile_count as u32,
            tile_step,
        };
        let grid = [query_count.div_ceil(128) as u32, (tile_count - first_position).div_ceil(2) as u32, 1];
        emulator.launch::<K>(grid, tile::THREADS, (arguments,)).unwrap();

        let visited = |row: usize| first_position == 0 || row >= 128;
        let counts = counts.values::<u32>().unwrap();
        let mut overflows = false;
        for query in 0..query_count {
            let expected: Vec<u32> = (0..row_count)
                .filter(|&row| visited(row) && value(query, row) < bounds[query])
                .map(|row| row as u32)
                .collect();
            assert_eq!(counts[query] as usize, expected.len(), "query {query}");
            overflows |= expected.len() > capacity;
            let kept = expected.len().min(capacity);
            let mut noted = vec![0u8; kept * 4];
            found.download(query * capacity * 4, &mut noted).unwrap();
            let mut noted: Vec<u32> =
                noted.chunks_exact(4).map(|b| u32::from_le_bytes(b.try_into().unwrap())).collect();
            noted.sort_unstable();
            noted.dedup();
            assert_eq!(noted.len(), kept);
            assert!(noted.iter().all(|row| expected.contains(row)), "query {query}");
        }
        assert_eq!(overflow.values::<u32>().unwrap()[0], u32::from(overflows));
        assert_eq!(overflows, seed == 1, "the case with little room overflows");
    }
}

#[test]
fn the_filter_notes_what_is_below_the_bound() {
    filter::<f16, exact_filter_f16>(|x| f16::from_f32(x as f32));
    filter::<u8, exact_filter_u8>(|x| x as u8);
    filter::<i8, exact_filter_i8>(|x| x as i8);
}

/// The sixteen sums of the CPU backend, spelled out.
pub fn exact_distance<T: Value>(metric: Metric, a: &[T], b: &[T]) -> f32 {
    let integers = size_of::<T>() == 1;
    let mut sums = [0f32; 16];
    let mut whole = 0i64;
    for (i, (x, y)) in a.iter().zip(b).enumerate() {
        let (x, y) = (x.exactly() as f32, y.exactly() as f32);
        let term = if metric == Metric::InnerProduct { x * y } else { (x - y) * (x - y) };
        sums[i % 16] += term;
        whole += term as i64;
    }
    for width in [8, 4, 2, 1] {
        for lane in 0..width {
            sums[lane] += sums[lane + width];
        }
    }
    let sum = if integers { whole as f32 } else { sums[0] };
    match metric {
        Metric::L2 => sum,
        Metric::InnerProduct => -sum,
        Metric::Cosine => 0.5 * sum,
    }
}

fn settle<T: Value, S: Sum, K: Kernel<Arguments = (ExactSettle<T, S>,)>>() {
    let metrics = [Metric::L2, Metric::InnerProduct, Metric::Cosine];
    for ((seed, metric), (dim, k)) in SEEDS.into_iter().zip(metrics).zip([(1, 1), (97, 13), (70, 40)]) {
        let (queries, count, stride, capacity) = (4, 90, padded::<T>(dim), 64);
        let (points, base) =
            (padded_rows::<T>(queries, dim, seed + 1), padded_rows::<T>(count, dim, seed + 2));
        let distance = |query: usize, row: u32| {
            let row = row as usize;
            exact_distance(metric, &points[query * stride..][..dim], &base[row * stride..][..dim])
        };
        let (first_id, excluded) = (1000, [1003u32, u32::MAX, 1000, 1005]);
        // No row noted, some, as many as there is room for, and a query that is given up.
        let noted: [Vec<u32>; 4] = [vec![], (3..20).collect(), (0..64).collect(), vec![]];
        let counts = [0, 17, 64, CLOSED];
        let mut found = vec![u32::MAX; queries * capacity];
        for (query, rows) in noted.iter().enumerate() {
            found[query * capacity..][..rows.len()].copy_from_slice(rows);
        }
        // Lists of rows 70.. that were settled before: none, a few, all.
        let mut lists = vec![NONE; queries * k];
        for query in 0..queries {
            let before = [k, k / 2, 0, k][query].min(20);
            let mut keys: Vec<Key> =
                (70..70 + before as u32).map(|row| key::pack(distance(query, row), first_id + row)).collect();
            keys.sort_unstable();
            lists[query * k..][..before].copy_from_slice(&keys);
        }
        let emulator = Emulator::with_seed(seed);
        let (base_there, points_there) = (emulator.upload(&base), emulator.upload(&points));
        let (found_there, counts_there) = (emulator.upload(&found), emulator.upload(&counts));
        let (excluded_there, lists_there) = (emulator.upload(&excluded), emulator.upload(&lists));
        let bounds = emulator.upload(&vec![S::CLOSED; queries]);
        let norms = emulator.upload(&vec![S::of(100); queries]);
        let errors = emulator.upload(&vec![0.5f32; queries]);
        let largest = emulator.upload(&[2e5f32.to_bits()]);
        let arguments = ExactSettle {
            rows: base_there.view().read_only(),
            queries: points_there.view().read_only(),
            found: found_there.view().read_only(),
            counts: counts_there.view(),
            excluded: excluded_there.view().read_only(),
            lists: lists_there.view(),
            bounds: bounds.view(),
            norms: norms.view().read_only(),
            errors: errors.view().read_only(),
            largest: largest.view().read_only(),
            row_stride: stride as u32,
            query_stride: stride as u32,
            dim: dim as u32,
            capacity: capacity as u32,
            k: k as u32,
            first_id,
            exclude: 1,
            metric: metric as u32,
            row_error: 0.25,
            scale: 1.0,
        };
        emulator.launch::<K>([queries as u32, 1, 1], SETTLE_THREADS, (arguments,)).unwrap();

        let after = lists_there.values::<Key>().unwrap();
        for query in 0..queries {
            let mut expected: Vec<Key> = lists[query * k..][..k].to_vec();
            let new = noted[query].iter().filter(|&&row| first_id + row != excluded[query]);
            expected.extend(new.map(|&row| key::pack(distance(query, row), first_id + row)));
            expected.sort_unstable();
            assert_eq!(after[query * k..][..k], expected[..k], "{metric:?}, query {query}, seed {seed}");
        }
        assert_eq!(counts_there.values::<u32>().unwrap(), [0, 0, 0, CLOSED]);
        let compare = |a: S, b: S| S::mark_below(0, 1, (a, b)) == 1;
        for (query, bound) in bounds.values::<S>().unwrap().into_iter().enumerate() {
            let last = after[query * k + k - 1];
            if query == 3 {
                assert!(!compare(S::of(-1_000_000), bound), "a closed query stays closed");
            } else if last == NONE {
                assert!(compare(S::of(1_000_000), bound), "a list that is not full has no bound");
            } else {
                // A row at the k-th distance passes: its bias is that distance less the query's norm.
                let kept = key::distance(last) * if metric == Metric::Cosine { 2.0 } else { 1.0 };
                let norm = if metric == Metric::InnerProduct { 0.0 } else { 100.0 };
                assert!(compare(S::of((kept - norm).floor() as i64), bound), "{metric:?}, query {query}");
            }
        }
    }
}

#[test]
fn noted_rows_are_settled_exactly() {
    settle::<f32, f32, exact_settle_f32>();
    settle::<f16, f32, exact_settle_f16>();
    settle::<u8, i32, exact_settle_u8>();
    settle::<i8, i32, exact_settle_i8>();
}
