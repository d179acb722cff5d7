//! Rounding of vectors to f16, for tensor cores.

use cuda_std::f16;
use rayon::prelude::*;
use tagore_device::search::exact::total_error;

use super::OnDevice;
use crate::Metric;
use crate::vectors::Matrix;

/// Rows in the sample that decides the rounding.
const SAMPLE: usize = 16_384;

/// Largest scaled magnitude in the sample, except for outliers. f16 holds 16 times as much.
const MAGNITUDE: f32 = 4096.0;

/// Rounding of vectors to f16: `(x - mean) * scale`.
pub(crate) struct Rounding {
    pub mean: Vec<f32>,
    pub row_scale: f32,
    pub query_scale: f32,
    /// Rows with a larger rounding error skip the filter: they are always settled.
    pub error_limit: f32,
}

/// `count` rows, or queries.
#[derive(Clone, Copy)]
pub(crate) struct RowSet<'a, T> {
    pub rows: Matrix<'a, T>,
    pub count: usize,
}

impl Rounding {
    /// Chooses the rounding from a sample of the rows and of the queries. `query` gives the row of
    /// each query in its matrix.
    pub(crate) fn of<T: OnDevice>(
        metric: Metric,
        rows: RowSet<'_, T>,
        queries: RowSet<'_, T>,
        query: impl Fn(usize) -> usize + Sync,
    ) -> Self {
        let (RowSet { rows, count: n }, RowSet { rows: queries, count }) = (rows, queries);
        let dim = rows.dim();
        if !T::ROUNDED {
            return Self { mean: vec![0.0; dim], row_scale: 1.0, query_scale: 1.0, error_limit: 0.0 };
        }
        let sample = |count: usize| (0..count).step_by(count.div_ceil(SAMPLE).max(1));
        let product = metric == Metric::InnerProduct;
        let mut mean = vec![0f32; dim];
        if !product {
            let mut sums = vec![0f64; dim];
            for row in sample(n) {
                rows.row(row).iter().zip(&mut sums).for_each(|(x, sum)| *sum += f64::from(x.to_f32()));
            }
            let count = sample(n).count() as f64;
            mean.iter_mut().zip(sums).for_each(|(mean, sum)| *mean = (sum / count) as f32);
        }
        let magnitude = |row: &[T]| {
            let distances = row.iter().zip(&mean).map(|(x, mean)| (x.to_f32() - mean).abs());
            distances.fold(0f32, f32::max)
        };
        // Ignores a few outliers: f16 clamps them if need be, and their errors account for it.
        let most = |mut magnitudes: Vec<f32>| {
            magnitudes.sort_unstable_by(f32::total_cmp);
            let place = (magnitudes.len().saturating_sub(1) as f64 * 0.999) as usize;
            magnitudes.get(place).copied().unwrap_or(0.0)
        };
        let all = |count: usize| (0..count).into_par_iter().step_by(count.div_ceil(SAMPLE).max(1));
        let of_rows = most(all(n).map(|row| magnitude(rows.row(row))).collect());
        let of_queries = most(all(count).map(|index| magnitude(queries.row(query(index)))).collect());
        let (row_scale, query_scale) = if product {
            (scale(of_rows), scale(of_queries))
        } else {
            let both = scale(of_rows.max(of_queries));
            (both, both)
        };
        let error = |row: &[T]| {
            let (mut norm, mut error) = (0f64, 0f64);
            for (x, mean) in row.iter().zip(&mean) {
                let exact = (x.to_f32() - mean) * row_scale;
                norm += f64::from(exact).powi(2);
                error += f64::from(exact - f16::from_f32(exact).to_f32()).powi(2);
            }
            total_error(error.sqrt() as f32, norm.sqrt() as f32)
        };
        let largest = sample(n).step_by(8).map(|row| error(rows.row(row))).fold(0f32, f32::max);
        // Few rows exceed it if the sample is representative.
        Self { mean, row_scale, query_scale, error_limit: 1.25 * largest }
    }
}

/// The power of two that scales `magnitude` to between half of [`MAGNITUDE`] and all of it. It is
/// limited, so that the square of a scale, and products with values outside the sample, stay
/// finite.
fn scale(magnitude: f32) -> f32 {
    if magnitude > 0.0 { (MAGNITUDE / magnitude).log2().floor().clamp(-60.0, 40.0).exp2() } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_are_powers_of_two_within_f16() {
        for magnitude in [1e-30f32, 0.3, 1.0, 255.0, 1e20] {
            let scaled = magnitude * scale(magnitude);
            assert!(scaled <= MAGNITUDE && scale(magnitude).log2().fract() == 0.0, "{magnitude}");
        }
        assert_eq!(scale(0.0), 1.0);
    }
}
