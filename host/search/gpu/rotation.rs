//! A rotation that spreads every direction over all components.
//!
//! Where few components vary much, as after a principal component analysis, one scale for all of
//! them leaves the others few of the values of a byte. Rotated vectors have the same distances and
//! inner products, and components that vary alike.
//!
//! ```text
//! twice: permute the components, change the signs of some
//!        multiply each 64 of them (the last ones overlap) by a Hadamard matrix
//! ```

use tagore_device::random::{Draws, Stage};

/// Components that a Hadamard matrix mixes. Two rounds mix 64 x 64, no fewer than most vectors have.
const BLOCK: usize = 64;

const ROUNDS: usize = 2;

/// A rotation of vectors of some dimension.
pub(super) struct Rotation {
    rounds: [Round; ROUNDS],
    /// Components of a block, a power of two.
    block: usize,
}

struct Round {
    /// For each component, where it comes from.
    from: Vec<u32>,
    /// 1 or -1 for each component.
    signs: Vec<f32>,
}

impl Rotation {
    /// The rotation of vectors of `dim` components, the same on every machine.
    pub(super) fn new(dim: usize) -> Self {
        let block = if dim < BLOCK { 1 << dim.max(1).ilog2() } else { BLOCK };
        Self { rounds: [0, 1].map(|round| Round::new(dim, round)), block }
    }

    /// Rotates `row`; `spare` is room for as many components.
    pub(super) fn apply(&self, row: &mut [f32], spare: &mut [f32]) {
        for Round { from, signs } in &self.rounds {
            spare.copy_from_slice(row);
            for ((x, &from), sign) in row.iter_mut().zip(from).zip(signs) {
                *x = spare[from as usize] * sign;
            }
            self.mix(row);
        }
    }

    /// Multiplies each block by a Hadamard matrix of orthonormal rows.
    fn mix(&self, row: &mut [f32]) {
        let norm = (self.block as f32).sqrt().recip();
        for first in (0..row.len()).step_by(self.block) {
            let first = first.min(row.len() - self.block);
            let block = &mut row[first..first + self.block];
            let mut half = 1;
            while half < block.len() {
                for pair in block.chunks_exact_mut(2 * half) {
                    let (low, high) = pair.split_at_mut(half);
                    low.iter_mut().zip(high).for_each(|(a, b)| (*a, *b) = (*a + *b, *a - *b));
                }
                half *= 2;
            }
            block.iter_mut().for_each(|x| *x *= norm);
        }
    }
}

impl Round {
    fn new(dim: usize, number: u32) -> Self {
        let draws = Draws::new(0, Stage::Rotate, number, 0);
        let mut from: Vec<u32> = (0..dim as u32).collect();
        for end in (1..dim).rev() {
            from.swap(end, draws.below(end as u64, end as u64 + 1) as usize);
        }
        let sign = |i: usize| if draws.below((dim + i) as u64, 2) == 0 { 1.0 } else { -1.0 };
        Self { from, signs: (0..dim).map(sign).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_stay_and_spikes_spread() {
        for dim in [1, 2, 3, 33, 64, 100, 282, 960, 4096] {
            let rotation = Rotation::new(dim);
            let mut spare = vec![0.0; dim];
            let rotated: Vec<Vec<f32>> = (0..dim.min(200))
                .map(|spike| {
                    let mut row = vec![0.0; dim];
                    row[spike] = 1.0;
                    rotation.apply(&mut row, &mut spare);
                    row
                })
                .collect();
            let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
            for (i, a) in rotated.iter().enumerate() {
                assert!((dot(a, a) - 1.0).abs() < 1e-5, "{dim}, {i}");
                assert!(rotated[..i].iter().all(|b| dot(a, b).abs() < 1e-5), "{dim}, {i}");
                let largest = a.iter().fold(0f32, |largest, x| largest.max(x.abs()));
                assert!(dim < 64 || largest < 0.45, "{dim}, {i}: {largest}");
            }
        }
    }
}
