//! Preparation of vectors for exact search, on the emulator.

use cuda_std::f16;
use cuda_std::launch::Kernel;
use tagore_device::search::exact::*;

use crate::SEEDS;
use crate::device::TestDevice;
use crate::exact::{Value, rows};

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

    /// Checks one rounded row with its bias and error.
    fn check(&self, row: usize, line: &[f16], bias: f64, error: f64) {
        for (i, &half) in line.iter().enumerate() {
            let expected = if i < self.dim { f16::from_f32(self.exact(row, i)) } else { f16::ZERO };
            assert_eq!(half.to_bits(), expected.to_bits(), "row {row}, component {i}");
        }
        let norm: f64 = line.iter().map(|x| x.to_f64().powi(2)).sum();
        let most = self.error(row) * 1.01 + 1e-3 * norm.sqrt() + 1e-16;
        assert!(error >= self.error(row) && error <= most, "row {row}: error {error}, at most {most}");
        if row == self.zero {
            assert_eq!(bias, f64::INFINITY, "zero row {row}");
        } else {
            // Half of the rows exceed the limit.
            let excess = (error - f64::from(self.limit)).max(0.0);
            let expected = 2.0 * (norm - 1025.0 * excess.powi(2));
            let most = 1e-4 * norm + 1e-3 * excess.powi(2);
            assert!((bias - expected).abs() <= most, "row {row}: bias {bias} for norm {norm}, {expected}");
        }
    }
}

fn prepare<T: Value, K: Kernel<Arguments = (Prepare<T>,)>>() {
    // One vector, the odd last one of several blocks, and blocks of several rounds.
    for (seed, (count, dim, rounds)) in SEEDS.into_iter().zip([(1, 1, 1), (37, 97, 1), (83, 133, 3)]) {
        let case = PrepareCase::<T>::new(count, dim, seed);
        let rounded_stride = dim.next_multiple_of(8);
        let device = TestDevice::new(seed);
        let rounded = device.room::<f16>(count * rounded_stride);
        let (biases, errors) = (device.room::<f32>(count), device.room::<f32>(count));
        let arguments = Prepare {
            values: device.input(&case.values),
            mean: device.input(&case.mean),
            rounded: rounded.view(),
            biases: biases.view(),
            errors: errors.view(),
            count: count as u32,
            dim: dim as u32,
            stride: case.stride as u32,
            rounded_stride: rounded_stride as u32,
            scale: SCALE,
            norm_weight: 2.0,
            error_limit: case.limit,
            skip_zero: 1,
            rounds,
            unit: 0,
        };
        let blocks = (count as u32).div_ceil(PREPARED_AT_ONCE * rounds);
        device.launch::<K>(blocks, PREPARE_THREADS, (arguments,));

        let rounded = rounded.values::<f16>().unwrap();
        let (biases, errors) = (biases.values::<f32>().unwrap(), errors.values::<f32>().unwrap());
        for (row, line) in rounded.chunks_exact(rounded_stride).enumerate() {
            case.check(row, line, f64::from(biases[row]), f64::from(errors[row]));
        }
    }
}

#[test]
fn vectors_are_rounded_with_norms_and_errors() {
    prepare::<f32, exact_prepare_f32>();
    prepare::<f16, exact_prepare_f16>();
}

/// Vectors prepared for inner products, as queries or as rows: halves and biases.
fn prepared_for_products(values: &[f32], dim: usize, is_query: bool) -> (Vec<f16>, Vec<f32>) {
    let count = values.len() / dim;
    let device = TestDevice::new(1);
    let (rounded, biases) = (device.room::<f16>(values.len()), device.room::<f32>(count));
    let errors = device.room::<f32>(count);
    let arguments = Prepare {
        values: device.input(values),
        mean: device.input(&vec![0.0; dim]),
        rounded: rounded.view(),
        biases: biases.view(),
        errors: errors.view(),
        count: count as u32,
        dim: dim as u32,
        stride: dim as u32,
        rounded_stride: dim as u32,
        scale: SCALE,
        norm_weight: f32::from(u8::from(is_query)),
        error_limit: if is_query { f32::INFINITY } else { 0.0 },
        skip_zero: 0,
        rounds: 1,
        unit: u32::from(is_query),
    };
    let blocks = (count as u32).div_ceil(PREPARED_AT_ONCE);
    device.launch::<exact_prepare_f32>(blocks, PREPARE_THREADS, (arguments,));
    (rounded.values().unwrap(), biases.values().unwrap())
}

/// Norms of rows and queries that differ by many powers of two: the bias of a row is a bound on
/// what rounding changes in its products, and not much more.
#[test]
fn the_bias_of_a_row_bounds_what_rounding_hides_of_its_inner_products() {
    let (count, dim) = (60, 88);
    let values: Vec<f32> = rows::<f32>(2 * count, dim, 7)
        .into_iter()
        .enumerate()
        // The largest are cut at the range of f16; the smallest are below its normal numbers.
        .map(|(i, x)| x / 3.0 * f32::exp2((i / dim % count) as f32 / 1.5 - 20.0))
        .collect();
    let (row_values, query_values) = values.split_at(count * dim);
    let mut query_values = query_values.to_vec();
    query_values[..dim].fill(0.0);
    query_values[dim..2 * dim].iter_mut().for_each(|x| *x *= 1e-30);
    let (row_halves, losses) = prepared_for_products(row_values, dim, false);
    let (query_halves, factors) = prepared_for_products(&query_values, dim, true);
    assert!(factors[1].is_nan() && query_halves[dim..2 * dim].iter().all(|half| half.to_f32() == 0.0));
    let dot = |a: &mut dyn Iterator<Item = (f64, f64)>| a.map(|(x, y)| x * y).sum::<f64>();
    let mut worst = 0.0f64;
    for (query, &factor) in factors.iter().enumerate().filter(|&(query, _)| query != 1) {
        for (row, &bias) in losses.iter().enumerate() {
            let exact = row_values[row * dim..][..dim].iter().zip(&query_values[query * dim..]);
            let exact = dot(&mut exact.map(|(&x, &y)| (x.into(), y.into()))) * f64::from(factor * SCALE);
            let halves = row_halves[row * dim..][..dim].iter().zip(&query_halves[query * dim..]);
            let rounded = dot(&mut halves.map(|(x, y)| (x.to_f64(), y.to_f64())));
            let hidden = (exact - rounded).abs() / f64::from(-bias);
            assert!(hidden <= 1.0, "query {query}, row {row}: {exact} is {rounded}, allowed {}", -bias);
            worst = worst.max(hidden);
        }
    }
    assert!(worst > 0.01, "the bound is no closer than {worst}");
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
