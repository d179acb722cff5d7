//! Progress and cancellation of long work.
//!
//! Stages also log themselves: a stage emits a `tracing` event at its beginning and at its end, so
//! no other code has to.

use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use crate::{Error, Result};

/// Progress of one stage, and of the work that it belongs to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Update {
    /// The stage, such as `descent` or `prune`.
    pub stage: &'static str,
    /// Units done.
    pub done: u64,
    /// Units in total. A stage that stops early ends below it.
    pub total: u64,
    /// Share of the whole work done, 0 to 1, by estimated times. A build goes from 0 to 1 once;
    /// work of one stage is `done / total`. Threads report concurrently, so an update may come
    /// after a slightly later one.
    pub fraction: f64,
}

type Sink = dyn Fn(Update) -> ControlFlow<()> + Send + Sync;

/// A handle on long work: it receives updates and can cancel. Clones share the same work.
///
/// ```
/// let progress = tagore::Progress::new(|u| eprintln!("{} {:.0} %", u.stage, 100.0 * u.fraction));
/// let from_another_thread = progress.clone();
/// from_another_thread.cancel(); // the work returns `Error::Cancelled` soon
/// assert!(progress.is_cancelled());
/// ```
///
/// A cancelled handle stays cancelled, with its clones and parts: all later work under it returns
/// [`Error::Cancelled`] at its first check. New work takes a new handle.
///
/// One handle may serve several calls in turn; the fraction of each begins at 0. For one fraction
/// over all of them, give each call one of the [`parts`](Self::parts).
#[derive(Clone, Default)]
pub struct Progress {
    cancelled: Arc<AtomicBool>,
    sink: Option<Arc<Sink>>,
    /// The shares of the whole work outside this handle's part: before it and after it.
    before: f64,
    after: f64,
}

impl Progress {
    /// A handle that calls `sink` with each update, from the working threads.
    pub fn new(sink: impl Fn(Update) + Send + Sync + 'static) -> Self {
        Self::controlled(move |update| {
            sink(update);
            ControlFlow::Continue(())
        })
    }

    /// A handle that calls `sink` with each update, from the working threads; `Break` cancels the
    /// work.
    ///
    /// ```
    /// use std::ops::ControlFlow;
    /// use std::time::{Duration, Instant};
    /// let end = Instant::now() + Duration::from_secs(60);
    /// let progress = tagore::Progress::controlled(move |_| {
    ///     if Instant::now() > end { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    /// });
    /// # assert!(!progress.is_cancelled());
    /// ```
    pub fn controlled(sink: impl Fn(Update) -> ControlFlow<()> + Send + Sync + 'static) -> Self {
        Self { sink: Some(Arc::new(sink)), ..Self::default() }
    }

    /// A handle that reports nothing.
    pub fn silent() -> Self {
        Self::default()
    }

    /// Splits the work into consecutive parts with fractions in proportion to `weights`, such as
    /// their estimated seconds. Parts cancel together.
    ///
    /// ```
    /// use std::sync::{Arc, Mutex};
    /// let last = Arc::new(Mutex::new(0.0));
    /// let seen = Arc::clone(&last);
    /// let progress = tagore::Progress::new(move |u| *seen.lock().unwrap() = u.fraction);
    /// let [check, _search] = progress.parts([1.0, 3.0]);
    /// tagore::Synth::new(100, 8, 0)?.base().validate(&check)?;
    /// assert_eq!(*last.lock().unwrap(), 0.25);
    /// # Ok::<(), tagore::Error>(())
    /// ```
    pub fn parts<const N: usize>(&self, weights: [f64; N]) -> [Self; N] {
        let weights = weights.map(|weight| if weight.is_finite() { weight.max(0.0) } else { 0.0 });
        let sum: f64 = weights.iter().sum();
        let mut before = 0.0;
        weights.map(|weight| {
            let begin = before;
            before += weight;
            if sum > 0.0 { self.part(begin / sum, before / sum) } else { self.part(1.0, 1.0) }
        })
    }

    /// The part from `begin` to `end` of this one, as shares of it.
    fn part(&self, begin: f64, end: f64) -> Self {
        let own = 1.0 - self.before - self.after;
        Self { before: self.before + begin * own, after: self.after + (1.0 - end) * own, ..self.clone() }
    }

    /// The part of iteration `number` of an expected `count`. Iterations beyond it have no share.
    pub(crate) fn iteration(&self, number: u32, count: u32) -> Self {
        let share = |number: u32| f64::from(number.min(count)) / f64::from(count.max(1));
        self.part(share(number), share(number + 1))
    }

    /// A handle that cancels with this one but reports nothing, for a step of a larger stage.
    pub(crate) fn unwatched(&self) -> Self {
        Self { sink: None, ..self.clone() }
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
        self.stage_of(stage, total, total)
    }

    /// A stage of at most `total` units that is expected to end after `expected`.
    pub(crate) fn stage_of(&self, stage: &'static str, total: u64, expected: u64) -> StageProgress<'_> {
        let began = Instant::now();
        let (done, stopped) = (AtomicU64::new(0), AtomicBool::new(false));
        let stage = StageProgress { progress: self, stage, total, expected, done, stopped, began };
        stage.report(0);
        tracing::debug!(stage = stage.stage, total, "a stage begins");
        stage
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
    expected: u64,
    done: AtomicU64,
    stopped: AtomicBool,
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
    /// Ends the stage on all its threads, after an error of one of them: the others find it
    /// cancelled.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// Fails if the work was cancelled, or the stage [stopped](Self::stop).
    pub(crate) fn check(&self) -> Result<()> {
        if self.stopped.load(Ordering::Relaxed) { Err(Error::Cancelled) } else { self.progress.check() }
    }

    /// Adds `units` to the units done.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub(crate) fn advance(&self, units: u64) -> Result<()> {
        self.check()?;
        let done = self.done.fetch_add(units, Ordering::Relaxed) + units;
        self.report(done);
        Ok(())
    }

    fn report(&self, done: u64) {
        let Self { progress: Progress { sink, before, after, .. }, stage, total, expected, .. } = self;
        if let Some(sink) = sink {
            let share = if *expected == 0 { 0.0 } else { (done as f64 / *expected as f64).min(1.0) };
            let fraction = (before + share * (1.0 - before - after)).clamp(0.0, 1.0);
            if sink(Update { stage, done, total: *total, fraction }).is_break() {
                self.progress.cancel();
            }
        }
    }
}
