//! Dense spots under inner product.
//!
//! Products do not tell how near rows are. But a row has nearly the same product with all rows of a
//! spot, so they follow one another in its list, and the spots that harm searches are in many
//! lists. So exact lists of some rows show them, before the k-NN graph is built: their rows would
//! fill its lists, and products that differ by little more than rounding take long to rank.

use rayon::prelude::*;
use tagore_device::cluster::drawn;
use tagore_device::key::NO_ID;
use tagore_device::random::{Draws, Stage};

use super::Builder;
use super::octaves::{MIN_OUTSIDE, Octaves};
use super::spots::{MIN_ROWS, Spots, join};
use crate::search::exact::ExactSearch;
use crate::vectors::space::Space;
use crate::{Device, Metric, Progress, Result};

/// Lists that show whether there are spots.
const FIRST_LISTS: u32 = 256;

/// Lists that show the spots: of one row in [`SHARE`], at least and at most.
const LISTS: [u32; 2] = [1 << 11, 1 << 14];

/// A row in this many has a list that shows the spots.
const SHARE: u32 = 4;

/// Rows per list.
const NEAREST: usize = 64;

/// Near copies are at most this many places apart in a list.
const PLACES: usize = 4;

/// Near copies that harm searches are one pair in this many.
const FEW_PAIRS: usize = 1024;

/// Maximum number of distances from rows to spots.
const MAX_TO_FIRST: u64 = 1 << 26;

/// Two rows of a list, and their squared distance.
struct Near {
    row: u32,
    other: u32,
    distance: f32,
}

impl Builder {
    /// The dense spots of `space`; none for another metric than inner product.
    pub(super) fn spots_of_products(&self, space: &Space<'_>) -> Result<Option<Spots>> {
        let n = space.len() as u32;
        let is_told = space.metric() == Metric::InnerProduct && space.vectors().is_readable();
        if !is_told || space.len() < MIN_OUTSIDE + MIN_ROWS {
            return Ok(None);
        }
        let vectors = Space::unprepared(space.vectors(), Metric::L2);
        let first = self.near_in_lists(space, &vectors, FIRST_LISTS)?;
        let distances: Vec<f32> = first.iter().map(|near| near.distance).collect();
        let bound = Octaves::count(&distances).bound();
        let below = |&bound: &f32| distances.iter().filter(|&&distance| distance < bound).count();
        let Some(bound) = bound.filter(|bound| below(bound) * FEW_PAIRS >= distances.len()) else {
            return Ok(None);
        };
        let mut roots: Vec<u32> = (0..n).collect();
        let near = self.near_in_lists(space, &vectors, (n / SHARE).clamp(LISTS[0], LISTS[1]))?;
        for Near { row, other, .. } in near.into_iter().filter(|near| near.distance < bound) {
            join(&mut roots, row, other);
        }
        let part =
            |rows: &[u32]| Space::owned(space.vectors().select(rows)?, Metric::L2, &Progress::silent());
        let found = Spots::of_trees(roots.clone(), bound, part)?;
        // Lists name the rows of the largest products of a spot, not all.
        let first: Vec<u32> = found.iter().flat_map(|found| &found.spots).map(|rows| rows[0]).collect();
        if u64::from(n) * first.len() as u64 > MAX_TO_FIRST {
            return Ok(found);
        }
        let near = |row: u32| {
            let mut distances = Vec::new();
            vectors.list_distances(vectors.query(row), &first, &mut distances);
            let near = first.iter().zip(distances).find(|&(_, distance)| distance < bound);
            near.map_or(row, |(&first, _)| first)
        };
        let near: Vec<u32> = (0..n).into_par_iter().map(near).collect();
        (0..n).zip(near).for_each(|(row, first)| join(&mut roots, row, first));
        Spots::of_trees(roots, bound, part)
    }

    /// The pairs of rows that follow one another in the exact lists of up to `count` random rows of
    /// `space`, with their distances of `vectors`.
    fn near_in_lists(&self, space: &Space<'_>, vectors: &Space<'_>, count: u32) -> Result<Vec<Near>> {
        let (n, k) = (space.len() as u32, NEAREST.min(space.len() - 1));
        let count = count.min(n);
        let id = |i: u32| drawn(Draws::new(0, Stage::Verify, 5, i.into()), i, count, n);
        let rows: Vec<u32> = (0..count).map(id).collect();
        // Lists are the same on every device.
        let device = match self.descent.device {
            Device::Emulated => Device::Cpu,
            device => device,
        };
        let search = ExactSearch::new(k).metric(space.metric()).device(device);
        let keys = search.progress(self.descent.progress.unwatched()).neighbors_of(space, &rows)?;
        let lists: Vec<u32> = keys.into_iter().map(|key| key as u32).collect();
        let near = |list: &[u32]| {
            let (mut near, mut distances) = (Vec::with_capacity(PLACES * list.len()), Vec::new());
            let list = &list[..list.iter().position(|&id| id == NO_ID).unwrap_or(list.len())];
            for (place, &row) in list.iter().enumerate() {
                let next = &list[place + 1..list.len().min(place + 1 + PLACES)];
                vectors.list_distances(vectors.query(row), next, &mut distances);
                let pairs = next.iter().zip(&distances);
                near.extend(pairs.map(|(&other, &distance)| Near { row, other, distance }));
            }
            near
        };
        Ok(lists.par_chunks_exact(k).flat_map_iter(near).collect())
    }
}
