//! Parallel loops over nodes with progress, cancellation and scratch memory.

use std::ops::Range;

use std::fmt::Display;
use std::sync::{Mutex, PoisonError};
use std::thread::{self, Builder, Scope, ScopedJoinHandle};

use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::progress::StageProgress;
use crate::{Error, Result};

/// Rows per block of [`for_each_block`].
const BLOCK: usize = 1024;

/// Bytes that one thread copies or converts sooner than the threads of a pool wake up.
pub(crate) const FEW_BYTES: usize = 1 << 16;

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
pub(crate) fn no_thread(error: impl Display) -> Error {
    let expected = "another thread: raise the limit of processes (ulimit -u, pids) or memory";
    Error::mismatch("threads", error, expected)
}

/// Divides `count` items into `parts` contiguous ranges of even length, the longer ones first.
/// Leaves out empty ranges, but for the first.
pub(crate) fn shares(count: usize, parts: usize) -> impl Iterator<Item = Range<usize>> {
    let (least, longer) = (count / parts, count % parts);
    let begin = move |part: usize| part * least + part.min(longer);
    (0..parts.min(count).max(1)).map(move |part| begin(part)..begin(part + 1))
}

/// A pool of threads that work on several devices at the same time.
#[derive(Debug)]
pub(crate) struct Team {
    pool: ThreadPool,
    turn: Mutex<()>,
}

impl Team {
    /// A thread for each of `devices` devices, and as many threads as the current pool has.
    ///
    /// # Errors
    /// If the system refuses the threads.
    pub(crate) fn new(devices: usize) -> Result<Self> {
        let threads = rayon::current_num_threads().max(devices);
        let name = |number| format!("devices {number}");
        let pool = ThreadPoolBuilder::new().num_threads(threads).thread_name(name).build();
        Ok(Self { pool: pool.map_err(no_thread)?, turn: Mutex::default() })
    }

    /// Calls `work` for all `parts` at the same time, not more of them than devices. Returns the
    /// results in the order of the parts. Calls take turns.
    ///
    /// # Errors
    /// If the system refuses a thread.
    pub(crate) fn run<T: Send, R: Send>(
        &self,
        parts: Vec<T>,
        work: impl Fn(T) -> R + Send + Sync,
    ) -> Result<Vec<R>> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let run = || self.pool.install(|| parts.into_par_iter().with_max_len(1).map(work).collect());
        // A thread of another pool that waits for this one takes up other work meanwhile, perhaps a
        // search that waits for its turn. So the caller waits for a thread outside all pools.
        thread::scope(|scope| join(spawn(scope, || Ok(run()))?))
    }
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
    if rows <= size {
        return if rows == 0 { Ok(()) } else { run(0) };
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_even_and_cover_all() {
        for (count, parts) in [(0, 3), (1, 3), (2, 3), (3, 3), (7, 3), (9, 1), (100, 8)] {
            let shares: Vec<Range<usize>> = shares(count, parts).collect();
            assert_eq!(shares.len(), parts.min(count).max(1), "{count} in {parts}");
            assert_eq!((shares[0].start, shares[shares.len() - 1].end), (0, count));
            assert!(shares.windows(2).all(|two| two[0].end == two[1].start));
            assert!(
                shares.iter().all(|share| (count / parts..=count.div_ceil(parts)).contains(&share.len()))
            );
        }
    }

    // A thread that waited in a pool would take up another call and wait for its own turn.
    #[test]
    fn threads_of_a_pool_may_call_a_team() {
        let (team, pool) = (Team::new(3).unwrap(), ThreadPoolBuilder::new().num_threads(2).build().unwrap());
        let call = |number: usize| {
            let slow = |part: usize| {
                thread::sleep(std::time::Duration::from_millis(2));
                (0..1000usize).into_par_iter().map(|i| i % 7 * part).sum::<usize>() + number
            };
            team.run(vec![0, 1, 2], slow).unwrap()
        };
        let found: Vec<Vec<usize>> = pool.install(|| (0..20).into_par_iter().map(call).collect());
        for (number, found) in found.into_iter().enumerate() {
            assert_eq!(found, [number, 2997 + number, 5994 + number]);
        }
    }
}
