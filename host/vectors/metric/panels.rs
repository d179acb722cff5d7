//! Panels of rows, and the pairs of their rows that may be near: a filter before exact distances.
//!
//! With the product `p` of two rows, half of their squared L2 distance is `|x|²/2 + |y|²/2 - p`,
//! and minus their inner product is `-p`. So every list distance is `h = term(x) + term(y) - p`, up
//! to a factor. Products are chains of multiply-adds, fused where the processor can: they are fast,
//! and their last bits depend on the instruction set. Each term is therefore lowered by more than
//! all rounding, and `h` is never above the exact value.

use rayon::prelude::*;

use super::lanes::Lanes;
use crate::gpu::MemoryPlan;
use crate::memory::{filled, zeros};
use crate::vectors::bits::BitPanels;
use crate::vectors::space::{Query, Space};
use crate::vectors::{Metric, TypedRows};
use crate::{DataShape, ElementType, Progress, Result};

/// Rows of a panel. A panel holds the first component of all of its rows, then the second, and so
/// on: `dim * PANEL` values.
pub(crate) const PANEL: usize = 32;

/// Components that are multiplied at a time: of two panels, these fit the first cache.
const DIMS: usize = 128;

/// One value per row of a panel.
pub(crate) type PerRow = [f32; PANEL];

/// All rows of a space.
pub(crate) enum Panels<'a> {
    Floats(FloatPanels),
    /// Rows of bits, whose exact distances take less time than a filter.
    Bits(BitPanels<'a>),
}

impl<'a> Panels<'a> {
    /// Memory beside the rows.
    pub(crate) fn plan(data: &DataShape) -> MemoryPlan {
        if data.element == ElementType::B1 {
            return MemoryPlan::new();
        }
        let rows = data.rows.next_multiple_of(PANEL);
        MemoryPlan::new().with::<f32>("panels", rows * data.dim).with::<f32>("terms", rows)
    }

    /// The panels of `space`.
    ///
    /// # Errors
    /// If the work is cancelled.
    pub(crate) fn new(space: &'a Space<'_>, progress: &Progress) -> Result<Self> {
        match space.rows() {
            TypedRows::B1(rows) => Ok(Self::Bits(BitPanels { rows, count: space.len() })),
            _ => {
                let row = |row| space.query(row as u32);
                let panels = PanelForm::new(space, progress)?.panels(space.len(), row, progress)?;
                Ok(Self::Floats(panels))
            }
        }
    }

    /// The `h` of a list distance.
    pub(crate) fn bound(&self, distance: f32) -> f32 {
        match self {
            Self::Floats(panels) => panels.bound(distance),
            Self::Bits(_) => distance,
        }
    }

    /// The pairs of rows of two panels with an `h` of at most the bound of either row. Bit `j` of
    /// element `i` stands for row `i` of the first and row `j` of the second.
    pub(crate) fn near(
        &self,
        first: usize,
        bounds: &PerRow,
        second: usize,
        other_bounds: &PerRow,
    ) -> [u32; PANEL] {
        match self {
            Self::Floats(panels) => near(panels.side(first, bounds), panels.side(second, other_bounds)),
            Self::Bits(panels) => panels.near(first, bounds, second, other_bounds),
        }
    }
}

/// How rows of a space become panels: under L2 and cosine minus its mean, since products of long
/// rows would round more than the distances between them.
pub(crate) struct PanelForm {
    metric: Metric,
    mean: Vec<f32>,
}

impl PanelForm {
    /// The form of rows of `space`.
    ///
    /// # Errors
    /// If the work is cancelled.
    pub(crate) fn new(space: &Space<'_>, progress: &Progress) -> Result<Self> {
        let metric = space.metric();
        let mean = match metric {
            Metric::InnerProduct => vec![0.0; space.dim()],
            _ => space.mean(progress)?.into_iter().map(|mean| mean as f32).collect(),
        };
        Ok(Self { metric, mean })
    }

    /// The panels of `count` rows.
    ///
    /// # Errors
    /// If memory is short, or the work is cancelled.
    pub(crate) fn panels<'q>(
        &self,
        count: usize,
        row: impl Fn(usize) -> Query<'q> + Sync,
        progress: &Progress,
    ) -> Result<FloatPanels> {
        let dim = self.mean.len();
        let is_product = self.metric == Metric::InnerProduct;
        let mut values: Vec<f32> = zeros(count.div_ceil(PANEL) * PANEL * dim)?;
        let mut terms = filled([f32::INFINITY; PANEL], count.div_ceil(PANEL))?;
        let all = values.par_chunks_exact_mut(dim * PANEL).zip(&mut terms).enumerate();
        all.try_for_each_init(Vec::new, |components, (panel, (values, terms))| {
            progress.check()?;
            for (place, (number, term)) in (panel * PANEL..count).zip(terms).enumerate() {
                row(number).widen(components);
                let mut square = 0.0;
                let columns = values.as_chunks_mut::<PANEL>().0.iter_mut();
                for ((column, &[component]), mean) in columns.zip(&*components).zip(&self.mean) {
                    let value = component - mean;
                    column[place] = value;
                    square += f64::from(value).powi(2);
                }
                let half = 0.5 * square;
                let exact = if is_product { 0.0 } else { half };
                *term = (exact - half * rounding(dim)) as f32 - f32::MIN_POSITIVE;
            }
            Ok(())
        })?;
        let scale = if self.metric == Metric::L2 { 0.5 } else { 1.0 };
        Ok(FloatPanels { dim, scale, values, terms })
    }
}

/// Rows as panels of f32 values.
pub(crate) struct FloatPanels {
    dim: usize,
    /// Factor that turns a list distance into `h`.
    scale: f32,
    values: Vec<f32>,
    /// The term of each row; infinite for the rows that fill up the last panel.
    terms: Vec<PerRow>,
}

impl FloatPanels {
    /// The `h` of a list distance.
    pub(crate) fn bound(&self, distance: f32) -> f32 {
        self.scale * distance
    }

    /// The pairs of rows of panel `panel`, and of panel `other` of `others`, with an `h` of at most
    /// the bound of either row, as in [`Panels::near`].
    pub(crate) fn near(
        &self,
        panel: usize,
        bounds: &PerRow,
        others: &Self,
        other: usize,
        other_bounds: &PerRow,
    ) -> [u32; PANEL] {
        near(self.side(panel, bounds), others.side(other, other_bounds))
    }

    fn panel(&self, panel: usize) -> &[f32] {
        &self.values[panel * self.dim * PANEL..][..self.dim * PANEL]
    }

    fn side<'a>(&'a self, panel: usize, bounds: &'a PerRow) -> Side<'a> {
        Side { values: self.panel(panel), terms: &self.terms[panel], bounds }
    }
}

/// The rounding of `h` and of the exact distance, as a share of `(|x|² + |y|²) / 2`, for rows of
/// `dim` components. In units of 2^-24: `dim` of the product, at most `dim / 8 + 14` of the
/// distance with its sixteen sums, and 12 of differences from the mean, of terms and of `h`.
fn rounding(dim: usize) -> f64 {
    (2 * dim + 32) as f64 * f64::from(f32::EPSILON / 2.0)
}

/// A panel of a comparison.
#[derive(Clone, Copy)]
struct Side<'a> {
    values: &'a [f32],
    terms: &'a PerRow,
    bounds: &'a PerRow,
}

/// The bits of [`Panels::near`].
fn near(rows: Side<'_>, others: Side<'_>) -> [u32; PANEL] {
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

/// The sums of all pairs of rows so far.
type Sums = [PerRow; PANEL];

/// [`near`] by registers of type `V`, in parts of `Q` rows by `P` registers of others, whose sums
/// fit the registers.
///
/// # Safety
/// - The processor has the instructions of `V`.
#[inline(always)]
unsafe fn near_by<V: Lanes, const Q: usize, const P: usize>(
    rows: Side<'_>,
    others: Side<'_>,
) -> [u32; PANEL] {
    let mut sums = [[0f32; PANEL]; PANEL];
    for (rows, others) in rows.values.chunks(DIMS * PANEL).zip(others.values.chunks(DIMS * PANEL)) {
        // SAFETY: the caller's promise.
        unsafe { add_products::<V, Q, P>(rows, others, &mut sums) };
    }
    let mut near = [0; PANEL];
    for row in 0..PANEL {
        for left in (0..PANEL).step_by(V::COUNT) {
            // SAFETY: the caller's promise.
            unsafe {
                let terms = V::load(&others.terms[left..]);
                let bounds = V::load(&others.bounds[left..]);
                let products = V::load(&sums[row][left..]);
                near[row] |= V::are_near(products, rows.terms[row], terms, rows.bounds[row], bounds) << left;
            }
        }
    }
    near
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
    all: &mut Sums,
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

    use super::{PANEL, Side, near_by};

    #[target_feature(enable = "avx512f")]
    pub(in crate::vectors) fn avx512(rows: Side<'_>, others: Side<'_>) -> [u32; PANEL] {
        // SAFETY: the processor runs AVX-512F where this function may be called.
        unsafe { near_by::<__m512, 8, 2>(rows, others) }
    }

    #[target_feature(enable = "avx2,fma")]
    pub(in crate::vectors) fn avx2(rows: Side<'_>, others: Side<'_>) -> [u32; PANEL] {
        // SAFETY: the processor runs AVX2 and FMA where this function may be called.
        unsafe { near_by::<__m256, 4, 2>(rows, others) }
    }
}

#[cfg(test)]
mod tests {
    use tagore_device::random::{Draws, Stage};

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
            let a = Side { values: &rows, terms: &terms, bounds: &bounds };
            let b = Side { values: &others, bounds: &[f32::NEG_INFINITY; PANEL], ..a };
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
