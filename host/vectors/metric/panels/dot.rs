//! Products of codes in bytes, of all pairs of rows of two panels.

use super::lanes::{Lack, Limits, near_by_products};
use super::{PANEL, PerPair, PerRow};

/// Four components of a row, the unit of the instructions.
pub(super) type Quad = [i8; 4];

/// One quad of each row of a panel.
pub(super) type Quads = [Quad; PANEL];

/// The instructions multiply an unsigned byte by a signed one: codes of the second panel are raised
/// by this number, and sums begin with what that adds.
const RAISED: i32 = 128;

/// Quads that are multiplied at a time: of two panels, these fit the first cache.
const QUADS: usize = 96;

/// Codes or rests of a panel.
#[derive(Clone, Copy)]
pub(super) struct Panel<'a> {
    pub quads: &'a [Quads],
    /// The sum of the components of each row.
    pub sums: &'a [i32; PANEL],
    pub scales: &'a PerRow,
}

/// An instruction set with products of bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum DotSet {
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// Slower than products of floats: for tests.
    #[cfg_attr(not(test), expect(dead_code, reason = "tests alone choose it"))]
    Portable,
}

impl DotSet {
    /// The best that this processor has, if any.
    pub fn here() -> Option<Self> {
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vnni") {
                return Some(Self::Avx512);
            }
            let has_avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
            if has_avx2 && is_x86_feature_detected!("avxvnni") {
                return Some(Self::Avx2);
            }
        }
        None
    }

    /// Adds the products of all pairs of rows, times the scales of both. Panels have the same
    /// number of quads, at most 1,024.
    pub fn add_products(self, rows: Panel<'_>, others: Panel<'_>, out: &mut PerPair) {
        match self {
            // SAFETY: `here`, which alone makes this value, found the features.
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => unsafe { x86::products512(rows, others, out) },
            // SAFETY: `here`, which alone makes this value, found the features.
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => unsafe { x86::products256(rows, others, out) },
            // SAFETY: arrays need no feature.
            Self::Portable => unsafe { products_by::<[i32; 8], 4, 2>(rows, others, out) },
        }
    }

    /// [`near_by_products`] on this processor.
    pub fn near<const N: usize>(
        self,
        products: &PerPair,
        lacks: [Lack<'_>; N],
        rows: Limits<'_>,
        others: Limits<'_>,
    ) -> [u32; PANEL] {
        match self {
            // SAFETY: `here`, which alone makes this value, found the features.
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => unsafe { x86::near512(products, lacks, rows, others) },
            // SAFETY: `here`, which alone makes this value, found the features.
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => unsafe { x86::near256(products, lacks, rows, others) },
            // SAFETY: arrays need no feature.
            Self::Portable => unsafe { near_by_products::<[f32; 4], N>(products, lacks, rows, others) },
        }
    }
}

/// Sums of one register. Functions need the instructions of the type.
trait Sums: Copy {
    const COUNT: usize;

    /// The first [`COUNT`](Self::COUNT) of `sums`.
    ///
    /// # Panics
    /// If there are fewer.
    ///
    /// # Safety
    /// - The processor has the instructions of this type. So for all functions.
    unsafe fn load(sums: &[i32]) -> Self;

    /// Adds the products of `Q` rows and of `P` registers of `others`, raised by [`RAISED`].
    ///
    /// # Panics
    /// If there are fewer rows or others.
    ///
    /// # Safety
    /// - As [`load`](Self::load).
    unsafe fn add_products<const Q: usize, const P: usize>(
        sums: &mut [[Self; P]; Q],
        rows: &[Quad],
        others: &[Quad],
    );

    /// Writes the first [`COUNT`](Self::COUNT) of `sums`.
    ///
    /// # Panics
    /// If there are fewer.
    ///
    /// # Safety
    /// - As [`load`](Self::load).
    unsafe fn store(self, sums: &mut [i32]);
}

/// [`DotSet::add_products`] by registers of type `S`, in parts of `Q` rows by `P` registers of
/// others, whose sums fit the registers. Loops are plain: iterators of several slices are not
/// inlined here without optimisation across crates. Sums are at most 4 * 1,024 * 255 * 128, which
/// 31 bits hold.
///
/// # Safety
/// - The processor has the instructions of `S`.
#[inline(always)]
unsafe fn products_by<S: Sums, const Q: usize, const P: usize>(
    rows: Panel<'_>,
    others: Panel<'_>,
    out: &mut PerPair,
) {
    let quads = rows.quads.len().min(others.quads.len());
    let mut all = [[0i32; PANEL]; PANEL];
    for (sums, sum) in all.iter_mut().zip(rows.sums) {
        *sums = [-RAISED * sum; PANEL];
    }
    for begin in (0..quads).step_by(QUADS) {
        for left in (0..PANEL).step_by(P * S::COUNT) {
            for first in (0..PANEL).step_by(Q) {
                // SAFETY: the caller's promise.
                unsafe {
                    let mut sums = [[S::load(&all[first][left..]); P]; Q];
                    for q in 0..Q {
                        for p in 0..P {
                            sums[q][p] = S::load(&all[first + q][left + p * S::COUNT..]);
                        }
                    }
                    for quad in begin..quads.min(begin + QUADS) {
                        S::add_products(&mut sums, &rows.quads[quad][first..], &others.quads[quad][left..]);
                    }
                    for q in 0..Q {
                        for p in 0..P {
                            sums[q][p].store(&mut all[first + q][left + p * S::COUNT..]);
                        }
                    }
                }
            }
        }
    }
    for row in 0..PANEL {
        for other in 0..PANEL {
            // One scale after the other: their product may be too small for a float.
            out[row][other] += all[row][other] as f32 * rows.scales[row] * others.scales[other];
        }
    }
}

impl<const W: usize> Sums for [i32; W] {
    const COUNT: usize = W;

    #[inline(always)]
    unsafe fn load(sums: &[i32]) -> Self {
        std::array::from_fn(|lane| sums[lane])
    }

    #[inline(always)]
    unsafe fn add_products<const Q: usize, const P: usize>(
        sums: &mut [[Self; P]; Q],
        rows: &[Quad],
        others: &[Quad],
    ) {
        for (sums, row) in sums.iter_mut().zip(rows) {
            for (sum, other) in sums.as_flattened_mut().iter_mut().zip(others) {
                let products = row.iter().zip(other).map(|(&x, &y)| i32::from(x) * (i32::from(y) + RAISED));
                *sum += products.sum::<i32>();
            }
        }
    }

    #[inline(always)]
    unsafe fn store(self, sums: &mut [i32]) {
        sums[..W].copy_from_slice(&self);
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{Lack, Limits, PANEL, Panel, PerPair, Quad, Sums, near_by_products, products_by};

    /// The bytes of a quad as one number.
    #[inline(always)]
    fn whole([a, b, c, d]: Quad) -> i32 {
        i32::from_ne_bytes([a as u8, b as u8, c as u8, d as u8])
    }

    /// The bits that raise the codes of a quad as unsigned bytes.
    const RAISE: i32 = i32::from_ne_bytes([0x80; 4]);

    /// [`Sums`] of a register by its instructions: load, store, one number in all lanes, exclusive
    /// or, and the products of bytes.
    macro_rules! sums {
        ($register:ty, $load:ident, $store:ident, $all:ident, $xor:ident, $dot:ident) => {
            impl Sums for $register {
                const COUNT: usize = size_of::<Self>() / size_of::<i32>();

                #[inline(always)]
                unsafe fn load(sums: &[i32]) -> Self {
                    let sums = &sums[..Self::COUNT];
                    // SAFETY: the caller's promise, and as many sums as the register holds.
                    unsafe { $load(sums.as_ptr().cast()) }
                }

                #[inline(always)]
                unsafe fn add_products<const Q: usize, const P: usize>(
                    sums: &mut [[Self; P]; Q],
                    rows: &[Quad],
                    others: &[Quad],
                ) {
                    let (rows, others) = (&rows[..Q], &others[..P * Self::COUNT]);
                    // SAFETY: the caller's promise, and as many quads as the registers hold.
                    unsafe {
                        let mut raised = [$all(0); P];
                        for p in 0..P {
                            let others = $load(others[p * Self::COUNT..].as_ptr().cast());
                            raised[p] = $xor(others, $all(RAISE));
                        }
                        for q in 0..Q {
                            let row = $all(whole(rows[q]));
                            for p in 0..P {
                                sums[q][p] = $dot(sums[q][p], raised[p], row);
                            }
                        }
                    }
                }

                #[inline(always)]
                unsafe fn store(self, sums: &mut [i32]) {
                    let sums = &mut sums[..Self::COUNT];
                    // SAFETY: the caller's promise, and as many sums as the register holds.
                    unsafe { $store(sums.as_mut_ptr().cast(), self) }
                }
            }
        };
    }

    sums!(
        __m512i,
        _mm512_loadu_si512,
        _mm512_storeu_si512,
        _mm512_set1_epi32,
        _mm512_xor_si512,
        _mm512_dpbusd_epi32
    );
    sums!(
        __m256i,
        _mm256_loadu_si256,
        _mm256_storeu_si256,
        _mm256_set1_epi32,
        _mm256_xor_si256,
        _mm256_dpbusd_avx_epi32
    );

    #[target_feature(enable = "avx512f,avx512vnni")]
    pub(super) fn products512(rows: Panel<'_>, others: Panel<'_>, out: &mut PerPair) {
        // SAFETY: the processor runs these instructions where this function may be called.
        unsafe { products_by::<__m512i, 8, 2>(rows, others, out) }
    }

    #[target_feature(enable = "avx2,fma,avxvnni")]
    pub(super) fn products256(rows: Panel<'_>, others: Panel<'_>, out: &mut PerPair) {
        // SAFETY: the processor runs these instructions where this function may be called.
        unsafe { products_by::<__m256i, 4, 2>(rows, others, out) }
    }

    #[target_feature(enable = "avx512f,avx512vnni")]
    pub(super) fn near512<const N: usize>(
        products: &PerPair,
        lacks: [Lack<'_>; N],
        rows: Limits<'_>,
        others: Limits<'_>,
    ) -> [u32; PANEL] {
        // SAFETY: the processor runs these instructions where this function may be called.
        unsafe { near_by_products::<__m512, N>(products, lacks, rows, others) }
    }

    #[target_feature(enable = "avx2,fma,avxvnni")]
    pub(super) fn near256<const N: usize>(
        products: &PerPair,
        lacks: [Lack<'_>; N],
        rows: Limits<'_>,
        others: Limits<'_>,
    ) -> [u32; PANEL] {
        // SAFETY: the processor runs these instructions where this function may be called.
        unsafe { near_by_products::<__m256, N>(products, lacks, rows, others) }
    }
}

#[cfg(test)]
mod tests {
    use tagore_device::random::{Draws, Stage};

    use super::*;

    #[test]
    fn every_instruction_set_sums_exactly() {
        for quads in [1, 3, 32, 1024] {
            let draws = Draws::new(5, Stage::Test, 0, quads as u64);
            let panel = |number: u64| -> Vec<Quads> {
                // The largest codes come often.
                let code = |at: u64| (draws.below(at, 900) as i32 - 450).clamp(-127, 127) as i8;
                let quad = |at: u64| std::array::from_fn(|i| code(at * 4 + i as u64));
                let quads = (0..quads as u64).map(|at| (number * quads as u64 + at) * PANEL as u64);
                quads.map(|at| std::array::from_fn(|row| quad(at + row as u64))).collect()
            };
            let panels = [0, 1, 2].map(panel);
            let row = |panel: usize, row: usize| panels[panel].iter().flat_map(move |quads| quads[row]);
            let sums = |panel| std::array::from_fn(|at| row(panel, at).map(i32::from).sum());
            let (first, second) = (sums(0), sums(1));
            let (one, two) = ([1.0; PANEL], [2.0; PANEL]);
            let side = |panel: usize, sums, scales| Panel { quads: &panels[panel], sums, scales };
            let product = |a: usize, i: usize, b: usize, j: usize| -> i32 {
                row(a, i).zip(row(b, j)).map(|(x, y)| i32::from(x) * i32::from(y)).sum()
            };
            for set in [Some(DotSet::Portable), DotSet::here()].into_iter().flatten() {
                let mut found = [[0.0; PANEL]; PANEL];
                set.add_products(side(0, &first, &two), side(1, &second, &two), &mut found);
                set.add_products(side(1, &second, &one), side(2, &second, &one), &mut found);
                for (i, j) in (0..PANEL).flat_map(|i| (0..PANEL).map(move |j| (i, j))) {
                    let [once, twice] = [product(0, i, 1, j) as f32 * 4.0, product(1, i, 2, j) as f32];
                    assert_eq!(found[i][j], once + twice, "{quads} quads, {i}, {j}");
                }
            }
        }
    }
}
