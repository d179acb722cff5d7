//! Exact search on the CPU.

use std::ops::Range;

use tagore_device::key::{self, Key};

use crate::Result;
use crate::loops::{for_each, numbered, rows_mut, try_for_each_with};
use crate::memory::{filled, with_capacity};
use crate::parallel::shares;
use crate::progress::Progress;
use crate::vectors::panels::{PANEL, PanelForm, PerRow, Side};
use crate::vectors::space::{Query, Space};

/// Bytes of the base that stay in a core's cache while a block of queries passes over them.
const TILE_BYTES: usize = 256 << 10;

/// Queries of a block, the unit of parallel work.
const QUERIES: usize = PANEL;

/// Fewer queries are compared with rows one by one: panels of all rows take as long to make as 64
/// queries of 96 components take, or 150 of 384.
const MIN_BY_PANELS: usize = 96;

/// Bytes of panels of rows that all queries pass over, and of panels of queries.
const PANEL_BYTES: (usize, usize) = (4 << 20, 64 << 20);

/// Panels of rows whose near pairs get their exact distances together.
const GROUP: usize = 4;

/// The bounds of rows without lists.
const NO_BOUNDS: PerRow = [f32::NEG_INFINITY; PANEL];

/// The queries of a search: `query` gives each with the row to exclude, if any.
struct QueryRows<'a, 'p> {
    count: usize,
    query: &'a (dyn Fn(usize) -> (Query<'p>, Option<u32>) + Sync),
}

/// The `k` smallest keys (list distance, id) for each of `count` queries; `query` gives a query and
/// the row to exclude, if any. The rows are `among` these ids, or all. Fewer than `k` rows leave
/// [`key::NONE`] in the last slots.
pub(crate) fn nearest<'p>(
    space: &Space<'_>,
    among: Option<&[u32]>,
    count: usize,
    query: &(dyn Fn(usize) -> (Query<'p>, Option<u32>) + Sync),
    k: usize,
    progress: &Progress,
) -> Result<Vec<Key>> {
    if k == 0 || count == 0 {
        return Ok(Vec::new());
    }
    let mut keys = filled(key::NONE, count * k)?;
    let queries = QueryRows { count, query };
    if among.is_none() && count >= MIN_BY_PANELS && PanelForm::is_worth_its_time(space) {
        by_panels(space, &queries, k, &mut keys, progress)?;
    } else {
        by_rows(space, among, &queries, k, &mut keys, progress)?;
    }
    Ok(keys)
}

/// Compares each query with each row. Threads share the rows where there are few queries.
fn by_rows(
    space: &Space<'_>,
    among: Option<&[u32]>,
    queries: &QueryRows<'_, '_>,
    k: usize,
    keys: &mut [Key],
    progress: &Progress,
) -> Result<()> {
    let tile = (TILE_BYTES / space.row_bytes()).clamp(64, 4096);
    let rows = among.map_or(space.len(), <[u32]>::len);
    let (count, blocks) = (queries.count, queries.count.div_ceil(QUERIES));
    let parts = rayon::current_num_threads().div_ceil(blocks.max(1)).min(rows.div_ceil(tile)).max(1);
    let stage = progress.stage("exact search", (count * parts) as u64);
    let mut of_parts = filled(key::NONE, if parts > 1 { parts * keys.len() } else { 0 })?;
    let found = if parts > 1 { &mut of_parts[..] } else { &mut *keys };
    let mut slots: Vec<&mut [Key]> =
        found.chunks_mut(count * k).flat_map(|part| part.chunks_mut(QUERIES * k)).collect();
    let part: Vec<Range<usize>> = shares(rows, parts).collect();
    try_for_each_with(
        numbered(&mut slots[..]),
        || (Vec::new(), Vec::new()),
        |(ids, distances), (number, slots)| {
            let (rows, first) = (&part[number / blocks], number % blocks * QUERIES);
            let mut best = lists(slots.len() / k, k)?;
            for begin in rows.clone().step_by(tile) {
                stage.check()?;
                let end = (begin + tile).min(rows.end);
                ids.clear();
                match among {
                    Some(among) => ids.extend_from_slice(&among[begin..end]),
                    None => ids.extend(begin as u32..end as u32),
                }
                for (index, best) in best.iter_mut().enumerate() {
                    let (query, itself) = (queries.query)(first + index);
                    space.list_distances(query, ids, distances);
                    for (&id, &distance) in ids.iter().zip(distances.iter()) {
                        if Some(id) != itself {
                            best.add(key::pack(distance, id));
                        }
                    }
                }
            }
            stage.advance(best.len() as u64)?;
            finish(best, k, slots);
            Ok(())
        },
    )?;
    if parts > 1 {
        for (query, list) in keys.chunks_exact_mut(k).enumerate() {
            let of_part = |part: usize| &of_parts[(part * count + query) * k..][..k];
            let mut all: Vec<Key> = (0..parts).flat_map(of_part).copied().collect();
            all.sort_unstable();
            list.copy_from_slice(&all[..k]);
        }
    }
    Ok(())
}

/// Compares panels of queries with panels of rows. Only pairs that may enter the list of the query
/// get their exact distance.
fn by_panels(
    space: &Space<'_>,
    queries: &QueryRows<'_, '_>,
    k: usize,
    keys: &mut [Key],
    progress: &Progress,
) -> Result<()> {
    let (n, bytes) = (space.len(), space.dim() * size_of::<f32>());
    let [rows_at_once, queries_at_once] =
        [PANEL_BYTES.0, PANEL_BYTES.1].map(|most| (most / bytes).next_multiple_of(PANEL));
    let form = PanelForm::new(space, progress)?;
    let stage = progress.stage("exact search", (queries.count * n.div_ceil(rows_at_once)) as u64);
    for (chunk, keys) in keys.chunks_mut(k * queries_at_once).enumerate() {
        let (first, count) = (chunk * queries_at_once, keys.len() / k);
        let query = |index: usize| (queries.query)(first + index);
        let panels = form.panels(count, &|index| query(index).0, progress)?;
        let starts = (0..count).step_by(QUERIES);
        let mut blocks: Vec<Block> =
            starts.map(|start| Block::new((count - start).min(QUERIES), k)).collect::<Result<_>>()?;
        for begin in (0..n).step_by(rows_at_once) {
            let row = |index: usize| space.query((begin + index) as u32);
            let count = (n - begin).min(rows_at_once);
            let (rows, end) = (form.panels(count, &row, progress)?, count.div_ceil(PANEL));
            try_for_each_with(
                numbered(&mut blocks[..]),
                || (Vec::new(), Vec::new()),
                |(ids, distances), (panel, block)| {
                    stage.check()?;
                    for start in (0..end).step_by(GROUP) {
                        let group = start..end.min(start + GROUP);
                        let mut near = [[0; PANEL]; GROUP];
                        for (near, other) in near.iter_mut().zip(group) {
                            let side = Side { panel, bounds: &block.bounds };
                            *near = panels.near(side, &rows, Side { panel: other, bounds: &NO_BOUNDS });
                        }
                        let Block { lists, bounds } = &mut *block;
                        for (index, (list, bound)) in lists.iter_mut().zip(bounds).enumerate() {
                            let first = (begin + start * PANEL) as u32;
                            near_rows(first, &near, index, ids);
                            if ids.is_empty() {
                                continue;
                            }
                            let (query, itself) = query(panel * QUERIES + index);
                            space.list_distances(query, ids, distances);
                            for (&id, &distance) in ids.iter().zip(distances.iter()) {
                                if Some(id) != itself {
                                    list.add(key::pack(distance, id));
                                }
                            }
                            if let Some(last) = list.bound() {
                                *bound = panels.bound(key::distance(last));
                            }
                        }
                    }
                    stage.advance(block.lists.len() as u64)
                },
            )?;
        }
        let finished = (&mut blocks[..], rows_mut(keys, k * QUERIES));
        for_each(finished, |(block, slots)| finish(std::mem::take(&mut block.lists), k, slots));
    }
    Ok(())
}

/// Writes the ids that the bits of a row of panels stand for, the first bit of the first panel for
/// `first`.
pub(crate) fn near_rows(first: u32, near: &[[u32; PANEL]], row: usize, ids: &mut Vec<u32>) {
    ids.clear();
    for (first, near) in (first..).step_by(PANEL).zip(near) {
        let mut near = near[row];
        while near != 0 {
            ids.push(first + near.trailing_zeros());
            near &= near - 1;
        }
    }
}

/// The lists of a panel of queries.
struct Block {
    lists: Vec<Best>,
    /// The largest `h` of a row that may enter each list.
    bounds: PerRow,
}

impl Block {
    fn new(queries: usize, k: usize) -> Result<Self> {
        // An infinite bound would admit the rows that fill up a panel.
        Ok(Self { lists: lists(queries, k)?, bounds: [f32::MAX; PANEL] })
    }
}

/// Empty lists of `count` queries.
fn lists(count: usize, k: usize) -> Result<Vec<Best>> {
    (0..count).map(|_| Best::new(k, 2 * k + 64)).collect()
}

/// Writes the keys of each list, smallest first, to `k` slots.
fn finish(lists: Vec<Best>, k: usize, slots: &mut [Key]) {
    for (slots, list) in slots.chunks_exact_mut(k).zip(lists) {
        slots.iter_mut().zip(list.finish()).for_each(|(slot, key)| *slot = key);
    }
}

/// The `k` smallest of the keys added.
pub(crate) struct Best {
    k: usize,
    keys: Vec<Key>,
    /// Keys from this one on are not among the `k` smallest.
    bound: Key,
}

impl Best {
    /// No keys yet, and room for `room` of them, more than `k`: a larger one is cut less often.
    ///
    /// # Errors
    /// If memory is short.
    pub(crate) fn new(k: usize, room: usize) -> Result<Self> {
        Ok(Self { k, keys: with_capacity(room)?, bound: Key::MAX })
    }

    /// As [`new`](Self::new), for `k` keys that are known to be below `bound`.
    ///
    /// # Errors
    /// If memory is short.
    pub(crate) fn below(bound: Key, k: usize, room: usize) -> Result<Self> {
        Ok(Self { bound, ..Self::new(k, room)? })
    }

    /// The key that others must be below, once there is one.
    #[inline]
    pub(crate) fn bound(&self) -> Option<Key> {
        (self.bound != Key::MAX).then_some(self.bound)
    }

    #[inline]
    pub(crate) fn add(&mut self, key: Key) {
        if key < self.bound {
            self.keys.push(key);
            if self.keys.len() == self.keys.capacity() {
                self.cut();
            }
        }
    }

    fn cut(&mut self) {
        if self.keys.len() > self.k {
            let (_, &mut last, _) = self.keys.select_nth_unstable(self.k - 1);
            self.bound = last;
            self.keys.truncate(self.k);
        }
    }

    pub(crate) fn finish(mut self) -> Vec<Key> {
        self.cut();
        self.keys.sort_unstable();
        self.keys
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ElementType, Metric, Vectors};
    use tagore_device::random::{Draws, Stage};

    #[test]
    fn the_best_are_the_smallest() {
        for (count, k) in [(1, 1), (10, 10), (500, 3), (2000, 100)] {
            let draws = Draws::new(3, Stage::Test, count as u32, k as u64);
            let keys: Vec<Key> = (0..count).map(|i| draws.bits(i) >> 1).collect();
            let mut best = Best::new(k, 2 * k + 64).unwrap();
            keys.iter().for_each(|&key| best.add(key));
            let mut sorted = keys;
            sorted.sort_unstable();
            sorted.truncate(k);
            assert_eq!(best.finish(), sorted, "{count} keys, k = {k}");
        }
    }

    /// Every query finds what comparing each row finds: of any type, metric and place of the data.
    #[test]
    fn panels_find_the_rows_of_a_comparison_of_all() {
        let silent = Progress::silent();
        for (n, dim, count) in [(1, 3, 33), (37, 1, 32), (500, 17, 70), (131, 130, 40), (1100, 130, 2)] {
            let draws = Draws::new(5, Stage::Test, dim as u32, n as u64);
            let values = |from: usize, rows: usize, far: f32, scale: f32| {
                let value = |i: usize| far + scale * (draws.unit((from + i) as u64) as f32 - 0.5);
                Vectors::from_f32((0..rows * dim).map(value).collect(), dim).unwrap()
            };
            let grid = |from: usize, rows: usize| {
                let value = |i: usize| draws.below((from + i) as u64, 3) as f32;
                Vectors::from_f32((0..rows * dim).map(value).collect(), dim).unwrap()
            };
            let far = n * dim;
            let cases = [
                ("near zero", values(0, n, 0.0, 1.0), values(far, count, 0.0, 1.0)),
                ("far from zero", values(0, n, 1e4, 1.0), values(far, count, 1e4, 1.0)),
                ("queries elsewhere", values(0, n, 0.0, 1e-3), values(far, count, 3e4, 1.0)),
                ("ties and zero rows", grid(0, n), grid(far, count)),
            ];
            for (name, base, queries) in cases {
                for metric in [Metric::L2, Metric::InnerProduct, Metric::Cosine] {
                    for element in [ElementType::F32, ElementType::F16] {
                        let [base, queries] =
                            [&base, &queries].map(|v| v.cast(element, &silent).unwrap().into_owned());
                        let space = Space::new(&base, metric, &silent).unwrap();
                        let queries = space.queries(&queries, &silent).unwrap();
                        let query = |index| (queries.query(index), Some(index as u32));
                        let k = 7.min(n);
                        let rows = QueryRows { count, query: &query };
                        let [mut found, mut expected] = [(); 2].map(|()| vec![key::NONE; count * k]);
                        by_panels(&space, &rows, k, &mut found, &silent).unwrap();
                        by_rows(&space, None, &rows, k, &mut expected, &silent).unwrap();
                        assert!(found == expected, "{name}, {n} x {dim}, {metric}, {element}");
                    }
                }
            }
        }
    }
}
