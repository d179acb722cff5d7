//! Rows of a synthetic data set, each generated from its number alone.

use tagore_device::random::{Draws, Stage};

use super::fault::Faults;
use super::kind::{QueryKind, SynthKind};
use super::lanes::{add_multiples, gaussians};

/// Rank of a mixture, in any dimension.
pub(super) const RANK: usize = 24;

/// Deviation of a mixture's noise per component.
const NOISE: f32 = 0.02;

/// Deviation of a cluster per component.
const SIGMA: f32 = 0.2;

/// Deviation of the logarithm of a norm.
const LOG_SIGMA: f64 = 0.4;

/// The `iteration` argument of [`Draws::new`] by use. The numbers are part of every data set.
pub(super) mod uses {
    pub const MIXING: u32 = 0;
    pub const CENTRE: u32 = 1;
    pub const CHOICE: u32 = 2;
    pub const OFFSET: u32 = 3;
    pub const NOISE: u32 = 4;
    pub const CLUSTER_CENTRE: u32 = 5;
    pub const CLUSTER_CHOICE: u32 = 6;
    pub const CLUSTER_OFFSET: u32 = 7;
    pub const UNIFORM: u32 = 8;
    pub const DIRECTION: u32 = 9;
    pub const NORM: u32 = 10;
    pub const SUMMANDS: u32 = 11;
    pub const SUM_NOISE: u32 = 12;
    pub const FAULT: u32 = 13;
    pub const FAULT_SHIFT: u32 = 14;
    pub const FAULT_OFFSET: u32 = 15;
    pub const FAULT_QUERY: u32 = 16;
    pub const TOWER_MIXING: u32 = 17;
    pub const TOWER_SHIFT: u32 = 18;
    pub const TOWER_CHOICE: u32 = 19;
    pub const SHIFT: u32 = 20;
}

/// Generates rows from the arguments and tables of a data set.
#[derive(Clone, Debug)]
pub(super) struct Generator {
    pub n: usize,
    pub dim: usize,
    pub seed: u64,
    pub kind: SynthKind,
    pub queries: QueryKind,
    pub table: Table,
    /// The rows with a fault.
    pub faults: Option<Faults>,
}

/// Tables shared by all rows of a kind.
#[derive(Clone, Debug)]
pub(super) enum Table {
    /// No table.
    None,
    Mixture(Mixture),
    /// Row i repeats distinct row `(i * stride % n) / copies`; `stride` and n are coprime.
    Repeated {
        copies: u64,
        stride: u64,
    },
}

/// A mixture's centres, and the map from its `rank` variables to components.
#[derive(Clone, Debug)]
pub(super) struct Mixture {
    pub rank: usize,
    /// `rank` rows of `dim` values.
    pub mixing: Vec<f32>,
    /// `rank` values per centre.
    pub centres: Vec<f32>,
    /// The map of a second tower, and its shift of `dim` values; empty unless queries are its rows.
    pub tower: [Vec<f32>; 2],
}

/// Buffers for generating one row.
pub(super) struct Scratch {
    z: Vec<f32>,
    pub noise: Vec<f32>,
    pub sum: Vec<f32>,
    pub centre: Vec<f32>,
}

impl Table {
    /// Generates the tables of `kind` for `n` rows of `dim` components.
    pub(super) fn new(kind: SynthKind, n: usize, dim: usize, seed: u64) -> Self {
        match kind {
            SynthKind::Mixture | SynthKind::Dirty { .. } => {
                let rank = dim.min(RANK);
                let count = (libm::sqrt(n as f64).round() as usize).max(1);
                let table = |iteration: u32, rows: usize, width: usize| {
                    let mut values = vec![0.0; rows * width];
                    for (row, values) in values.chunks_exact_mut(width).enumerate() {
                        gaussians(&Draws::new(seed, Stage::Synth, iteration, row as u64), values);
                    }
                    values
                };
                let (mixing, centres) = (table(uses::MIXING, rank, dim), table(uses::CENTRE, count, rank));
                Self::Mixture(Mixture { rank, mixing, centres, tower: Default::default() })
            }
            SynthKind::Repeated { copies } => {
                Self::Repeated { copies: copies as u64, stride: stride(n as u64) }
            }
            SynthKind::Clusters { .. } | SynthKind::Uniform | SynthKind::Lognormal => Self::None,
        }
    }
}

impl Generator {
    /// Buffers for [`row`](Self::row).
    pub(super) fn scratch(&self) -> Scratch {
        let buffer = || vec![0.0; self.dim];
        Scratch { z: vec![0.0; self.dim.min(RANK)], noise: buffer(), sum: buffer(), centre: buffer() }
    }

    /// Generates row `index`: a row of the data set below `n`, a query from there on.
    pub(super) fn row(&self, index: u64, row: &mut [f32], scratch: &mut Scratch) {
        match self.queries {
            QueryKind::Sums if index >= self.n as u64 => self.sum(index, row, scratch),
            QueryKind::Dirty if index >= self.n as u64 => {
                let first = self.draws(uses::FAULT_QUERY, index).below(0, self.n as u64);
                let faulty = self.faults.as_ref().map_or(first, |faults| faults.next(first));
                self.same(faulty, row, scratch);
            }
            QueryKind::Tower if index >= self.n as u64 => match &self.table {
                Table::Mixture(table) => self.tower(index, table, row, scratch),
                Table::None | Table::Repeated { .. } => self.same(index, row, scratch),
            },
            QueryKind::Shifted if index >= self.n as u64 => self.shifted(index, row, scratch),
            _ => self.same(index, row, scratch),
        }
    }

    pub(super) fn draws(&self, iteration: u32, index: u64) -> Draws {
        Draws::new(self.seed, Stage::Synth, iteration, index)
    }

    /// Generates row `index` of the data set's distribution.
    pub(super) fn same(&self, index: u64, row: &mut [f32], scratch: &mut Scratch) {
        match (&self.table, self.kind) {
            (Table::Mixture(table), _) => match self.faults.as_ref().and_then(|faults| faults.row(index)) {
                None => self.mixture(index, table, row, scratch),
                Some(faulty) => self.faulty(faulty, table, row, scratch),
            },
            (&Table::Repeated { copies, stride }, _) => {
                let n = self.n as u64;
                // Both factors are below 2^32.
                let distinct = if index < n { (index * stride % n) / copies } else { index };
                self.uniform(distinct, row);
            }
            (Table::None, SynthKind::Clusters { clusters }) => self.cluster(index, clusters, row, scratch),
            (Table::None, SynthKind::Lognormal) => self.lognormal(index, row),
            (Table::None, _) => self.uniform(index, row),
        }
    }

    /// Generates row `index` of a mixture.
    pub(super) fn mixture(
        &self,
        index: u64,
        &Mixture { rank, ref mixing, ref centres, .. }: &Mixture,
        row: &mut [f32],
        scratch: &mut Scratch,
    ) {
        let count = (centres.len() / rank) as u64;
        let centre = self.draws(uses::CHOICE, index).below(0, count) as usize;
        self.mapped(index, mixing, &centres[centre * rank..], row, scratch);
    }

    /// Generates row `index` around a centre by a map to components.
    pub(super) fn mapped(
        &self,
        index: u64,
        map: &[f32],
        centre: &[f32],
        row: &mut [f32],
        scratch: &mut Scratch,
    ) {
        let Scratch { z, noise, .. } = scratch;
        gaussians(&self.draws(uses::OFFSET, index), z);
        for (z, c) in z.iter_mut().zip(centre) {
            *z += c;
        }
        gaussians(&self.draws(uses::NOISE, index), noise);
        for (x, noise) in row.iter_mut().zip(noise) {
            *x = NOISE * *noise;
        }
        add_multiples(row, z, map);
    }

    /// Generates row `index` of separate Gaussians. The centre is drawn again for each row, so
    /// memory does not grow with the number of clusters.
    fn cluster(&self, index: u64, clusters: usize, row: &mut [f32], scratch: &mut Scratch) {
        let cluster = self.draws(uses::CLUSTER_CHOICE, index).below(0, clusters as u64);
        gaussians(&self.draws(uses::CLUSTER_CENTRE, cluster), row);
        gaussians(&self.draws(uses::CLUSTER_OFFSET, index), &mut scratch.noise);
        for (x, offset) in row.iter_mut().zip(&scratch.noise) {
            *x += SIGMA * offset;
        }
    }

    /// Generates row `index` of uniform data.
    fn uniform(&self, index: u64, row: &mut [f32]) {
        let draws = self.draws(uses::UNIFORM, index);
        for (place, x) in (0..).zip(row) {
            // The 24 bits that f32 holds: no value is rounded up to 1.
            *x = (draws.bits(place) >> 40) as f32 / (1 << 24) as f32;
        }
    }

    /// Generates row `index` of random direction and log-normal norm.
    fn lognormal(&self, index: u64, row: &mut [f32]) {
        gaussians(&self.draws(uses::DIRECTION, index), row);
        let mut exponent = [0.0];
        gaussians(&self.draws(uses::NORM, index), &mut exponent);
        let norm = libm::exp(LOG_SIGMA * f64::from(exponent[0]));
        let factor = norm / libm::sqrt(sum_of_squares(row));
        for x in row {
            *x = (f64::from(*x) * factor) as f32;
        }
    }
}

/// Standard deviation of a component of a mixture in `dim` dimensions.
pub(super) fn deviation(dim: usize) -> f64 {
    (2.0 * dim.min(RANK) as f64).sqrt()
}

/// Multiplies all components.
pub(super) fn scale(row: &mut [f32], factor: f64) {
    row.iter_mut().for_each(|x| *x = (f64::from(*x) * factor) as f32);
}

/// Adds a multiple of another row.
pub(super) fn add(row: &mut [f32], other: &[f32], factor: f64) {
    row.iter_mut().zip(other).for_each(|(x, y)| *x = (f64::from(*x) + factor * f64::from(*y)) as f32);
}

/// A number near n over the golden ratio and coprime to `n`: its multiples modulo `n` visit each of
/// 0..n once and scatter consecutive numbers.
pub(super) fn stride(n: u64) -> u64 {
    let first = ((n as f64 * 0.618_033_988_749_894_9) as u64).max(1);
    // n - 1 is coprime to n.
    (first..n).find(|&stride| gcd(stride, n) == 1).unwrap_or(1)
}

fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// The shift of the places of rows with a fault, of `n` rows.
pub(super) fn shift(n: u64, seed: u64) -> u64 {
    Draws::new(seed, Stage::Synth, uses::FAULT_SHIFT, 0).below(0, n)
}

/// The sum of squares in the order of the components.
pub(super) fn sum_of_squares(row: &[f32]) -> f64 {
    row.iter().map(|&x| f64::from(x) * f64::from(x)).sum()
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::super::Synth;
    use super::*;

    const KINDS: [SynthKind; 5] = [
        SynthKind::Mixture,
        SynthKind::Clusters { clusters: 7 },
        SynthKind::Uniform,
        SynthKind::Repeated { copies: 3 },
        SynthKind::Lognormal,
    ];

    fn make(kind: SynthKind, n: usize, dim: usize, seed: u64) -> Vec<Vec<f32>> {
        let synth = Synth::of_kind(kind, n, dim, seed).unwrap();
        synth.values::<f32>(0, n).chunks(dim).map(<[f32]>::to_vec).collect()
    }

    /// Mean and deviation.
    fn moments(values: impl Iterator<Item = f64> + Clone) -> (f64, f64) {
        let count = values.clone().count() as f64;
        let mean = values.clone().sum::<f64>() / count;
        (mean, (values.map(|x| (x - mean) * (x - mean)).sum::<f64>() / count).sqrt())
    }

    fn squared(a: &[f32], b: &[f32]) -> f64 {
        a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2)).sum()
    }

    #[test]
    fn draws_are_standard_normal() {
        let mut values = vec![0.0; 100_001];
        gaussians(&Draws::new(5, Stage::Test, 0, 0), &mut values);
        let moment =
            |power: i32| values.iter().map(|&x| f64::from(x).powi(power)).sum::<f64>() / values.len() as f64;
        // Five standard errors of each moment of 100,001 draws.
        for (power, expected, tolerance) in
            [(1, 0.0, 0.016), (2, 1.0, 0.023), (3, 0.0, 0.062), (4, 3.0, 0.16)]
        {
            assert!((moment(power) - expected).abs() < tolerance, "moment {power}: {}", moment(power));
        }
        let neighbours: f64 =
            values.windows(2).map(|w| f64::from(w[0] * w[1])).sum::<f64>() / values.len() as f64;
        assert!(neighbours.abs() < 0.016, "{neighbours}");
    }

    #[test]
    fn the_bytes_are_the_same_everywhere() {
        let crc = |synth: &Synth| crc32fast::hash(bytemuck::cast_slice(&synth.values::<f32>(990, 20)));
        assert_eq!(crc(&Synth::new(1000, 33, 7).unwrap()), 3_537_685_642);
        let found = KINDS.map(|kind| {
            let synth = Synth::of_kind(kind, 1000, 33, 7).unwrap();
            [QueryKind::Rows, QueryKind::Sums].map(|queries| crc(&synth.clone().query_kind(queries)))
        });
        // Confirmed by a second implementation.
        let expected = [
            [3_537_685_642, 3_301_732_528],
            [4_140_939_270, 784_679_289],
            [187_319_736, 3_135_889_815],
            [184_685_493, 2_086_047_351],
            [4_017_563_800, 3_602_132_884],
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_mixture_has_the_designed_moments() {
        let size = |n: usize, dim: usize| match Table::new(SynthKind::Mixture, n, dim, 1) {
            Table::Mixture(Mixture { rank, mixing, centres, .. }) => {
                (rank, centres.len() / rank, mixing.len())
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(size(50, 30), (24, 7, 24 * 30));
        assert_eq!(size(90, 3), (3, 9, 9));
        assert_eq!(size(1, 1), (1, 1, 1));
    }

    #[test]
    fn a_row_of_a_mixture_is_an_image_of_its_centre_and_offset() {
        let row = Synth::new(100, 40, 9).unwrap().values::<f32>(3, 1);
        let table = Table::new(SynthKind::Mixture, 100, 40, 9);
        let Table::Mixture(Mixture { rank: 24, mixing, centres, .. }) = table else {
            panic!("no mixture of rank 24");
        };
        let draws = |iteration: u32| Draws::new(9, Stage::Synth, iteration, 3);
        let centre = draws(uses::CHOICE).below(0, 10) as usize;
        let (mut offset, mut noise) = (vec![0.0; 24], vec![0.0; 40]);
        gaussians(&draws(uses::OFFSET), &mut offset);
        gaussians(&draws(uses::NOISE), &mut noise);
        for (dim, &x) in row.iter().enumerate() {
            let image: f64 = (0..24)
                .map(|i| {
                    let z = f64::from(centres[centre * 24 + i]) + f64::from(offset[i]);
                    f64::from(mixing[i * 40 + dim]) * z
                })
                .sum();
            let expected = image + 0.02 * f64::from(noise[dim]);
            assert!((f64::from(x) - expected).abs() < 1e-4, "dimension {dim}: {x} and {expected}");
        }
    }

    #[test]
    fn clusters_lie_apart() {
        let (clusters, dim, seed) = (5, 32, 3);
        let rows = make(SynthKind::Clusters { clusters }, 1000, dim, seed);
        let centres: Vec<Vec<f32>> = (0..clusters as u64)
            .map(|cluster| {
                let mut centre = vec![0.0; dim];
                gaussians(&Draws::new(seed, Stage::Synth, uses::CLUSTER_CENTRE, cluster), &mut centre);
                centre
            })
            .collect();
        let mut members = vec![0; clusters];
        let mut offsets = Vec::new();
        for row in &rows {
            let mut near: Vec<(f64, usize)> = centres.iter().map(|c| squared(row, c)).zip(0..).collect();
            near.sort_by(|a, b| a.0.total_cmp(&b.0));
            // 32 components of deviation 0.2 around the centre, of sqrt(2) between centres.
            assert!(near[0].0 < 4.0 && near[1].0 > 16.0, "{near:?}");
            members[near[0].1] += 1;
            offsets.extend(row.iter().zip(&centres[near[0].1]).map(|(x, c)| f64::from(x - c)));
        }
        assert!(members.iter().all(|count| (130..270).contains(count)), "{members:?}");
        let (mean, deviation) = moments(offsets.iter().copied());
        assert!(mean.abs() < 0.006 && (deviation - 0.2).abs() < 0.005, "{mean}, {deviation}");
        // Each row in its own cluster, and all in one.
        assert_eq!(make(SynthKind::Clusters { clusters: 10 }, 10, 2, 0).len(), 10);
        let (mean, deviation) =
            moments(make(SynthKind::Clusters { clusters: 1 }, 2000, 1, 0).iter().map(|x| f64::from(x[0])));
        assert!((deviation - 0.2).abs() < 0.02, "{mean}, {deviation}");
    }

    #[test]
    fn uniform_rows_fill_the_cube() {
        let rows = make(SynthKind::Uniform, 2000, 16, 1);
        let values = rows.iter().flatten().map(|&x| f64::from(x));
        assert!(values.clone().all(|x| (0.0..1.0).contains(&x)));
        let (mean, deviation) = moments(values);
        assert!((mean - 0.5).abs() < 0.01 && (deviation - (1.0f64 / 12.0).sqrt()).abs() < 0.005);
    }

    #[test]
    fn repeated_rows_are_scattered_copies_of_uniform_ones() {
        for (n, copies) in [(1000, 10), (1003, 10), (7, 3), (10, 1), (10, 10), (1, 1), (2, 2), (64, 50)] {
            let synth = Synth::of_kind(SynthKind::Repeated { copies }, n, 4, 5).unwrap();
            let rows = synth.values::<f32>(0, n + 20);
            let (base, queries) = rows.split_at(4 * n);
            let mut places: HashMap<&[u8], Vec<usize>> = HashMap::new();
            for (place, row) in base.chunks(4).enumerate() {
                places.entry(bytemuck::cast_slice(row)).or_default().push(place);
            }
            assert_eq!(places.len(), n.div_ceil(copies), "{n}, {copies}");
            let short = places.values().filter(|places| places.len() < copies).collect::<Vec<_>>();
            assert!(places.values().all(|places| places.len() <= copies), "{n}, {copies}");
            assert_eq!(short.len(), usize::from(n % copies > 0), "{n}, {copies}");
            if (n, copies) == (1000, 10) {
                assert!(places.values().all(|places| places.windows(2).all(|pair| pair[1] - pair[0] > 20)));
            }
            let distinct = make(SynthKind::Uniform, n, 4, 5);
            for row in &distinct[..n.div_ceil(copies)] {
                assert!(places.contains_key(bytemuck::cast_slice::<f32, u8>(row)), "{n}, {copies}");
            }
            for query in queries.chunks(4) {
                assert!(!places.contains_key(bytemuck::cast_slice::<f32, u8>(query)), "{n}, {copies}");
            }
        }
        for n in (1..2000).chain([1 << 32, (1 << 32) - 2, 1_000_000_000]) {
            let stride = stride(n);
            assert!(gcd(stride, n) == 1 && (stride < n || n == 1), "{n}: {stride}");
        }
    }

    #[test]
    fn norms_are_log_normal() {
        let rows = make(SynthKind::Lognormal, 4000, 8, 2);
        let norm = |row: &[f32]| sum_of_squares(row).sqrt();
        let (mean, deviation) = moments(rows.iter().map(|row| norm(row).ln()));
        assert!(mean.abs() < 0.03 && (deviation - 0.4).abs() < 0.02, "{mean}, {deviation}");
        for component in 0..8 {
            let (mean, deviation) = moments(rows.iter().map(|row| f64::from(row[component]) / norm(row)));
            assert!(mean.abs() < 0.03 && (deviation - (1.0f64 / 8.0).sqrt()).abs() < 0.02, "{component}");
        }
    }

    #[test]
    fn sums_are_near_the_sum_of_two_rows_of_the_base() {
        for kind in KINDS {
            let (n, dim, seed) = (50, 64, 4);
            let synth = Synth::of_kind(kind, n, dim, seed).unwrap().query_kind(QueryKind::Sums);
            let rows = make(kind, n, dim, seed);
            let mut noises = Vec::new();
            for (query, values) in (n as u64..).zip(synth.values::<f32>(n as u64, 40).chunks(dim)) {
                let draws = Draws::new(seed, Stage::Synth, uses::SUMMANDS, query);
                let [a, b] = [0, 1].map(|draw| &rows[draws.below(draw, n as u64) as usize]);
                let sum: Vec<f32> = a.iter().zip(b).map(|(a, b)| a + b).collect();
                noises.push((squared(values, &sum) / sum_of_squares(&sum)).sqrt());
            }
            let (mean, deviation) = moments(noises.iter().copied());
            assert!((mean - 0.1).abs() < 0.006 && deviation < 0.02, "{kind}: {mean}, {deviation}");
            // The base is the same.
            assert_eq!(synth.values::<f32>(0, n), rows.concat(), "{kind}");
        }
    }
}
