//! Dense spots under inner product, of rows near each other or of nearly one direction.
//!
//! Products do not tell how near rows are. But a row has nearly the same product with all rows of a
//! spot, so they follow one another in its list, and the spots that harm searches are in many
//! lists. So exact lists of some rows show them, before the k-NN graph is built: their rows would
//! fill its lists, and products that differ by little more than rounding take long to rank.
//!
//! Long rows of one direction follow one another, too: in the lists of all rows on their side of
//! the origin, which then lead to no others.

use tagore_device::key::NO_ID;

use super::Builder;
use super::far::means_of_groups;
use super::octaves::{GAP, MIN_OUTSIDE, Octaves};
use super::spots::{MIN_ROWS, Spot, Spots, join};
use crate::index::LARGE_SPOT;
use crate::loops::{gather, rows, try_map};
use crate::memory::collected_in_parallel;
use crate::search::exact::ExactSearch;
use crate::vectors::mean::drawn_rows;
use crate::vectors::space::Space;
use crate::{Device, Metric, Progress, Result, Vectors};

/// How many random rows have their exact lists made.
#[derive(Clone, Copy)]
struct Lists {
    /// One row in this many.
    one_in: u32,
    least: u32,
    most: u32,
}

/// Lists that show whether there are spots.
const FIRST_LISTS: Lists = Lists { one_in: 8, least: 1 << 6, most: 1 << 8 };

/// Lists that show the spots.
const LISTS: Lists = Lists { one_in: 4, least: 1 << 11, most: 1 << 14 };

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
    pub(super) fn spots_of_products(&self, space: &Space<'_>) -> Result<Option<Spots>> {
        self.spots_near(space, Metric::L2)
    }

    /// The spots of `space` that hold rows of nearly one direction; none for another metric than
    /// inner product. Where all are few rows of one length, they are left to
    /// [`spots_of_products`](Self::spots_of_products): groups far apart may hold them.
    pub(super) fn spots_of_directions(&self, space: &Space<'_>) -> Result<Option<Spots>> {
        self.spots_near(space, Metric::Cosine)
    }

    /// The dense spots of `space`, of rows near each other under `nearness`, L2 or cosine.
    fn spots_near(&self, space: &Space<'_>, nearness: Metric) -> Result<Option<Spots>> {
        let n = space.len() as u32;
        let is_told = space.metric() == Metric::InnerProduct && space.vectors().is_readable();
        if !is_told || space.len() < MIN_OUTSIDE + MIN_ROWS {
            return Ok(None);
        }
        let vectors = Space::unprepared(space.vectors(), nearness);
        let k = NEAREST.min(space.len() - 1);
        let lists = self.exact_lists(space, FIRST_LISTS, k)?;
        let in_lists = gather(rows(&lists, k), |list, distances: &mut Vec<f32>| {
            distances.extend(near_in_list(&vectors, list).into_iter().map(|near| near.distance));
        });
        let in_sample = near_in_sample(space.vectors(), nearness)?;
        let nearest: Vec<f32> = in_sample.iter().map(|near| near.distance).collect();
        let bounds = [bound_of(&in_lists, PAIRS_PER_NEAR), bound_of(&nearest, ROWS_PER_NEAR)];
        let Some(bound) = bounds.into_iter().flatten().reduce(f32::max) else { return Ok(None) };
        // No row outside is so near to another.
        let radius = bound * (1 << (GAP - 1)) as f32;
        let is_near = |near: &Near| near.distance < bound;
        let joined = |lists: &[u32]| {
            let mut roots: Vec<u32> = (0..n).collect();
            let in_lists = gather(rows(lists, k), |list, near: &mut Vec<Near>| {
                near.extend(near_in_list(&vectors, list).into_iter().filter(is_near));
            });
            let near = in_lists.into_iter().chain(in_sample.iter().copied().filter(is_near));
            near.for_each(|near| join(&mut roots, near.row, near.other));
            roots
        };
        let norm = |row: u32| space.norm(space.query(row));
        let part = |rows: &[u32]| Space::owned(space.vectors().select(rows)?, nearness, &Progress::silent());
        let spots = |roots| {
            let found = Spots::of_trees(roots, radius, part)?;
            // The longest row has the largest product with a query on its side, if they have one
            // direction.
            Ok(found.map(|found| found.represented_by(n, norm)))
        };
        if nearness == Metric::Cosine && !has_cone(spots(joined(&lists))?.as_ref(), &in_sample, norm) {
            return Ok(None);
        }
        let mut roots = joined(&self.exact_lists(space, LISTS, k)?);
        let found = spots(roots.clone())?;
        // Lists name the rows of the largest products of a spot, not all.
        let first: Vec<u32> = found.iter().flat_map(|found| &found.spots).map(|spot| spot.rows[0]).collect();
        if first.is_empty() || u64::from(n) * first.len() as u64 > MAX_TO_FIRST {
            return Ok(found);
        }
        let blocks: Vec<u32> = (0..n).step_by(ASSIGNED).collect();
        let near = |&start: &u32| {
            let rows: Vec<u32> = first.iter().copied().chain(start..n.min(start + ASSIGNED as u32)).collect();
            let (block, places) = (part(&rows)?, (0..first.len() as u32).collect::<Vec<u32>>());
            let mut distances = Vec::new();
            let near = |place: usize| {
                block.list_distances(block.query(place as u32), &places, &mut distances);
                let near = first.iter().zip(&distances).find(|&(_, &distance)| distance < radius);
                near.map(|(&first, _)| (rows[place], first))
            };
            Ok((first.len()..rows.len()).filter_map(near).collect::<Vec<_>>())
        };
        let near = try_map(&blocks[..], near)?;
        near.into_iter().flatten().for_each(|(row, first)| join(&mut roots, row, first));
        spots(roots)
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

    /// The exact lists, of `k` rows each, of random rows of `space`.
    fn exact_lists(
        &self,
        space: &Space<'_>,
        Lists { one_in, least, most }: Lists,
        k: usize,
    ) -> Result<Vec<u32>> {
        let count = (space.len() as u32 / one_in).clamp(least, most);
        let rows = drawn_rows(5, count as usize, space.len());
        // Lists are the same on every device.
        let device = match self.descent.device {
            Device::Emulated => Device::Cpu,
            device => device,
        };
        let search = ExactSearch::new(k).metric(space.metric()).device(device);
        let keys = search.progress(self.descent.progress.unwatched()).neighbors_of(space, &rows)?;
        Ok(keys.into_iter().map(|key| key as u32).collect())
    }
}

/// The distance below which rows are in spots, if at least one in `few` is.
fn bound_of(distances: &[f32], few: usize) -> Option<f32> {
    let bound = Octaves::count(distances).bound()?;
    let below = distances.iter().filter(|&&distance| distance < bound).count();
    (below * few >= distances.len()).then_some(bound)
}

/// Whether rows of one of the spots `found` differ in length, or are many among the rows of a
/// sample.
fn has_cone(found: Option<&Spots>, sample: &[Near], norm: impl Fn(u32) -> f32) -> bool {
    let is_cone = |Spot { rows, representative }: &Spot| {
        let here = sample.iter().filter(|near| rows.binary_search(&near.row).is_ok()).count();
        let longest = norm(rows[*representative]);
        LARGE_SPOT * here >= sample.len() || rows.iter().any(|&row| LONGER * norm(row) <= longest)
    };
    found.is_some_and(|found| found.spots.iter().any(is_cone))
}

/// The pairs of rows that follow one another in a list, with their distances.
fn near_in_list(vectors: &Space<'_>, list: &[u32]) -> Vec<Near> {
    let (mut near, mut distances) = (Vec::with_capacity(PLACES * list.len()), Vec::new());
    let list = &list[..list.iter().position(|&id| id == NO_ID).unwrap_or(list.len())];
    for (place, &row) in list.iter().enumerate() {
        let next = &list[place + 1..list.len().min(place + 1 + PLACES)];
        vectors.list_distances(vectors.query(row), next, &mut distances);
        let pairs = next.iter().zip(&distances);
        near.extend(pairs.map(|(&other, &distance)| Near::new(vectors.metric(), row, other, distance)));
    }
    near
}

/// Random rows, each with the nearest of the others under `nearness`.
fn near_in_sample(vectors: &Vectors, nearness: Metric) -> Result<Vec<Near>> {
    let rows = drawn_rows(5, COMPARED.min(vectors.len() / ROWS_PER_COMPARED), vectors.len());
    let space = Space::owned(vectors.select(&rows)?, nearness, &Progress::silent())?;
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
