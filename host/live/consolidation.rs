//! Consolidation: makes the graph of all rows as they were when it began, while changes go on.

use std::sync::Arc;

use super::journal::{Extent, State};
use super::store::Store;
use super::version::{Graph, Version};
use crate::{Builder, Device, IdSet, IndexUpdate, Progress, Result};

/// What a consolidation begins with.
pub(super) struct Consolidation {
    pub store: Arc<Store>,
    pub state: State,
    pub version: Version,
    pub builder: Builder,
    /// Where the graph is searched.
    pub search_device: Device,
}

/// A finished graph, whose files no journal names yet.
pub(super) struct Consolidated {
    pub state: State,
    /// None if there were no rows.
    pub graph: Option<Graph>,
    pub search_device: Device,
    /// The rows of the graph before this one have their numbers from before.
    pub known: usize,
    /// The version that it is made of.
    pub version: Version,
}

impl Consolidation {
    /// Writes the rows, makes the graph, and writes it.
    ///
    /// # Errors
    /// As [`IndexUpdate::run`], or if the files cannot be written.
    pub(super) fn run(self, progress: &Progress) -> Result<Consolidated> {
        let Self { store, state, version, builder, search_device } = self;
        let (kind, live) = (version.kind, version.len());
        if live == 0 {
            let (rows_file, stored) = (state.rows_file + 1, Extent::default());
            let state = State { index: None, rows_file, stored, ..state };
            return Ok(Consolidated { state, graph: None, search_device, known: 0, version });
        }
        let (recent, of_graph) = (version.live_recent_rows(0), version.live_graph_rows());
        let gone = version.graph_rows() - of_graph.len();
        // Then an update would be a build, or nearly.
        let is_anew = of_graph.is_empty() || gone > live / 2;
        let rows_file = state.rows_file + u64::from(is_anew);
        let known = if is_anew { Extent::default() } else { state.stored };
        let of_graph = version.rows_of_graph(if is_anew { of_graph } else { Vec::new() });
        let extent = store.append(rows_file, known, kind.row_bytes(), of_graph.chain(recent))?;
        let stored = store.stored(rows_file, extent, kind)?;
        let builder = builder.progress(progress.clone());
        let index = match &version.graph {
            Some(graph) if !is_anew => {
                let update = IndexUpdate::with(graph.searcher.index(), builder);
                update.remove(IdSet::clone(&graph.removed)).run(&stored.rows)?.0
            }
            _ => builder.up_to(extent.rows).build(&stored.rows)?,
        };
        let number = state.index.map_or(0, |number| number + 1);
        store.save_index(number, &index)?;
        let graph = Some(Graph::new(index, stored, search_device)?);
        let state = State { index: Some(number), rows_file, stored: extent, ..state };
        Ok(Consolidated { state, graph, search_device, known: known.rows, version })
    }
}
