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
use crate::loops::{gather, map, rows};
use crate::memory::collected_in_parallel;
use crate::search::exact::ExactSearch;
use crate::vectors::mean::drawn_rows;
use crate::vectors::space::Space;
use crate::{Device, Metric, Progress, Result, Vectors};

/// Lists that show whether there are spots: of one row in eight, at least and at most.
const FIRST_LISTS: [u32; 2] = [1 << 6, 1 << 8];

/// Lists that show the spots: of one row in [`SHARE`], at least and at most.
const LISTS: [u32; 2] = [1 << 11, 1 << 14];

/// A row in this many has a list that shows the spots.
const SHARE: u32 = 4;

/// Rows per list.
const NEAREST: usize = 64;

/// Near copies are at most this many places apart in a list.
const PLACES: usize = 4;

/// Near copies that harm searches are one pair in this many.
const PAIRS_PER_NEAR: usize = 1024;

/// Maximum number of distances from rows to spots.
const MAX_TO_FIRST: u64 = 1 << 28;

/// Rows of the sample that shows spots in a base built in clusters.
const WARNED_BY: usize = 1 << 14;

/// Rows of one direction are of one length if none is this many times longer than another.
const LONGER: f32 = 1.25;

/// Rows that are compared with one another: spots of many rows may be in no list.
const COMPARED: usize = 1 << 10;

/// Rows of spots that harm searches, or take long to rank, are one row in this many.
const ROWS_PER_NEAR: usize = 32;

/// Distances under cosine below this are rounding errors.
const LEAST_COSINE: f32 = 1e-12;

/// Two rows, and their list distance.
#[derive(Clone, Copy)]
struct Near {
    row: u32,
    other: u32,
    distance: f32,
}

impl Near {
    fn new(vectors: &Space<'_>, row: u32, other: u32, distance: f32) -> Self {
        let least = if vectors.metric() == Metric::Cosine { LEAST_COSINE } else { 0.0 };
        Self { row, other, distance: distance.max(least) }
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
        let is_cone = |Spot { rows, representative }: &Spot| {
            let norm = |&row: &u32| space.norm(space.query(row));
            let longest = norm(&rows[*representative]);
            LARGE_SPOT * rows.len() >= space.len() || rows.iter().any(|row| LONGER * norm(row) <= longest)
        };
        Ok(self.spots_near(space, Metric::Cosine)?.filter(|found| found.spots.iter().any(is_cone)))
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
        let lists = self.exact_lists(space, (n / 8).clamp(FIRST_LISTS[0], FIRST_LISTS[1]), k)?;
        let near = |list: &[u32]| near_in_list(&vectors, list);
        let distance = |near: Near| near.distance;
        let in_lists = gather(rows(&lists, k), |list, distances: &mut Vec<f32>| {
            distances.extend(near(list).into_iter().map(distance));
        });
        let in_sample = near_in_sample(&vectors)?;
        let bound = |distances: &[f32], few: usize| {
            let bound = Octaves::count(distances).bound()?;
            let below = distances.iter().filter(|&&distance| distance < bound).count();
            (below * few >= distances.len()).then_some(bound)
        };
        let nearest: Vec<f32> = in_sample.iter().copied().map(distance).collect();
        let bounds = [bound(&in_lists, PAIRS_PER_NEAR), bound(&nearest, ROWS_PER_NEAR)];
        let Some(bound) = bounds.into_iter().flatten().reduce(f32::max) else { return Ok(None) };
        let mut roots: Vec<u32> = (0..n).collect();
        let lists = self.exact_lists(space, (n / SHARE).clamp(LISTS[0], LISTS[1]), k)?;
        let near = |list: &[u32]| {
            let near = near(list).into_iter();
            near.filter(|near| near.distance < bound).collect::<Vec<_>>()
        };
        for Near { row, other, distance } in map(rows(&lists, k), near).into_iter().flatten().chain(in_sample)
        {
            if distance < bound {
                join(&mut roots, row, other);
            }
        }
        // No row outside is so near to another.
        let radius = bound * (1 << (GAP - 1)) as f32;
        let part = |rows: &[u32]| Space::owned(space.vectors().select(rows)?, nearness, &Progress::silent());
        let found = Spots::of_trees(roots.clone(), radius, part)?;
        // Lists name the rows of the largest products of a spot, not all.
        let first: Vec<u32> = found.iter().flat_map(|found| &found.spots).map(|spot| spot.rows[0]).collect();
        if first.is_empty() || u64::from(n) * first.len() as u64 > MAX_TO_FIRST {
            return Ok(found);
        }
        let near = |row: u32| {
            let mut distances = Vec::new();
            vectors.list_distances(vectors.query(row), &first, &mut distances);
            let near = first.iter().zip(distances).find(|&(_, distance)| distance < radius);
            near.map_or(row, |(&first, _)| first)
        };
        (0..n).zip(map(0..n, near)).for_each(|(row, first)| join(&mut roots, row, first));
        let found = Spots::of_trees(roots, radius, part)?;
        // The longest row has the largest product with a query on its side, if they have one
        // direction.
        Ok(found.map(|found| found.represented_by(n, |row| space.norm(space.query(row)))))
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

    /// The exact lists, of `k` rows each, of up to `count` random rows of `space`.
    fn exact_lists(&self, space: &Space<'_>, count: u32, k: usize) -> Result<Vec<u32>> {
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

/// The pairs of rows that follow one another in a list, with their distances.
fn near_in_list(vectors: &Space<'_>, list: &[u32]) -> Vec<Near> {
    let (mut near, mut distances) = (Vec::with_capacity(PLACES * list.len()), Vec::new());
    let list = &list[..list.iter().position(|&id| id == NO_ID).unwrap_or(list.len())];
    for (place, &row) in list.iter().enumerate() {
        let next = &list[place + 1..list.len().min(place + 1 + PLACES)];
        vectors.list_distances(vectors.query(row), next, &mut distances);
        let pairs = next.iter().zip(&distances);
        near.extend(pairs.map(|(&other, &distance)| Near::new(vectors, row, other, distance)));
    }
    near
}

/// Random rows, each with the nearest of the others.
fn near_in_sample(vectors: &Space<'_>) -> Result<Vec<Near>> {
    let rows = drawn_rows(5, COMPARED, vectors.len());
    collected_in_parallel(&rows[..], |&row| {
        let mut distances = Vec::new();
        vectors.list_distances(vectors.query(row), &rows, &mut distances);
        let others = rows.iter().zip(distances).filter(|&(&other, _)| other != row);
        let near = others.map(|(&other, distance)| Near::new(vectors, row, other, distance));
        let nearer = |a: Near, b: Near| if b.distance < a.distance { b } else { a };
        near.reduce(nearer).unwrap_or(Near { row, other: row, distance: f32::INFINITY })
    })
}
