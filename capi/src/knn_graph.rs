//! k-NN graphs.

use std::ffi::c_char;
use std::mem::MaybeUninit;

use tagore::{KnnGraph, check_room};

use crate::index::{metric_of, tagore_metric};
use crate::pointers::{Input, path, required};
use crate::progress::{tagore_progress, watched};
use crate::status::{Failure, Result, call, free, make, tagore_status};
use crate::vectors::tagore_vectors;

/// A k-NN graph, read only: for each row the same number of nearest others, nearest first. Any
/// number of threads use it at the same time.
pub struct tagore_knn_graph(pub(crate) KnnGraph);

/// Reads a graph of `vectors` that tagore_knn_graph_save or `tagore knn` wrote.
#[unsafe(no_mangle)]
pub extern "C" fn tagore_knn_graph_open(
    file: Input<'_, c_char>,
    vectors: Option<&tagore_vectors>,
    metric: tagore_metric,
    progress: Input<'_, tagore_progress>,
    out: Option<&mut MaybeUninit<*mut tagore_knn_graph>>,
) -> tagore_status {
    make(out, || {
        let (file, base) = (path(file, "file")?, &required(vectors, "vectors")?.0);
        let progress = watched(progress)?;
        Ok(tagore_knn_graph(KnnGraph::open(file, base, metric_of(metric)?, &progress)?))
    })
}

/// Writes a graph to a file in the layout of a ground truth, which appears when it is complete.
#[unsafe(no_mangle)]
pub extern "C" fn tagore_knn_graph_save(
    graph: Option<&tagore_knn_graph>,
    file: Input<'_, c_char>,
) -> tagore_status {
    call(|| {
        check_room(0)?;
        Ok(required(graph, "graph")?.0.save(path(file, "file")?)?)
    })
}

/// The neighbours of a row, nearest first, and their distances, where they lie: valid as long as
/// the handle. `distances` may be null.
#[unsafe(no_mangle)]
pub extern "C" fn tagore_knn_graph_neighbors(
    graph: Option<&tagore_knn_graph>,
    row: usize,
    ids: Option<&mut MaybeUninit<*const u32>>,
    distances: Option<&mut MaybeUninit<*const f32>>,
    count: Option<&mut MaybeUninit<usize>>,
) -> tagore_status {
    call(|| {
        let graph = &required(graph, "graph")?.0;
        check_row("row", row, graph.len())?;
        let neighbors = graph.neighbors(row);
        ids.ok_or_else(|| Failure::null("ids"))?.write(neighbors.as_ptr());
        count.ok_or_else(|| Failure::null("count"))?.write(neighbors.len());
        if let Some(distances) = distances {
            distances.write(graph.distances(row).as_ptr());
        }
        Ok(())
    })
}

/// Frees a handle, as tagore_vectors_free does.
#[unsafe(no_mangle)]
pub extern "C" fn tagore_knn_graph_free(graph: Option<Box<tagore_knn_graph>>) {
    free(graph);
}

/// Refuses a row beyond `rows`.
pub(crate) fn check_row(name: &str, row: usize, rows: usize) -> Result<()> {
    if row < rows { Ok(()) } else { Err(Failure::argument(name, row, format_args!("below {rows}"))) }
}
