//! Synthetic data of any size, any part of which can be made alone.

use std::f64::consts::TAU;
use std::ops::Range;
use std::path::Path;

use rayon::prelude::*;
use tagore_device::random::{Draws, Stage};

use super::save::{RowWriter, vector_type};
use super::{ElementType, Format, MAX_ROWS, Vectors, check_dim, npy};
use crate::progress::Progress;
use crate::{Error, Result};

/// The largest number of dimensions in which the data varies, whatever its own dimension.
const RANK: usize = 24;

/// The deviation of the noise added to each component.
const NOISE: f32 = 0.02;

/// What the draws of the generator are for: its `iteration`.
const MIXING: u32 = 0;
const CENTRE: u32 = 1;
const CHOICE: u32 = 2;
const OFFSET: u32 = 3;
const NOISES: u32 = 4;

/// Rows that one task makes at a time.
const BLOCK: usize = 256;

/// Bytes of rows that are held in memory while a file is written.
const CHUNK_BYTES: usize = 32 << 20;

/// A synthetic data set of f32 vectors: a mixture of about sqrt(n) Gaussians that vary in at most 24
/// directions, with some noise in all, about as hard to search as SIFT descriptors.
///
/// Row i is A(c + g) plus noise: A is a matrix, c one of the centres and g an offset, all with
/// standard normal elements. It depends on the seed, n, the dimension and i alone, so that any part of
/// a data set of any size can be made alone, on any number of threads, with the same bytes on every
/// machine. The rows from n on are the queries.
///
/// ```
/// use tagore::Synth;
/// let synth = Synth::new(1000, 16, 42)?;
/// let (base, part) = (synth.base(), synth.rows(10..20)?);
/// assert_eq!(base.row(10), part.row(0));
/// # Ok::<(), tagore::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Synth {
    n: usize,
    dim: usize,
    seed: u64,
    rank: usize,
    /// A, transposed: `rank` rows of `dim`.
    mixing: Vec<f32>,
    /// `rank` values to a centre.
    centres: Vec<f32>,
}

impl Synth {
    /// The data set of `n` rows of `dim` components; another `seed` gives other data.
    ///
    /// # Errors
    /// If `dim` is not in 1..=4096, or `n` is 0 or above [`MAX_ROWS`].
    pub fn new(n: usize, dim: usize, seed: u64) -> Result<Self> {
        check_dim(dim)?;
        if !(1..=MAX_ROWS).contains(&n) {
            return Err(Error::argument("n", n, format_args!("1 to {MAX_ROWS}")));
        }
        let rank = dim.min(RANK);
        let count = (libm::sqrt(n as f64).round() as usize).max(1);
        let table = |iteration: u32, rows: usize, width: usize| {
            let mut values = vec![0.0; rows * width];
            for (row, values) in values.chunks_exact_mut(width).enumerate() {
                gaussians(&Draws::new(seed, Stage::Synth, iteration, row as u64), values);
            }
            values
        };
        Ok(Self { n, dim, seed, rank, mixing: table(MIXING, rank, dim), centres: table(CENTRE, count, rank) })
    }

    /// All of the data set: rows 0..n.
    pub fn base(&self) -> Vectors {
        self.vectors(0, self.n)
    }

    /// The first `count` queries: rows n..n + count.
    ///
    /// # Panics
    /// If `count` is above [`MAX_ROWS`].
    pub fn queries(&self, count: usize) -> Vectors {
        assert!(count <= MAX_ROWS, "{count} queries, at most {MAX_ROWS} can be made");
        self.vectors(self.n as u64, count)
    }

    /// The rows of a range, which may reach past n into the queries.
    ///
    /// # Errors
    /// If the range ends before it starts or has more than [`MAX_ROWS`] rows.
    pub fn rows(&self, range: Range<u64>) -> Result<Vectors> {
        let count = count(&range)?;
        Ok(self.vectors(range.start, count))
    }

    /// Writes the rows of a range to a file of f32 or f16 vectors, without holding all of them in
    /// memory. The file appears only when it is complete.
    ///
    /// # Errors
    /// If the file cannot be written, the format is not fvecs, fbin, f16bin or npy, the range is not
    /// one that [`rows`](Self::rows) takes, or the work is cancelled.
    pub fn write(
        &self,
        range: Range<u64>,
        path: impl AsRef<Path>,
        format: Format,
        progress: &Progress,
    ) -> Result<()> {
        let path = path.as_ref();
        let count = count(&range)?;
        let element = vector_type(format, ElementType::F32)?;
        if matches!(element, ElementType::U8 | ElementType::I8) {
            return Err(Error::argument(
                "format",
                format,
                "fvecs, fbin, f16bin or npy: synthetic data is not of integers",
            ));
        }
        let stage = progress.stage("synth", count as u64);
        let mut file = RowWriter::create(path, format, npy::name(element), (count as u64, self.dim))?;
        let chunk = (CHUNK_BYTES / (self.dim * size_of::<f32>())).max(1);
        for first in (0..count).step_by(chunk) {
            let rows = chunk.min(count - first);
            self.vectors(range.start + first as u64, rows).write_rows(element, &mut file, &stage)?;
        }
        file.commit()
    }

    fn vectors(&self, first: u64, count: usize) -> Vectors {
        Vectors::dense_f32(self.values(first, count), self.dim)
    }

    fn values(&self, first: u64, count: usize) -> Vec<f32> {
        let mut values = vec![0.0; count * self.dim];
        let blocks = values.par_chunks_mut(self.dim * BLOCK).enumerate();
        blocks.for_each_init(
            || (vec![0.0; self.rank], vec![0.0; self.dim]),
            |(z, noise), (block, rows)| {
                for (place, row) in rows.chunks_exact_mut(self.dim).enumerate() {
                    // A range of indices from the first on would count beyond the last one of all.
                    self.row(first + (block * BLOCK + place) as u64, row, z, noise);
                }
            },
        );
        values
    }

    /// Makes row `index`; `z` and `noise` are scratch of `rank` and `dim` values.
    fn row(&self, index: u64, row: &mut [f32], z: &mut [f32], noise: &mut [f32]) {
        let draws = |iteration: u32| Draws::new(self.seed, Stage::Synth, iteration, index);
        let centres = (self.centres.len() / self.rank) as u64;
        let centre = draws(CHOICE).below(0, centres) as usize;
        gaussians(&draws(OFFSET), z);
        for (z, c) in z.iter_mut().zip(&self.centres[centre * self.rank..]) {
            *z += c;
        }
        gaussians(&draws(NOISES), noise);
        for (x, noise) in row.iter_mut().zip(noise) {
            *x = NOISE * *noise;
        }
        // Column by column of A: the sums of a row's components are independent, and the order of each
        // is fixed, so this vectorises without changing a bit.
        for (&z, column) in z.iter().zip(self.mixing.chunks_exact(self.dim)) {
            for (x, a) in row.iter_mut().zip(column) {
                *x += a * z;
            }
        }
    }
}

/// The rows of a range.
fn count(range: &Range<u64>) -> Result<usize> {
    let count = range.end.checked_sub(range.start).and_then(|count| usize::try_from(count).ok());
    count.filter(|&count| count <= MAX_ROWS).ok_or_else(|| {
        Error::argument("rows", format_args!("{range:?}"), format_args!("a range of at most {MAX_ROWS} rows"))
    })
}

/// Fills `values` with standard normal draws (Box and Muller 1958). The functions are those of a
/// library in plain Rust, not of the system, whose last bits differ from machine to machine.
fn gaussians(draws: &Draws, values: &mut [f32]) {
    for (pair, values) in (0u64..).zip(values.chunks_mut(2)) {
        let radius = libm::sqrt(-2.0 * libm::log(draws.unit(2 * pair)));
        let (sin, cos) = libm::sincos(TAU * draws.unit(2 * pair + 1));
        for (value, part) in values.iter_mut().zip([cos, sin]) {
            *value = (radius * part) as f32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let values = Synth::new(1000, 33, 7).unwrap().values(990, 20);
        assert_eq!(crc32fast::hash(bytemuck::cast_slice(&values)), 3_537_685_642, "{:?}", &values[..4]);
    }

    #[test]
    fn the_last_rows_of_all_and_any_seed_can_be_made() {
        for seed in [0, 1 << 63, u64::MAX] {
            let synth = Synth::new(3, 2, seed).unwrap();
            let last = synth.rows(u64::MAX - 2 * BLOCK as u64 - 1..u64::MAX).unwrap();
            assert_eq!(last.len(), 2 * BLOCK + 1);
            assert!(last.validate(&Progress::silent()).is_ok());
            // A part is made as the whole is.
            assert_eq!(last.row(2 * BLOCK), synth.rows(u64::MAX - 1..u64::MAX).unwrap().row(0));
            assert!(synth.rows(u64::MAX..u64::MAX).unwrap().is_empty());
        }
        let synth = Synth::new(3, 2, 0).unwrap();
        for range in [0..u64::MAX, 0..MAX_ROWS as u64 + 1, Range { start: u64::MAX, end: 0 }] {
            let text = synth.rows(range).unwrap_err().to_string();
            assert!(text.starts_with("rows: found ") && text.contains("a range of at most"), "{text}");
        }
        for n in [0, MAX_ROWS + 1, usize::MAX] {
            assert!(Synth::new(n, 2, 0).unwrap_err().to_string().starts_with("n: found "), "{n}");
        }
    }

    #[test]
    fn the_mixture_has_the_designed_size() {
        let size = |n: usize, dim: usize| {
            let synth = Synth::new(n, dim, 1).unwrap();
            (synth.rank, synth.centres.len() / synth.rank, synth.mixing.len())
        };
        assert_eq!(size(50, 30), (24, 7, 24 * 30));
        assert_eq!(size(90, 3), (3, 9, 9));
        assert_eq!(size(1, 1), (1, 1, 1));
    }

    #[test]
    fn a_row_is_an_image_of_its_centre_and_offset() {
        let synth = Synth::new(100, 40, 9).unwrap();
        let row = synth.values(3, 1);
        let centre = Draws::new(9, Stage::Synth, CHOICE, 3).below(0, 10) as usize;
        let (mut offset, mut noise) = (vec![0.0; 24], vec![0.0; 40]);
        gaussians(&Draws::new(9, Stage::Synth, OFFSET, 3), &mut offset);
        gaussians(&Draws::new(9, Stage::Synth, NOISES, 3), &mut noise);
        for (dim, &x) in row.iter().enumerate() {
            let image: f64 = (0..24)
                .map(|i| {
                    let z = f64::from(synth.centres[centre * 24 + i]) + f64::from(offset[i]);
                    f64::from(synth.mixing[i * 40 + dim]) * z
                })
                .sum();
            let expected = image + 0.02 * f64::from(noise[dim]);
            assert!((f64::from(x) - expected).abs() < 1e-4, "dimension {dim}: {x} and {expected}");
        }
    }
}
