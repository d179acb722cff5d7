//! The codebook of one chunk: its k-means centres and the nearest-centre search.

use tagore_device::cluster::drawn;
use tagore_device::random::Draws;

use super::CENTRES;
use crate::Result;
use crate::loops::{for_each, rows, rows_mut};
use crate::progress::StageProgress;

/// Iterations of Lloyd's algorithm, as in DiskANN.
pub(super) const ROUNDS: u32 = 12;

/// Points assigned per task.
const BLOCK: usize = 1024;

/// The centres of a chunk of `width` dimensions, stored by dimension (`values[d][c]` for centre
/// `c`), so that one loop compares a point with all centres.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Codebook {
    values: Vec<[f32; CENTRES]>,
}

impl Codebook {
    /// Runs Lloyd's algorithm on `points`, `width` values each. An empty centre restarts at a
    /// point. With fewer distinct points than centres, some centres are equal.
    pub(super) fn train(
        points: &[f32],
        width: usize,
        draws: impl Fn(u32) -> Draws,
        stage: &StageProgress<'_>,
    ) -> Result<Self> {
        let count = points.len() / width;
        let point = |index: usize| &points[index * width..][..width];
        let mut book = Self { values: vec![[0.0; CENTRES]; width] };
        for centre in 0..CENTRES as u32 {
            let first = drawn(draws(0), centre, CENTRES as u32, count as u32);
            book.set(centre as usize, point(first as usize));
        }
        let mut codes = vec![0u8; count];
        for round in 1..=ROUNDS {
            stage.advance(1)?;
            let blocks = (rows_mut(&mut codes, BLOCK), rows(points, BLOCK * width));
            for_each(blocks, |(codes, points)| {
                for (code, point) in codes.iter_mut().zip(points.chunks_exact(width)) {
                    *code = book.nearest(point);
                }
            });
            let mut counts = [0u32; CENTRES];
            let mut sums = vec![0f64; CENTRES * width];
            for (&code, point) in codes.iter().zip(points.chunks_exact(width)) {
                counts[usize::from(code)] += 1;
                let sums = &mut sums[usize::from(code) * width..][..width];
                sums.iter_mut().zip(point).for_each(|(sum, &x)| *sum += f64::from(x));
            }
            for (centre, (&members, sums)) in counts.iter().zip(sums.chunks_exact(width)).enumerate() {
                if members == 0 {
                    let drawn = draws(round).below(centre as u64, count as u64);
                    book.set(centre, point(drawn as usize));
                } else {
                    let mean: Vec<f32> = sums.iter().map(|sum| (sum / f64::from(members)) as f32).collect();
                    book.set(centre, &mean);
                }
            }
        }
        Ok(book)
    }

    /// Dimensions of the chunk.
    pub(super) fn width(&self) -> usize {
        self.values.len()
    }

    fn set(&mut self, centre: usize, point: &[f32]) {
        self.values.iter_mut().zip(point).for_each(|(values, &x)| values[centre] = x);
    }

    /// The values of a centre.
    pub(super) fn centre(&self, centre: usize) -> impl Iterator<Item = f32> {
        self.values.iter().map(move |values| values[centre])
    }

    /// The centre nearest to `point`; of equally near ones the first.
    pub(super) fn nearest(&self, point: &[f32]) -> u8 {
        let mut distances = [0f32; CENTRES];
        for (&x, centres) in point.iter().zip(&self.values) {
            for (distance, &centre) in distances.iter_mut().zip(centres) {
                *distance += (x - centre) * (x - centre);
            }
        }
        least(&distances)
    }
}

/// The first index of the smallest value. The compiler vectorises the minimum over lanes; a second
/// pass finds its place.
fn least(values: &[f32; CENTRES]) -> u8 {
    const LANES: usize = 16;
    let mut lanes = [f32::INFINITY; LANES];
    for block in values.as_chunks::<LANES>().0 {
        for (lane, &value) in lanes.iter_mut().zip(block) {
            *lane = if value < *lane { value } else { *lane };
        }
    }
    let smallest = lanes.into_iter().fold(f32::INFINITY, f32::min);
    values.iter().position(|&value| value == smallest).unwrap_or(0) as u8
}
