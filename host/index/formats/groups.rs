//! Rows of repeated rows in files of other systems, which know no groups.

use std::collections::HashSet;

use crate::{Error, Index, Progress, Result};

/// Most nodes around a group that its rows link to: more than a search expands from there.
const MAX_AROUND: usize = 1 << 14;

/// The nodes around each group of equal rows, as many as the rows of the group have room for.
#[derive(Debug, Default)]
pub(super) struct Groups {
    /// First rows, ascending.
    firsts: Vec<u32>,
    /// Where the nodes of each group end.
    ends: Vec<usize>,
    around: Vec<u32>,
}

impl Groups {
    /// Finds the nodes around each group, in breadth-first order from its first row.
    ///
    /// # Errors
    /// If memory is short or the work is cancelled.
    pub(super) fn of(index: &Index, progress: &Progress) -> Result<Self> {
        let repeated = index.repeated();
        let mut groups = Self::default();
        groups.firsts.extend(repeated.pairs().map(|(_, first)| first));
        groups.firsts.sort_unstable();
        groups.firsts.dedup();
        let (mut seen, mut found) = (HashSet::new(), Vec::new());
        for &first in &groups.firsts {
            progress.check()?;
            let rows = 1 + repeated.copies_of(first).len();
            let most = (rows * index.max_degree()).min(MAX_AROUND.max(index.max_degree()));
            seen.clear();
            found.clear();
            seen.insert(first);
            let mut next = 0;
            let mut node = Some(first);
            while let Some(expanded) = node.filter(|_| found.len() < most) {
                found.extend(index.neighbors(expanded as usize).iter().filter(|&&id| seen.insert(id)));
                node = found.get(next).copied();
                next += 1;
            }
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

    /// The neighbours of `node`, a row of a group.
    ///
    /// The rows of a group form a binary tree rooted at the first row (a chain if the largest degree
    /// is 1), and share the nodes around the group: each row links to the next of them, from the
    /// nearest on, as far as the largest degree allows. A search whose beam is full of equal rows
    /// expands no row farther than they, and so depends on their neighbours alone. All neighbours of
    /// the first row are among them, so reach is the same.
    pub(super) fn row(&self, index: &Index, node: u32) -> Option<Vec<u32>> {
        let repeated = index.repeated();
        let group = self.firsts.binary_search(&repeated.first_of(node)).ok()?;
        let begin = if group == 0 { 0 } else { self.ends[group - 1] };
        let around = &self.around[begin..self.ends[group]];
        let (place, copies) = repeated.place_in_group(node);
        let (degree, count) = (index.max_degree(), copies.len());
        let arity = degree.min(2);
        let mut row: Vec<u32> = copies.skip(arity * place).take(arity).collect();
        // Earlier rows have links to the rows up to this one, and nodes in all other places.
        let used = place * degree - (arity * place).min(count);
        let room = (degree - row.len()).min(around.len());
        row.extend(around.iter().cycle().skip(used % around.len().max(1)).take(room));
        Some(row)
    }
}
