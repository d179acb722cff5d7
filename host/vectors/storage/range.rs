//! Limits on magnitudes, so that f32 holds all distances. They apply to f32 and bf16 data: squares
//! of every other type fit. Cosine has no limits, because vectors are normalised in f64.
//!
//! The limits cost no pass of their own: the pass that looks for values that are not finite finds
//! the largest magnitude too.

use crate::vectors::{Metric, Vectors};
use crate::{Error, Result};

/// 2^-40. If the largest magnitude of a data set is smaller, squared differences start to
/// underflow.
const SMALLEST: f32 = 1.0 / (1u64 << 40) as f32;

/// 2^-100. If the largest product of a base value and a query value is smaller, products start to
/// underflow.
const SMALLEST_PRODUCT: f64 = (SMALLEST as f64) * (SMALLEST as f64) / (1u64 << 20) as f64;

/// The largest magnitude in vectors of `dim` components that keeps all distances under `metric`
/// finite.
///
/// With values up to M, squared L2 reaches 4 `dim` M², and the lift of inner product (`space.rs`)
/// another `dim` M². The rest is margin for rounding.
pub(in crate::vectors) fn most(metric: Option<Metric>, dim: usize) -> f32 {
    match metric {
        Some(Metric::L2 | Metric::InnerProduct) => (f64::from(f32::MAX) / (8 * dim) as f64).sqrt() as f32,
        Some(Metric::Cosine) | None => f32::MAX,
    }
}

/// The values that [`most`] allows, for errors.
pub(in crate::vectors) fn expected(metric: Option<Metric>, dim: usize) -> String {
    let (most, metric) = (most(metric, dim), metric.unwrap_or_default());
    format!("at most {most:e} in magnitude for dimension {dim} under {metric}: scale the data down")
}

/// Checks that distances within a data set of this largest magnitude do not vanish. All zeros are
/// allowed, and so are small values beside larger ones.
///
/// # Errors
/// If they vanish.
pub(crate) fn check_smallest(vectors: &Vectors, largest: f32, metric: Metric) -> Result<()> {
    if metric == Metric::Cosine || largest == 0.0 || largest >= SMALLEST {
        return Ok(());
    }
    let expected = format!("0 or at least {SMALLEST:e} under {metric}: scale the data up");
    Err(Error::mismatch(vectors.describe(), found(largest), expected))
}

/// Whether products of queries with a base of these largest magnitudes do not vanish.
pub(in crate::vectors) fn products_last(largest: f32, base: f32) -> bool {
    let product = f64::from(largest) * f64::from(base);
    product == 0.0 || product >= SMALLEST_PRODUCT
}

/// Checks that products of queries with a base of these largest magnitudes do not vanish.
///
/// # Errors
/// If they vanish.
pub(in crate::vectors) fn check_products(queries: &Vectors, largest: f32, base: f32) -> Result<()> {
    if products_last(largest, base) {
        return Ok(());
    }
    let least = SMALLEST_PRODUCT / f64::from(base);
    let expected = format!("0 or at least {least:e} under ip with this base: scale the queries up");
    Err(Error::mismatch(queries.describe(), found(largest), expected))
}

fn found(largest: f32) -> String {
    format!("a largest magnitude of {largest:e}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Progress;
    use crate::vectors::space::Space;
    use tagore_device::random::{Draws, Stage};

    #[test]
    fn all_distances_of_allowed_values_are_finite() {
        for (dim, metric) in [1, 2, 17, 96, 960, 4096]
            .into_iter()
            .flat_map(|dim| [Metric::L2, Metric::InnerProduct].map(|metric| (dim, metric)))
        {
            let (most, draws) = (most(Some(metric), dim), Draws::new(5, Stage::Test, 0, dim as u64));
            // Opposite corners, zeros, other corners, and random rows.
            let value = |i: usize| {
                let unit = draws.unit(i as u64) as f32;
                match i / dim {
                    0 => most,
                    1 => -most,
                    2 => 0.0,
                    3..6 => most.copysign(unit - 0.5),
                    _ => most * (2.0 * unit - 1.0),
                }
            };
            let base = Vectors::from_f32((0..9 * dim).map(value).collect(), dim).unwrap();
            let space = Space::new(&base, metric, &Progress::silent()).unwrap();
            let (ids, mut distances): (Vec<u32>, _) = ((0..9).collect(), Vec::new());
            for node in 0..9 {
                space.list_distances(space.query(node), &ids, &mut distances);
                assert!(distances.iter().all(|x| x.is_finite()), "{dim} {metric}: {distances:?}");
                space.rule_distances(node, &ids, &mut distances);
                assert!(distances.iter().all(|x| x.is_finite()), "{dim} {metric}: {distances:?}");
            }
        }
    }

    #[test]
    fn vanishing_products_differ_from_zeros() {
        let vectors = Vectors::from_f32(vec![1.0], 1).unwrap();
        let allowed = |queries: f32, base: f32| check_products(&vectors, queries, base).is_ok();
        for (queries, base) in [(0.0, 1e-10), (1e-10, 0.0), (1e-23, 1.0), (1.0, 1e-12)] {
            assert!(allowed(queries, base), "{queries:e} x {base:e}");
        }
        assert!(!allowed(1e-23, 1e-10) && !allowed(f32::from_bits(1), 1e-10));
        let smallest = |largest: f32| check_smallest(&vectors, largest, Metric::L2).is_ok();
        assert!(smallest(0.0) && smallest(SMALLEST) && !smallest(SMALLEST.next_down()));
    }
}
