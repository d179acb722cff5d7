//! Batches of queries on the CPU.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use tagore_device::key::{self, Key};

use super::answer::Answer;
use super::beam::{BeamLimits, BeamTask};
use super::engine::{Found, Prepared, fill};
use super::pool::Scratch;
use crate::index::{Graph, Index};
use crate::parallel::for_each_row;
use crate::vectors::Access;
use crate::vectors::space::{Queries, Query};
use crate::{Progress, Result};

impl Graph for Index {
    #[inline]
    fn neighbors(&self, node: u32) -> &[u32] {
        Self::neighbors(self, node as usize)
    }
}

impl Prepared<'_> {
    /// Searches for each of `queries` with a beam of this width.
    pub(super) fn walk_all(
        &self,
        queries: &Queries<'_>,
        answer: &Answer<'_>,
        beam: usize,
        progress: &Progress,
    ) -> Result<Found> {
        self.index.advise(Access::AtRandom);
        self.space.advise(Access::AtRandom);
        let stage = progress.stage("search", queries.len() as u64);
        let (computed, short) = (AtomicU64::new(0), Mutex::new(Vec::new()));
        let mut keys = vec![key::NONE; queries.len() * answer.k()];
        for_each_row(
            &mut keys,
            answer.k(),
            &stage,
            || self.pool.take(),
            |scratch, query, row| {
                let before = scratch.search.computed();
                if !self.walk(queries.query(query as usize), answer, beam, scratch) {
                    short.lock().unwrap_or_else(PoisonError::into_inner).push(query);
                }
                fill(row, &scratch.rows);
                computed.fetch_add(scratch.search.computed() - before, Ordering::Relaxed);
            },
        )?;
        let mut short = short.into_inner().unwrap_or_else(PoisonError::into_inner);
        short.sort_unstable();
        Ok(Found { keys, short, computed: computed.into_inner(), ..Found::default() })
    }

    /// Searches for `query` with a beam of this width; the answer is in `scratch.rows`. Returns
    /// false if too few nodes of the beam pass.
    pub(super) fn walk(
        &self,
        query: Query<'_>,
        answer: &Answer<'_>,
        beam: usize,
        scratch: &mut Scratch,
    ) -> bool {
        let Scratch { search, rows, .. } = scratch;
        let limits = BeamLimits { beam, expansions: usize::MAX };
        let task = BeamTask { query, start: self.index.start(), limits };
        search.run(&self.space, &*self.index, task, |_: Key| ());
        answer.take(search.found(), beam, rows)
    }
}
