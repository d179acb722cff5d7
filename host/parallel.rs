//! Parallel loops over nodes with progress, cancellation and scratch memory.

use std::ops::Range;

use std::error::Error as _;
use std::fmt::Display;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, Builder, Scope, ScopedJoinHandle};

use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::loops::{numbered, on_threads, rows_mut, try_for_each, try_for_each_with};
use crate::memory::check_room;
use crate::progress::StageProgress;
use crate::{Error, Result};

/// The locked value. A panic leaves none half changed.
pub(crate) fn locked<T: ?Sized>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The value of a lock.
pub(crate) fn unlocked<T>(value: Mutex<T>) -> T {
    value.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Rows per block of [`for_each_block`].
const BLOCK: usize = 1024;

/// Bytes that one thread copies or converts sooner than the threads of a pool wake up.
pub(crate) const FEW_BYTES: usize = 1 << 16;

/// Bytes of the stack of a thread. Threads get it whatever `RUST_MIN_STACK` and `ulimit -s` are,
/// which may be too small for any work.
pub const THREAD_STACK: usize = 2 << 20;

/// Threads that share a core at most.
const THREADS_PER_CORE: usize = 4;

/// Maximum number of threads that work runs on: four per core. More only slow it down, and change
/// no result.
fn max_threads() -> usize {
    thread::available_parallelism().map_or(1, usize::from) * THREADS_PER_CORE
}

/// A pool of `threads` threads, at most four per core. Without a number, `RAYON_NUM_THREADS` sets
/// it, or else there is a thread per core.
///
/// # Errors
/// If the system refuses the threads.
pub fn thread_pool(threads: Option<usize>) -> Result<ThreadPool> {
    pool_builder(allowed(threads)?).build().map_err(no_thread)
}

/// Starts rayon's global pool, which runs all work outside other pools, as [`thread_pool`] makes
/// pools. Only the first call does anything.
///
/// Rayon itself tries only once, when work begins, and panics if the system refuses a thread. Here
/// a refusal is an error, and the next call tries again.
///
/// # Errors
/// If the system refuses the threads, or if `threads` are given and the pool runs already.
pub fn start_threads(threads: Option<usize>) -> Result<()> {
    static STARTED: Mutex<bool> = Mutex::new(false);
    let mut started = locked(&STARTED);
    if *started {
        return match threads {
            None => Ok(()),
            Some(threads) => Err(Error::argument("threads", threads, "to be set before the first work")),
        };
    }
    let count = allowed(threads)?;
    // A global pool that has failed cannot be started again. So threads of our own try first.
    let gate = Mutex::new(());
    thread::scope(|scope| {
        let closed = gate.lock();
        let tried = (0..count).try_for_each(|_| spawn(scope, || drop(gate.lock())).map(drop));
        drop(closed);
        tried
    })?;
    let built = pool_builder(count).build_global();
    *started = true;
    match built {
        Err(error) if error.source().is_some() || threads.is_some() => Err(no_thread(error)),
        // Or the program has started it.
        _ => Ok(()),
    }
}

/// The number of threads of a pool for which `threads` were asked.
fn allowed(threads: Option<usize>) -> Result<usize> {
    let of_environment = || std::env::var("RAYON_NUM_THREADS").ok()?.parse().ok();
    let wanted = threads.or_else(of_environment).filter(|&threads| threads > 0);
    let (wanted, most) = (wanted.unwrap_or(max_threads() / THREADS_PER_CORE), max_threads());
    if wanted > most {
        tracing::warn!("{wanted} threads are more than four per core: {most} run");
    }
    let threads = wanted.min(most);
    check_room((threads * THREAD_STACK) as u64)?;
    Ok(threads)
}

fn pool_builder(threads: usize) -> ThreadPoolBuilder {
    let name = |number| format!("tagore {number}");
    ThreadPoolBuilder::new().num_threads(threads).stack_size(THREAD_STACK).thread_name(name)
}

/// A thread to start, with a stack that suffices.
pub(crate) fn new_thread() -> Builder {
    Builder::new().stack_size(THREAD_STACK)
}

/// Starts a thread in `scope`.
///
/// # Errors
/// If the system refuses another thread.
pub(crate) fn spawn<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    run: impl FnOnce() -> T + Send + 'scope,
) -> Result<ScopedJoinHandle<'scope, T>> {
    new_thread().spawn_scoped(scope, run).map_err(no_thread)
}

/// The result of a thread. Its panic continues here.
pub(crate) fn join<T, E>(thread: ScopedJoinHandle<'_, Result<T, E>>) -> Result<T, E> {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// The error for a thread that the system refused: for want of memory, if its stack has no room.
pub(crate) fn no_thread(error: impl Display) -> Error {
    // With the pages that guard it. Threads that run already may have reserved room since.
    if let Err(short) = check_room(2 * THREAD_STACK as u64) {
        return short;
    }
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
        let pool =
            ThreadPoolBuilder::new().num_threads(threads).stack_size(THREAD_STACK).thread_name(name).build();
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
        let _turn = locked(&self.turn);
        let count = parts.len();
        let (left, done) = (Mutex::new(parts.into_iter().zip(0..)), Mutex::new(Vec::with_capacity(count)));
        self.run_at_once(count, &|| {
            let next = locked(&left).next();
            if let Some((part, number)) = next {
                let result = work(part);
                locked(&done).push((number, result));
            }
        })?;
        let mut done: Vec<(usize, R)> = unlocked(done);
        done.sort_unstable_by_key(|part| part.0);
        Ok(done.into_iter().map(|(_, result)| result).collect())
    }

    /// Calls `work` `count` times at the same time.
    fn run_at_once(&self, count: usize, work: &(dyn Fn() + Sync)) -> Result<()> {
        // A thread of another pool that waits for this one takes up other work meanwhile, perhaps a
        // search that waits for its turn. So the caller waits for a thread outside all pools.
        let run = || {
            self.pool.install(|| on_threads(count, work));
            Ok(())
        };
        thread::scope(|scope| join(spawn(scope, run)?))
    }
}

/// Nodes per task: few enough to cancel soon and to balance threads, enough to amortise the start
/// of a task.
fn block_of(nodes: usize) -> usize {
    nodes.div_ceil(4 * rayon::current_num_threads()).clamp(1, 128)
}

/// Calls `body(scratch, node)` for every node below `nodes`, in parallel, with a `scratch` per
/// thread. Stops with an error soon after the work is cancelled.
pub(crate) fn for_each_node<S>(
    nodes: usize,
    stage: &StageProgress<'_>,
    scratch: impl Fn() -> S + Sync + Send,
    body: impl Fn(&mut S, u32) + Sync + Send,
) -> Result<()> {
    let size = block_of(nodes);
    try_for_each_with(0..nodes.div_ceil(size), scratch, |scratch, block| {
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
    try_for_each(0..rows.div_ceil(size), run)
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
    try_for_each_with(numbered(rows_mut(rows, width * size)), scratch, |scratch, (block, rows)| {
        stage.advance((rows.len() / width) as u64)?;
        for (index, row) in rows.chunks_exact_mut(width).enumerate() {
            body(scratch, (block * size + index) as u32, row);
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use rayon::prelude::*;

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
