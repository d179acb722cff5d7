//! Whether a search for a row of the base finds it: over a sample with the rows that searches miss
//! first.

use std::collections::BTreeMap;

use serde::Serialize;
use tagore_device::key::{self, Key};

use super::measure::{BEAM, K};
use crate::descent::sampled;
use crate::loops::{fold, try_fold};
use crate::search::Engine;
use crate::vectors::space::Space;
use crate::vectors::{TypedRows, with_matrix};
use crate::{Progress, Result, Search};

/// Rows of each kind in the sample.
const ROWS: usize = 250;

/// Rows of a group in the sample.
const ROWS_OF_GROUP: usize = 10;

/// Rows of the sample that tells the mean of the base.
const MEAN_ROWS: usize = 4096;

/// Bytes of rows that are compared with the mean, at most: more rows are sampled.
const COMPARED_BYTES: usize = 1 << 29;

/// Rows compared with the mean per task.
const PIECE: usize = 4096;

/// The kinds of rows, as keys of [`SelfRecall::kinds`].
pub(super) const RANDOM: &str = "random";
pub(super) const FEW_EDGES: &str = "fewest-edges";
pub(super) const EQUAL: &str = "equal";
pub(super) const FAR: &str = "farthest";

/// The share of a sample of rows of the base that a search for the row finds. A search that finds a
/// row as near to the query has found it too.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SelfRecall {
    /// Number of rows.
    pub queries: usize,
    /// Beam of the searches.
    pub beam: usize,
    /// The share found, 0 to 1.
    pub recall: f64,
    /// The share found of each kind of rows: `random` rows; the nodes with the `fewest-edges` to
    /// them; rows of the largest groups of `equal` rows, if there are any; the rows `farthest` from
    /// the mean.
    pub kinds: BTreeMap<&'static str, f64>,
}

/// The rows farthest from the mean of a sample of them.
pub(super) fn farthest(space: &Space<'_>, seed: u64, progress: &Progress) -> Result<Vec<u32>> {
    let (rows, n) = (space.rows(), space.len());
    let sample = sampled(n, MEAN_ROWS, seed);
    let mean = mean_of(rows, &sample, space.dim());
    let pieces = n.div_ceil(PIECE);
    let compared = (COMPARED_BYTES / (PIECE * space.row_bytes()).max(1)).clamp(1, pieces);
    let farther = |mut found: Vec<Key>, piece: usize| {
        progress.check()?;
        // Pieces are spread over the base.
        let first = (piece * pieces / compared) * PIECE;
        found.extend((first..(first + PIECE).min(n)).map(|row| far_key(rows, row, &mean)));
        Ok(nearest(found))
    };
    let keys = try_fold(0..compared, Vec::new, farther, both)?;
    Ok(keys.into_iter().map(|key| key as u32).collect())
}

/// The mean of some rows.
fn mean_of(rows: TypedRows<'_>, sample: &[u32], dim: usize) -> Vec<f32> {
    let mut sum = vec![0f64; dim];
    for &row in sample {
        with_matrix!(rows, m => {
            sum.iter_mut().zip(m.components(row as usize)).for_each(|(sum, x)| *sum += f64::from(x));
        });
    }
    let count = sample.len().max(1) as f64;
    sum.into_iter().map(|sum| (sum / count) as f32).collect()
}

/// A key that is smaller for a row farther from `mean`.
fn far_key(rows: TypedRows<'_>, row: usize, mean: &[f32]) -> Key {
    let distance: f32 = with_matrix!(rows, m => {
        // Sums of 16 each, so that a processor adds them side by side.
        let mut sums = [0f32; 16];
        for (i, (x, y)) in m.components(row).zip(mean).enumerate() {
            sums[i % 16] += (x - y) * (x - y);
        }
        sums.iter().sum()
    });
    key::pack(-distance, row as u32)
}

/// The smallest [`ROWS`] keys, ascending.
fn nearest(mut keys: Vec<Key>) -> Vec<Key> {
    if keys.len() > ROWS {
        keys.select_nth_unstable(ROWS);
        keys.truncate(ROWS);
    }
    keys.sort_unstable();
    keys
}

/// The smallest [`ROWS`] keys of two lists.
fn both(mut a: Vec<Key>, b: Vec<Key>) -> Vec<Key> {
    a.extend(b);
    nearest(a)
}

/// The nodes with the fewest edges to them, of those with fewer than all counted.
fn with_fewest_edges(engine: &Engine<'_>, edges_to: &[u8]) -> Vec<u32> {
    let index = engine.index();
    let is_node = |row: u32| !index.repeated().contains(row) && !index.is_left_out(row);
    let add = |mut keys: Vec<Key>, row: u32| {
        keys.extend(is_node(row).then(|| Key::from(edges_to[row as usize]) << 32 | Key::from(row)));
        if keys.len() >= 2 * PIECE { nearest(keys) } else { keys }
    };
    nearest(fold(0..index.len() as u32, Vec::new, add, both)).into_iter().map(|key| key as u32).collect()
}

/// Searches for the rows of a sample; `edges_to` counts the edges to each node.
pub(super) fn measure(
    engine: &Engine<'_>,
    edges_to: &[u8],
    far: &[u32],
    seed: u64,
    progress: &Progress,
) -> Result<SelfRecall> {
    let index = engine.index();
    let random = sampled(index.len(), ROWS, seed ^ 1);
    let random = random.into_iter().filter(|&row| !index.is_left_out(row)).collect();
    let far = far.iter().copied().filter(|&row| !index.is_left_out(row)).collect();
    let equal = index.repeated().of_largest_groups(ROWS, ROWS_OF_GROUP);
    let kinds: [(&str, Vec<u32>); 4] =
        [(RANDOM, random), (FEW_EDGES, with_fewest_edges(engine, edges_to)), (EQUAL, equal), (FAR, far)];
    let rows: Vec<u32> = kinds.iter().flat_map(|(_, rows)| rows).copied().collect();
    let part = engine.space().part(&rows)?;
    let selected = engine.base().select(&rows)?;
    let queries = engine.space().queries(&selected, &progress.unwatched())?;
    let k = K.min(index.len());
    let found = engine.run(&queries, Search::new(k).beam(BEAM), progress)?;
    let mut own = Vec::new();
    let mut is_found = (0..rows.len()).map(|place| {
        part.list_distances(part.query(place as u32), &[place as u32], &mut own);
        found.distances(place).first().is_some_and(|distance| distance <= &own[0])
    });
    let (mut shares, mut all) = (BTreeMap::new(), 0);
    for (kind, rows) in kinds.iter().filter(|(_, rows)| !rows.is_empty()) {
        let count = is_found.by_ref().take(rows.len()).filter(|&found| found).count();
        shares.insert(*kind, count as f64 / rows.len() as f64);
        all += count;
    }
    let recall = if rows.is_empty() { 1.0 } else { all as f64 / rows.len() as f64 };
    Ok(SelfRecall { queries: rows.len(), beam: BEAM, recall, kinds: shares })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::descent::KnnSample;
    use crate::{Builder, Description, Device, Index, Measure, Metric, Report, Strategy, Synth, Vectors};

    fn found(base: &Vectors, index: &Index) -> SelfRecall {
        let measure = Measure { nodes: 50, ..Measure::default() }.on(Device::Cpu);
        Report::measure(index, Some(base), &KnnSample::default(), &measure).unwrap().self_recall.unwrap()
    }

    fn built(base: &Vectors) -> Index {
        Builder::new(Strategy::vamana()).knn(20).device(Device::Cpu).build(base).unwrap()
    }

    /// An index without edges to `lost`.
    fn without(base: &Vectors, index: &Index, lost: u32) -> Index {
        let row = |node| index.neighbors(node).iter().copied().filter(|&id| id != lost).collect();
        let rows: Vec<Vec<u32>> = (0..index.len()).map(row).collect();
        let description = Description { metric: Metric::L2, ..index.description().clone() };
        let entries = index.entries().iter().copied().filter(|&id| id != lost).collect();
        Index::from_rows(description, base, &rows, entries).unwrap()
    }

    #[test]
    fn the_sample_holds_lost_rows() {
        let plain = Synth::new(2000, 8, 1).unwrap().base();
        let kinds = |found: &SelfRecall| found.kinds.clone().into_iter().collect::<Vec<_>>();
        let whole = found(&plain, &built(&plain));
        assert_eq!(kinds(&whole), [(FAR, 1.0), (FEW_EDGES, 1.0), (RANDOM, 1.0)]);
        assert_eq!((whole.queries, whole.beam, whole.recall), (3 * ROWS, BEAM, 1.0));

        // One far row of 2,000, without edges to it.
        let mut values: Vec<f32> =
            (0..plain.len()).flat_map(|row| plain.host_row(row).into_owned()).collect();
        values[1234 * 8] = 1e4;
        let base = Vectors::from_f32(values, 8).unwrap();
        let lost = found(&base, &without(&base, &built(&base), 1234));
        let missed = 1.0 - 1.0 / ROWS as f64;
        assert_eq!((lost.kinds[FAR], lost.kinds[FEW_EDGES]), (missed, missed));
        assert!(lost.recall < 1.0);
    }

    #[test]
    fn rows_of_large_groups_are_in_the_sample() {
        let plain = Synth::new(600, 8, 1).unwrap().base();
        let from = |row: usize| if row.is_multiple_of(3) { row % 6 } else { row };
        let values = (0..600).flat_map(|row| plain.host_row(from(row)).into_owned()).collect();
        let base = Vectors::from_f32(values, 8).unwrap();
        let index = built(&base);
        assert_eq!(index.repeated().of_largest_groups(3, 2), [594, 0, 597]);
        assert_eq!(index.repeated().of_largest_groups(100, 4).len(), 8);
        assert_eq!(found(&base, &index).kinds[EQUAL], 1.0);
    }
}
