//! The kernels of exact search, against plain definitions.

use cuda_std::f16;
use cuda_std::launch::Kernel;
use cuda_std::memory::Plain;
use emulator::Allocation;
use tagore_device::block::element::{Element, TileElement, TileSum};
use tagore_device::block::exact::Metric;
use tagore_device::block::tile;
use tagore_device::block::tile_walk::Tiles;
use tagore_device::key::{self, Key, NONE};
use tagore_device::search::exact::*;

use crate::device::{TestDevice, part};
use crate::{SEEDS, integers};

/// Element types with test values.
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

/// Components between two vectors of exact distances, which kernels read by 16 bytes.
pub fn padded<T>(dim: usize) -> usize {
    let unit = 16 / size_of::<T>();
    dim.next_multiple_of(unit) + unit
}

/// `count` rows of `dim` components, padded with zeros.
pub fn padded_rows<T: Value>(count: usize, dim: usize, seed: u64) -> Vec<T> {
    let stride = padded::<T>(dim);
    let mut rows = rows::<T>(count, stride, seed);
    rows.chunks_exact_mut(stride).for_each(|row| row[dim..].fill(T::default()));
    rows
}

/// Vectors to round, with the mean and the scale.
struct PrepareCase<T> {
    values: Vec<T>,
    mean: Vec<f32>,
    dim: usize,
    stride: usize,
    /// A zero vector.
    zero: usize,
    /// The error limit: about half of the vectors are below.
    limit: f32,
}

const SCALE: f32 = 4.0;

impl<T: Value> PrepareCase<T> {
    fn new(count: usize, dim: usize, seed: u64) -> Self {
        let stride = dim + 3;
        let mut values = rows::<T>(count, stride, seed);
        let zero = count / 2;
        values[zero * stride..][..dim].fill(T::of(0));
        let mean = (0..dim).map(|i| if seed == 0 { 0.0 } else { i as f32 * 0.3 }).collect();
        let mut case = Self { values, mean, dim, stride, zero, limit: 0.0 };
        let mut errors: Vec<f64> = (0..count).map(|row| case.error(row)).collect();
        errors.sort_by(f64::total_cmp);
        case.limit = (errors[count / 2] * 1.05 + 0.01) as f32;
        case
    }

    /// Component `i` of a row before rounding.
    fn exact(&self, row: usize, i: usize) -> f32 {
        (self.values[row * self.stride + i].exactly() as f32 - self.mean[i]) * SCALE
    }

    /// The distance by which rounding moves a row.
    fn error(&self, row: usize) -> f64 {
        let squares = (0..self.dim).map(|i| {
            let exact = f64::from(self.exact(row, i));
            (exact - f16::from_f32(exact as f32).to_f64()).powi(2)
        });
        squares.sum::<f64>().sqrt()
    }

    /// Checks one rounded row with its bias and error; returns its squared norm.
    fn check(&self, row: usize, line: &[f16], bias: f64, error: f64) -> f64 {
        for (i, &half) in line.iter().enumerate() {
            let expected = if i < self.dim { f16::from_f32(self.exact(row, i)) } else { f16::ZERO };
            assert_eq!(half.to_bits(), expected.to_bits(), "row {row}, component {i}");
        }
        let norm: f64 = line.iter().map(|x| x.to_f64().powi(2)).sum();
        let most = self.error(row) * 1.01 + 1e-3 * norm.sqrt();
        assert!(error >= self.error(row) && error <= most, "row {row}: error {error}, at most {most}");
        if row == self.zero {
            assert_eq!(bias, f64::INFINITY, "zero row {row}");
        } else if error > f64::from(self.limit) {
            assert_eq!(bias, f64::NEG_INFINITY, "row {row} above the error limit");
        } else {
            assert!((bias - 2.0 * norm).abs() <= 1e-5 * norm, "row {row}: bias {bias} for norm {norm}");
        }
        norm
    }
}

fn prepare<T: Value, K: Kernel<Arguments = (Prepare<T>,)>>() {
    for (seed, (count, dim)) in SEEDS.into_iter().zip([(1usize, 1usize), (13, 97), (9, 33)]) {
        let case = PrepareCase::<T>::new(count, dim, seed);
        let rounded_stride = dim.next_multiple_of(8);
        let device = TestDevice::new(seed);
        let rounded = device.room::<f16>(count * rounded_stride);
        let (biases, errors) = (device.room::<f32>(count), device.room::<f32>(count));
        let largest = device.upload(&[0u32]);
        let arguments = Prepare {
            values: device.input(&case.values),
            mean: device.input(&case.mean),
            rounded: rounded.view(),
            biases: biases.view(),
            errors: errors.view(),
            largest: largest.view(),
            count: count as u32,
            dim: dim as u32,
            stride: case.stride as u32,
            rounded_stride: rounded_stride as u32,
            scale: SCALE,
            norm_weight: 2.0,
            error_limit: case.limit,
            skip_zero: 1,
        };
        device.launch::<K>((count as u32).div_ceil(PREPARE_VECTORS), PREPARE_THREADS, (arguments,));

        let rounded = rounded.values::<f16>().unwrap();
        let (biases, errors) = (biases.values::<f32>().unwrap(), errors.values::<f32>().unwrap());
        let norms = (0..count).map(|row| {
            let line = &rounded[row * rounded_stride..][..rounded_stride];
            case.check(row, line, f64::from(biases[row]), f64::from(errors[row]))
        });
        let most = norms.fold(0.0, f64::max);
        let largest = f64::from(f32::from_bits(largest.values::<u32>().unwrap()[0]));
        assert!((largest - most).abs() <= 1e-5 * most, "largest norm {largest}, expected {most}");
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
        let device = TestDevice::new(seed);
        let norms = device.room::<i32>(count);
        let arguments = Norms {
            values: device.input(&values),
            norms: norms.view(),
            count: count as u32,
            dim: dim as u32,
            stride: stride as u32,
            weight: 1 - seed as i32,
        };
        device.launch::<K>((count as u32).div_ceil(PREPARE_VECTORS), PREPARE_THREADS, (arguments,));
        let square = |row: &[T]| row[..dim].iter().map(|x| x.exactly().powi(2)).sum::<f64>();
        let expected: Vec<f64> =
            values.chunks_exact(stride).map(|row| (1.0 - seed as f64) * square(row)).collect();
        let found: Vec<f64> = norms.values::<i32>().unwrap().into_iter().map(f64::from).collect();
        assert_eq!(found, expected, "{count} x {dim}");
    }
}

#[test]
fn norms_of_bytes_are_exact() {
    norms::<u8, exact_norms_u8>();
    norms::<i8, exact_norms_i8>();
}

/// Sum types of tiles, with test values that are exact in both.
pub trait Sum: TileSum {
    /// Whether the tile's threshold lets a pair pass: vectors of squared norms `own` and `other`,
    /// at a distance of `value` plus `own`, against `bound`.
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
    // Halves are rounded, so some pairs at the bound, or one beyond it, pass.
    fn asks(value: i64, own: i64, other: i64, bound: i64) -> bool {
        let nearness = ((own & 1) + (other & 1) - value - own) / 2;
        let asks = nearness > -((bound + own + 1) >> 1);
        assert!(asks || value >= bound, "a pair below the bound is rejected");
        assert!(!asks || value <= bound + 1, "a pair more than 1 above the bound passes");
        asks
    }

    fn of(integer: i64) -> Self {
        integer as i32
    }
}

/// The weight of products in the filter's comparison.
const WEIGHT: i64 = -2;

/// Queries and rows of small integers, whose products are exact in every type.
struct FilterCase {
    queries: Vec<i64>,
    rows: Vec<i64>,
    biases: Vec<i64>,
    /// Per query a bound; about one row in ten is below.
    bounds: Vec<i64>,
    dim: usize,
    /// Rows before this one are not visited.
    first_row: usize,
}

impl FilterCase {
    fn new(query_count: usize, row_count: usize, dim: usize, seed: u64) -> Self {
        let make = |count: usize, seed: u64| integers(count * dim, 0, 7, seed);
        let mut case = Self {
            queries: make(query_count, seed + 10),
            rows: make(row_count, seed + 20),
            biases: integers(row_count, 0, 50, seed),
            bounds: Vec::new(),
            dim,
            first_row: if row_count > 128 { 128 } else { 0 },
        };
        let bound = |query: usize| {
            let mut values: Vec<i64> = (0..row_count).map(|row| case.value(query, row)).collect();
            values.sort_unstable();
            values[row_count / 10] + i64::from(row_count == 1)
        };
        let bounds = (0..query_count).map(bound).collect();
        case.bounds = bounds;
        case
    }

    /// The value that the filter compares with the query's bound.
    fn value(&self, query: usize, row: usize) -> i64 {
        let query = &self.queries[query * self.dim..][..self.dim];
        let products = query.iter().zip(&self.rows[row * self.dim..][..self.dim]).map(|(x, y)| x * y);
        self.biases[row] + WEIGHT * products.sum::<i64>()
    }

    /// The visited rows below the query's bound.
    fn below(&self, query: usize) -> Vec<u32> {
        let rows = self.first_row..self.biases.len();
        rows.filter(|&row| self.value(query, row) < self.bounds[query]).map(|row| row as u32).collect()
    }

    /// Checks counts and noted rows; returns whether a query has more rows than `capacity`.
    fn check(&self, counts: &[u32], found: &Allocation, capacity: usize) -> bool {
        let mut overflows = false;
        for (query, &count) in counts.iter().enumerate() {
            let expected = self.below(query);
            assert_eq!(count as usize, expected.len(), "query {query}");
            overflows |= expected.len() > capacity;
            let kept = expected.len().min(capacity);
            let mut noted = part::<u32>(found, query * capacity, kept);
            noted.sort_unstable();
            noted.dedup();
            assert_eq!(noted.len(), kept, "query {query}: distinct rows");
            assert!(noted.iter().all(|row| expected.contains(row)), "query {query}");
        }
        overflows
    }
}

fn filter<E: TileElement<Sum: Sum>, K: Kernel<Arguments = (ExactFilter<E::Sum>,)>>(of: impl Fn(i64) -> E) {
    let per_unit = 16 / size_of::<E>();
    // Queries, rows, units: one chunk, two that stay, three that pass; partial tiles.
    for (seed, (query_count, row_count, units)) in
        SEEDS.into_iter().zip([(1, 1, 1), (130, 300, 11), (40, 520, 19)])
    {
        let case = FilterCase::new(query_count, row_count, units * per_unit, seed);
        let to = |values: &[i64]| values.iter().map(|&x| of(x)).collect::<Vec<E>>();
        let sums = |values: &[i64]| values.iter().map(|&x| E::Sum::of(x)).collect::<Vec<_>>();
        let (tile_count, tile_step) = (row_count.div_ceil(128), if row_count > 400 { 3 } else { 1 });
        // All tiles but the first of the order, if there are several.
        let first_position = case.first_row / 128;
        let positions = tile_count - first_position;
        let capacity = if seed == 1 { 20 } else { 600 };
        let device = TestDevice::new(seed);
        let (counts, overflow) = (device.upload(&vec![0u32; query_count]), device.upload(&[0u32]));
        let found = device.room::<u32>(query_count * capacity);
        let arguments = ExactFilter {
            tiles: Tiles {
                queries: device.input(&to(&case.queries)).cast(),
                rows: device.input(&to(&case.rows)).cast(),
                biases: device.input(&sums(&case.biases)),
                query_stride: units as u32 * 16,
                row_stride: units as u32 * 16,
                units: units as u32,
                weight: E::Sum::of(WEIGHT),
            },
            bounds: device.input(&sums(&case.bounds)),
            counts: counts.view(),
            found: found.view(),
            overflow: overflow.view(),
            capacity: capacity as u32,
            query_count: query_count as u32,
            row_count: row_count as u32,
            first_position: first_position as u32,
            position_count: positions as u32,
            positions_per_block: 2,
            tile_count: tile_count as u32,
            tile_step,
        };
        let grid = [query_count.div_ceil(128) as u32, positions.div_ceil(2) as u32];
        device.launch_2d::<K>(grid, tile::THREADS, (arguments,));

        let overflows = case.check(&counts.values().unwrap(), &found, capacity);
        assert_eq!(overflow.values::<u32>().unwrap()[0], u32::from(overflows));
        assert_eq!(overflows, seed == 1, "the case with little room overflows");
    }
}

#[test]
fn the_filter_notes_the_rows_below_the_bound() {
    filter::<f16, exact_filter_f16>(|x| f16::from_f32(x as f32));
    filter::<u8, exact_filter_u8>(|x| x as u8);
    filter::<i8, exact_filter_i8>(|x| x as i8);
}

/// The distance of the CPU backend, as sixteen sums.
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

/// Four queries: no row noted, some, as many as there is room for, and a closed query.
struct SettleCase<T> {
    metric: Metric,
    dim: usize,
    k: usize,
    points: Vec<T>,
    base: Vec<T>,
    noted: [Vec<u32>; 4],
    /// The lists before the launch.
    lists: Vec<Key>,
}

impl<T: Value> SettleCase<T> {
    const QUERIES: usize = 4;
    const CAPACITY: usize = 64;
    const FIRST_ID: u32 = 1000;
    const COUNTS: [u32; 4] = [0, 17, 64, CLOSED];
    const EXCLUDED: [u32; 4] = [1003, u32::MAX, 1000, 1005];

    fn new(metric: Metric, dim: usize, k: usize, seed: u64) -> Self {
        let points = padded_rows::<T>(Self::QUERIES, dim, seed + 1);
        let base = padded_rows::<T>(90, dim, seed + 2);
        let noted = [vec![], (3..20).collect(), (0..64).collect(), vec![]];
        let lists = vec![NONE; Self::QUERIES * k];
        let mut case = Self { metric, dim, k, points, base, noted, lists };
        // Rows from 70 on are in the lists already: the full list, half of it, none.
        for query in 0..Self::QUERIES {
            let before = [k, k / 2, 0, k][query].min(20);
            let mut keys: Vec<Key> = (70..70 + before as u32).map(|row| case.key(query, row)).collect();
            keys.sort_unstable();
            case.lists[query * k..][..before].copy_from_slice(&keys);
        }
        case
    }

    fn key(&self, query: usize, row: u32) -> Key {
        let at = |values: &[T], i: usize| values[i * padded::<T>(self.dim)..][..self.dim].to_vec();
        let (point, values) = (at(&self.points, query), at(&self.base, row as usize));
        key::pack(exact_distance(self.metric, &point, &values), Self::FIRST_ID + row)
    }

    /// The noted rows of all queries, as the kernel reads them.
    fn found(&self) -> Vec<u32> {
        let mut found = vec![u32::MAX; Self::QUERIES * Self::CAPACITY];
        for (query, rows) in self.noted.iter().enumerate() {
            found[query * Self::CAPACITY..][..rows.len()].copy_from_slice(rows);
        }
        found
    }

    /// The list of a query after the launch.
    fn expected(&self, query: usize) -> Vec<Key> {
        let mut expected: Vec<Key> = self.lists[query * self.k..][..self.k].to_vec();
        let new = self.noted[query].iter().filter(|&&row| Self::FIRST_ID + row != Self::EXCLUDED[query]);
        expected.extend(new.map(|&row| self.key(query, row)));
        expected.sort_unstable();
        expected.truncate(self.k);
        expected
    }

    /// Checks the bound of a query whose list now ends with `last`. Queries have squared norm 100.
    fn check_bound<S: Sum>(&self, query: usize, bound: S, last: Key) {
        let passes = |value: S| S::mark_below(0, 1, (value, bound)) == 1;
        if query == 3 {
            assert!(!passes(S::of(-1_000_000)), "a closed query stays closed");
        } else if last == NONE {
            assert!(passes(S::of(1_000_000)), "a list that is not full has no bound");
        } else {
            // A row at the k-th distance passes. Its bias is that distance less the query's norm.
            let kept = key::distance(last) * if self.metric == Metric::Cosine { 2.0 } else { 1.0 };
            let norm = if self.metric == Metric::InnerProduct { 0.0 } else { 100.0 };
            let value = (kept - norm).floor() as i64;
            assert!(passes(S::of(value)), "{:?}, query {query}: {value} is rejected", self.metric);
        }
    }
}

fn settle<T: Value, S: Sum, K: Kernel<Arguments = (ExactSettle<T, S>,)>>() {
    let metrics = [Metric::L2, Metric::InnerProduct, Metric::Cosine];
    for ((seed, metric), (dim, k)) in SEEDS.into_iter().zip(metrics).zip([(1, 1), (97, 13), (70, 40)]) {
        let case = SettleCase::<T>::new(metric, dim, k, seed);
        let queries = SettleCase::<T>::QUERIES;
        let device = TestDevice::new(seed);
        let counts = device.upload(&SettleCase::<T>::COUNTS);
        let lists = device.upload(&case.lists);
        let bounds = device.upload(&vec![S::CLOSED; queries]);
        let arguments = ExactSettle {
            rows: device.input(&case.base),
            queries: device.input(&case.points),
            found: device.input(&case.found()),
            counts: counts.view(),
            excluded: device.input(&SettleCase::<T>::EXCLUDED),
            lists: lists.view(),
            bounds: bounds.view(),
            norms: device.input(&vec![S::of(100); queries]),
            errors: device.input(&vec![0.5f32; queries]),
            largest: device.input(&[2e5f32.to_bits()]),
            row_stride: padded::<T>(dim) as u32,
            query_stride: padded::<T>(dim) as u32,
            dim: dim as u32,
            capacity: SettleCase::<T>::CAPACITY as u32,
            k: k as u32,
            first_id: SettleCase::<T>::FIRST_ID,
            exclude: 1,
            metric: metric as u32,
            row_error: 0.25,
            scale: 1.0,
        };
        device.launch::<K>(queries as u32, SETTLE_THREADS, (arguments,));

        let after = lists.values::<Key>().unwrap();
        for query in 0..queries {
            let found = &after[query * k..][..k];
            assert_eq!(found, case.expected(query), "{metric:?}, query {query}, seed {seed}");
        }
        assert_eq!(counts.values::<u32>().unwrap(), [0, 0, 0, CLOSED]);
        for (query, bound) in bounds.values::<S>().unwrap().into_iter().enumerate() {
            case.check_bound(query, bound, after[query * k + k - 1]);
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
