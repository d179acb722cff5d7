//! Dense spots under inner product, of rows near each other or of nearly one direction.
//!
//! Products do not tell how near rows are. But a row has nearly the same product with all rows of a
//! spot, so they follow one another in its list, and the spots that harm searches are in many
//! lists. So exact lists of some rows show that there are spots, before the k-NN graph is built:
//! their rows would fill its lists, and products that differ by little more than rounding take long
//! to rank. Large spots are then the rows near one of theirs, and a k-NN graph of the others by
//! nearness shows the small ones.
//!
//! Long rows of one direction follow one another, too: in the lists of all rows on their side of
//! the origin, which then lead to no others.

use tagore_device::key::{self, Key};

use super::Builder;
use super::far::means_of_groups;
use super::octaves::{GAP, MIN_OUTSIDE, Octaves};
use super::spots::{DenseSpots, MIN_ROWS, join};
use crate::descent::{Descent, Iterations, Start};
use crate::index::{LARGE_SPOT, Spot};
use crate::loops::{gather, try_fold, try_map};
use crate::memory::collected_in_parallel;
use crate::vectors::mean::drawn_rows;
use crate::vectors::space::Space;
use crate::{Device, Metric, Progress, Result, Vectors};

/// One row in this many has its exact list made, of 64 to 256 rows.
const ROWS_PER_LIST: u32 = 8;

/// Rows per list.
const NEAREST: usize = 64;

/// Near copies are at most this many places apart in a list.
const PLACES: usize = 4;

/// Near copies that harm searches are one pair in this many.
const PAIRS_PER_NEAR: usize = 1024;

/// Rows whose distances to spots are computed at a time.
const ASSIGNED: usize = 1 << 10;

/// Maximum number of distances from rows to spots.
const MAX_TO_FIRST: u64 = 1 << 28;

/// Minimum number of rows whose lists are made in cells; of fewer, all pairs are compared.
const MIN_ROWS_OF_CELLS: usize = 4096;

/// Neighbours of a row in the lists that show the rows of spots.
const NEAR: usize = 8;

/// Rows of the sample that shows spots in a base built in clusters.
const WARNED_BY: usize = 1 << 14;

/// Rows of one direction are of one length if none is this many times longer than another.
const LONGER: f32 = 1.25;

/// Rows that are compared with one another: spots of many rows may be in no list.
const COMPARED: usize = 1 << 10;

/// At most one row in this many is compared.
const ROWS_PER_COMPARED: usize = 4;

/// Rows of spots that harm searches, or take long to rank, are one row in this many.
const ROWS_PER_NEAR: usize = 32;

/// Distances under cosine below this are rounding errors.
const COSINE_ERROR: f32 = 1e-12;

/// Two rows, and their list distance.
#[derive(Clone, Copy)]
struct Near {
    row: u32,
    other: u32,
    distance: f32,
}

impl Near {
    fn new(nearness: Metric, row: u32, other: u32, distance: f32) -> Self {
        let error = if nearness == Metric::Cosine { COSINE_ERROR } else { 0.0 };
        Self { row, other, distance: distance.max(error) }
    }
}

impl Builder {
    /// The dense spots of `space`; none for another metric than inner product.
    pub(super) fn spots_of_products(&self, space: &Space<'_>) -> Result<Option<DenseSpots>> {
        self.spots_near(space, Metric::L2)
    }

    /// The spots of `space` that hold rows of nearly one direction; none for another metric than
    /// inner product. Where all are few rows of one length, they are left to
    /// [`spots_of_products`](Self::spots_of_products): groups far apart may hold them.
    pub(super) fn spots_of_directions(&self, space: &Space<'_>) -> Result<Option<DenseSpots>> {
        self.spots_near(space, Metric::Cosine)
    }

    /// The dense spots of `space`, of rows near each other under `nearness`, L2 or cosine.
    fn spots_near(&self, space: &Space<'_>, nearness: Metric) -> Result<Option<DenseSpots>> {
        let n = space.len() as u32;
        let is_told = space.metric() == Metric::InnerProduct && space.vectors().is_readable();
        if !is_told || space.len() < MIN_OUTSIDE + MIN_ROWS {
            return Ok(None);
        }
        let k = NEAREST.min(space.len() - 1);
        let count = (n / ROWS_PER_LIST).clamp(1 << 6, 1 << 8);
        let drawn = drawn_rows(5, count as usize, space.len());
        let lists = self.exact(k, self.descent.device).neighbors_of(space, &drawn)?;
        let lists: Vec<&[Key]> = lists.chunks_exact(k).collect();
        let near = |list: &&[Key]| near_in_list(space.vectors(), nearness, list);
        let octaves =
            |near: &[Near]| Octaves::count(&near.iter().map(|near| near.distance).collect::<Vec<f32>>());
        // Few data sets have spots, so pairs are not kept until a bound shows some.
        let add = |sum: Octaves, list| Ok(sum.and(octaves(&near(list)?)));
        let in_lists = try_fold(&lists[..], Octaves::none, add, Octaves::and)?;
        let in_sample = near_in_sample(space.vectors(), nearness)?;
        let bounds = [in_lists.bound_of_few(PAIRS_PER_NEAR), octaves(&in_sample).bound_of_few(ROWS_PER_NEAR)];
        let Some(bound) = bounds.into_iter().flatten().reduce(f32::max) else { return Ok(None) };
        let spots = SpotSearch { space, nearness, bound };
        let mut near = try_map(&lists[..], near)?.concat();
        near.extend(&in_sample);
        near.retain(|near| near.distance < bound);
        let few = spots.of_pairs(&near)?;
        if nearness == Metric::Cosine && !spots.have_cone(few.as_ref(), &in_sample) {
            return Ok(None);
        }
        let near_first = spots.near_first(few.as_ref())?;
        let mut is_left = vec![true; space.len()];
        near_first.iter().for_each(|near| is_left[near.row as usize] = false);
        let left: Vec<u32> = (0..n).filter(|&row| is_left[row as usize]).collect();
        near.extend(near_first);
        near.extend(spots.near_in_graph(&self.descent, &left)?);
        spots.of_pairs(&near)
    }

    /// Warns, for builds that do not part rows, if those of `base` lie in groups far apart or in
    /// dense spots under inner product.
    ///
    /// # Errors
    /// If the rows lie on a device that fails, or memory is short.
    pub(crate) fn warn_of_parts(&self, base: &Vectors) -> Result<()> {
        let metric = self.descent.metric;
        if metric != Metric::InnerProduct {
            return Ok(());
        }
        let are_apart = means_of_groups(base, metric)?.is_some();
        let are_in_spots = || {
            let sample = base.select(&drawn_rows(8, WARNED_BY, base.len()))?;
            let space = Space::owned(sample, metric, &Progress::silent())?;
            Ok(self.spots_of_directions(&space)?.is_some() || self.spots_of_products(&space)?.is_some())
        };
        let what = match are_apart {
            true => "in groups far apart",
            false if are_in_spots()? => "in dense spots, or many in one direction",
            false => return Ok(()),
        };
        tracing::warn!(
            "rows lie {what}, so searches of inner products in an index built in clusters may miss the nearest: build in memory, or each part by itself"
        );
        Ok(())
    }
}

/// A search for the spots of rows nearer than a bound.
struct SpotSearch<'a> {
    space: &'a Space<'a>,
    nearness: Metric,
    bound: f32,
}

impl SpotSearch<'_> {
    /// No row outside a spot is so near to one inside.
    fn radius(&self) -> f32 {
        self.bound * (1 << (GAP - 1)) as f32
    }

    fn norm(&self, row: u32) -> f32 {
        self.space.norm(self.space.query(row))
    }

    /// A space of some rows, by nearness.
    fn part(&self, rows: &[u32]) -> Result<Space<'static>> {
        space_of(self.space.vectors(), self.nearness, rows)
    }

    /// The spots that `pairs` of rows nearer than the bound join.
    fn of_pairs(&self, pairs: &[Near]) -> Result<Option<DenseSpots>> {
        let n = self.space.len() as u32;
        let mut roots: Vec<u32> = (0..n).collect();
        pairs.iter().for_each(|near| join(&mut roots, near.row, near.other));
        let found = DenseSpots::of_trees(roots, self.radius(), |rows| self.part(rows))?;
        // The longest row has the largest product with a query on its side, if they have one
        // direction.
        Ok(found.map(|found| found.represented_by(n, |row| self.norm(row))))
    }

    /// Whether rows of one of the spots `found` differ in length, or are many among the rows of a
    /// sample.
    fn have_cone(&self, found: Option<&DenseSpots>, sample: &[Near]) -> bool {
        let is_cone = |Spot { rows, representative }: &Spot| {
            let here = sample.iter().filter(|near| rows.binary_search(&near.row).is_ok()).count();
            let longest = self.norm(rows[*representative]);
            LARGE_SPOT * here >= sample.len() || rows.iter().any(|&row| LONGER * self.norm(row) <= longest)
        };
        found.is_some_and(|found| found.spots.iter().any(is_cone))
    }

    /// The rows near the first row of one of the spots `found`, each with that row, at distance 0
    /// since they are in its spot. They may be most of the data, at about one distance from each
    /// other, and a k-NN graph of such rows takes long.
    fn near_first(&self, found: Option<&DenseSpots>) -> Result<Vec<Near>> {
        let n = self.space.len() as u32;
        let first: Vec<u32> = found.iter().flat_map(|found| &found.spots).map(|spot| spot.rows[0]).collect();
        if first.is_empty() || u64::from(n) * first.len() as u64 > MAX_TO_FIRST {
            return Ok(Vec::new());
        }
        let blocks: Vec<u32> = (0..n).step_by(ASSIGNED).collect();
        let near = |&start: &u32| {
            let rows: Vec<u32> = first.iter().copied().chain(start..n.min(start + ASSIGNED as u32)).collect();
            let (block, places) = (self.part(&rows)?, (0..first.len() as u32).collect::<Vec<u32>>());
            let mut distances = Vec::new();
            let near = |place: usize| {
                block.list_distances(block.query(place as u32), &places, &mut distances);
                let near = first.iter().zip(&distances).find(|&(_, &distance)| distance < self.radius());
                near.map(|(&other, _)| Near { row: rows[place], other, distance: 0.0 })
            };
            Ok((first.len()..rows.len()).filter_map(near).collect::<Vec<_>>())
        };
        Ok(try_map(&blocks[..], near)?.concat())
    }

    /// Some `rows`, each with the nearest others of them that a k-NN graph finds. Where it misses
    /// some, in a spot, it finds others of the spot.
    fn near_in_graph(&self, descent: &Descent, rows: &[u32]) -> Result<Vec<Near>> {
        if rows.len() < MIN_ROWS {
            return Ok(Vec::new());
        }
        let start = if rows.len() < MIN_ROWS_OF_CELLS { Start::AllPairs } else { Start::Cells };
        let device = if descent.device.is_emulated() { Device::Cpu } else { descent.device };
        let descent = descent.of_part(rows.len()).metric(self.nearness).device(device);
        let space = match rows.len() == self.space.len() {
            true => Space::new(self.space.vectors(), self.nearness, &Progress::silent())?,
            false => self.part(rows)?,
        };
        let graph = descent.start(start).iterations(Iterations::Fixed(0, 0)).build_in(&space, NEAR)?;
        Ok(gather(0..rows.len(), |place, found: &mut Vec<Near>| {
            let near = graph.neighbors(place).iter().zip(graph.distances(place));
            let near = near.filter(|&(_, &distance)| distance < self.bound);
            let others = near.map(|(&other, &distance)| (rows[other as usize], distance));
            found.extend(
                others.map(|(other, distance)| Near::new(self.nearness, rows[place], other, distance)),
            );
        }))
    }
}

/// The pairs of rows that follow one another in a list, with their distances under `nearness`.
fn near_in_list(vectors: &Vectors, nearness: Metric, list: &[Key]) -> Result<Vec<Near>> {
    let list: Vec<u32> = list.iter().take_while(|&&key| key != key::NONE).map(|&key| key as u32).collect();
    let (mut near, mut distances) = (Vec::with_capacity(PLACES * list.len()), Vec::new());
    let (space, places) = (space_of(vectors, nearness, &list)?, (0..list.len() as u32).collect::<Vec<_>>());
    for (place, &row) in list.iter().enumerate() {
        let next = place + 1..list.len().min(place + 1 + PLACES);
        space.list_distances(space.query(place as u32), &places[next.clone()], &mut distances);
        let pairs = list[next].iter().zip(&distances);
        near.extend(pairs.map(|(&other, &distance)| Near::new(nearness, row, other, distance)));
    }
    Ok(near)
}

/// A space of some rows of `vectors`, by `nearness`.
fn space_of(vectors: &Vectors, nearness: Metric, rows: &[u32]) -> Result<Space<'static>> {
    Space::owned(vectors.select(rows)?, nearness, &Progress::silent())
}

/// Random rows, each with the nearest of the others under `nearness`.
fn near_in_sample(vectors: &Vectors, nearness: Metric) -> Result<Vec<Near>> {
    let rows = drawn_rows(5, COMPARED.min(vectors.len() / ROWS_PER_COMPARED), vectors.len());
    let space = space_of(vectors, nearness, &rows)?;
    let places: Vec<u32> = (0..rows.len() as u32).collect();
    collected_in_parallel(&places[..], |&place| {
        let mut distances = Vec::new();
        space.list_distances(space.query(place), &places, &mut distances);
        let row = rows[place as usize];
        let others = rows.iter().zip(distances).filter(|&(&other, _)| other != row);
        let near = others.map(|(&other, distance)| Near::new(nearness, row, other, distance));
        let nearer = |a: Near, b: Near| if b.distance < a.distance { b } else { a };
        near.reduce(nearer).unwrap_or(Near { row, other: row, distance: f32::INFINITY })
    })
}
