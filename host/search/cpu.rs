//! Batches of queries on the CPU.

use std::sync::atomic::{AtomicU64, Ordering};

use tagore_device::key::{self, Key};

use super::beam::{BeamLimits, BeamSearch, BeamTask};
use crate::index::{Graph, Index};
use crate::parallel::for_each_row;
use crate::vectors::Access;
use crate::vectors::space::{Queries, Space};
use crate::{Progress, Result};

impl Graph for Index {
    #[inline]
    fn neighbors(&self, node: u32) -> &[u32] {
        Self::neighbors(self, node as usize)
    }
}

/// The `k` nearest keys of each query, [`key::NONE`] in empty slots, and the number of distances
/// computed.
pub(super) fn search(
    index: &Index,
    space: &Space<'_>,
    queries: &Queries<'_>,
    (k, beam): (usize, usize),
    progress: &Progress,
) -> Result<(Vec<Key>, u64)> {
    index.advise(Access::AtRandom);
    space.advise(Access::AtRandom);
    let stage = progress.stage("search", queries.len() as u64);
    let computed = AtomicU64::new(0);
    let limits = BeamLimits { beam, expansions: usize::MAX };
    let mut keys = vec![key::NONE; queries.len() * k];
    let scratch = || BeamSearch::new(index.len());
    for_each_row(&mut keys, k, &stage, scratch, |search, query, row| {
        let before = search.computed();
        let task = BeamTask { query: queries.query(query as usize), start: index.start(), limits };
        search.run(space, index, task, |_| ());
        row.iter_mut().zip(search.found()).for_each(|(slot, key)| *slot = key);
        computed.fetch_add(search.computed() - before, Ordering::Relaxed);
    })?;
    Ok((keys, computed.into_inner()))
}
