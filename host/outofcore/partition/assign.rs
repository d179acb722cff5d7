//! Assignment of rows to their nearest centres, chunk by chunk. A chunk depends on its rows and on
//! the centres alone.

use std::ops::Range;

use crate::cluster::assigner::Nearest;
use crate::loops::{at_least, map_with};
use crate::progress::StageProgress;
use crate::vectors::embedding::Embedding;
use crate::{Repeated, Result, Vectors};

/// Rows of a partial sum. Chunks are multiples of it.
pub(crate) const CHUNK_STEP: usize = 64;

/// Rows of the base whose sum is added to the sum of the base as one. Ranges of rows are multiples
/// of it, so neither chunks nor ranges change the mean.
pub(crate) const SUM_ROWS: usize = 1024;

/// Rows of the base in ascending order of ids, with their two nearest centres.
pub(crate) struct Chunk {
    pub ids: Vec<u32>,
    pub nearest: Vec<[u32; 2]>,
}

/// Finds the two nearest centres of rows, and takes sums over them.
pub(crate) struct Assigning<'a> {
    pub base: &'a Vectors,
    /// Rows that enter no cluster.
    pub repeated: &'a Repeated,
    pub embedding: &'a Embedding,
    pub nearest: Nearest<'a>,
    pub stage: &'a StageProgress<'a>,
    pub sums: BlockSums,
    /// The largest magnitude of a value.
    pub largest: f32,
}

/// The two nearest centres of the rows of a range, without the repeated ones.
pub(crate) struct AssignedRange {
    pub nearest: Vec<[u32; 2]>,
    /// The number of rows of each pair of centres ([`count_pairs`]).
    pub pairs: Vec<[u32; 3]>,
    /// Sums of the blocks of rows.
    pub sums: Vec<f64>,
    /// The largest magnitude of a value.
    pub largest: f32,
}

impl Assigning<'_> {
    /// Assigns a range of rows, at most `piece` rows at a time.
    ///
    /// # Errors
    /// As [`assign`](Self::assign).
    pub(crate) fn range(mut self, rows: Range<usize>, piece: usize) -> Result<AssignedRange> {
        let mut nearest: Vec<[u32; 2]> = Vec::with_capacity(rows.len());
        for first in rows.clone().step_by(piece) {
            self.base.prefetch(first + piece..rows.end.min(first + 2 * piece));
            self.base.populate(first..rows.end.min(first + piece));
            let chunk = self.assign(first..rows.end.min(first + piece))?;
            nearest.extend(chunk.into_iter().flat_map(|chunk| chunk.nearest));
        }
        let pairs = count_pairs(&nearest);
        Ok(AssignedRange { nearest, pairs, sums: self.sums.finish(), largest: self.largest })
    }

    /// Checks the values of a range of rows and assigns them; `None` if all of them are repeated.
    /// Ranges must come in order, and begin at multiples of [`CHUNK_STEP`].
    ///
    /// # Errors
    /// If a value cannot be used, the device fails, or the work is cancelled.
    pub(crate) fn assign(&mut self, rows: Range<usize>) -> Result<Option<Chunk>> {
        let Self { base, embedding, .. } = *self;
        let checked = at_least(1024, rows.clone());
        let largest = base.validate_rows(checked, |row| row, embedding.metric())?;
        self.largest = self.largest.max(largest);
        let ids = self.repeated.others(rows);
        if ids.is_empty() {
            return Ok(None);
        }
        let embed = |index: usize, out: &mut [f32]| embedding.embed(base, ids[index] as usize, out);
        let nearest = self.nearest.two(ids.len(), embed, self.stage)?;
        self.sums.add(&ids, embed);
        Ok(Some(Chunk { ids, nearest }))
    }
}

/// Counts rows by their two clusters: the smaller number, the larger number and the rows,
/// ascending.
pub(crate) fn count_pairs(rows: &[[u32; 2]]) -> Vec<[u32; 3]> {
    let key = |&[a, b]: &[u32; 2]| (a.min(b), a.max(b));
    let mut keys: Vec<(u32, u32)> = rows.iter().map(key).collect();
    keys.sort_unstable();
    keys.chunk_by(|a, b| a == b).map(|equal| [equal[0].0, equal[0].1, equal.len() as u32]).collect()
}

/// Sums of embedded rows by blocks of [`SUM_ROWS`] rows of the base.
pub(crate) struct BlockSums {
    /// The number and the sum of the last block.
    last: (usize, Vec<f64>),
    /// Sums of complete blocks, one after another.
    complete: Vec<f64>,
}

impl BlockSums {
    /// Sums of rows of `dim` components.
    pub(crate) fn new(dim: usize) -> Self {
        Self { last: (0, vec![0.0; dim]), complete: Vec::new() }
    }

    /// Adds rows, later ones than before; `embed` writes the row of an index of `ids`. The sum is
    /// the same for any number of threads.
    fn add(&mut self, ids: &[u32], embed: impl Fn(usize, &mut [f32]) + Sync) {
        let parts: Vec<Range<usize>> = ids
            .chunk_by(|&a, &b| a as usize / CHUNK_STEP == b as usize / CHUNK_STEP)
            .scan(0, |end, part| {
                *end += part.len();
                Some(*end - part.len()..*end)
            })
            .collect();
        let dim = self.last.1.len();
        let sum_of = |row: &mut Vec<f32>, part: &Range<usize>| {
            let mut sum = vec![0f64; dim];
            for index in part.clone() {
                embed(index, row);
                sum.iter_mut().zip(&*row).for_each(|(sum, &x)| *sum += f64::from(x));
            }
            sum
        };
        let sums = map_with(&parts[..], || vec![0f32; dim], sum_of);
        for (part, sum) in parts.iter().zip(sums) {
            let block = ids[part.start] as usize / SUM_ROWS;
            if block != self.last.0 {
                self.complete.extend_from_slice(&self.last.1);
                self.last = (block, vec![0.0; sum.len()]);
            }
            self.last.1.iter_mut().zip(sum).for_each(|(sum, x)| *sum += x);
        }
    }

    /// Takes the sums of the complete blocks.
    pub(crate) fn take(&mut self) -> Vec<f64> {
        std::mem::take(&mut self.complete)
    }

    /// Takes the sums of all blocks.
    pub(crate) fn finish(mut self) -> Vec<f64> {
        self.complete.append(&mut self.last.1);
        self.complete
    }
}

/// Adds the sums of blocks to `total`, one after another.
pub(crate) fn add_blocks(total: &mut [f64], blocks: &[f64]) {
    for block in blocks.chunks_exact(total.len()) {
        total.iter_mut().zip(block).for_each(|(total, x)| *total += x);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Synth;

    #[test]
    fn pairs_are_counted_in_any_order_of_their_clusters() {
        let rows = [[4, 1], [0, 2], [1, 4], [2, 0], [1, 3], [4, 1]];
        assert_eq!(count_pairs(&rows), [[0, 2, 2], [1, 3, 1], [1, 4, 3]]);
        assert!(count_pairs(&[]).is_empty());
    }

    #[test]
    fn neither_chunks_nor_ranges_change_the_sum() {
        let base = Synth::new(5000, 3, 1).unwrap().base();
        // Every seventh row is repeated.
        let ids = |rows: Range<usize>| -> Vec<u32> {
            rows.map(|row| row as u32).filter(|row| row % 7 > 0).collect()
        };
        let total = |range: usize, chunk: usize| {
            let mut total = vec![0.0; 3];
            for first in (0..5000).step_by(range) {
                let mut sums = BlockSums::new(3);
                let end = 5000.min(first + range);
                for first in (first..end).step_by(chunk) {
                    let ids = ids(first..end.min(first + chunk));
                    sums.add(&ids, |index, out| out.copy_from_slice(&base.host_row(ids[index] as usize)));
                    add_blocks(&mut total, &sums.take());
                }
                add_blocks(&mut total, &sums.finish());
            }
            total.iter().map(|x: &f64| x.to_bits()).collect::<Vec<_>>()
        };
        let expected = total(8192, 8192);
        for (range, chunk) in [(1024, 64), (2048, 1024), (4096, 192), (8192, 64)] {
            assert_eq!(total(range, chunk), expected, "ranges of {range}, chunks of {chunk}");
        }
    }
}
