//! Synthetic data: clusters of low intrinsic dimension, about as hard to search as real descriptors.

use std::ops::Range;
use std::path::Path;

use rayon::prelude::*;
use tagore_device::random::{Draws, Stage};

use super::save::VectorWriter;
use super::{Format, MAX_ROWS, Vectors, check_dim};
use crate::{ElementType, Error, Progress, Result};

/// Dimension of the space that the clusters live in.
const INTRINSIC: usize = 24;

/// Standard deviation of the noise added to every component.
const NOISE: f64 = 0.02;

/// Rows generated and written at a time.
const PIECE: u64 = 16_384;

// What the iteration of a draw stands for.
const MATRIX: u32 = 0;
const CENTRE: u32 = 1;
const ROW: u32 = 2;

/// A synthetic data set: x = A z + 0.02 e, z = c + g. The matrix A and the sqrt(n) centres c are
/// common to all rows; each row draws its centre, g and e from (seed, row) alone, so any rows can be
/// made by themselves. All draws are standard normal. Rows from n on serve as queries.
#[derive(Clone, Debug)]
pub struct Synth {
    n: usize,
    dim: usize,
    seed: u64,
    /// INTRINSIC rows (or `dim`, if that is less) of `dim` values: the transpose of A.
    matrix: Vec<f32>,
}

impl Synth {
    /// The data set of `n` rows and `dim` components that belongs to `seed`.
    ///
    /// # Errors
    /// If `n` is 0 or above [`MAX_ROWS`], or `dim` is not in 1..=4096.
    pub fn new(n: usize, dim: usize, seed: u64) -> Result<Self> {
        check_dim(dim)?;
        if n == 0 || n > MAX_ROWS {
            return Err(Error::argument("n", n, format_args!("1 to {MAX_ROWS}")));
        }
        let draws = Draws::new(seed, Stage::Synth, MATRIX, 0);
        let mut matrix = vec![0f32; dim.min(INTRINSIC) * dim];
        normals(&draws, 0, &mut matrix);
        Ok(Self { n, dim, seed, matrix })
    }

    /// The data set itself.
    pub fn base(&self) -> Vectors {
        self.rows(0..self.n as u64)
    }

    /// The first `count` queries.
    pub fn queries(&self, count: usize) -> Vectors {
        self.rows(self.n as u64..self.n as u64 + count as u64)
    }

    /// Any rows of the endless sequence; they depend on nothing but n, dim, the seed and the row.
    pub fn rows(&self, rows: Range<u64>) -> Vectors {
        let count = rows.end.saturating_sub(rows.start) as usize;
        let mut values = vec![0f32; count * self.dim];
        let chunks = values.par_chunks_mut(self.dim).enumerate();
        chunks.for_each(|(index, out)| self.row(rows.start + index as u64, out));
        Vectors::dense_f32(values, self.dim)
    }

    /// Writes rows to a file, a piece at a time, so that it need not fit into memory.
    ///
    /// # Errors
    /// If the format holds no floats, the file cannot be written, or the work is cancelled.
    pub fn write(&self, rows: Range<u64>, path: &Path, format: Format, progress: &Progress) -> Result<()> {
        if !matches!(format, Format::Npy)
            && !matches!(format.element(), Some(ElementType::F32 | ElementType::F16))
        {
            return Err(Error::file(path, format_args!("format {format}"), "fbin, f16bin, fvecs or npy"));
        }
        let count = rows.end.saturating_sub(rows.start);
        let stage = progress.stage("synth", count);
        let mut writer = VectorWriter::create(path, format, ElementType::F32, count as usize, self.dim)?;
        let mut first = rows.start;
        while first < rows.end {
            let last = rows.end.min(first + PIECE);
            writer.write(&self.rows(first..last))?;
            stage.advance(last - first)?;
            first = last;
        }
        writer.commit()
    }

    fn row(&self, row: u64, out: &mut [f32]) {
        let intrinsic = self.dim.min(INTRINSIC);
        let centres = ((self.n as f64).sqrt().round() as u64).max(1);
        let draws = Draws::new(self.seed, Stage::Synth, ROW, row);
        let centre = Draws::new(self.seed, Stage::Synth, CENTRE, draws.below(0, centres));
        let (mut z, mut g) = ([0f32; INTRINSIC], [0f32; INTRINSIC]);
        normals(&centre, 0, &mut z[..intrinsic]);
        normals(&draws, 1, &mut g[..intrinsic]);
        // Sums in a fixed order, so that the bytes are the same everywhere.
        normals(&draws, 1 + INTRINSIC as u64, out);
        out.iter_mut().for_each(|x| *x *= NOISE as f32);
        for (axis, row) in self.matrix.chunks_exact(self.dim).enumerate() {
            let weight = z[axis] + g[axis];
            out.iter_mut().zip(row).for_each(|(x, a)| *x += a * weight);
        }
    }
}

/// Standard normal draws by the method of Box and Muller, from draw number `first` on. The `libm`
/// crate gives the same bytes on every machine; the system's library need not.
fn normals(draws: &Draws, first: u64, out: &mut [f32]) {
    for (pair, out) in (0..).zip(out.chunks_mut(2)) {
        let index = first + 2 * pair;
        let radius = libm::sqrt(-2.0 * libm::log(draws.unit(index)));
        let (sine, cosine) = libm::sincos(std::f64::consts::TAU * draws.unit(index + 1));
        out[0] = (radius * cosine) as f32;
        if let Some(second) = out.get_mut(1) {
            *second = (radius * sine) as f32;
        }
    }
}
