//! Rows of repeated rows and of dense spots in files of other systems, which know neither.

use std::collections::{HashMap, HashSet};

use crate::{Error, Index, Progress, Result};

/// Maximum number of nodes around a group that its rows link to: more than a search expands from
/// there.
const MAX_AROUND: usize = 1 << 14;

/// Links of a row to others of its group: a group is a binary tree.
const ARITY: usize = 2;

/// The nodes around each group of equal rows and each dense spot, as many as its rows have room
/// for.
#[derive(Debug, Default)]
pub(super) struct Groups {
    /// First rows of groups, then representatives of spots; each part ascends.
    firsts: Vec<u32>,
    /// Groups among the first rows.
    groups: usize,
    /// Where the nodes around each end.
    ends: Vec<usize>,
    around: Vec<u32>,
    /// The rows of each spot, the representative first.
    spots: Vec<Vec<u32>>,
    /// The spot of each of its rows, and the place there.
    places: HashMap<u32, (usize, usize)>,
}

impl Groups {
    /// Finds the nodes around each group and spot, in breadth-first order from its first row.
    ///
    /// # Errors
    /// If memory is short or the work is cancelled.
    pub(super) fn find(index: &Index, progress: &Progress) -> Result<Self> {
        let repeated = index.repeated();
        let mut groups = Self::default();
        groups.firsts.extend(repeated.pairs().map(|(_, first)| first));
        groups.firsts.sort_unstable();
        groups.firsts.dedup();
        groups.groups = groups.firsts.len();
        for (spot, (first, entries)) in index.spots().iter().flat_map(|spots| spots.all()).enumerate() {
            // No edge leads out of a spot but to its representative.
            let rows =
                [vec![first], found_from(index, entries, usize::MAX, &mut HashSet::from([first]))].concat();
            groups.places.extend(rows.iter().enumerate().map(|(place, &row)| (row, (spot, place))));
            groups.firsts.push(first);
            groups.spots.push(rows);
        }
        for number in 0..groups.firsts.len() {
            progress.check()?;
            let first = groups.firsts[number];
            let room = match number.checked_sub(groups.groups) {
                None => (1 + repeated.copies_of(first).len()) * index.max_degree(),
                Some(spot) => groups.spots[spot].len() * leading_out(index),
            };
            let most = room.min(MAX_AROUND);
            let mut found =
                found_from(index, index.neighbors(first as usize), most, &mut HashSet::from([first]));
            found.truncate(most);
            groups.around.try_reserve(found.len()).map_err(|_| {
                let bytes = (groups.around.len() + found.len()) * size_of::<u32>();
                Error::mismatch("export", format_args!("too little memory for {bytes} bytes"), "free memory")
            })?;
            groups.around.extend_from_slice(&found);
            groups.ends.push(groups.around.len());
        }
        Ok(groups)
    }

    /// The nodes around group or spot `number`.
    fn around(&self, number: usize) -> &[u32] {
        let begin = if number == 0 { 0 } else { self.ends[number - 1] };
        &self.around[begin..self.ends[number]]
    }

    /// The neighbours of `node`, a row of a group or a spot.
    pub(super) fn row(&self, index: &Index, node: u32) -> Option<Vec<u32>> {
        match (self.spot_row(index, node), self.group_row(index, node)) {
            // A representative that is the first of a group.
            (Some(spot), Some(group)) => {
                let links = spot.into_iter().take(ARITY.min(index.max_degree()));
                let mut row: Vec<u32> = links.collect();
                row.extend(group.into_iter().take(index.max_degree() - row.len()));
                Some(row)
            }
            (spot, group) => spot.or(group),
        }
    }

    /// The neighbours of a row of a group.
    ///
    /// The rows of a group form a binary tree rooted at the first row (a chain if the largest
    /// degree is 1), and share the nodes around the group: each row links to the next of them, from
    /// the nearest on, as far as the largest degree allows. A search whose beam is full of equal
    /// rows expands no row farther than they, and so depends on their neighbours alone. All
    /// neighbours of the first row are among them, so reach is the same.
    fn group_row(&self, index: &Index, node: u32) -> Option<Vec<u32>> {
        let repeated = index.repeated();
        let group = self.firsts[..self.groups].binary_search(&repeated.first_of(node)).ok()?;
        let around = self.around(group);
        let (place, copies) = repeated.place_in_group(node);
        let (degree, count) = (index.max_degree(), copies.len());
        let arity = degree.min(ARITY);
        let mut row: Vec<u32> = copies.skip(arity * place).take(arity).collect();
        // Earlier rows have links to the rows up to this one, and nodes in all other places.
        let used = place * degree - (arity * place).min(count);
        let room = (degree - row.len()).min(around.len());
        row.extend(around.iter().cycle().skip(used % around.len().max(1)).take(room));
        Some(row)
    }

    /// The neighbours of a row of a dense spot: those of a tree of its rows, its own, and its share
    /// of the nodes around the spot.
    fn spot_row(&self, index: &Index, node: u32) -> Option<Vec<u32>> {
        let &(spot, place) = self.places.get(&node)?;
        let (rows, around) = (&self.spots[spot], self.around(self.groups + spot));
        let (degree, out) = (index.max_degree(), leading_out(index));
        let arity = degree.min(ARITY);
        let mut row: Vec<u32> = rows.iter().copied().skip(1 + arity * place).take(arity).collect();
        let mut fill = |ids: &mut dyn Iterator<Item = u32>, most: usize| {
            for id in ids {
                if row.len() >= most {
                    break;
                }
                if id != node && !row.contains(&id) {
                    row.push(id);
                }
            }
        };
        let own = index.neighbors(node as usize);
        fill(&mut own.iter().copied(), degree - out);
        let share = around.iter().copied().cycle().skip(place * out % around.len().max(1));
        fill(&mut share.take(around.len()), degree);
        fill(&mut own.iter().copied(), degree);
        Some(row)
    }
}

/// Links of a spot's row that lead out of it.
fn leading_out(index: &Index) -> usize {
    index.max_degree() / 4
}

/// At least `most` nodes in breadth-first order from `first`, without those `seen`; fewer if no
/// more can be reached.
fn found_from(index: &Index, first: &[u32], most: usize, seen: &mut HashSet<u32>) -> Vec<u32> {
    let mut found: Vec<u32> = first.iter().copied().filter(|&id| seen.insert(id)).collect();
    let mut next = 0;
    while found.len() < most
        && let Some(&node) = found.get(next)
    {
        found.extend(index.neighbors(node as usize).iter().filter(|&&id| seen.insert(id)));
        next += 1;
    }
    found
}
