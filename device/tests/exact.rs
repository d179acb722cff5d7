//! The kernels of exact search, against plain definitions.

use cuda_std::f16;
use cuda_std::launch::Kernel;
use cuda_std::memory::Plain;
use emulator::Allocation;
use tagore_device::block::element::Element;
use tagore_device::block::exact::Metric;
use tagore_device::block::sums::{TileElement, TileSum};
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

/// Whether the filter lets a row of this bias pass at the bound of a query, with this product.
fn passes<S: Sum>(bound: S, bias: i64, product: i64, weight: i64) -> bool {
    let of_query = S::margin_of_query(bound, S::of(weight));
    let margin = S::plus(S::plus(of_query, S::margin_of_row(S::of(bias), S::of(weight))), S::of(product));
    margin >= S::default()
}

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

    fn product(&self, query: usize, row: usize) -> i64 {
        let query = &self.queries[query * self.dim..][..self.dim];
        query.iter().zip(&self.rows[row * self.dim..][..self.dim]).map(|(x, y)| x * y).sum()
    }

    fn value(&self, query: usize, row: usize) -> i64 {
        self.biases[row] + WEIGHT * self.product(query, row)
    }

    /// The visited rows below the query's bound. Some rows at the bound are among them.
    fn below<S: Sum>(&self, query: usize) -> Vec<u32> {
        let bound = self.bounds[query];
        let is_below = |&row: &usize| {
            let (bias, product) = (self.biases[row], self.product(query, row));
            let (value, passes) = (self.value(query, row), passes::<S>(S::of(bound), bias, product, WEIGHT));
            assert!(if passes { value <= bound } else { value >= bound }, "{value} and bound {bound}");
            passes
        };
        (self.first_row..self.biases.len()).filter(is_below).map(|row| row as u32).collect()
    }

    /// Checks counts and survivors; returns whether a query has more rows than `capacity`.
    fn check<S: Sum>(&self, counts: &[u32], all: &Allocation, capacity: usize) -> bool {
        let mut overflows = false;
        for (query, &count) in counts.iter().enumerate() {
            let expected = self.below::<S>(query);
            assert_eq!(count as usize, expected.len(), "query {query}");
            overflows |= expected.len() > capacity;
            let kept = expected.len().min(capacity);
            let mut survivors = part::<u32>(all, query * capacity, kept);
            survivors.sort_unstable();
            survivors.dedup();
            assert_eq!(survivors.len(), kept, "query {query}: distinct rows");
            assert!(survivors.iter().all(|row| expected.contains(row)), "query {query}");
        }
        overflows
    }
}

/// Runs cases of these queries, rows and units: partial tiles, partial and whole chunks.
fn filter<E: TileElement<Sum: Sum>, K: Kernel<Arguments = (ExactFilter<E::Sum>,)>>(
    of: impl Fn(i64) -> E,
    cases: [(u64, usize, usize, usize); 2],
) {
    let per_unit = 16 / size_of::<E>();
    for (seed, query_count, row_count, units) in cases {
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
        let survivors = device.room::<u32>(query_count * capacity);
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
            survivors: survivors.view(),
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

        let overflows = case.check::<E::Sum>(&counts.values().unwrap(), &survivors, capacity);
        assert_eq!(overflow.values::<u32>().unwrap()[0], u32::from(overflows));
        assert_eq!(overflows, seed == 1, "the case with little room overflows");
    }
}

#[test]
fn the_filter_notes_the_rows_below_the_bound() {
    let [one, two, many] = [
        [(0, 1, 1, 1), (2, 130, 300, 8)],
        [(1, 130, 300, 11), (2, 40, 300, 16)],
        [(2, 40, 520, 19), (0, 3, 130, 24)],
    ];
    filter::<f16, exact_filter_1_f16>(|x| f16::from_f32(x as f32), one);
    filter::<f16, exact_filter_2_f16>(|x| f16::from_f32(x as f32), two);
    filter::<f16, exact_filter_many_f16>(|x| f16::from_f32(x as f32), many);
    filter::<u8, exact_filter_1_u8>(|x| x as u8, one);
    filter::<u8, exact_filter_2_u8>(|x| x as u8, two);
    filter::<u8, exact_filter_many_u8>(|x| x as u8, many);
    filter::<i8, exact_filter_1_i8>(|x| x as i8, one);
    filter::<i8, exact_filter_2_i8>(|x| x as i8, two);
    filter::<i8, exact_filter_many_i8>(|x| x as i8, many);
}

#[test]
fn the_farthest_margins_keep_their_signs() {
    fn check<S: Sum + std::fmt::Debug>() {
        for weight in [-1, -2] {
            let passes = |bound: S, bias: S| {
                let weight = S::of(weight);
                S::plus(S::margin_of_query(bound, weight), S::margin_of_row(bias, weight)) >= S::default()
            };
            let (near, far) = (S::of(-200_000_000), S::of(200_000_000));
            for bound in [near, far, S::UNBOUNDED, S::CLOSED] {
                assert!(!passes(bound, S::NEVER), "a row that no query finds, bound {bound:?}");
            }
            for bias in [near, far, S::NEVER] {
                assert!(!passes(S::CLOSED, bias), "a closed query, bias {bias:?}");
                assert_eq!(passes(S::UNBOUNDED, bias), bias < S::NEVER, "an open query, bias {bias:?}");
            }
        }
    }
    check::<f32>();
    check::<i32>();
    // Rows that rounding moved too far pass at any bound but that of a closed query.
    let of_row = f32::margin_of_row(f32::NEG_INFINITY, -2.0);
    assert!(f32::margin_of_query(-1e12, -2.0) + of_row > 0.0);
    assert!(f32::margin_of_query(f32::UNBOUNDED, -2.0) + of_row > 0.0);
    assert!(f32::margin_of_query(f32::CLOSED, -2.0) + of_row < 0.0);
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
        whole += if integers { term as i64 } else { 0 };
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

/// Four queries: no survivor, some, as many as there is room for, and a closed query.
struct SettleCase<T> {
    metric: Metric,
    dim: usize,
    k: usize,
    points: Vec<T>,
    base: Vec<T>,
    survivors: [Vec<u32>; 4],
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
        let survivors = [vec![], (3..20).collect(), (0..64).collect(), vec![]];
        let lists = vec![NONE; Self::QUERIES * k];
        let mut case = Self { metric, dim, k, points, base, survivors, lists };
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

    /// The survivors of all queries, as the kernel reads them.
    fn survivors(&self) -> Vec<u32> {
        let mut found = vec![u32::MAX; Self::QUERIES * Self::CAPACITY];
        for (query, rows) in self.survivors.iter().enumerate() {
            found[query * Self::CAPACITY..][..rows.len()].copy_from_slice(rows);
        }
        found
    }

    /// The list of a query after the launch.
    fn expected(&self, query: usize) -> Vec<Key> {
        let mut expected: Vec<Key> = self.lists[query * self.k..][..self.k].to_vec();
        let new = self.survivors[query].iter().filter(|&&row| Self::FIRST_ID + row != Self::EXCLUDED[query]);
        expected.extend(new.map(|&row| self.key(query, row)));
        expected.sort_unstable();
        expected.truncate(self.k);
        expected
    }

    /// Checks the bound of a query whose list now ends with `last`. Queries have squared norm 100,
    /// or of inner products factor 1.
    fn check_bound<S: Sum>(&self, query: usize, bound: S, last: Key) {
        let weight = if self.metric == Metric::InnerProduct { -1 } else { -2 };
        let passes = |value: i64| passes(bound, value, 0, weight);
        if query == 3 {
            assert!(!passes(-1_000_000), "a closed query stays closed");
        } else if last == NONE {
            assert!(passes(1_000_000), "a list that is not full has no bound");
        } else {
            // A row at the k-th distance passes. Its bias is that distance less the query's norm.
            let kept = key::distance(last) * if self.metric == Metric::Cosine { 2.0 } else { 1.0 };
            let norm = if self.metric == Metric::InnerProduct { 0.0 } else { 100.0 };
            let value = (kept - norm).floor() as i64;
            assert!(passes(value), "{:?}, query {query}: {value} is rejected", self.metric);
        }
    }
}

fn rerank<T: Value, S: Sum, K: Kernel<Arguments = (ExactRerank<T, S>,)>>() {
    let metrics = [Metric::L2, Metric::InnerProduct, Metric::Cosine];
    for ((seed, metric), (dim, k)) in SEEDS.into_iter().zip(metrics).zip([(1, 1), (97, 13), (70, 40)]) {
        let case = SettleCase::<T>::new(metric, dim, k, seed);
        let queries = SettleCase::<T>::QUERIES;
        let device = TestDevice::new(seed);
        let counts = device.upload(&SettleCase::<T>::COUNTS);
        let lists = device.upload(&case.lists);
        let bounds = device.upload(&vec![S::CLOSED; queries]);
        let arguments = ExactRerank {
            rows: device.input(&case.base),
            queries: device.input(&case.points),
            survivors: device.input(&case.survivors()),
            counts: counts.view(),
            excluded: device.input(&SettleCase::<T>::EXCLUDED),
            lists: lists.view(),
            bounds: bounds.view(),
            norms: device.input(&vec![S::of(if metric == Metric::InnerProduct { 1 } else { 100 }); queries]),
            errors: device.input(&vec![0.5f32; queries]),
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
        device.launch::<K>(queries as u32, RERANK_THREADS, (arguments,));

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
fn noted_rows_are_reranked_exactly() {
    rerank::<f32, f32, exact_rerank_f32>();
    rerank::<f16, f32, exact_rerank_f16>();
    rerank::<u8, i32, exact_rerank_u8>();
    rerank::<i8, i32, exact_rerank_i8>();
}
