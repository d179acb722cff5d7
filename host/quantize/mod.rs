//! Product quantization (Jégou, Douze and Schmid 2011): codes a vector as one byte per chunk of its
//! dimensions, the number of the nearest of the chunk's 256 centres.

mod codebook;
mod fit;
pub(crate) mod gpu;
mod scalar;

use tagore_device::random::{Draws, Stage};

use codebook::{Codebook, ROUNDS};
pub use scalar::Compression;
pub(crate) use scalar::{Codes, ScalarQuantizer, Use};

use crate::loops::{gather, try_map};
use crate::vectors::Vectors;
use crate::{Progress, Result};

/// Centres per chunk: the values of a byte.
pub(crate) const CENTRES: usize = 256;

/// Size of the training sample; more vectors hardly move the centres.
pub(crate) const SAMPLE: usize = 65_536;

/// The codebooks of all chunks.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ProductQuantizer {
    codebooks: Vec<Codebook>,
}

impl ProductQuantizer {
    /// Trains `chunks` codebooks (1 to the dimension) by k-means on `sample`, which must hold at
    /// least one vector and only finite values. The same sample and seed give the same centres on
    /// any number of threads.
    ///
    /// # Errors
    /// If the work is cancelled.
    pub(crate) fn train(sample: &Vectors, chunks: usize, seed: u64, progress: &Progress) -> Result<Self> {
        let stage = progress.stage("quantizer", chunks as u64 * u64::from(ROUNDS));
        let train = |chunk: usize| {
            let dims = start(sample.dim(), chunks, chunk)..start(sample.dim(), chunks, chunk + 1);
            let points = gather(0..sample.len(), |row, points: &mut Vec<f32>| {
                points.extend_from_slice(&sample.host_row(row)[dims.clone()]);
            });
            let draws = |round| Draws::new(seed, Stage::Cells, round, chunk as u64);
            Codebook::train(&points, dims.len(), draws, &stage)
        };
        Ok(Self { codebooks: try_map(0..chunks, train)? })
    }

    /// The first dimension of each chunk, then the number of dimensions.
    pub(crate) fn offsets(&self) -> Vec<u32> {
        let ends = self.codebooks.iter().scan(0, |end, book| {
            *end += book.width() as u32;
            Some(*end)
        });
        std::iter::once(0).chain(ends).collect()
    }

    /// The centres as whole vectors: vector `c` joins centre `c` of every chunk.
    pub(crate) fn centres(&self) -> Vec<f32> {
        (0..CENTRES).flat_map(|c| self.codebooks.iter().flat_map(move |book| book.centre(c))).collect()
    }

    /// Writes one byte per chunk of `vector` to `codes`.
    pub(crate) fn encode(&self, vector: &[f32], codes: &mut [u8]) {
        let mut rest = vector;
        for (code, book) in codes.iter_mut().zip(&self.codebooks) {
            let chunk;
            (chunk, rest) = rest.split_at(book.width());
            *code = book.nearest(chunk);
        }
    }
}

/// The first dimension of `chunk`. Chunk lengths differ by at most one, the longer chunks first.
fn start(dim: usize, chunks: usize, chunk: usize) -> usize {
    dim / chunks * chunk + (dim % chunks).min(chunk)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Synth;

    fn train(sample: &Vectors, chunks: usize) -> ProductQuantizer {
        ProductQuantizer::train(sample, chunks, 1, &Progress::silent()).unwrap()
    }

    /// The mean squared distance between vectors and their decoded codes.
    fn error(quantizer: &ProductQuantizer, vectors: &Vectors) -> f64 {
        let (centres, offsets) = (quantizer.centres(), quantizer.offsets());
        let mut codes = vec![0; offsets.len() - 1];
        let of = |row: usize| {
            let vector = vectors.host_row(row);
            quantizer.encode(&vector, &mut codes);
            let chunks = offsets.windows(2).zip(&codes);
            let distances = chunks.flat_map(|(dims, &code)| {
                let dims = dims[0] as usize..dims[1] as usize;
                let centre = &centres[usize::from(code) * vectors.dim()..][dims.clone()];
                vector[dims].iter().zip(centre).map(|(x, y)| f64::from(x - y).powi(2)).collect::<Vec<_>>()
            });
            distances.sum::<f64>()
        };
        (0..vectors.len()).map(of).sum::<f64>() / vectors.len() as f64
    }

    #[test]
    fn more_chunks_lose_less() {
        let base = Synth::new(3000, 24, 1).unwrap().base();
        let errors: Vec<f64> = [1, 2, 5, 12, 24].map(|chunks| error(&train(&base, chunks), &base)).to_vec();
        assert!(errors.windows(2).all(|pair| pair[1] < 0.9 * pair[0]), "{errors:?}");
        // 256 centres of one number each are a fine grid.
        assert!(errors[4] < 0.01 * errors[0], "{errors:?}");
    }

    #[test]
    fn training_helps() {
        let base = Synth::new(3000, 16, 2).unwrap().base();
        let whole = error(&train(&base, 4), &base);
        // The first 256 vectors as centres are about where k-means starts.
        let first = Vectors::from_f32((0..256).flat_map(|row| base.host_row(row).into_owned()).collect(), 16)
            .unwrap();
        let untrained = error(&train(&first, 4), &base);
        assert!(whole < 0.8 * untrained, "{whole} against {untrained}");
    }

    #[test]
    fn repeated_values_become_centres() {
        // 200 distinct values, so each becomes a centre.
        let values: Vec<f32> = (0..4000).map(|i| (i % 200) as f32 * 3.0).collect();
        let base = Vectors::from_f32(values, 1).unwrap();
        assert_eq!(error(&train(&base, 1), &base), 0.0);
    }

    #[test]
    fn few_or_equal_vectors_are_coded_exactly() {
        for base in [
            Vectors::from_f32(vec![1.5, -2.0, 7.0], 3).unwrap(),
            Vectors::from_u8(vec![9; 97 * 300], 97).unwrap(),
            Vectors::from_i8((0..100).map(|i| i as i8).collect(), 2).unwrap(),
        ] {
            for chunks in [1, base.dim()] {
                assert_eq!(error(&train(&base, chunks), &base), 0.0, "{chunks} chunks");
            }
        }
    }

    #[test]
    fn chunks_cover_all_dimensions() {
        let base = Synth::new(20, 7, 1).unwrap().base();
        assert_eq!(train(&base, 3).offsets(), [0, 3, 5, 7]);
        assert_eq!(train(&base, 1).offsets(), [0, 7]);
        assert_eq!(train(&base, 7).offsets(), [0, 1, 2, 3, 4, 5, 6, 7]);
    }

    #[test]
    fn the_result_depends_only_on_the_seed() {
        let base = Synth::new(2000, 9, 3).unwrap().base();
        let pool = |threads| rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let one = pool(1).install(|| train(&base, 4));
        assert_eq!(one, pool(3).install(|| train(&base, 4)));
        assert_ne!(one, ProductQuantizer::train(&base, 4, 2, &Progress::silent()).unwrap());
    }

    #[test]
    fn training_can_be_cancelled() {
        let progress = Progress::silent();
        progress.cancel();
        let base = Synth::new(50, 4, 0).unwrap().base();
        assert!(matches!(ProductQuantizer::train(&base, 2, 0, &progress), Err(crate::Error::Cancelled)));
    }
}
