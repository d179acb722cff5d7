//! Builds of rows in groups far apart, under inner product: each group is a part of its own.
//!
//! Inside a group, a search needs nothing of the others. Where a query's largest products are in
//! several groups, it meets the rows of one first, which fill its beam. So each row also has edges
//! to the rows of every other group in its own direction, seen from the means of both groups: from
//! the best rows of one group they lead to the best of the others.

use std::sync::Arc;

use tagore_device::key::NO_ID;

use super::far::FarGroups;
use super::memory::{Built, Given};
use super::{BuildStats, Builder, Layering};
use crate::index::{Fingerprint, PaddedRows, Spots};
use crate::memory::{filled, zeros};
use crate::vectors::mean::less_mean;
use crate::{IdSet, Index, Progress, Result, Search, Searcher, Vectors};

/// Edges of a row to each other group.
const TO_OTHERS: usize = 4;

/// Part of a row, 1 in this many edges, that may lead to other groups.
const SHARE: usize = 4;

/// The beam of the searches for rows of another group.
const BEAM: usize = 32;

/// A group.
struct Part {
    /// The rows of the base, ascending.
    rows: Vec<u32>,
    /// These less their mean.
    moved: Arc<Vectors>,
    index: Index,
}

impl Builder {
    /// Builds the index of `base` in parts, one of each of its `groups` of rows, from lists of `k`.
    /// Searches start at the entry points of all.
    pub(super) fn build_groups(&self, base: &Vectors, groups: FarGroups, k: usize) -> Result<Built> {
        let others = groups.rows.len() - 1;
        tracing::info!(groups = others + 1, "rows lie in groups far apart: each is a part of its own");
        let degree = self.strategy.degree;
        let to_each = (degree / SHARE / others).min(TO_OTHERS);
        let strategy = self.strategy.clone().degree(degree - to_each * others);
        // Layers lead to the nodes of one graph. A search may start in another group than the one
        // of its answer, so it does not stop by the growth of distances either.
        let builder = Self { layering: Layering::Off, strategy, ..self.clone() };

        let (mut stats, mut parts) = (BuildStats { knn: k, ..BuildStats::default() }, Vec::new());
        let (mut rest, mut left) = (self.descent.progress.clone(), base.len());
        for (number, rows) in groups.rows.into_iter().enumerate() {
            let [here, after] = rest.parts([rows.len() as f64, (left - rows.len()) as f64]);
            (rest, left) = (after, left - rows.len());
            let group = base.only(&rows)?;
            let builder = builder.of_part(k, base.len(), rows.len()).progress(here);
            let Built { index, stats: built } = builder.build_any(&group, Given::Nothing)?;
            stats.add(built);
            let moved = Arc::new(less_mean(&group, &groups.means.host_row(number))?);
            parts.push(Part { index: index.over(&moved)?, rows, moved });
        }
        let rows = self.joined(base.len(), &parts, to_each)?;
        let entry = |part: &Part| part.index.entries().iter().map(|&at| part.rows[at as usize]).collect();
        let entries = parts.iter().flat_map::<Vec<u32>, _>(entry).collect();
        let mut description = self.description(k);
        for (name, value) in parts.iter().flat_map(|part| &part.index.description().parameters) {
            description.parameters.entry(name.clone()).or_insert_with(|| value.clone());
        }
        let index = Index::new(description, Fingerprint::compute(base)?, rows, entries);
        let spots = parts.iter().filter_map(|part| Some((part.index.spots()?, &part.rows[..])));
        Ok(Built { index: index.with_spots(Spots::of_parts(spots)), stats })
    }

    /// The rows of all `n` nodes: those of their part, and `to_each` edges to each other part.
    fn joined(&self, n: usize, parts: &[Part], to_each: usize) -> Result<PaddedRows> {
        let stride = self.strategy.degree;
        let (mut degrees, mut neighbors): (Vec<u32>, _) = (zeros(n)?, filled(NO_ID, n * stride)?);
        let mut add = |row: u32, ids: &[u32], names: &[u32]| {
            let degree = &mut degrees[row as usize];
            let slots = &mut neighbors[row as usize * stride..][*degree as usize..stride];
            let ids = ids.iter().take_while(|&&id| id != NO_ID);
            for (slot, &id) in slots.iter_mut().zip(ids) {
                *slot = names[id as usize];
                *degree += 1;
            }
        };
        for Part { rows, index, .. } in parts {
            rows.iter().enumerate().for_each(|(node, &row)| add(row, index.neighbors(node), rows));
        }
        let silent = Progress::silent();
        for (number, to) in parts.iter().enumerate().filter(|_| to_each > 0) {
            let (index, moved) = (Arc::new(to.index.clone()), Arc::clone(&to.moved));
            let searcher = Searcher::new(index, moved, &silent)?.device(self.descent.device)?;
            // Rows of a dense spot would fill the beams of searches that do not ask for them.
            let outside = outside_spots(&to.index)?;
            let found = outside.as_ref().map_or(to.rows.len(), IdSet::len);
            let search = Search::new(to_each.min(found)).beam(BEAM);
            let search = outside.as_ref().map_or(search, |outside| search.among(outside));
            for (_, from) in parts.iter().enumerate().filter(|&(from, _)| from != number) {
                self.descent.progress.check()?;
                let found = searcher.search(&from.moved, search, &silent)?;
                from.rows.iter().enumerate().for_each(|(node, &row)| add(row, found.ids(node), &to.rows));
            }
        }
        Ok(PaddedRows { max_degree: stride, degrees, neighbors })
    }
}

/// The nodes of `index` that are not inside a dense spot; none if it has no spots.
fn outside_spots(index: &Index) -> Result<Option<IdSet>> {
    let Some(spots) = index.spots() else { return Ok(None) };
    let mut is_outside: Vec<bool> = filled(true, index.len())?;
    // The rows that represent spots are outside, and lead out of them.
    spots.all().for_each(|(node, _)| is_outside[node as usize] = false);
    let mut nodes: Vec<u32> = spots.all_entries().collect();
    while let Some(node) = nodes.pop() {
        if std::mem::take(&mut is_outside[node as usize]) {
            nodes.extend(index.neighbors(node as usize));
        }
    }
    spots.all().for_each(|(node, _)| is_outside[node as usize] = true);
    let outside = (0..index.len() as u32).filter(|&node| is_outside[node as usize]);
    IdSet::from_ids(index.len(), outside).map(Some)
}
