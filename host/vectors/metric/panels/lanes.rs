//! Floats of a register, of any instruction set, and the comparison that ends every filter.

use super::{PANEL, PerPair, PerRow};

/// Two values per row of two panels whose product a filter adds to the product of their rows.
pub(super) type Lack<'a> = (&'a PerRow, &'a PerRow);

/// The terms of the rows of a panel, and the largest `h` of a pair that may enter their lists.
#[derive(Clone, Copy)]
pub(super) struct Limits<'a> {
    pub terms: &'a PerRow,
    pub bounds: &'a PerRow,
}

/// The pairs of [`Panels::near`](super::Panels::near) by the products of rows, to which `lacks` are
/// added.
///
/// # Safety
/// - The processor has the instructions of `V`.
#[inline(always)]
pub(super) unsafe fn near_by_products<V: Lanes, const N: usize>(
    products: &PerPair,
    lacks: [Lack<'_>; N],
    rows: Limits<'_>,
    others: Limits<'_>,
) -> [u32; PANEL] {
    let mut near = [0; PANEL];
    for row in 0..PANEL {
        for left in (0..PANEL).step_by(V::COUNT) {
            // SAFETY: the caller's promise.
            unsafe {
                let mut product = V::load(&products[row][left..]);
                for (of_row, of_others) in lacks {
                    product = V::splat(of_row[row]).mul_add(V::load(&of_others[left..]), product);
                }
                let (terms, bounds) = (V::load(&others.terms[left..]), V::load(&others.bounds[left..]));
                near[row] |= V::are_near(product, rows.terms[row], terms, rows.bounds[row], bounds) << left;
            }
        }
    }
    near
}

/// Floats of one register.
pub(super) trait Lanes: Copy {
    const COUNT: usize;

    /// # Safety
    /// - The processor has the instructions of this type. So for all functions.
    unsafe fn splat(value: f32) -> Self;

    /// The first [`COUNT`](Self::COUNT) of `values`.
    ///
    /// # Panics
    /// If there are fewer.
    ///
    /// # Safety
    /// - As [`splat`](Self::splat).
    unsafe fn load(values: &[f32]) -> Self;

    /// Writes the first [`COUNT`](Self::COUNT) of `values`.
    ///
    /// # Panics
    /// If there are fewer.
    ///
    /// # Safety
    /// - As [`splat`](Self::splat).
    unsafe fn store(self, values: &mut [f32]);

    /// `self * factor + sum`.
    ///
    /// # Safety
    /// - As [`splat`](Self::splat).
    unsafe fn mul_add(self, factor: Self, sum: Self) -> Self;

    /// `self + other`.
    ///
    /// # Safety
    /// - As [`splat`](Self::splat).
    unsafe fn add(self, other: Self) -> Self;

    /// Whether `(term + terms) - product` is at most either bound, a bit per lane.
    ///
    /// # Safety
    /// - As [`splat`](Self::splat).
    unsafe fn are_near(product: Self, term: f32, terms: Self, bound: f32, bounds: Self) -> u32;
}

impl<const W: usize> Lanes for [f32; W] {
    const COUNT: usize = W;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        [value; W]
    }

    #[inline(always)]
    unsafe fn load(values: &[f32]) -> Self {
        std::array::from_fn(|lane| values[lane])
    }

    #[inline(always)]
    unsafe fn store(self, values: &mut [f32]) {
        values[..W].copy_from_slice(&self);
    }

    #[inline(always)]
    unsafe fn mul_add(self, factor: Self, sum: Self) -> Self {
        // Without an instruction for it, `f32::mul_add` is a slow function of the C library.
        std::array::from_fn(|lane| self[lane] * factor[lane] + sum[lane])
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        std::array::from_fn(|lane| self[lane] + other[lane])
    }

    #[inline(always)]
    unsafe fn are_near(product: Self, term: f32, terms: Self, bound: f32, bounds: Self) -> u32 {
        (0..W).fold(0, |near, lane| {
            let h = (term + terms[lane]) - product[lane];
            near | u32::from((h <= bound) | (h <= bounds[lane])) << lane
        })
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::Lanes;

    impl Lanes for __m512 {
        const COUNT: usize = 16;

        #[inline(always)]
        unsafe fn splat(value: f32) -> Self {
            // SAFETY: the caller's promise.
            unsafe { _mm512_set1_ps(value) }
        }

        #[inline(always)]
        unsafe fn load(values: &[f32]) -> Self {
            let values = &values[..Self::COUNT];
            // SAFETY: the caller's promise, and as many values as the register holds.
            unsafe { _mm512_loadu_ps(values.as_ptr()) }
        }

        #[inline(always)]
        unsafe fn store(self, values: &mut [f32]) {
            let values = &mut values[..Self::COUNT];
            // SAFETY: the caller's promise, and as many values as the register holds.
            unsafe { _mm512_storeu_ps(values.as_mut_ptr(), self) }
        }

        #[inline(always)]
        unsafe fn mul_add(self, factor: Self, sum: Self) -> Self {
            // SAFETY: the caller's promise.
            unsafe { _mm512_fmadd_ps(self, factor, sum) }
        }

        #[inline(always)]
        unsafe fn add(self, other: Self) -> Self {
            // SAFETY: the caller's promise.
            unsafe { _mm512_add_ps(self, other) }
        }

        #[inline(always)]
        unsafe fn are_near(product: Self, term: f32, terms: Self, bound: f32, bounds: Self) -> u32 {
            // SAFETY: the caller's promise.
            unsafe {
                let h = _mm512_sub_ps(_mm512_add_ps(Self::splat(term), terms), product);
                let row = _mm512_cmp_ps_mask::<_CMP_LE_OQ>(h, Self::splat(bound));
                u32::from(row | _mm512_cmp_ps_mask::<_CMP_LE_OQ>(h, bounds))
            }
        }
    }

    impl Lanes for __m256 {
        const COUNT: usize = 8;

        #[inline(always)]
        unsafe fn splat(value: f32) -> Self {
            // SAFETY: the caller's promise.
            unsafe { _mm256_set1_ps(value) }
        }

        #[inline(always)]
        unsafe fn load(values: &[f32]) -> Self {
            let values = &values[..Self::COUNT];
            // SAFETY: the caller's promise, and as many values as the register holds.
            unsafe { _mm256_loadu_ps(values.as_ptr()) }
        }

        #[inline(always)]
        unsafe fn store(self, values: &mut [f32]) {
            let values = &mut values[..Self::COUNT];
            // SAFETY: the caller's promise, and as many values as the register holds.
            unsafe { _mm256_storeu_ps(values.as_mut_ptr(), self) }
        }

        #[inline(always)]
        unsafe fn mul_add(self, factor: Self, sum: Self) -> Self {
            // SAFETY: the caller's promise.
            unsafe { _mm256_fmadd_ps(self, factor, sum) }
        }

        #[inline(always)]
        unsafe fn add(self, other: Self) -> Self {
            // SAFETY: the caller's promise.
            unsafe { _mm256_add_ps(self, other) }
        }

        #[inline(always)]
        unsafe fn are_near(product: Self, term: f32, terms: Self, bound: f32, bounds: Self) -> u32 {
            // SAFETY: the caller's promise.
            unsafe {
                let h = _mm256_sub_ps(_mm256_add_ps(Self::splat(term), terms), product);
                let row = _mm256_cmp_ps::<_CMP_LE_OQ>(h, Self::splat(bound));
                _mm256_movemask_ps(_mm256_or_ps(row, _mm256_cmp_ps::<_CMP_LE_OQ>(h, bounds))) as u32
            }
        }
    }
}

#[cfg(target_arch = "aarch64")]
mod neon {
    use std::arch::aarch64::*;

    use super::Lanes;

    // Every processor of this architecture has NEON.
    impl Lanes for float32x4_t {
        const COUNT: usize = 4;

        #[inline(always)]
        unsafe fn splat(value: f32) -> Self {
            // SAFETY: the caller's promise.
            unsafe { vdupq_n_f32(value) }
        }

        #[inline(always)]
        unsafe fn load(values: &[f32]) -> Self {
            let values = &values[..Self::COUNT];
            // SAFETY: the caller's promise, and as many values as the register holds.
            unsafe { vld1q_f32(values.as_ptr()) }
        }

        #[inline(always)]
        unsafe fn store(self, values: &mut [f32]) {
            let values = &mut values[..Self::COUNT];
            // SAFETY: the caller's promise, and as many values as the register holds.
            unsafe { vst1q_f32(values.as_mut_ptr(), self) }
        }

        #[inline(always)]
        unsafe fn mul_add(self, factor: Self, sum: Self) -> Self {
            // SAFETY: the caller's promise.
            unsafe { vfmaq_f32(sum, self, factor) }
        }

        #[inline(always)]
        unsafe fn add(self, other: Self) -> Self {
            // SAFETY: the caller's promise.
            unsafe { vaddq_f32(self, other) }
        }

        #[inline(always)]
        unsafe fn are_near(product: Self, term: f32, terms: Self, bound: f32, bounds: Self) -> u32 {
            // SAFETY: the caller's promise, and as many bits as the register has lanes.
            unsafe {
                let h = vsubq_f32(vaddq_f32(Self::splat(term), terms), product);
                let near = vorrq_u32(vcleq_f32(h, Self::splat(bound)), vcleq_f32(h, bounds));
                vaddvq_u32(vandq_u32(near, vld1q_u32([1, 2, 4, 8].as_ptr())))
            }
        }
    }
}
