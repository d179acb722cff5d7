//! Queries that do not look like the rows of their data set.

use tagore_device::random::{Draws, Stage};

use super::kind::QueryKind;
use super::lanes::gaussians;
use super::rows::{Generator, Mixture, Scratch, Table, add, scale, sum_of_squares, uses};

/// Shares of the matrix of the rows, and of another, in that of a second tower.
const TOWER_SHARES: [f32; 2] = [0.8, 0.6];

/// A second tower has one centre in this many of those of the rows.
const CENTRES_PER_TOWER: u64 = 10;

/// The length of the shift of a second tower, over that of a row.
const TOWER_SHIFT: f64 = 2.0;

/// The length of shifted queries over that of rows, without the shift.
const SHIFTED: f64 = 1.5;

/// Deviation of a sum's noise, relative to the root mean square of the sum.
const SUM_NOISE: f64 = 0.1;

impl Generator {
    /// Makes the tables that queries of this kind need.
    pub(super) fn prepare(&mut self, queries: QueryKind) {
        self.queries = queries;
        let (dim, seed) = (self.dim, self.seed);
        let Table::Mixture(Mixture { rank, mixing, tower, .. }) = &mut self.table else { return };
        if queries != QueryKind::Tower || !tower[0].is_empty() {
            return;
        }
        let normal = |iteration: u32, count: usize| {
            let mut values = vec![0.0; count];
            gaussians(&Draws::new(seed, Stage::Synth, iteration, 0), &mut values);
            values
        };
        let other = normal(uses::TOWER_MIXING, mixing.len());
        let [own_share, other_share] = TOWER_SHARES;
        let map = mixing.iter().zip(&other).map(|(own, other)| own_share * own + other_share * other);
        let mut shift = normal(uses::TOWER_SHIFT, dim);
        scale(&mut shift, TOWER_SHIFT * libm::sqrt(2.0 * *rank as f64));
        *tower = [map.collect(), shift];
    }

    /// Generates query `index` of a second tower.
    pub(super) fn tower(&self, index: u64, table: &Mixture, row: &mut [f32], scratch: &mut Scratch) {
        let Mixture { rank, centres, tower: [map, shift], .. } = table;
        let count = ((centres.len() / rank) as u64).div_ceil(CENTRES_PER_TOWER);
        let centre = self.draws(uses::TOWER_CHOICE, index).below(0, count) as usize;
        self.mapped(index, map, &centres[centre * rank..], row, scratch);
        add(row, shift, 1.0);
    }

    /// Generates query `index` off the range of the data set.
    pub(super) fn shifted(&self, index: u64, row: &mut [f32], scratch: &mut Scratch) {
        let shift = self.draws(uses::SHIFT, 0).below(0, self.n as u64);
        // Taken out of the scratch, which generating the two rows needs.
        let mut moved = std::mem::take(&mut scratch.sum);
        self.same(shift, &mut moved, scratch);
        self.same(index, row, scratch);
        scale(row, SHIFTED);
        add(row, &moved, 1.0);
        scratch.sum = moved;
    }

    /// Generates query `index` as the noisy sum of two rows of the data set.
    pub(super) fn sum(&self, index: u64, row: &mut [f32], scratch: &mut Scratch) {
        let draws = self.draws(uses::SUMMANDS, index);
        let [first, second] = [0, 1].map(|draw| draws.below(draw, self.n as u64));
        // Taken out of the scratch, which generating the two rows needs.
        let mut sum = std::mem::take(&mut scratch.sum);
        self.same(first, &mut sum, scratch);
        self.same(second, row, scratch);
        for (x, y) in row.iter_mut().zip(&sum) {
            *x += y;
        }
        let deviation = SUM_NOISE * libm::sqrt(sum_of_squares(row) / self.dim as f64);
        gaussians(&self.draws(uses::SUM_NOISE, index), &mut sum);
        for (x, noise) in row.iter_mut().zip(&sum) {
            *x += (deviation * f64::from(*noise)) as f32;
        }
        scratch.sum = sum;
    }
}
