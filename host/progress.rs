//! Progress and cancellation of long work.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use crate::{Error, Result};

/// Progress of one stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Update {
    /// The stage, such as `descent` or `prune`.
    pub stage: &'static str,
    /// Units done.
    pub done: u64,
    /// Units in total. A stage that stops early ends below it.
    pub total: u64,
}

type Sink = dyn Fn(Update) + Send + Sync;

/// A handle on long work: it receives updates and can cancel. Clones share the same work.
///
/// ```
/// let progress = tagore::Progress::new(|u| eprintln!("{} {}/{}", u.stage, u.done, u.total));
/// let from_another_thread = progress.clone();
/// from_another_thread.cancel(); // the work returns `Error::Cancelled` soon
/// assert!(progress.is_cancelled());
/// ```
#[derive(Clone, Default)]
pub struct Progress {
    cancelled: Arc<AtomicBool>,
    sink: Option<Arc<Sink>>,
}

impl Progress {
    /// A handle that calls `sink` with each update, from the working threads.
    pub fn new(sink: impl Fn(Update) + Send + Sync + 'static) -> Self {
        Self { cancelled: Arc::default(), sink: Some(Arc::new(sink)) }
    }

    /// A handle that reports nothing.
    pub fn silent() -> Self {
        Self::default()
    }

    /// A handle that cancels with this one but reports nothing, for a step of a larger stage.
    pub(crate) fn unwatched(&self) -> Self {
        Self { cancelled: Arc::clone(&self.cancelled), sink: None }
    }

    /// Asks the work to stop. It returns [`Error::Cancelled`] at its next check.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// Whether [`cancel`](Self::cancel) was called.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    pub(crate) fn check(&self) -> Result<()> {
        if self.is_cancelled() { Err(Error::Cancelled) } else { Ok(()) }
    }

    pub(crate) fn stage(&self, stage: &'static str, total: u64) -> StageProgress<'_> {
        self.report(Update { stage, done: 0, total });
        tracing::debug!(stage, total, "a stage begins");
        StageProgress { progress: self, stage, total, done: AtomicU64::new(0), began: Instant::now() }
    }

    fn report(&self, update: Update) {
        if let Some(sink) = &self.sink {
            sink(update);
        }
    }
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Progress").field("cancelled", &self.is_cancelled()).finish_non_exhaustive()
    }
}

/// A running stage, shared by its threads.
pub(crate) struct StageProgress<'a> {
    progress: &'a Progress,
    stage: &'static str,
    total: u64,
    done: AtomicU64,
    began: Instant,
}

impl Drop for StageProgress<'_> {
    fn drop(&mut self) {
        let Self { stage, total, .. } = *self;
        let (done, seconds) = (*self.done.get_mut(), self.began.elapsed().as_secs_f64());
        tracing::debug!(stage, done, total, seconds, "a stage ends");
    }
}

impl StageProgress<'_> {
    /// Adds `units` to the units done; an error if the work was cancelled.
    pub(crate) fn advance(&self, units: u64) -> Result<()> {
        self.progress.check()?;
        let done = self.done.fetch_add(units, Ordering::Relaxed) + units;
        self.progress.report(Update { stage: self.stage, done, total: self.total });
        Ok(())
    }
}
