//! Panels of f32 values.
//!
//! Products are chains of multiply-adds, fused where the processor can: they are fast, and their
//! last bits depend on the instruction set.

use super::lanes::{Lanes, Limits, near_by_products};
use super::{PANEL, PanelForm, PerPair, PerRow, Side};
use crate::loops::{numbered, rows_mut, try_for_each_with};
use crate::memory::{filled, zeros};
use crate::vectors::space::Query;
use crate::{Progress, Result};

/// Components that are multiplied at a time: of two panels, these fit the first cache.
const DIMS: usize = 128;

/// Rows as panels of f32 values.
pub(crate) struct FloatPanels {
    dim: usize,
    values: Vec<f32>,
    /// The term of each row; infinite for the rows that fill up the last panel.
    terms: Vec<PerRow>,
}

impl FloatPanels {
    /// The panels of `count` rows in a form.
    ///
    /// # Errors
    /// If memory is short, or the work is cancelled.
    pub(super) fn new<'q>(
        form: &PanelForm,
        count: usize,
        row: &(dyn Fn(usize) -> Query<'q> + Sync),
        progress: &Progress,
    ) -> Result<Self> {
        let dim = form.mean.len();
        let mut values: Vec<f32> = zeros(count.div_ceil(PANEL) * PANEL * dim)?;
        let mut terms = filled([f32::INFINITY; PANEL], count.div_ceil(PANEL))?;
        let all = numbered((rows_mut(&mut values, dim * PANEL), &mut terms[..]));
        try_for_each_with(all, Vec::new, |components, (panel, (values, terms))| {
            progress.check()?;
            let panel = (panel * PANEL..count).map(row).zip(terms).enumerate();
            for (place, (row, term)) in panel {
                *term = form.term(form.fill(row, components, values, place));
            }
            Ok(())
        })?;
        Ok(Self { dim, values, terms })
    }

    /// The pairs of [`Panels::near`](super::Panels::near).
    pub(super) fn near(&self, side: Side<'_>, others: &Self, other: Side<'_>) -> [u32; PANEL] {
        near(self.panel(side), others.panel(other))
    }

    fn panel<'a>(&'a self, side: Side<'a>) -> Panel<'a> {
        let values = &self.values[side.panel * self.dim * PANEL..][..self.dim * PANEL];
        Panel { values, limits: Limits { terms: &self.terms[side.panel], bounds: side.bounds } }
    }
}

/// A panel of a comparison.
#[derive(Clone, Copy)]
struct Panel<'a> {
    values: &'a [f32],
    limits: Limits<'a>,
}

/// The bits of [`FloatPanels::near`].
fn near(rows: Panel<'_>, others: Panel<'_>) -> [u32; PANEL] {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: the processor has the feature that the function is compiled for.
            return unsafe { x86::avx512(rows, others) };
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: the processor has both features that the function is compiled for.
            return unsafe { x86::avx2(rows, others) };
        }
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: every processor of this architecture has NEON.
    return unsafe { near_by::<std::arch::aarch64::float32x4_t, 8, 2>(rows, others) };
    #[cfg(not(target_arch = "aarch64"))]
    // SAFETY: arrays need no feature.
    unsafe {
        near_by::<[f32; 4], 4, 2>(rows, others)
    }
}

/// [`near`] by registers of type `V`, in parts of `Q` rows by `P` registers of others, whose sums
/// fit the registers.
///
/// # Safety
/// - The processor has the instructions of `V`.
#[inline(always)]
unsafe fn near_by<V: Lanes, const Q: usize, const P: usize>(
    rows: Panel<'_>,
    others: Panel<'_>,
) -> [u32; PANEL] {
    let mut sums = [[0f32; PANEL]; PANEL];
    for (rows, others) in rows.values.chunks(DIMS * PANEL).zip(others.values.chunks(DIMS * PANEL)) {
        // SAFETY: the caller's promise.
        unsafe { add_products::<V, Q, P>(rows, others, &mut sums) };
    }
    // SAFETY: the caller's promise.
    unsafe { near_by_products::<V, 0>(&sums, [], rows.limits, others.limits) }
}

/// Adds the products of some components. Loops are plain: without optimisation across crates,
/// iterators of several slices are not inlined here, which takes forty times as long.
///
/// # Safety
/// - The processor has the instructions of `V`.
#[inline(always)]
unsafe fn add_products<V: Lanes, const Q: usize, const P: usize>(
    rows: &[f32],
    others: &[f32],
    all: &mut PerPair,
) {
    let (rows, others) = (rows.as_chunks::<PANEL>().0, others.as_chunks::<PANEL>().0);
    for left in (0..PANEL).step_by(P * V::COUNT) {
        for first in (0..PANEL).step_by(Q) {
            // SAFETY: the caller's promise.
            unsafe {
                let mut sums = [[V::splat(0.0); P]; Q];
                for (row, other) in rows.iter().zip(others) {
                    let mut lanes = [V::splat(0.0); P];
                    for p in 0..P {
                        lanes[p] = V::load(&other[left + p * V::COUNT..]);
                    }
                    for q in 0..Q {
                        let value = V::splat(row[first + q]);
                        for p in 0..P {
                            sums[q][p] = value.mul_add(lanes[p], sums[q][p]);
                        }
                    }
                }
                for q in 0..Q {
                    for p in 0..P {
                        let all = &mut all[first + q][left + p * V::COUNT..];
                        V::load(all).add(sums[q][p]).store(all);
                    }
                }
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{__m256, __m512};

    use super::{PANEL, Panel, near_by};

    #[target_feature(enable = "avx512f")]
    pub(in super::super) fn avx512(rows: Panel<'_>, others: Panel<'_>) -> [u32; PANEL] {
        // SAFETY: the processor runs AVX-512F where this function may be called.
        unsafe { near_by::<__m512, 8, 2>(rows, others) }
    }

    #[target_feature(enable = "avx2,fma")]
    pub(in super::super) fn avx2(rows: Panel<'_>, others: Panel<'_>) -> [u32; PANEL] {
        // SAFETY: the processor runs AVX2 and FMA where this function may be called.
        unsafe { near_by::<__m256, 4, 2>(rows, others) }
    }
}

#[cfg(test)]
mod tests {
    use tagore_device::random::{Draws, Stage};

    use super::super::rounding;
    use super::*;

    /// Of pairs whose `h` is below a bound by more than all rounding, or above it, every
    /// instruction set agrees with the definition.
    #[test]
    fn every_instruction_set_finds_the_near_pairs() {
        for dim in [1, 2, 17, 128, 129, 1000] {
            let draws = Draws::new(3, Stage::Test, 3, dim as u64);
            let panel = |part: usize| -> Vec<f32> {
                let value = |i: usize| draws.unit((part * dim * PANEL + i) as u64) as f32 - 0.4;
                (0..dim * PANEL).map(value).collect()
            };
            let (rows, others) = (panel(0), panel(1));
            let terms: PerRow = std::array::from_fn(|row| row as f32 / 64.0);
            let bounds: PerRow = std::array::from_fn(|row| terms[row] - 0.1 * (dim as f32).sqrt());
            let limits = Limits { terms: &terms, bounds: &bounds };
            let a = Panel { values: &rows, limits };
            let none = Limits { bounds: &[f32::NEG_INFINITY; PANEL], ..limits };
            let b = Panel { values: &others, limits: none };
            let check = |what: &str, near: [u32; PANEL]| {
                for (i, j) in (0..PANEL).flat_map(|i| (0..PANEL).map(move |j| (i, j))) {
                    let term = |d: usize| f64::from(rows[d * PANEL + i]) * f64::from(others[d * PANEL + j]);
                    let h = f64::from(terms[i] + terms[j]) - (0..dim).map(term).sum::<f64>();
                    let left = f64::from(bounds[i]) - h;
                    if left.abs() > rounding(dim) * dim as f64 {
                        assert_eq!(near[i] >> j & 1 == 1, left > 0.0, "{what}, dim {dim}, {i}, {j}");
                    }
                }
            };
            check("here", near(a, b));
            // SAFETY: arrays need no feature.
            check("portable", unsafe { near_by::<[f32; 4], 4, 2>(a, b) });
            #[cfg(target_arch = "x86_64")]
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                // SAFETY: the processor has the features.
                check("AVX2", unsafe { x86::avx2(a, b) });
            }
        }
    }
}
