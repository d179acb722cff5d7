//! Builds in parts, where rows lie in dense spots: far nearer to each other than to all other rows,
//! as near copies of one row do.
//!
//! The list of such a row holds rows of its spot alone, so no edge leads out, and the lists of rows
//! around a spot are full of its rows. Searches that meet a spot fill their beams with its rows and
//! end there. So the rows outside, with one row of each spot, are an index of their own, and so are
//! the rows of each spot ([`Spots`](crate::index::Spots)).

use std::time::Instant;

use rayon::prelude::*;
use tagore_device::key::{self, Key};

use super::graph::Graph;
use super::memory::{Built, Given};
use super::octaves::{GAP, MIN_OUTSIDE, Octaves};
use super::{BuildStats, Builder, Layering};
use crate::descent::{DeviceGraph, KnnGraph};
use crate::gpu::Gpu;
use crate::index::{Spot, SpotIndex};
use crate::loops::{map, try_map};
use crate::vectors::gpu::Pick;
use crate::vectors::mean::drawn_rows;
use crate::vectors::space::Space;
use crate::{Device, Metric, Result, Vectors};

/// Minimum number of rows of a spot. Smaller groups stay outside.
pub(super) const MIN_ROWS: usize = 32;

/// The neighbour whose distance, the radius of a row, tells how densely the rows around it lie.
/// That of the last in a list would depend on how many rows the list holds: it parts a far group of
/// fewer rows from one of more, and shows neither.
const RANK: usize = 16;

/// Neighbours of a row that are in its spot.
const JOINED: usize = 8;

/// Maximum number of spots that lists show. With more, layers lead searches between them, as
/// between clusters.
const MAX_SPOTS: usize = 1024;

/// Maximum number of distances between groups of rows that their lists join.
const MAX_COMPARED: usize = 1 << 24;

/// Maximum number of rows of a spot that the CPU builds, many spots at a time, whatever the device.
const MAX_ROWS_ON_CPU: usize = 2048;

/// Rows that show how wide a spot is.
const WIDTH_SAMPLE: usize = 1 << 10;

/// A spot is wide if its rows lie a quarter of a length from a line through the origin: the ratio
/// of squares.
const WIDE: f64 = 16.0;

/// Random rows that show groups far from all others.
const SAMPLE: usize = 1 << 14;

/// Nodes whose lists come from a device at a time.
const AT_A_TIME: usize = 1 << 16;

/// The dense spots of a data set.
pub(super) struct DenseSpots {
    pub(super) spots: Vec<Spot>,
    /// The rows outside and the representatives, ascending.
    outside: Vec<u32>,
}

/// The rows that need more than the others.
#[derive(Default)]
pub(super) struct Odd {
    pub spots: Option<DenseSpots>,
    /// Rows far from all others.
    pub lone: Vec<u32>,
    /// Some of the rows in far groups smaller than lists, which lead out of them.
    pub remote: Vec<u32>,
}

impl DenseSpots {
    /// The spots of rows whose `radii` are below the `bound`. `near` returns the first [`JOINED`]
    /// neighbours of rows, and `part` a space of rows.
    fn find<'s>(
        radii: &[f32],
        bound: f32,
        near: impl Fn(&[u32]) -> Result<Vec<u32>>,
        part: impl Fn(&[u32]) -> Result<Space<'s>>,
    ) -> Result<Option<Self>> {
        let n = radii.len() as u32;
        let dense: Vec<u32> = (0..n).filter(|&row| radii[row as usize] < bound).collect();
        let mut roots: Vec<u32> = (0..n).collect();
        for rows in dense.chunks(AT_A_TIME) {
            let near = near(rows)?;
            for (&row, near) in rows.iter().zip(near.chunks_exact(JOINED)) {
                for &other in near.iter().filter(|&&other| radii[other as usize] < bound) {
                    join(&mut roots, row, other);
                }
            }
        }
        let found = Self::of_trees(roots, bound, part)?;
        Ok(found.filter(|found| found.spots.len() <= MAX_SPOTS))
    }

    /// The spots of rows that are joined in trees, each row with a parent or itself.
    pub(super) fn of_trees<'s>(
        mut roots: Vec<u32>,
        bound: f32,
        part: impl Fn(&[u32]) -> Result<Space<'s>>,
    ) -> Result<Option<Self>> {
        let n = roots.len() as u32;
        let mut members: Vec<[u32; 2]> = (0..n).map(|row| [root(&mut roots, row), row]).collect();
        members.par_sort_unstable();
        let groups = members.chunk_by(|a, b| a[0] == b[0]).filter(|rows| rows.len() > 1);
        let groups = groups.map(|rows| rows.iter().map(|row| row[1]).collect()).collect();
        let spots = joined(groups, bound, part)?;
        let spots: Vec<Spot> = spots.into_iter().map(Spot::new).collect();
        Ok((!spots.is_empty()).then(|| Self::among(n, spots)))
    }

    /// These spots among `n` rows.
    fn among(n: u32, spots: Vec<Spot>) -> Self {
        let mut is_outside = vec![true; n as usize];
        for Spot { rows, representative } in &spots {
            rows.iter().for_each(|&row| is_outside[row as usize] = false);
            is_outside[rows[*representative] as usize] = true;
        }
        let outside = (0..n).filter(|&row| is_outside[row as usize]).collect();
        Self { spots, outside }
    }

    /// The same spots among `n` rows, each represented by its row of the largest `norm`.
    pub(super) fn represented_by(self, n: u32, norm: impl Fn(u32) -> f32 + Sync) -> Self {
        let Self { mut spots, .. } = self;
        for Spot { rows, representative } in &mut spots {
            let norms = map(&rows[..], |&row| norm(row)).into_iter().enumerate();
            *representative =
                norms.reduce(|a, b| if b.1 > a.1 { b } else { a }).map_or(0, |longest| longest.0);
        }
        Self::among(n, spots)
    }
}

/// Joins `groups` of rows whose first rows are nearer to each other than `bound`: equal rows, and
/// rows of one code, fill their lists with each other. Returns the groups that are spots.
fn joined<'s>(
    mut groups: Vec<Vec<u32>>,
    bound: f32,
    part: impl Fn(&[u32]) -> Result<Space<'s>>,
) -> Result<Vec<Vec<u32>>> {
    // Each joins the first of the larger ones that is near.
    groups.sort_by_key(|rows| (std::cmp::Reverse(rows.len()), rows[0]));
    let first: Vec<u32> = groups.iter().map(|rows| rows[0]).collect();
    let spots = groups.iter().take_while(|rows| rows.len() >= MIN_ROWS).count();
    let mut kept: Vec<u32> = Vec::new();
    if (1..=MAX_COMPARED).contains(&spots.saturating_mul(groups.len())) {
        let (space, mut distances) = (part(&first)?, Vec::new());
        for group in 0..groups.len() {
            space.list_distances(space.query(group as u32), &kept, &mut distances);
            match kept.iter().zip(&distances).find(|(_, distance)| **distance < bound) {
                Some((&near, _)) => {
                    let rows = std::mem::take(&mut groups[group]);
                    groups[near as usize].extend(rows);
                }
                None if group < spots => kept.push(group as u32),
                None => {}
            }
        }
    }
    groups.retain(|rows| rows.len() >= MIN_ROWS);
    groups.iter_mut().for_each(|rows| rows.sort_unstable());
    groups.sort_unstable();
    Ok(groups)
}

/// The first of these `bounds` of `radii` below which spots lie. Most rows lie below it, and the
/// others have their neighbours there, if these are lone or in groups of at most [`JOINED`]: then
/// the many are the data and no spots, and spots lie deeper. A search among the few would miss the
/// neighbours, to which lists lead.
fn bound_of_spots(
    radii: &[f32],
    bounds: &[f32],
    near: impl Fn(&[u32]) -> Result<Vec<u32>>,
) -> Result<Option<f32>> {
    for &bound in bounds {
        let is_dense = |row: u32| radii[row as usize] < bound;
        let mut others: Vec<u32> = (0..radii.len() as u32).filter(|&row| !is_dense(row)).collect();
        if 2 * others.len() >= radii.len() {
            return Ok(Some(bound));
        }
        others.truncate(AT_A_TIME);
        let near = near(&others)?;
        let last = near.chunks_exact(JOINED).map(|near| near[JOINED - 1]);
        if 2 * last.filter(|&last| is_dense(last)).count() <= others.len() {
            return Ok(Some(bound));
        }
    }
    Ok(None)
}

/// Joins the trees of two rows: the smallest row of a tree is its root.
pub(super) fn join(roots: &mut [u32], one: u32, other: u32) {
    let (a, b) = (root(roots, one), root(roots, other));
    roots[a.max(b) as usize] = a.min(b);
}

/// The root of `row`'s tree.
fn root(roots: &mut [u32], mut row: u32) -> u32 {
    while roots[row as usize] != row {
        // Halving of paths.
        roots[row as usize] = roots[roots[row as usize] as usize];
        row = roots[row as usize];
    }
    row
}

impl Odd {
    /// The odd rows of `space`, with these `radii` in lists of `k`. `near` returns the first
    /// [`JOINED`] neighbours of rows, and `last` the distances of their last neighbours.
    fn find(
        space: &Space<'_>,
        k: usize,
        radii: &[f32],
        near: impl Fn(&[u32]) -> Result<Vec<u32>>,
        last: impl Fn(&[u32]) -> Result<Vec<f32>>,
    ) -> Result<Self> {
        let octaves = Octaves::count(radii);
        let lone = octaves.lone_of(radii);
        let bounds = if k < JOINED { Vec::new() } else { octaves.bounds() };
        let spots = match bound_of_spots(radii, &bounds, &near)? {
            None => None,
            Some(bound) => DenseSpots::find(radii, bound, near, |rows| space.part(rows))?,
        };
        let sample = drawn_rows(6, SAMPLE, radii.len());
        let leaves = |&(last, row): &(f32, u32)| {
            let radius = radii[row as usize];
            radius > 0.0 && last >= radius * (1 << GAP) as f32
        };
        let remote = last(&sample)?.into_iter().zip(sample).filter(leaves).map(|(_, row)| row).collect();
        Ok(Self { spots, lone, remote })
    }

    /// The odd rows of `space`, whose k-NN graph is on a device. Unreliable lists show spots too:
    /// their rows are in the spot, though others may be nearer.
    pub fn on_device(gpu: &Gpu, space: &Space<'_>, graph: &DeviceGraph) -> Result<Self> {
        if !has_odd_rows(space) {
            return Ok(Self::default());
        }
        let (lists, k) = (&graph.lists, graph.lists.k);
        let radii = lists.distances_at(gpu, Pick::Range(0..space.len()), RANK)?;
        let near = |rows: &[u32]| {
            let keys = lists.some(gpu, Pick::Ids(rows), 0..JOINED)?;
            let own = |place: usize| rows[place / JOINED];
            let id = |(place, key): (usize, Key)| if key == key::NONE { own(place) } else { key::id(key) };
            Ok(keys.into_iter().enumerate().map(id).collect())
        };
        Self::find(space, k, &radii, near, |rows| lists.distances_at(gpu, Pick::Ids(rows), k))
    }

    /// The odd rows of `space`, whose k-NN graph is on the host.
    pub fn on_host(space: &Space<'_>, graph: &KnnGraph) -> Result<Self> {
        if !has_odd_rows(space) {
            return Ok(Self::default());
        }
        let near = |&row: &u32| graph.neighbors(row as usize)[..JOINED].to_vec();
        let near = |rows: &[u32]| Ok(rows.iter().flat_map(near).collect());
        let last = |rows: &[u32]| Ok(rows.iter().map(|&row| distance_at(graph, row, graph.k())).collect());
        Self::find(space, graph.k(), &radii(graph), near, last)
    }
}

/// Whether lists tell the odd rows of `space`; those of inner products do not.
fn has_odd_rows(space: &Space<'_>) -> bool {
    space.metric() != Metric::InnerProduct && space.len() >= MIN_OUTSIDE + MIN_ROWS
}

impl Graph<'_> {
    /// The odd rows of the base, whose space this is.
    pub(super) fn odd_rows(&self, space: &Space<'_>) -> Result<Odd> {
        match self {
            Self::Cpu(graph) => Odd::on_host(space, graph),
            Self::Gpu { gpu, graph, .. } => Odd::on_device(gpu, space, graph),
        }
    }

    /// The rows of the base, whose space this is, that are far from all others.
    pub(super) fn lone_rows(&self, space: &Space<'_>) -> Result<Vec<u32>> {
        if !has_odd_rows(space) {
            return Ok(Vec::new());
        }
        let radii = match self {
            Self::Cpu(graph) => radii(graph),
            Self::Gpu { gpu, graph, .. } => {
                graph.lists.distances_at(gpu, Pick::Range(0..space.len()), RANK)?
            }
        };
        Ok(Octaves::count(&radii).lone_of(&radii))
    }
}

/// The radius of each node.
fn radii(graph: &KnnGraph) -> Vec<f32> {
    map(0..graph.len() as u32, |node| distance_at(graph, node, RANK))
}

/// The distance of the neighbour at the 1-based `rank`, or of the last if the list is shorter.
fn distance_at(graph: &KnnGraph, node: u32, rank: usize) -> f32 {
    let distances = graph.distances(node as usize);
    distances[..rank.min(distances.len())].last().copied().unwrap_or(f32::INFINITY)
}

impl Builder {
    /// Builds the index of `base` in parts: one outside of its `spots`, and one of each, never on
    /// codes. `stats` are those of its k-NN graph, if there is one.
    pub(super) fn build_in_parts(
        &self,
        base: &Vectors,
        spots: &DenseSpots,
        mut stats: BuildStats,
    ) -> Result<Built> {
        let DenseSpots { spots, outside } = spots;
        let (rows, count) = (outside.len(), spots.len());
        tracing::info!(spots = count, rows, "dense spots are parts of their own");
        let part = |builder: &Self, base: &Vectors, rows: &[u32]| {
            let builder = builder.of_part(stats.knn, base.len(), rows.len());
            builder.build_any(&base.only(rows)?, Given::Nothing)
        };
        let began = Instant::now();
        // Codes do not tell the rows of a spot apart.
        let (inner, vectors) = self.of_vectors.as_deref().map_or((self, base), |(inner, all)| (inner, all));
        // Searches stop by the growth of the distances of the largest part.
        let largest = spots.iter().map(|spot| spot.rows.len()).max().unwrap_or(0);
        let inner_of = |rows: &[u32]| {
            let is_large = self.is_layered() && rows.len() == largest && largest > outside.len();
            let layering = if is_large { Layering::GrowthOnly } else { Layering::Off };
            Self { layering, queries: None, compression: None, ..inner.clone() }
        };
        let inside = |builder: &Self, spot: &Spot| -> Result<SpotIndex> {
            let index = part(builder, vectors, &spot.rows)?.index;
            let is_wide = is_wide(vectors, self.descent.metric, spot, outside)?;
            Ok(SpotIndex { spot: spot.clone(), is_wide, index })
        };
        // A device takes longer to begin than the CPU takes for so few rows.
        let is_small = |spot: &&Spot| spot.rows.len() <= MAX_ROWS_ON_CPU && vectors.is_readable();
        let (small, large): (Vec<&Spot>, Vec<&Spot>) = spots.iter().partition(is_small);
        let unwatched = self.descent.progress.unwatched();
        let on_cpu = |spot: &&Spot| {
            inside(&inner_of(&spot.rows).device(Device::Cpu).progress(unwatched.clone()), spot)
        };
        let there = || -> Result<(Built, Vec<SpotIndex>)> {
            let built = part(self, base, outside)?;
            let large = large.iter().map(|spot| inside(&inner_of(&spot.rows), spot));
            Ok((built, large.collect::<Result<Vec<_>>>()?))
        };
        let (small, there) = rayon::join(|| try_map(&small[..], on_cpu), there);
        let (Built { index, stats: mut pruned }, large) = there?;
        let mut inside: Vec<SpotIndex> = small?.into_iter().chain(large).collect();
        inside.sort_by_key(|inside| inside.spot.rows[0]);
        // Without a k-NN graph of all rows, that of the rows outside is told.
        pruned.prune.seconds = began.elapsed().as_secs_f64();
        if stats.descent.distances == 0 {
            pruned.prune.seconds -= pruned.descent.seconds;
            stats.descent = pruned.descent;
        }
        let index = index.joined(base, outside, inside)?;
        Ok(Built { index, stats: BuildStats { prune: pruned.prune, ..stats } })
    }
}

/// Whether the products of a query with the rows of `spot` differ from the one with the row that
/// represents it by as much as those with the rows `outside` do, or as much as that product itself.
/// Rows that lie along that row do not: no product with them is larger, if it is positive.
fn is_wide(base: &Vectors, metric: Metric, spot: &Spot, outside: &[u32]) -> Result<bool> {
    if metric != Metric::InnerProduct {
        return Ok(false);
    }
    let Spot { rows, representative } = spot;
    let some = |rows: &[u32]| -> Result<Vec<f32>> {
        let drawn = drawn_rows(7, WIDTH_SAMPLE, rows.len()).into_iter().map(|place| rows[place as usize]);
        base.select(&drawn.collect::<Vec<_>>())?.to_f32()
    };
    let (dim, first) = (base.dim(), base.row_to_f32(rows[*representative] as usize)?);
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(&x, &y)| f64::from(x) * f64::from(y)).sum::<f64>();
    let square = dot(&first, &first);
    let across = |row: &[f32]| {
        let along = dot(row, &first);
        dot(row, row) - along.abs() * along / square.max(f64::MIN_POSITIVE)
    };
    let mean = |rows: &[f32], of: &dyn Fn(&[f32]) -> f64| {
        rows.chunks_exact(dim).map(of).sum::<f64>() / (rows.len() / dim) as f64
    };
    let width = WIDE * mean(&some(rows)?, &across);
    Ok(width >= square || width >= mean(&some(outside)?, &|row| dot(row, row)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Descent, Progress};

    #[test]
    fn a_spot_is_the_rows_that_their_lists_join() {
        let at = |place: &dyn Fn(u32) -> f32, rows: &[u32]| {
            let rows = rows.iter().map(|&row| place(row)).collect();
            Space::owned(Vectors::from_f32(rows, 1)?, Metric::L2, &Progress::silent())
        };
        let apart = |rows: &[u32]| at(&|row| row as f32, rows);
        // Each row of 20 is near the others of its own.
        let radii = vec![1e-6; 40];
        let near = |rows: &[u32]| {
            let next = |&row: &u32| (1..=JOINED as u32).map(move |step| row / 20 * 20 + (row + step) % 20);
            Ok(rows.iter().flat_map(next).collect())
        };
        assert!(DenseSpots::find(&radii, 0.1, near, apart).unwrap().is_none(), "too few rows");
        // Even and odd rows below 120 are two spots.
        let radii: Vec<f32> = (0..360).map(|row| if row < 120 { 1e-6 } else { 1.0 }).collect();
        let near = |rows: &[u32]| {
            let next = |&row: &u32| (1..=JOINED as u32).map(move |step| (row + 2 * step) % 120);
            Ok(rows.iter().flat_map(next).collect())
        };
        let DenseSpots { spots, outside } = DenseSpots::find(&radii, 0.1, near, apart).unwrap().unwrap();
        assert_eq!(spots, [0, 1].map(|first| Spot::new((first..120).step_by(2).collect())));
        assert_eq!(outside, [0, 1].into_iter().chain(120..360).collect::<Vec<u32>>());
        // Spots that lie near each other are one.
        let together = |rows: &[u32]| at(&|row| row as f32 / 1000.0, rows);
        let DenseSpots { spots, .. } = DenseSpots::find(&radii, 0.1, near, together).unwrap().unwrap();
        assert_eq!(spots, [Spot::new((0..120).collect())]);
    }

    #[test]
    fn most_rows_are_no_spot_if_the_others_are_lone_or_in_small_groups() {
        let radius = |row| {
            if row < 100 {
                1e-6
            } else if row < 300 {
                1.0
            } else {
                1e6
            }
        };
        let radii: Vec<f32> = (0..400).map(radius).collect();
        let bounds = Octaves::count(&radii).bounds();
        for (group, deeper) in [(1, true), (5, true), (JOINED as u32, true), (20, false)] {
            // Lists name the other rows of the group first, then rows below 300.
            let list = |&row: &u32| {
                let (first, size) = match row {
                    0..100 => (0, 100),
                    100..300 => (100, 200),
                    _ => (300 + (row - 300) / group * group, group),
                };
                let others = (1..size).map(move |step| first + (row - first + step) % size);
                others.chain(row % 290..300).take(JOINED)
            };
            let near = |rows: &[u32]| Ok(rows.iter().flat_map(list).collect());
            let bound = bound_of_spots(&radii, &bounds, near).unwrap();
            assert_eq!(bound, Some(bounds[usize::from(deeper)]), "groups of {group}");
            assert_eq!(bound_of_spots(&radii, &bounds[..1], near).unwrap().is_none(), deeper);
        }
    }

    #[test]
    fn rows_of_far_groups_are_remote_if_lists_lead_out_of_the_group() {
        // Rows below 30 are the group.
        let place = |row: u32| (if row < 30 { 1_000_000 } else { 0 } + row) as f32;
        let base = Vectors::from_f32((0..200).map(place).collect(), 1).unwrap();
        let space = Space::new(&base, Metric::L2, &Progress::silent()).unwrap();
        for (k, rows) in [(24, 0..0), (48, 0..30)] {
            let graph = Descent::new().knn(k).device(Device::Cpu).build(&base).unwrap();
            let Odd { spots, lone, mut remote } = Odd::on_host(&space, &graph).unwrap();
            assert!(spots.is_none() && lone.is_empty());
            remote.sort_unstable();
            assert_eq!(remote, rows.collect::<Vec<u32>>(), "lists of {k}");
        }
    }
}
