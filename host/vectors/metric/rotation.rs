//! A rotation that spreads the variance of vectors evenly over their components, so that one scale
//! suits all of them. Fast Hadamard transforms with random signs (Ailon and Chazelle 2006).
//!
//! A transform needs a power of two. For other dimensions the largest that fits is applied to the
//! middle, the first, the last and the middle components again.

use tagore_device::random::{Draws, Stage};
use tagore_device::vectors::code::first_of_transform;

/// Transforms, for dimensions that are no power of two.
const ROUNDS: usize = 4;

pub(crate) struct Rotation {
    /// Components of a transform.
    width: usize,
    /// For each transform the factor of each component that it takes: 1 or -1 over the square root
    /// of the width.
    factors: Vec<Vec<f32>>,
}

impl Rotation {
    /// A rotation of vectors of `dim` components.
    pub(crate) fn new(dim: usize) -> Self {
        let width = if dim.is_power_of_two() { dim } else { dim.next_power_of_two() / 2 };
        let rounds = if width == dim { 1 } else { ROUNDS };
        let factor = 1.0 / (width as f32).sqrt();
        let of_round = |round: usize| {
            let draws = Draws::new(0, Stage::Cells, round as u32, 0);
            let from = first(round, dim, width);
            let sign = |i: usize| if draws.below(i as u64, 2) == 0 { factor } else { -factor };
            (from..from + width).map(sign).collect()
        };
        Self { width, factors: (0..rounds).map(of_round).collect() }
    }

    /// What [`apply`](Self::apply) rounds, at most, as a share of the length of a vector: each of
    /// the steps of a transform, its products with factors, and the factors themselves.
    pub(crate) fn rounding(&self) -> f64 {
        let steps = self.factors.len() as u32 * (self.width.ilog2() + 2);
        f64::from(steps + 2) * f64::from(f32::EPSILON / 2.0)
    }

    /// Maximum number of factors of all transforms for `dim` components.
    pub(crate) fn factors(dim: usize) -> usize {
        ROUNDS * dim
    }

    /// The factors of all transforms, one transform after another, and the components of each.
    pub(crate) fn transforms(&self) -> (Vec<f32>, usize) {
        (self.factors.concat(), self.width)
    }

    /// Rotates `N` vectors, component by component: the processor takes several at a time, and each
    /// result is that of the vector alone.
    pub(crate) fn apply<const N: usize>(&self, vectors: &mut [[f32; N]]) {
        let dim = vectors.len();
        for (round, factors) in self.factors.iter().enumerate() {
            let from = first(round, dim, self.width);
            let vectors = &mut vectors[from..from + self.width];
            for (component, factor) in vectors.iter_mut().zip(factors) {
                component.iter_mut().for_each(|x| *x *= factor);
            }
            transform(vectors);
        }
    }
}

/// The first component of a transform.
fn first(number: usize, dim: usize, width: usize) -> usize {
    first_of_transform(number as u32, dim as u32, width as u32) as usize
}

/// The Hadamard transform, times the square root of the length.
fn transform<const N: usize>(values: &mut [[f32; N]]) {
    let mut half = 1;
    while half < values.len() {
        for pair in values.chunks_exact_mut(2 * half) {
            let (low, high) = pair.split_at_mut(half);
            for (low, high) in low.iter_mut().zip(high) {
                for (a, b) in low.iter_mut().zip(high) {
                    (*a, *b) = (*a + *b, *a - *b);
                }
            }
        }
        half *= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_stay_and_variance_spreads() {
        for dim in [1, 2, 3, 7, 64, 96, 100, 960, 1025] {
            let rotation = Rotation::new(dim);
            let square = |x: &[[f32; 1]]| x.iter().map(|[x]| f64::from(x * x)).sum::<f64>();
            let draws = Draws::new(1, Stage::Test, 0, dim as u64);
            let random: Vec<_> = (0..dim as u64).map(|i| [draws.below(i, 1000) as f32 - 300.0]).collect();
            let mut rotated = random.clone();
            rotation.apply(&mut rotated);
            let mut several: Vec<[f32; 8]> =
                random.iter().map(|[x]| [*x, 1.0, -x, 0.0, *x, 3.0, 2.0, *x]).collect();
            rotation.apply(&mut several);
            assert!(several.iter().zip(&rotated).all(|(several, [x])| [several[0], several[7]] == [*x, *x]));
            approx::assert_relative_eq!(square(&rotated), square(&random), max_relative = 1e-5);
            // A single component that differs becomes many.
            for place in [0, dim / 2, dim - 1] {
                let mut spike = vec![[0.0]; dim];
                spike[place] = [1.0];
                rotation.apply(&mut spike);
                let largest = spike.iter().fold(0f32, |largest, [x]| largest.max(x.abs()));
                assert!(dim < 64 || largest < 0.5, "{largest} of dimension {dim}");
            }
        }
    }
}
