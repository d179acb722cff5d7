//! Norms of rows: unit vectors, lifts, and the largest norm.

use crate::loops::{map, numbered, reduce, rows, try_fold, try_for_each};
use crate::memory::{collected, collected_in_parallel, zeros};
use crate::vectors::{Vectors, with_matrix};
use crate::{Progress, Result};

/// Normalised rows as f32, and the marks of zero vectors; empty if there are none.
pub(in crate::vectors) fn normalised(vectors: &Vectors, progress: &Progress) -> Result<(Vectors, Vec<bool>)> {
    if let Some(lent) = vectors.lent() {
        let norms = collected_in_parallel(&lent.squares()?[..], |square| square.sqrt())?;
        let zero = collected(norms.iter().map(|&norm| norm <= 0.0))?;
        let unit = lent.unit(&norms)?;
        let layout = unit.layout();
        let zero = if zero.contains(&true) { zero } else { Vec::new() };
        return Ok((Vectors::of_lent(unit, layout), zero));
    }
    let dim = vectors.dim();
    let values = vectors.floats(|row| {
        normalise(row);
        progress.check()
    })?;
    let is_zero = |row: &[f32]| row.iter().all(|&x| x == 0.0);
    let mut zero = collected_in_parallel(rows(&values, dim), is_zero)?;
    if !zero.contains(&true) {
        zero.clear();
    }
    Ok((Vectors::from_f32(values, dim)?, zero))
}

/// Normalises a row. Returns false for a zero vector, which is left as it is.
pub(crate) fn normalise(row: &mut [f32]) -> bool {
    // In f64 the squares of the smallest and the largest f32 neither vanish nor overflow.
    let norm = row.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
    if norm > 0.0 {
        row.iter_mut().for_each(|x| *x = (f64::from(*x) / norm) as f32);
    }
    norm > 0.0
}

/// Inner product: the lift of each row, given the square of the largest norm.
pub(in crate::vectors) fn lift(base: &Vectors, largest: f64, progress: &Progress) -> Result<Vec<f32>> {
    let lift = |square: f64| (largest - square).max(0.0).sqrt() as f32;
    if let Some(lent) = base.lent() {
        return collected_in_parallel(&lent.squares()?[..], |&square| lift(square));
    }
    let mut lifts: Vec<f32> = zeros(base.len())?;
    try_for_each(numbered(&mut lifts[..]), |(row, to)| {
        progress.check()?;
        *to = lift(square(base, row));
        Ok(())
    })?;
    Ok(lifts)
}

/// The squared norm of each row: the same bits on all backends.
///
/// # Errors
/// If the rows lie on a device that fails.
pub(crate) fn squares(vectors: &Vectors) -> Result<Vec<f64>> {
    match vectors.lent() {
        Some(lent) => lent.squares(),
        None => Ok(map(0..vectors.len(), |row| square(vectors, row))),
    }
}

/// The squared norm of a row.
fn square(base: &Vectors, row: usize) -> f64 {
    with_matrix!(base.rows(), m => m.components(row).map(|x| f64::from(x).powi(2)).sum())
}

/// The square of the largest norm in `base`.
pub(crate) fn largest_square(base: &Vectors, progress: &Progress) -> Result<f64> {
    if let Some(lent) = base.lent() {
        return Ok(reduce(&lent.squares()?[..], 0.0, |&square| square, f64::max));
    }
    let larger = |largest, row| progress.check().map(|()| f64::max(largest, square(base, row)));
    try_fold(0..base.len(), || 0.0, larger, f64::max)
}
