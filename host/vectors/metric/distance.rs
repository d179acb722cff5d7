//! Distances from one row to many, compiled once per instruction set.

use crate::memory::fetch;
use crate::vectors::{Element, Matrix};

/// A function of two rows.
pub(crate) trait Product {
    fn evaluate<T: Element>(a: &[T], b: &[T]) -> f32;
}

/// Squared L2 distance.
pub(crate) struct SquaredL2;

impl Product for SquaredL2 {
    #[inline(always)]
    fn evaluate<T: Element>(a: &[T], b: &[T]) -> f32 {
        T::squared_l2(a, b)
    }
}

/// Inner product.
pub(crate) struct Dot;

impl Product for Dot {
    #[inline(always)]
    fn evaluate<T: Element>(a: &[T], b: &[T]) -> f32 {
        T::dot(a, b)
    }
}

/// Computes `P` of `row` and each row `ids[i]` of `matrix` into `out[i]`.
///
/// All instruction sets give the same bytes (see [`Element`]); the best one is chosen at run time.
/// `row` and the matrix have the same dimension, `ids` and `out` the same length.
pub(crate) fn one_to_many<P: Product, T: Element>(
    row: &[T],
    matrix: Matrix<'_, T>,
    ids: &[u32],
    out: &mut [f32],
) {
    match InstructionSet::here() {
        // SAFETY: `here` found the features of the processor that the function is compiled for.
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx512 => unsafe { x86::avx512::<P, T>(row, matrix, ids, out) },
        // SAFETY: `here` found the features of the processor that the function is compiled for.
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx2 => unsafe { x86::avx2::<P, T>(row, matrix, ids, out) },
        InstructionSet::Portable => portable::<P, T>(row, matrix, ids, out),
    }
}

/// The instruction sets that loops are compiled for.
pub(in crate::vectors) enum InstructionSet {
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    Portable,
}

impl InstructionSet {
    /// The best instruction set of this processor; std caches the detection.
    #[inline]
    pub(in crate::vectors) fn here() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            let avx512 = is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512dq");
            if avx512 && is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("avx512vl") {
                return Self::Avx512;
            }
            if is_x86_feature_detected!("avx2") {
                return Self::Avx2;
            }
        }
        Self::Portable
    }
}

/// The instruction set for distances on this processor, such as `AVX2`.
pub fn instruction_set() -> &'static str {
    match InstructionSet::here() {
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx512 => "AVX-512",
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx2 => "AVX2",
        InstructionSet::Portable if cfg!(target_arch = "aarch64") => "NEON",
        InstructionSet::Portable => "baseline",
    }
}

/// Rows that are on their way to the cache while one is compared: 4 and 16 are slower.
const AHEAD: usize = 8;

/// The loop of all instruction sets. Rows are fetched ahead: they lie anywhere.
#[inline(always)]
fn portable<P: Product, T: Element>(row: &[T], matrix: Matrix<'_, T>, ids: &[u32], out: &mut [f32]) {
    for &id in &ids[..ids.len().min(AHEAD)] {
        fetch(matrix.row(id as usize));
    }
    for (place, (distance, &id)) in out.iter_mut().zip(ids).enumerate() {
        if let Some(&next) = ids.get(place + AHEAD) {
            fetch(matrix.row(next as usize));
        }
        *distance = P::evaluate(row, matrix.row(id as usize));
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Element, Matrix, Product, portable};

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    pub(in crate::vectors) fn avx512<P: Product, T: Element>(
        row: &[T],
        matrix: Matrix<'_, T>,
        ids: &[u32],
        out: &mut [f32],
    ) {
        portable::<P, T>(row, matrix, ids, out);
    }

    #[target_feature(enable = "avx2")]
    pub(in crate::vectors) fn avx2<P: Product, T: Element>(
        row: &[T],
        matrix: Matrix<'_, T>,
        ids: &[u32],
        out: &mut [f32],
    ) {
        portable::<P, T>(row, matrix, ids, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vectors::{Bits, Scalar};
    use half::f16;
    use tagore_device::random::{Draws, Stage};

    // The definition: sixteen sums, added as a tree, no product fused with a sum.
    fn reference(a: &[f32], b: &[f32], term: impl Fn(f32, f32) -> f32) -> f32 {
        let mut sums = vec![0f32; 16];
        for i in 0..a.len() {
            sums[i % 16] += term(a[i], b[i]);
        }
        while sums.len() > 1 {
            let half = sums.len() / 2;
            sums = (0..half).map(|i| sums[i] + sums[i + half]).collect();
        }
        sums[0]
    }

    fn check<T: Scalar>(convert: impl Fn(f32) -> T) {
        for dim in [1, 2, 3, 15, 16, 17, 31, 96, 97, 128, 960, 4096] {
            let draws = Draws::new(7, Stage::Test, 0, dim as u64);
            let values: Vec<T> =
                (0..5 * dim).map(|i| convert((draws.unit(i as u64) * 200.0 - 50.0) as f32)).collect();
            let matrix = Matrix::new(&values, dim, dim);
            let ids = [4, 0, 2, 2];
            let f32s = |row: usize| matrix.row(row).iter().map(|x| x.to_f32()).collect::<Vec<_>>();
            let mut found = [f32::NAN; 4];
            let expected = |found: &[f32], term: fn(f32, f32) -> f32, what: &str| {
                for (i, &id) in ids.iter().enumerate() {
                    let exact = reference(&f32s(1), &f32s(id as usize), term);
                    // Integers are summed exactly, but the reference rounds: equal as long as it is
                    // exact.
                    if exact < 16_777_216.0 || T::TYPE.size() > 1 {
                        assert_eq!(found[i].to_bits(), exact.to_bits(), "{what} {} dim {dim}", T::TYPE);
                    }
                }
            };
            for run in [one_to_many::<SquaredL2, T>, portable::<SquaredL2, T>] {
                run(matrix.row(1), matrix, &ids, &mut found);
                expected(&found, |x, y| (x - y) * (x - y), "l2");
            }
            for run in [one_to_many::<Dot, T>, portable::<Dot, T>] {
                run(matrix.row(1), matrix, &ids, &mut found);
                expected(&found, |x, y| x * y, "dot");
            }
        }
    }

    #[test]
    fn every_instruction_set_gives_the_defined_bytes() {
        check(|x| x);
        check(f16::from_f32);
        check(|x| x.clamp(0.0, 255.0) as u8);
        check(|x| x.clamp(-128.0, 127.0) as i8);
    }

    #[test]
    fn every_instruction_set_counts_bits() {
        for width in [1, 2, 7, 8, 9, 15, 16, 17, 63, 64, 65, 128, 4096] {
            let draws = Draws::new(8, Stage::Test, 0, width as u64);
            let values: Vec<Bits> = (0..5 * width).map(|i| Bits(draws.bits(i as u64) as u8)).collect();
            let matrix = Matrix::new(&values, width, width);
            let ids = [4, 0, 2, 1];
            let count = |id: u32, term: fn(u8, u8) -> u8| {
                let pairs = matrix.row(1).iter().zip(matrix.row(id as usize));
                pairs.map(|(x, y)| term(x.0, y.0).count_ones()).sum::<u32>() as f32
            };
            let mut found = [f32::NAN; 4];
            for run in [one_to_many::<SquaredL2, Bits>, portable::<SquaredL2, Bits>] {
                run(matrix.row(1), matrix, &ids, &mut found);
                assert_eq!(found, ids.map(|id| count(id, |x, y| x ^ y)), "{width} bytes");
            }
            for run in [one_to_many::<Dot, Bits>, portable::<Dot, Bits>] {
                run(matrix.row(1), matrix, &ids, &mut found);
                assert_eq!(found, ids.map(|id| count(id, |x, y| x & y)), "{width} bytes");
            }
        }
    }

    #[test]
    fn integer_sums_do_not_overflow() {
        let values = [vec![0u8; 4096], vec![255u8; 4096]].concat();
        let matrix = Matrix::new(&values, 4096, 4096);
        let mut out = [0.0; 2];
        one_to_many::<SquaredL2, u8>(matrix.row(0), matrix, &[0, 1], &mut out);
        assert_eq!(out, [0.0, (4096u32 * 255 * 255) as f32]);
        let values = [vec![-128i8; 4096], vec![127i8; 4096]].concat();
        let matrix = Matrix::new(&values, 4096, 4096);
        one_to_many::<SquaredL2, i8>(matrix.row(0), matrix, &[0, 1], &mut out);
        assert_eq!(out, [0.0, (4096u32 * 255 * 255) as f32]);
        one_to_many::<Dot, i8>(matrix.row(0), matrix, &[0, 1], &mut out);
        assert_eq!(out, [(4096 * 128 * 128) as f32, -(4096.0 * 128.0 * 127.0)]);
    }
}
