//! Batches of queries on the CPU.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use tagore_device::key::{self, Key, NO_ID};

use super::answer::Answer;
use super::beam::{BeamLimits, BeamTask};
use super::breadth::Breadth;
use super::coded::Coded;
use super::edges::{EdgeCodes, OnEdges};
use super::engine::{Found, Prepared, fill};
use super::passing::Passing;
use super::pool::Scratch;
use crate::index::{Graph, Index, Start};
use crate::loops::try_map;
use crate::memory::filled;
use crate::parallel::{for_each_row, locked, unlocked};
use crate::vectors::Access;
use crate::vectors::queries::Queries;
use crate::vectors::space::{Query, Space};
use crate::{Progress, Result};

impl Graph for Index {
    #[inline]
    fn neighbors(&self, node: u32) -> &[u32] {
        Self::neighbors(self, node as usize)
    }

    #[inline]
    fn fetch(&self, node: u32) {
        self.fetch_neighbors(node as usize);
    }

    fn degree(&self) -> usize {
        self.max_degree()
    }
}

/// How searches walk.
#[derive(Clone, Copy)]
pub(super) struct Walk<'a> {
    pub breadth: Breadth,
    /// The nodes that searches with a filter walk on.
    pub among: Option<&'a Passing<'a>>,
    /// The codes that take the place of the vectors, if any; not for queries that they do not hold.
    pub on_codes: Option<OnCodes<'a>>,
    /// The codes of edges that a search without a filter walks on, if any, and their rows.
    pub on_edges: Option<(&'a EdgeCodes, &'a [u32])>,
}

impl<'a> Walk<'a> {
    /// A walk on the vectors.
    pub(super) const fn plain(breadth: Breadth, among: Option<&'a Passing<'a>>) -> Self {
        Self { breadth, among, on_codes: None, on_edges: None }
    }
}

/// The nodes that searches leave out.
#[derive(Clone, Copy)]
pub(super) struct LeftOut<'a> {
    /// The node of each query, or `u32::MAX`.
    pub nodes: &'a [u32],
    /// Whether bridges replace the edges to it.
    pub is_bridged: bool,
}

/// Codes of the base.
#[derive(Clone, Copy)]
pub(super) struct OnCodes<'a> {
    pub coded: &'a Coded,
    pub codes: &'a Space<'static>,
    /// Nodes of the beam that are reranked.
    pub reranked: usize,
}

impl Prepared<'_> {
    /// Searches for each of `queries` by each of `walks`, as if the graph were without the node
    /// that is `left_out` for the query, if any. The keys are those of each walk of each query.
    pub(super) fn walk_all(
        &self,
        queries: &Queries<'_>,
        answer: &Answer<'_>,
        walks: &[Walk<'_>],
        left_out: Option<LeftOut<'_>>,
        progress: &Progress,
    ) -> Result<Found> {
        self.index.advise(Access::AtRandom);
        self.space.advise(Access::AtRandom);
        let (k, stage) = (answer.k(), progress.stage("search", queries.len() as u64));
        let (computed, short) = (AtomicU64::new(0), Mutex::new(Vec::new()));
        self.pool.check_room(rayon::current_num_threads())?;
        let mut keys = filled(key::NONE, queries.len() * walks.len() * k)?;
        for_each_row(
            &mut keys,
            walks.len() * k,
            &stage,
            || self.pool.take(),
            |scratch, number, row| {
                let (query, before) = (queries.query(number as usize), scratch.computed());
                if let Some(LeftOut { nodes, is_bridged }) = left_out {
                    let node = Some(nodes[number as usize]).filter(|&node| node != NO_ID);
                    scratch.search.leave_out(node, is_bridged);
                }
                let mut is_complete = true;
                for (&walk, row) in walks.iter().zip(row.chunks_exact_mut(k)) {
                    is_complete &= self.walk(query, answer, walk, scratch);
                    fill(row, &scratch.rows);
                }
                scratch.search.leave_out(None, false);
                if !is_complete {
                    locked(&short).push(number);
                }
                computed.fetch_add(scratch.computed() - before, Ordering::Relaxed);
            },
        )?;
        let mut short = unlocked(short);
        short.sort_unstable();
        Ok(Found { keys, short, computed: computed.into_inner(), ..Found::default() })
    }

    /// Searches for the queries that a GPU has left to the CPU, and replaces what it found.
    pub(super) fn walk_left(
        &self,
        queries: &Queries<'_>,
        answer: &Answer<'_>,
        walk: Walk<'_>,
        found: &mut Found,
        progress: &Progress,
    ) -> Result<()> {
        let k = answer.k();
        let search = |&number: &u32| {
            progress.check()?;
            let mut scratch = self.pool.take();
            let before = scratch.computed();
            let is_complete = self.walk(queries.query(number as usize), answer, walk, &mut scratch);
            Ok((number, is_complete, scratch.rows.clone(), scratch.computed() - before))
        };
        let left = std::mem::take(&mut found.left);
        for (number, is_complete, rows, computed) in try_map(&left[..], search)? {
            fill(&mut found.keys[number as usize * k..][..k], &rows);
            found.computed += computed;
            match (found.short.binary_search(&number), is_complete) {
                (Ok(place), true) => drop(found.short.remove(place)),
                (Err(place), false) => found.short.insert(place, number),
                _ => {}
            }
        }
        Ok(())
    }

    /// Searches for `query`; the answer is in `scratch.rows`. Returns whether it found as many rows
    /// as there are.
    pub(super) fn walk(
        &self,
        query: Query<'_>,
        answer: &Answer<'_>,
        Walk { breadth: Breadth { kept, stop, .. }, among, on_codes, on_edges, .. }: Walk<'_>,
        scratch: &mut Scratch,
    ) -> bool {
        let Scratch { search, code, reranked, on_edges: edge_walk, rows, .. } = scratch;
        let limits = BeamLimits { stop, ..BeamLimits::all_of(kept) };
        let (start, index) = (self.index.start(), &*self.index);
        let code = on_codes.and_then(|on_codes| Some((on_codes, on_codes.coded.query(query, code)?)));
        if let Some((OnCodes { codes, reranked: count, .. }, code)) = code {
            let outside = Start { spots: None, ..start };
            let task = BeamTask { query: code, start: outside, limits, among };
            search.run(codes, index, task, |_: Key| ());
            // Codes do not tell the rows of a dense spot apart: it is walked on the vectors.
            if !start.spots.is_some_and(|spots| search.meets(spots)) {
                let exact = reranked.rerank(&self.space, query, search.found().take(count));
                return answer.take(exact.iter().copied(), rows);
            }
        }
        let task = BeamTask { query, start, limits, among };
        if let (Some((codes, of_edges)), None) = (on_edges, among) {
            let on = OnEdges { space: &self.space, index, codes, rows: of_edges };
            let nearest = edge_walk.run(on, search, task, answer.k().max(stop.rank as usize + 1));
            return answer.take(nearest.iter().copied().take(answer.k()), rows);
        }
        search.run(&self.space, index, task, |_: Key| ());
        answer.take(search.found(), rows)
    }
}
