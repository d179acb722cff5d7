//! Magnitudes of values whose distances f32 can hold. Only f32 itself has others: the squares of every other type fit.
//! Cosine takes any, because vectors are normalised in f64.

use super::{Metric, Vectors};
use crate::{Error, Result};

/// 2^-40. Where the largest magnitude of a data set is smaller, squared differences of its values begin to underflow.
const SMALLEST: f32 = 1.0 / (1u64 << 40) as f32;

/// 2^-100. The largest product of a base's and a query's values must reach it: smaller ones begin to underflow.
const SMALLEST_PRODUCT: f64 = (SMALLEST as f64) * (SMALLEST as f64) / (1u64 << 20) as f64;

/// The largest magnitude of values in vectors of `dim` components that keeps all distances under `metric` finite.
///
/// With values up to M, squared L2 reaches 4 `dim` M², and the coordinate that inner product adds (`space.rs`) another
/// `dim` M². The rest is room for rounding.
pub(super) fn most(metric: Option<Metric>, dim: usize) -> f32 {
    match metric {
        Some(Metric::L2 | Metric::InnerProduct) => (f64::from(f32::MAX) / (8 * dim) as f64).sqrt() as f32,
        Some(Metric::Cosine) | None => f32::MAX,
    }
}

/// The values that [`most`] allows, for errors.
pub(super) fn expected(metric: Option<Metric>, dim: usize) -> String {
    let (most, metric) = (most(metric, dim), metric.unwrap_or_default());
    format!("at most {most:e} in magnitude for dimension {dim} under {metric}: scale the data down")
}

/// Checks that distances within a data set, whose largest magnitude this is, do not vanish. A data set of zeros is fine,
/// and so are small values beside others.
///
/// # Errors
/// If they do.
pub(crate) fn check_smallest(vectors: &Vectors, largest: f32, metric: Metric) -> Result<()> {
    if metric == Metric::Cosine || largest == 0.0 || largest >= SMALLEST {
        return Ok(());
    }
    let expected = format!("0 or at least {SMALLEST:e} under {metric}: scale the data up");
    Err(Error::mismatch(vectors.describe(), found(largest), expected))
}

/// Checks that products of queries with a base of these largest magnitudes do not vanish.
///
/// # Errors
/// If they do.
pub(super) fn check_products(queries: &Vectors, largest: f32, base: f32) -> Result<()> {
    let product = f64::from(largest) * f64::from(base);
    if product == 0.0 || product >= SMALLEST_PRODUCT {
        return Ok(());
    }
    let least = SMALLEST_PRODUCT / f64::from(base);
    let expected = format!("0 or at least {least:e} under ip with this base: scale the queries up");
    Err(Error::mismatch(queries.describe(), found(largest), expected))
}

fn found(largest: f32) -> String {
    format!("a largest magnitude of {largest:e}")
}
