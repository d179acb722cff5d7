//! The exact k-NN graph on the CPU, from all pairs of rows.
//!
//! Rows of a cell meet first: what they find bounds the lists of all rows from the start. Then
//! panels of rows meet each other once. A filter drops the pairs that cannot enter the list of
//! either row ([`Panels`]), and the others get their exact distance. A list ends with the smallest
//! of all its keys, so the graph does not depend on the threads or on the instruction set.

use std::sync::{Mutex, MutexGuard};

use tagore_device::key::{self, Key};

use super::CellSettings;
use super::cells::{self, Joined};
use super::lists::NeighbourLists;
use crate::gpu::MemoryPlan;
use crate::loops::{for_each, rows_mut, try_for_each_with};
use crate::memory::{collected_in_parallel, filled};
use crate::parallel::locked;
use crate::search::exact::{Best, near_rows};
use crate::vectors::panels::{PANEL, PanelSource, Panels, PerRow, Side};
use crate::vectors::space::Space;
use crate::{DataShape, Progress, Result};

/// Panels of a block, the unit of parallel work.
const PANELS: usize = 4;

/// Rows of a block.
const BLOCK: usize = PANELS * PANEL;

/// Fewer rows have no cells: comparing all takes little longer. Tests have few.
const MIN_CELLS: usize = if cfg!(test) { 200 } else { 8_192 };

/// Rows of a cell, in times of the neighbours, and at least.
const PER_CELL: (usize, usize) = (8, 250);

/// Keys of a list beyond its `k` before it is cut.
const PENDING: usize = 16;

/// Host memory of [`all_pairs`] with `threads` threads: while cells bound lists, while pairs are
/// compared, and while the lists are gathered.
pub(super) fn plans(data: &DataShape, k: usize, threads: usize) -> [MemoryPlan; 3] {
    let n = data.rows;
    let lists = MemoryPlan::new().with::<Key>("lists", n * k).with::<Key>("bounds", n);
    let bounding =
        if n < MIN_CELLS { MemoryPlan::new() } else { lists.and(&cells::plan(data, cells_for(k), threads)) };
    let nearest = MemoryPlan::new()
        .with::<Key>("nearest so far", n * (k + PENDING))
        .with::<Key>("bounds", n)
        .with::<(Best, f32)>("heads of lists", n);
    [bounding, Panels::plan(data).and(&nearest), nearest.with::<Key>("lists", n * k)]
}

/// The exact k-NN lists of all nodes, `k` keys per node; `k` is below the number of nodes.
pub(super) fn all_pairs(space: &Space<'_>, k: usize, progress: &Progress) -> Result<Vec<Key>> {
    let nodes = space.len();
    if k == 0 {
        return Ok(Vec::new());
    }
    let [bounding, comparing] = progress.parts([0.1, 1.0]);
    let source = PanelSource::new(space, &bounding)?;
    let bounds = bounds(&source, k, &bounding)?;
    let panels = source.all(&comparing)?;
    drop(source);
    let starts = (0..nodes).step_by(BLOCK);
    let block = |first: usize| {
        let bounds = &bounds[first..nodes.min(first + BLOCK)];
        Ok(Mutex::new(Block::new(first, bounds, k, &panels)?))
    };
    let blocks = starts.map(block).collect::<Result<_>>()?;
    let pairs = AllPairs { space, panels, blocks };
    pairs.run(&comparing)?;
    let AllPairs { panels, blocks, .. } = pairs;
    drop(panels);
    let mut keys = filled(key::NONE, nodes * k)?;
    for_each((rows_mut(&mut keys, BLOCK * k), &blocks[..]), |(keys, block)| {
        let lists = std::mem::take(&mut locked(block).lists);
        for (keys, list) in keys.chunks_exact_mut(k).zip(lists) {
            keys.copy_from_slice(&list.finish());
        }
    });
    Ok(keys)
}

/// Cells whose rows meet first.
fn cells_for(k: usize) -> CellSettings {
    let nodes = (PER_CELL.0 * k).max(PER_CELL.1);
    CellSettings { nodes_per_cell: Some(nodes), probes: Some(1), clusterings: Some(1) }
}

/// A key above those of the `k` nearest neighbours of each row, by the rows of its cell.
fn bounds(source: &PanelSource<'_>, k: usize, progress: &Progress) -> Result<Vec<Key>> {
    let n = source.space().len();
    if n < MIN_CELLS {
        return filled(Key::MAX, n);
    }
    let Joined { lists, .. } = cells::join(source, NeighbourLists::new(n, k)?, cells_for(k), 0, progress)?;
    let above = |list: &[Key]| if list[k - 1] == key::NONE { Key::MAX } else { key::plain(list[k - 1]) + 1 };
    collected_in_parallel(lists.rows(), above)
}

/// The lists of neighbouring rows so far.
struct Block {
    /// The first row.
    first: usize,
    lists: Vec<Best>,
    /// The largest `h` ([`Panels`]) of a pair that may enter each list; -∞ past the last row.
    bounds: [PerRow; PANELS],
}

impl Block {
    /// Empty lists of rows from `first` on, with a bound of each.
    fn new(first: usize, keys: &[Key], k: usize, panels: &Panels<'_>) -> Result<Self> {
        let mut bounds = [[f32::NEG_INFINITY; PANEL]; PANELS];
        for (bound, &key) in bounds.as_flattened_mut().iter_mut().zip(keys) {
            // An infinite bound would admit the rows that fill up a panel.
            *bound = if key == Key::MAX { f32::MAX } else { panels.bound(key::distance(key)) };
        }
        let lists = keys.iter().map(|&key| Best::below(key, k, k + PENDING)).collect::<Result<_>>()?;
        Ok(Self { first, lists, bounds })
    }

    fn add(&mut self, panels: &Panels<'_>, row: usize, key: Key) {
        let list = &mut self.lists[row];
        list.add(key);
        if let Some(last) = list.bound() {
            self.bounds.as_flattened_mut()[row] = panels.bound(key::distance(last));
        }
    }
}

struct AllPairs<'a> {
    space: &'a Space<'a>,
    panels: Panels<'a>,
    blocks: Vec<Mutex<Block>>,
}

/// Buffers of one task.
#[derive(Default)]
struct Scratch {
    ids: Vec<u32>,
    distances: Vec<f32>,
}

impl AllPairs<'_> {
    /// Compares all blocks with each other. In a round, a block meets at most one other, so that no
    /// thread waits for a lock: blocks whose numbers add up to the round, modulo an odd number.
    fn run(&self, progress: &Progress) -> Result<()> {
        let count = self.blocks.len();
        let rounds = count | 1;
        let stage = progress.stage("all pairs", (count * (count + 1) / 2) as u64);
        let step = far_step(rounds);
        for round in (0..rounds).map(|number| number * step % rounds) {
            try_for_each_with(0..count, Scratch::default, |scratch, first| {
                let second = (round + rounds - first) % rounds;
                if (first..count).contains(&second) {
                    self.meet(first, second, scratch);
                    stage.advance(1)?;
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    fn block(&self, block: usize) -> MutexGuard<'_, Block> {
        locked(&self.blocks[block])
    }

    fn meet(&self, first: usize, second: usize, scratch: &mut Scratch) {
        let mut a = self.block(first);
        if first == second {
            return self.compare(&mut [&mut a], scratch);
        }
        let mut b = self.block(second);
        self.compare(&mut [&mut a, &mut b], scratch);
    }

    /// Compares the rows of two blocks, or of one block with each other.
    fn compare(&self, blocks: &mut [&mut Block], scratch: &mut Scratch) {
        let last = blocks.len() - 1;
        let panels = |block: &Block| block.lists.len().div_ceil(PANEL);
        for first in 0..panels(blocks[0]) {
            // All pairs of a row are gathered before their distances, which saves half of the time
            // of the calls.
            let mut near = [[0; PANEL]; PANELS];
            let side = |block: usize, panel: usize| {
                let block = &*blocks[block];
                Side { panel: block.first / PANEL + panel, bounds: &block.bounds[panel] }
            };
            let a = side(0, first);
            for (second, near) in near.iter_mut().enumerate().take(panels(blocks[last])) {
                let b = side(last, second);
                if a.panel <= b.panel {
                    *near = self.panels.near(a, &self.panels, b);
                }
                if a.panel == b.panel {
                    // Each pair once, and no row with itself.
                    near.iter_mut().zip(0..).for_each(|(near, row)| *near &= (u32::MAX << row) << 1);
                }
            }
            for row in 0..PANEL {
                self.add(blocks, first * PANEL + row, &near, scratch);
            }
        }
    }

    /// Adds pairs of a row of the first block to the lists of both rows: the bits of `near` at its
    /// place in its panel stand for the rows of the last block.
    fn add(&self, blocks: &mut [&mut Block], row: usize, near: &[[u32; PANEL]], scratch: &mut Scratch) {
        let Scratch { ids, distances } = scratch;
        let last = blocks.len() - 1;
        let node = (blocks[0].first + row) as u32;
        let start = blocks[last].first as u32;
        near_rows(start, near, row % PANEL, ids);
        if ids.is_empty() {
            return;
        }
        self.space.list_distances(self.space.query(node), ids, distances);
        for (&id, &distance) in ids.iter().zip(&*distances) {
            blocks[0].add(&self.panels, row, key::pack(distance, id));
            blocks[last].add(&self.panels, (id - start) as usize, key::pack(distance, node));
        }
    }
}

/// A step through the numbers below `count` that meets each once, far from the last ones: the
/// golden section of `count`, or the next number without a common divisor. In order, each row of
/// sorted data would be nearer than all before it, and enter the list.
fn far_step(count: usize) -> usize {
    let common = |mut a: usize, mut b: usize| {
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    let section = (count as f64 * 0.618) as usize;
    (section.max(1)..).find(|&step| common(step, count) == 1).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use half::f16;
    use tagore_device::random::{Draws, Stage};

    use super::*;
    use crate::search::exact::ExactSearch;
    use crate::{Device, Metric, Vectors};

    fn check(base: &Vectors, what: &str) {
        let metrics = [Metric::L2, Metric::Cosine, Metric::InnerProduct];
        for metric in metrics.into_iter().filter(|metric| metric.check(base.element_type()).is_ok()) {
            let space = Space::new(base, metric, &Progress::silent()).unwrap();
            let nodes: Vec<u32> = (0..base.len() as u32).collect();
            for k in [1, 10, 97].map(|k: usize| k.min(base.len() - 1)) {
                let expected = ExactSearch::new(k).device(Device::Cpu).neighbors_of(&space, &nodes).unwrap();
                let found = all_pairs(&space, k, &Progress::silent()).unwrap();
                assert!(found == expected, "{what}, {} x {}, {metric}, k = {k}", base.len(), base.dim());
            }
        }
    }

    fn draw(dim: usize, seed: u64) -> impl Fn(usize) -> f32 {
        let draws = Draws::new(seed, Stage::Test, 2, dim as u64);
        move |i| draws.unit(i as u64) as f32
    }

    #[test]
    fn rounds_are_taken_once_and_far_apart() {
        for count in (1..600).step_by(2) {
            let step = far_step(count);
            let mut seen: Vec<usize> = (0..count).map(|number| number * step % count).collect();
            let near = seen.windows(2).filter(|pair| pair[0].abs_diff(pair[1]) * 5 < count).count();
            assert!(count < 15 || near * 8 < count, "{count}: {near} of step {step}");
            seen.sort_unstable();
            assert!(seen.into_iter().eq(0..count), "{count}");
        }
    }

    #[test]
    fn lists_are_those_of_exact_search() {
        for (n, dim) in [(2, 3), (31, 1), (33, 7), (127, 16), (129, 33), (400, 20), (100, 300), (300, 40)] {
            let unit = draw(dim, n as u64);
            let f32s: Vec<f32> = (0..n * dim).map(|i| unit(i) - 0.5).collect();
            let f16s = f32s.iter().map(|&x| f16::from_f32(x)).collect();
            // Whole numbers: ties abound. Small ones: rows are equal, and some are zero.
            let bytes = |most: f32| (0..n * dim).map(|i| (unit(i) * most) as u8).collect();
            let i8s = (0..n * dim).map(|i| (unit(i) * 256.0 - 128.0) as i8).collect();
            let bits = (0..n * dim.div_ceil(8)).map(|i| (unit(i) * 256.0) as u8).collect();
            check(&Vectors::from_bits(bits, dim.next_multiple_of(8)).unwrap(), "b1");
            check(&Vectors::from_f32(f32s, dim).unwrap(), "f32");
            check(&Vectors::from_f16(f16s, dim).unwrap(), "f16");
            check(&Vectors::from_u8(bytes(256.0), dim).unwrap(), "u8");
            check(&Vectors::from_u8(bytes(2.0), dim).unwrap(), "few values");
            check(&Vectors::from_i8(i8s, dim).unwrap(), "i8");
        }
    }

    #[test]
    fn rounding_loses_no_neighbour() {
        let (n, dim) = (400, 24);
        let unit = draw(dim, 5);
        let values = |value: &dyn Fn(usize, f32) -> f32| {
            let values = (0..n * dim).map(|i| value(i / dim, unit(i) - 0.5)).collect();
            Vectors::from_f32(values, dim).unwrap()
        };
        // Distances far smaller than the norms, and differences of the last bits.
        check(&values(&|_, x| 1e6 + x), "far from zero");
        check(&values(&|row, x| if row % 2 == 0 { 1e6 + x } else { x - 1e6 }), "two places");
        check(&values(&|row, x| x * 10f32.powi(row as i32 % 12 - 6)), "many magnitudes");
        check(&values(&|row, x| if row == 0 { 1.0 } else { x * 1e-21 }), "nearly equal rows");
        check(&values(&|_, x| x * 1e18), "large values");
        check(&values(&|_, x| x * 1e-11), "small values");
    }
}
