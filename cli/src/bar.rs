//! Progress for people: a bar in a terminal, elsewhere a line every ten seconds.

use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use tagore::Update;

/// Time between two lines where standard error is no terminal.
const EVERY: Duration = Duration::from_secs(10);

/// Time between two updates of the clock of a bar.
const TICK: Duration = Duration::from_millis(200);

/// Frames of a bar per second: more would flicker.
const FRAMES: u8 = 5;

/// Units of a full bar.
const FULL: u64 = 10_000;

/// Work is measured for this long before its remaining time is told.
const SETTLE: Duration = Duration::from_secs(1);

/// The progress of the current work, shared by all threads that report it.
#[derive(Clone)]
pub(crate) struct Bar(Arc<Mutex<Shown>>);

struct Shown {
    /// The bar; hidden where standard error is no terminal.
    bar: ProgressBar,
    work: Work,
    /// Whether the thread of lines runs.
    has_lines: bool,
}

/// The state of the work.
struct Work {
    /// The stage that runs; none between two stages.
    stage: Option<&'static str>,
    /// Share of the work done.
    fraction: f64,
    began: Instant,
}

impl Bar {
    pub(crate) fn new() -> Self {
        let work = Work { stage: None, fraction: 0.0, began: Instant::now() };
        Self(Arc::new(Mutex::new(Shown { bar: ProgressBar::hidden(), work, has_lines: false })))
    }

    fn lock(&self) -> MutexGuard<'_, Shown> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shows `update`. A thread that finds the bar locked skips its update, unless a stage begins.
    pub(crate) fn show(&self, update: Update) {
        let shown = if update.done == 0 { Some(self.lock()) } else { self.0.try_lock().ok() };
        if let Some(mut shown) = shown {
            shown.show(update, Arc::downgrade(&self.0));
        }
    }

    /// Writes a line for people above the bar.
    pub(crate) fn say(&self, line: &str) {
        let shown = self.lock();
        // A closed standard error is ignored: there is nowhere to report it.
        let write = || _ = writeln!(std::io::stderr().lock(), "{line}");
        if shown.work.stage.is_some() { shown.bar.suspend(write) } else { write() }
    }

    /// Removes the bar.
    pub(crate) fn finish(&self) {
        let mut shown = self.lock();
        shown.bar.finish_and_clear();
        shown.work.stage = None;
    }
}

impl Shown {
    fn show(&mut self, update: Update, shared: Weak<Mutex<Self>>) {
        let is_new = self.work.update(update, Instant::now());
        if is_new || self.bar.is_finished() {
            self.bar.finish_and_clear();
            // The bar hides itself where standard error is no terminal.
            let target = ProgressDrawTarget::stderr_with_hz(FRAMES);
            self.bar = ProgressBar::with_draw_target(Some(FULL), target)
                .with_style(style())
                .with_elapsed(self.work.began.elapsed());
            // Ticks keep the clock running between updates. indicatif panics if the system has no
            // thread left for them.
            if !self.bar.is_hidden() && thread::Builder::new().spawn(|| ()).is_ok() {
                self.bar.enable_steady_tick(TICK);
            }
        }
        if self.bar.is_hidden() && !self.has_lines {
            // Without a thread there are no lines.
            self.has_lines = thread::Builder::new().spawn(move || lines(&shared)).is_ok();
        }
        self.bar.set_message(update.stage);
        self.bar.set_position((self.work.fraction * FULL as f64) as u64);
    }
}

/// Prints a line about running work every ten seconds, until its bar is gone.
fn lines(shared: &Weak<Mutex<Shown>>) {
    loop {
        thread::sleep(EVERY);
        let Some(shown) = shared.upgrade() else { return };
        let shown = shown.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(line) = shown.work.line(Instant::now()) {
            let _ = writeln!(std::io::stderr().lock(), "{line}");
        }
    }
}

impl Work {
    /// Takes an update. Returns whether it begins other work: its fraction starts again.
    fn update(&mut self, Update { stage, done, fraction, .. }: Update, now: Instant) -> bool {
        // Fractions of one work are rounded sums.
        let restarts = done == 0 && (fraction == 0.0 || fraction + 1e-6 < self.fraction);
        let is_new = restarts || (done == 0 && self.stage.is_none());
        if restarts {
            (self.began, self.fraction) = (now, 0.0);
        }
        self.stage = Some(stage);
        self.fraction = fraction.max(self.fraction);
        is_new
    }

    /// The work in one line; none between two stages.
    fn line(&self, now: Instant) -> Option<String> {
        let stage = self.stage?;
        let elapsed = now - self.began;
        let mut line = format!("{stage}: {:.0} % after {}", 100.0 * self.fraction, rough(elapsed));
        if let Some(left) = left(self.fraction, elapsed) {
            let _ = write!(line, ", about {} left", rough(left));
        }
        Some(line)
    }
}

/// The remaining time of work of which `fraction` took `elapsed`; none while it is unknown.
fn left(fraction: f64, elapsed: Duration) -> Option<Duration> {
    let rest = (1.0 - fraction) / fraction;
    (elapsed >= SETTLE && fraction > 0.0)
        .then(|| Duration::try_from_secs_f64(elapsed.as_secs_f64() * rest).ok())?
}

/// A duration to two digits or so: `12 s`, `3 min`, `2.2 h`.
fn rough(duration: Duration) -> String {
    let seconds = duration.as_secs_f64().round();
    match seconds {
        ..100.0 => format!("{seconds} s"),
        ..5970.0 => format!("{:.0} min", seconds / 60.0),
        ..359_000.0 => format!("{:.1} h", seconds / 3600.0),
        _ => format!("{:.0} days", seconds / 86_400.0),
    }
}

/// A bar as wide as the terminal allows, of one line in 40 columns too.
fn style() -> ProgressStyle {
    let left = |state: &ProgressState, out: &mut dyn std::fmt::Write| {
        let left = left(f64::from(state.fraction()), state.elapsed());
        // A bar is drawn without errors.
        let _ = left.map_or(Ok(()), |left| write!(out, "{} left", rough(left)));
    };
    ProgressStyle::with_template("{msg:!12} {wide_bar} {percent:>3} % {left:>11}")
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .with_key("left", left)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn update(stage: &'static str, done: u64, fraction: f64) -> Update {
        Update { stage, done, total: 100, fraction }
    }

    #[test]
    fn one_work_goes_through_its_stages_and_another_begins_at_its_first() {
        let began = Instant::now();
        let mut work = Work { stage: None, fraction: 0.0, began };
        let at = |seconds| began + Duration::from_secs(seconds);
        assert_eq!(work.line(at(9)), None);
        assert!(work.update(update("check", 0, 0.0), began));
        assert_eq!(work.line(began).unwrap(), "check: 0 % after 0 s");
        work.update(update("check", 100, 0.25), at(9));
        assert!(!work.update(update("join", 0, 0.25 - 1e-12), at(9)));
        assert!(!work.update(update("join", 50, 0.5), at(20)));
        assert_eq!(work.line(at(20)).unwrap(), "join: 50 % after 20 s, about 20 s left");
        // A late update of another thread.
        assert!(!work.update(update("join", 49, 0.49), at(20)));
        assert_eq!(work.line(at(20)).unwrap(), "join: 50 % after 20 s, about 20 s left");
        // After a line for people the same work goes on.
        work.stage = None;
        assert!(work.update(update("prune", 0, 0.75), at(30)));
        assert_eq!(work.line(at(30)).unwrap(), "prune: 75 % after 30 s, about 10 s left");
        assert!(work.update(update("search", 0, 0.0), at(40)));
        assert_eq!(work.line(at(41)).unwrap(), "search: 0 % after 1 s");
    }

    #[test]
    fn durations_are_rounded() {
        let text = |seconds| rough(Duration::from_secs(seconds));
        assert_eq!([text(0), text(99), text(100), text(5940)], ["0 s", "99 s", "2 min", "99 min"]);
        assert_eq!([text(6000), text(36_000), text(400_000)], ["1.7 h", "10.0 h", "5 days"]);
    }
}
