//! Distances by octaves, which show dense spots and lone rows.

use crate::loops::{filter, fold, rows};

/// Octaves of the distances of f32.
const OCTAVES_OF_F32: usize = 256;

/// A spot's rows have radii this many octaves smaller than the rows outside: their squares differ
/// by a factor of 2 to this power at least, with none between.
pub(super) const GAP: usize = 7;

/// A lone row has a radius this many octaves larger than the median.
const LONE: usize = 5;

/// Maximum number of lone rows. More are the tail of a distribution, and are left to the graph.
const MAX_LONE: usize = 8192;

/// Minimum number of rows outside all spots: a few lone rows do not make a spot of all others.
pub(super) const MIN_OUTSIDE: usize = 64;

/// Distances counted at a time.
const AT_A_TIME: usize = 1 << 16;

/// The octave of a distance; equal distances are in one.
fn octave(distance: f32) -> usize {
    ((distance.max(0.0).to_bits() >> 23) as usize).min(OCTAVES_OF_F32 - 1)
}

/// Rows by the octave of their radii: the distances of a neighbour of each at one rank.
pub(super) struct Octaves([usize; OCTAVES_OF_F32]);

impl Octaves {
    /// No rows.
    pub(super) fn none() -> Self {
        Self([0; OCTAVES_OF_F32])
    }

    /// Counts the rows with these radii.
    pub(super) fn count(radii: &[f32]) -> Self {
        let count = |mut counts: Self, radii: &[f32]| {
            radii.iter().for_each(|&distance| counts.0[octave(distance)] += 1);
            counts
        };
        fold(rows(radii, AT_A_TIME), Self::none, count, Self::and)
    }

    /// The rows of both.
    pub(super) fn and(mut self, other: Self) -> Self {
        self.0.iter_mut().zip(other.0).for_each(|(a, b)| *a += b);
        self
    }

    /// The largest [bound](Self::bounds), if at least one row in `few` is below.
    pub(super) fn bound_of_few(&self, few: usize) -> Option<f32> {
        let bound = self.bound()?;
        let below: usize = self.0[..octave(bound)].iter().sum();
        (below * few >= self.0.iter().sum()).then_some(bound)
    }

    /// The distances below which radii may be those of rows in spots, largest first: those below
    /// the gaps.
    pub(super) fn bounds(&self) -> Vec<f32> {
        let (mut bounds, mut above, mut empty) = (Vec::new(), 0, 0);
        for (octave, &rows) in self.0.iter().enumerate().rev() {
            if rows == 0 {
                empty += 1;
                continue;
            }
            if above >= MIN_OUTSIDE && empty >= GAP {
                bounds.push(f32::from_bits((octave as u32 + 1) << 23));
            }
            (above, empty) = (above + rows, 0);
        }
        bounds
    }

    /// The largest of these [`bounds`](Self::bounds); none if there are no spots.
    pub(super) fn bound(&self) -> Option<f32> {
        self.bounds().first().copied()
    }

    /// The first octave of lone rows; none without lone rows, or with more than [`MAX_LONE`].
    fn lone(&self) -> Option<usize> {
        let rows: usize = self.0.iter().sum();
        let mut below = 0;
        let median = self.0.iter().position(|&rows_here| {
            below += rows_here;
            2 * below >= rows
        });
        let first = median? + LONE;
        let lone: usize = self.0.get(first..)?.iter().sum();
        (1..=MAX_LONE).contains(&lone).then_some(first)
    }

    /// The lone rows among those with these `radii`, which were counted.
    pub(super) fn lone_of(&self, radii: &[f32]) -> Vec<u32> {
        self.lone().map_or(Vec::new(), |first| {
            filter(0..radii.len() as u32, |&row| octave(radii[row as usize]) >= first)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spots_lie_below_a_gap_of_distances() {
        let lists = |parts: &[(usize, f32)]| -> Octaves {
            Octaves::count(
                &parts.iter().flat_map(|&(rows, distance)| vec![distance; rows]).collect::<Vec<_>>(),
            )
        };
        let bound = |octaves: Octaves| octaves.bound();
        assert_eq!(bound(lists(&[(100, 1.0), (100, 4.0), (100, 100.0)])), None);
        assert_eq!(bound(lists(&[(100, 1.0), (100, 0.001)])), Some(2f32.powi(-9)));
        assert_eq!(bound(lists(&[(100, 1.0), (40, 0.0)])), Some(2f32.powi(-126)));
        // Too few rows outside, but for a second gap.
        assert_eq!(bound(lists(&[(10, 1e6), (1000, 1.0)])), None);
        assert_eq!(bound(lists(&[(10, 1e6), (1000, 1.0), (90, 1e-6)])), Some(2f32.powi(-19)));
        let two = lists(&[(100, 1e6), (1000, 1.0), (90, 1e-6)]);
        assert_eq!(two.bounds(), [2.0, 2f32.powi(-19)]);
    }

    #[test]
    fn lone_rows_have_radii_far_larger_than_the_median() {
        let lone = |parts: &[(usize, f32)]| {
            let radii: Vec<f32> = parts.iter().flat_map(|&(rows, distance)| vec![distance; rows]).collect();
            Octaves::count(&radii).lone()
        };
        assert_eq!(lone(&[(100, 1.0), (10, 20.0)]), None);
        assert_eq!(lone(&[(100, 1.0), (10, 40.0)]), Some(octave(32.0)));
        assert_eq!(lone(&[(100_000, 1.0), (10_000, 40.0)]), None);
        assert_eq!(lone(&[(100, 0.0)]), None);
    }
}
