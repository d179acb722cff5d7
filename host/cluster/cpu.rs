//! Cells on the CPU: plain k-means, and the nearest centres of every vector.

use tagore_device::cluster::drawn;
use tagore_device::random::{Draws, Stage};

use super::sizes::{ROUNDS, SAMPLE_PER_CELL};
use crate::Result;
use crate::memory::filled;
use crate::parallel::for_each_row;
use crate::progress::{Progress, StageProgress};
use crate::vectors::distance::{SquaredL2, one_to_many};
use crate::vectors::{Matrix, Vectors};

/// Finds the two nearest of `clusters` centres for each vector, nearest first. K-means (Lloyd)
/// finds the centres on the sample that a device would draw. Vectors must be finite, and clusters
/// at least two and at most as many as vectors.
pub(crate) fn nearest_two(
    vectors: &Vectors,
    clusters: usize,
    seed: u64,
    progress: &Progress,
) -> Result<Vec<[u32; 2]>> {
    let n = vectors.len();
    let count = (clusters * SAMPLE_PER_CELL).min(n);
    let stage = progress.stage("cluster", (n + ROUNDS as usize * count) as u64);
    // The row at position `index` of the sample.
    let sample =
        |index: u32| drawn(Draws::new(seed, Stage::Cells, 0, index.into()), index, count as u32, n as u32);
    let copy = |row: usize, out: &mut [f32]| out.copy_from_slice(&vectors.host_row(row));
    let sampled = |index, out: &mut [f32]| copy(sample(index as u32) as usize, out);
    let nearest = |centres: &Centres| centres.nearest_two(count, sampled, &stage);
    let centres = Centres::find(vectors, clusters, CentreSample { count, row_of: sample }, seed, nearest)?;
    centres.nearest_two(n, copy, &stage)
}

/// The rows that centres are computed from.
pub(crate) struct CentreSample<R> {
    pub count: usize,
    /// The row at each position of the sample.
    pub row_of: R,
}

/// Centres of `dim` values each.
pub(crate) struct Centres {
    values: Vec<f32>,
    dim: usize,
}

impl Centres {
    /// Runs [`ROUNDS`] rounds of Lloyd's algorithm on a sample. `nearest` gives the two nearest
    /// centres of each sample vector.
    pub(crate) fn find(
        vectors: &Vectors,
        clusters: usize,
        sample: CentreSample<impl Fn(u32) -> u32>,
        seed: u64,
        mut nearest: impl FnMut(&Self) -> Result<Vec<[u32; 2]>>,
    ) -> Result<Self> {
        let CentreSample { count, row_of } = sample;
        let draws = |iteration, index: u32| Draws::new(seed, Stage::Cells, iteration, index.into());
        let mut centres = Self::none(vectors.dim());
        for cluster in 0..clusters as u32 {
            let first = drawn(draws(1, cluster), cluster, clusters as u32, count as u32);
            centres.push(&vectors.host_row(row_of(first) as usize));
        }
        for round in 1..=ROUNDS {
            let nearest = nearest(&centres)?;
            let empty = |cluster| row_of(draws(round + 1, cluster).below(0, count as u64) as u32);
            centres.set_means(vectors, &nearest, &row_of, empty);
        }
        Ok(centres)
    }

    /// An empty set of centres of `dim` components.
    pub(crate) fn none(dim: usize) -> Self {
        Self { values: Vec::new(), dim }
    }

    /// Centres of `dim` components each, one after another.
    pub(crate) fn from_values(values: Vec<f32>, dim: usize) -> Self {
        Self { values, dim }
    }

    /// The components of all centres, one centre after another.
    pub(crate) fn values(&self) -> &[f32] {
        &self.values
    }

    pub(crate) fn count(&self) -> usize {
        self.values.len() / self.dim
    }

    /// Centre `number`.
    pub(super) fn row(&self, number: usize) -> &[f32] {
        &self.values[number * self.dim..][..self.dim]
    }

    /// Adds a centre.
    pub(crate) fn push(&mut self, centre: &[f32]) {
        self.values.extend_from_slice(centre);
    }

    /// The squared L2 distances of `vector` to all centres.
    pub(crate) fn distances(&self, vector: &[f32]) -> Vec<f32> {
        let mut distances = vec![0.0; self.count()];
        let all: Vec<u32> = (0..self.count() as u32).collect();
        one_to_many::<SquaredL2, f32>(
            vector,
            Matrix::new(&self.values, self.dim, self.dim),
            &all,
            &mut distances,
        );
        distances
    }

    /// The two nearest centres of each of `count` vectors; ties by number. `write` writes the
    /// components of a vector.
    pub(crate) fn nearest_two(
        &self,
        count: usize,
        write: impl Fn(usize, &mut [f32]) + Sync,
        stage: &StageProgress<'_>,
    ) -> Result<Vec<[u32; 2]>> {
        let centres = Matrix::new(&self.values, self.dim, self.dim);
        let all: Vec<u32> = (0..self.count() as u32).collect();
        let mut nearest = filled([0; 2], count)?;
        for_each_row(
            &mut nearest,
            1,
            stage,
            || (vec![0.0; self.dim], vec![0.0; all.len()]),
            |(vector, distances), index, nearest| {
                write(index as usize, vector);
                one_to_many::<SquaredL2, f32>(vector, centres, &all, distances);
                nearest[0] = least_two(distances);
            },
        )?;
        Ok(nearest)
    }

    /// Moves each centre to the mean of the sample vectors nearest to it, or to the row `empty`
    /// gives if it has none. `row` maps a sample position to a row.
    pub(crate) fn set_means(
        &mut self,
        vectors: &Vectors,
        nearest: &[[u32; 2]],
        row: impl Fn(u32) -> u32,
        empty: impl Fn(u32) -> u32,
    ) {
        let mut sums = vec![0f64; self.values.len()];
        let mut counts = vec![0u32; self.count()];
        for (&[centre, _], index) in nearest.iter().zip(0..) {
            counts[centre as usize] += 1;
            let sums = &mut sums[centre as usize * self.dim..][..self.dim];
            let vector = vectors.host_row(row(index) as usize);
            sums.iter_mut().zip(vector.iter()).for_each(|(sum, &x)| *sum += f64::from(x));
        }
        let centres = self.values.chunks_exact_mut(self.dim).zip(sums.chunks_exact(self.dim));
        for ((cluster, &count), (centre, sums)) in (0..).zip(&counts).zip(centres) {
            if count == 0 {
                centre.copy_from_slice(&vectors.host_row(empty(cluster) as usize));
            } else {
                let mean = sums.iter().map(|sum| (sum / f64::from(count)) as f32);
                centre.iter_mut().zip(mean).for_each(|(x, mean)| *x = mean);
            }
        }
    }
}

/// Positions of the two smallest of at least two distances, smallest first; ties by position.
fn least_two(distances: &[f32]) -> [u32; 2] {
    let (mut least, mut second) = if distances[1] < distances[0] { (1, 0) } else { (0, 1) };
    for (place, &distance) in distances.iter().enumerate().skip(2) {
        if distance < distances[least] {
            (least, second) = (place, least);
        } else if distance < distances[second] {
            second = place;
        }
    }
    [least as u32, second as u32]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Synth;

    fn run(vectors: &Vectors, clusters: usize) -> Vec<[u32; 2]> {
        nearest_two(vectors, clusters, 3, &Progress::silent()).unwrap()
    }

    #[test]
    fn the_two_smallest_are_found() {
        let infinity = f32::INFINITY;
        for (distances, expected) in [
            (&[2.0, 1.0][..], [1, 0]),
            (&[1.0, 1.0, 1.0], [0, 1]),
            (&[3.0, 2.0, 1.0, 2.0], [2, 1]),
            (&[3.0, 1.0, 2.0], [1, 2]),
            (&[infinity, infinity, infinity], [0, 1]),
            (&[infinity, 5.0, infinity], [1, 0]),
        ] {
            assert_eq!(least_two(distances), expected, "{distances:?}");
        }
    }

    #[test]
    fn clumps_are_found_and_adjacent_clumps_overlap() {
        // Four clumps on a line, and a distant pair: the second centre of each is the nearest
        // clump.
        let places = [0.0, 10.0, 21.0, 33.0, 500.0, 503.0];
        let values: Vec<f32> = (0..600).map(|i| places[i / 100] + (i % 100) as f32 * 1e-3).collect();
        let found = run(&Vectors::from_f32(values, 1).unwrap(), 6);
        let beside = [1, 0, 1, 2, 5, 4];
        assert!(
            found.iter().enumerate().all(|(i, &pair)| pair == [(i / 100) as u32, beside[i / 100]]),
            "{found:?}"
        );
    }

    #[test]
    fn any_number_of_threads_and_any_type_gives_two_clusters() {
        let base = Synth::new(1000, 7, 1).unwrap().base();
        let found = run(&base, 30);
        let one = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
        assert_eq!(one.install(|| run(&base, 30)), found);
        for vectors in
            [base, Vectors::from_u8(vec![3; 50], 5).unwrap(), Vectors::from_i8(vec![-1, 1], 1).unwrap()]
        {
            let clusters = vectors.len().min(9);
            assert!(run(&vectors, clusters).iter().all(|&[a, b]| a != b && a.max(b) < clusters as u32));
        }
    }

    #[test]
    fn work_can_be_cancelled() {
        let progress = Progress::silent();
        progress.cancel();
        let base = Synth::new(100, 4, 0).unwrap().base();
        assert!(matches!(nearest_two(&base, 5, 0, &progress), Err(crate::Error::Cancelled)));
    }
}
