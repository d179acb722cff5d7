//! Parallel loops over nodes with progress, cancellation and scratch memory.

use std::ops::Range;

use std::io;
use std::thread::{Builder, Scope, ScopedJoinHandle};

use rayon::prelude::*;

use crate::progress::StageProgress;
use crate::{Error, Result};

/// Rows per block of [`for_each_block`].
const BLOCK: usize = 1024;

/// Starts a thread in `scope`.
///
/// # Errors
/// If the system refuses another thread.
pub(crate) fn spawn<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    run: impl FnOnce() -> T + Send + 'scope,
) -> Result<ScopedJoinHandle<'scope, T>> {
    Builder::new().spawn_scoped(scope, run).map_err(no_thread)
}

/// The result of a thread. Its panic continues here.
pub(crate) fn join<T, E>(thread: ScopedJoinHandle<'_, Result<T, E>>) -> Result<T, E> {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// The error for a thread that the system refused.
pub(crate) fn no_thread(error: io::Error) -> Error {
    let expected = "another thread: raise the limit of processes (ulimit -u, pids) or memory";
    Error::mismatch("threads", error, expected)
}

/// Nodes per task: few enough to cancel soon and to balance threads, enough to amortise the start
/// of a task.
fn block_of(nodes: usize) -> usize {
    nodes.div_ceil(4 * rayon::current_num_threads()).clamp(1, 128)
}

/// Calls `body(scratch, node)` for every node below `nodes`, in parallel, with a `scratch` per
/// task. Stops with an error soon after the work is cancelled.
pub(crate) fn for_each_node<S>(
    nodes: usize,
    stage: &StageProgress<'_>,
    scratch: impl Fn() -> S + Sync + Send,
    body: impl Fn(&mut S, u32) + Sync + Send,
) -> Result<()> {
    let size = block_of(nodes);
    (0..nodes.div_ceil(size)).into_par_iter().try_for_each_init(scratch, |scratch, block| {
        let nodes = block * size..((block + 1) * size).min(nodes);
        stage.advance(nodes.len() as u64)?;
        nodes.for_each(|node| body(scratch, node as u32));
        Ok(())
    })
}

/// Calls `body` for all blocks of the rows below `rows`, in parallel. Returns the error of the
/// first failing block; stops soon after the work is cancelled.
pub(crate) fn for_each_block(
    rows: usize,
    stage: &StageProgress<'_>,
    body: impl Fn(Range<usize>) -> Result<()> + Sync + Send,
) -> Result<()> {
    for_each_block_of(BLOCK, rows, stage, body)
}

/// [`for_each_block`] with `size` rows per block.
pub(crate) fn for_each_block_of(
    size: usize,
    rows: usize,
    stage: &StageProgress<'_>,
    body: impl Fn(Range<usize>) -> Result<()> + Sync + Send,
) -> Result<()> {
    let run = |block: usize| {
        let rows = block * size..((block + 1) * size).min(rows);
        stage.advance(rows.len() as u64)?;
        body(rows)
    };
    let bad = (0..rows.div_ceil(size)).into_par_iter().find_map_first(|block| run(block).err());
    bad.map_or(Ok(()), Err)
}

/// [`for_each_node`] that hands `body` row `node` of `rows`, `width` values per row, to write.
pub(crate) fn for_each_row<T: Send, S>(
    rows: &mut [T],
    width: usize,
    stage: &StageProgress<'_>,
    scratch: impl Fn() -> S + Sync + Send,
    body: impl Fn(&mut S, u32, &mut [T]) + Sync + Send,
) -> Result<()> {
    let size = block_of(rows.len() / width);
    let blocks = rows.par_chunks_mut(width * size).enumerate();
    blocks.try_for_each_init(scratch, |scratch, (block, rows)| {
        stage.advance((rows.len() / width) as u64)?;
        for (index, row) in rows.chunks_exact_mut(width).enumerate() {
            body(scratch, (block * size + index) as u32, row);
        }
        Ok(())
    })
}
