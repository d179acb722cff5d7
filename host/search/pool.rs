//! Scratch memory of searches on the CPU, kept from one search to the next.

use std::ops::{Deref, DerefMut};
use std::sync::Mutex;

use tagore_device::key::Key;

use super::beam::BeamSearch;
use super::coded::{CodeBuffer, Reranked};
use super::edges::EdgeWalk;
use super::visited::Visited;
use crate::Result;
use crate::memory::check_room;
use crate::parallel::locked;
use crate::vectors::QueryBuffer;

/// Scratch memory of one search at a time.
#[derive(Default)]
pub(super) struct Scratch {
    pub search: BeamSearch,
    pub query: QueryBuffer,
    /// On codes: that of the query, and the nodes reranked.
    pub code: CodeBuffer,
    pub reranked: Reranked,
    pub on_edges: EdgeWalk,
    pub rows: Vec<Key>,
}

impl Scratch {
    /// Distances computed by all searches so far.
    pub(super) fn computed(&self) -> u64 {
        self.search.computed() + self.reranked.computed() + self.on_edges.computed()
    }
}

/// The scratch memory of searches of one index: as many as have run at the same time.
pub(super) struct Pool {
    nodes: usize,
    idle: Mutex<Vec<Scratch>>,
}

/// Scratch memory in use, which returns to its pool.
pub(super) struct Lease<'a> {
    pool: &'a Pool,
    scratch: Scratch,
}

impl Pool {
    /// An empty pool for searches among `nodes` nodes.
    pub(super) fn new(nodes: usize) -> Self {
        Self { nodes, idle: Mutex::default() }
    }

    /// Checks that `searches` at the same time find memory for what they lack.
    ///
    /// # Errors
    /// If the system refuses so much.
    pub(super) fn check_room(&self, searches: usize) -> Result<()> {
        let idle = locked(&self.idle).len();
        match searches.saturating_sub(idle) {
            0 => Ok(()),
            new => check_room(Visited::plan(self.nodes, new).bytes()),
        }
    }

    pub(super) fn take(&self) -> Lease<'_> {
        let idle = locked(&self.idle).pop();
        let new = || Scratch { search: BeamSearch::new(self.nodes), ..Scratch::default() };
        Lease { pool: self, scratch: idle.unwrap_or_else(new) }
    }
}

impl Deref for Lease<'_> {
    type Target = Scratch;

    fn deref(&self) -> &Scratch {
        &self.scratch
    }
}

impl DerefMut for Lease<'_> {
    fn deref_mut(&mut self) -> &mut Scratch {
        &mut self.scratch
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        let scratch = std::mem::take(&mut self.scratch);
        locked(&self.pool.idle).push(scratch);
    }
}
