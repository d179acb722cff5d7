//! Rounding of vectors to f16, for tensor cores.

use cuda_std::f16;
use tagore_device::search::exact::total_error;

use super::OnDevice;
use crate::Metric;
use crate::loops::map;

/// Maximum number of rows in the sample that decides the rounding.
const SAMPLE: usize = 16_384;

/// Largest scaled magnitude in the sample, except for outliers. f16 holds 16 times as much.
const MAGNITUDE: f32 = 4096.0;

/// Rounding of vectors to f16: `(x - mean) * scale`. Queries of inner products have scales of their
/// own.
pub(crate) struct Rounding {
    pub mean: Vec<f32>,
    pub scale: f32,
    /// The rounding error of most rows. The filter lets others pass more easily (docs in
    /// `device/src/block/sums.rs`). 0 under inner product, where each row has a bound of its own.
    pub error_limit: f32,
}

impl Rounding {
    /// No rounding of vectors of `dim` components.
    pub(crate) fn none(dim: usize) -> Self {
        Self { mean: vec![0.0; dim], scale: 1.0, error_limit: 0.0 }
    }

    /// The places among `count` vectors of type `T` of the sample that decides the rounding; none
    /// where tiles need no rounding.
    pub(crate) fn places<T: OnDevice>(count: usize) -> impl Iterator<Item = usize> {
        Self::some_places::<T>(count, SAMPLE)
    }

    /// As [`places`](Self::places), for a search so short that a large sample would take longer.
    pub(crate) fn few_places<T: OnDevice>(count: usize) -> impl Iterator<Item = usize> {
        Self::some_places::<T>(count, (count / 32).clamp(SAMPLE / 16, SAMPLE))
    }

    fn some_places<T: OnDevice>(count: usize, sample: usize) -> impl Iterator<Item = usize> {
        let count = if T::ROUNDED { count } else { 0 };
        (0..count).step_by(count.div_ceil(sample).max(1))
    }

    /// Chooses the rounding from a [sample](Self::places) of the rows and of the queries, of `dim`
    /// components. Those of inner products need no queries.
    pub(crate) fn choose<T: OnDevice>(metric: Metric, dim: usize, rows: &[&[T]], queries: &[&[T]]) -> Self {
        if !T::ROUNDED {
            return Self::none(dim);
        }
        let product = metric == Metric::InnerProduct;
        let mut mean = vec![0f32; dim];
        if !product {
            let mut sums = vec![0f64; dim];
            for row in rows {
                T::components(row).zip(&mut sums).for_each(|(x, sum)| *sum += f64::from(x));
            }
            let count = rows.len() as f64;
            mean.iter_mut().zip(sums).for_each(|(mean, sum)| *mean = (sum / count) as f32);
        }
        let magnitude = |row: &[T]| {
            let distances = T::components(row).zip(&mean).map(|(x, mean)| (x - mean).abs());
            distances.fold(0f32, f32::max)
        };
        // Ignores a few outliers: f16 clamps them if need be, and their errors account for it.
        let most = |magnitudes: &[f32]| {
            let mut sorted = magnitudes.to_vec();
            sorted.sort_unstable_by(f32::total_cmp);
            let place = (sorted.len().saturating_sub(1) as f64 * 0.999) as usize;
            sorted.get(place).copied().unwrap_or(0.0)
        };
        let [of_rows, of_queries] = [rows, queries].map(|rows| most(&map(rows, |row| magnitude(row))));
        if product {
            return Self { mean, scale: scale(of_rows), error_limit: 0.0 };
        }
        let scale = scale(of_rows.max(of_queries));
        let error = |row: &[T]| {
            let (mut norm, mut error) = (0f64, 0f64);
            for (x, mean) in T::components(row).zip(&mean) {
                let exact = (x - mean) * scale;
                norm += f64::from(exact).powi(2);
                error += f64::from(exact - f16::from_f32(exact).to_f32()).powi(2);
            }
            total_error(error.sqrt() as f32, norm.sqrt() as f32)
        };
        let mut errors: Vec<f32> = rows.iter().step_by(8).map(|row| error(row)).collect();
        errors.sort_unstable_by(f32::total_cmp);
        // Few rows exceed it if the sample is representative.
        let error_limit = errors.get(errors.len() / 2).map_or(0.0, |median| 2.0 * median);
        Self { mean, scale, error_limit }
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
    fn a_far_row_leaves_the_scale_as_it_is() {
        let values: Vec<f32> =
            (0..4000u32).map(|i| (i.wrapping_mul(0x9e37_79b1) >> 16) as f32 / 65536.0).collect();
        let far: Vec<f32> = values[..4].iter().map(|x| 1e3 * x).collect();
        let rows: Vec<&[f32]> = values.chunks(4).collect();
        let with_it = [&[&far[..]], &rows[1..]].concat();
        let scale = |rows: &[&[f32]]| Rounding::choose(Metric::InnerProduct, 4, rows, rows).scale;
        assert_eq!(scale(&rows), scale(&with_it));
    }

    #[test]
    fn scales_are_powers_of_two_within_f16() {
        for magnitude in [1e-30f32, 0.3, 1.0, 255.0, 1e20] {
            let scaled = magnitude * scale(magnitude);
            assert!(scaled <= MAGNITUDE && scale(magnitude).log2().fract() == 0.0, "{magnitude}");
        }
        assert_eq!(scale(0.0), 1.0);
    }
}
