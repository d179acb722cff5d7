//! Progress for people: a bar in a terminal, elsewhere lines that come ever more rarely.

use std::io::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tagore::Update;

/// Shorter work shows no progress.
const SHORT: Duration = Duration::from_secs(2);

/// Maximum time between two lines; each comes after twice the time of the one before it.
const RARELY: Duration = Duration::from_secs(300);

/// Time between two updates of a bar.
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
    /// The bar of long work in a terminal; otherwise hidden.
    bar: ProgressBar,
    work: Work,
    /// Whether the thread runs that draws the bar or prints lines.
    is_watched: bool,
}

/// The state of the work.
struct Work {
    /// The stage that runs; none between two stages.
    stage: Option<&'static str>,
    /// Share of the work done.
    fraction: f64,
    began: Instant,
    /// Time of the next line, since the beginning.
    due: Duration,
    /// Expected time of the work.
    expected: Option<Duration>,
    /// The remaining time that was told last.
    told: Option<Duration>,
}

impl Bar {
    pub(crate) fn new() -> Self {
        let shown = Shown { bar: ProgressBar::hidden(), work: Work::new(Instant::now()), is_watched: false };
        Self(Arc::new(Mutex::new(shown)))
    }

    fn lock(&self) -> MutexGuard<'_, Shown> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes `update`. A thread that finds the bar locked skips its update, unless a stage begins.
    pub(crate) fn show(&self, update: Update) {
        let shown = if update.done == 0 { Some(self.lock()) } else { self.0.try_lock().ok() };
        let Some(mut shown) = shown else { return };
        if shown.work.update(update, Instant::now()) {
            shown.bar.finish_and_clear();
        }
        if !shown.is_watched {
            let shared = Arc::downgrade(&self.0);
            // Without a thread there is no progress.
            shown.is_watched = thread::Builder::new().spawn(move || watch(&shared)).is_ok();
        }
    }

    /// Writes to a standard stream while the bar is hidden.
    pub(crate) fn suspend(&self, write: impl FnOnce()) {
        let bar = self.lock().bar.clone();
        if bar.is_hidden() { write() } else { bar.suspend(write) }
    }

    /// Writes a line for people above the bar.
    pub(crate) fn say(&self, line: &str) {
        // A closed standard error is ignored: there is nowhere to report it.
        self.suspend(|| _ = writeln!(std::io::stderr().lock(), "{line}"));
    }

    /// Removes the bar.
    pub(crate) fn finish(&self) {
        let mut shown = self.lock();
        shown.bar.finish_and_clear();
        shown.work.stage = None;
    }
}

/// Shows the progress of long work until its bar is gone.
fn watch(shared: &Weak<Mutex<Shown>>) {
    let in_terminal = !ProgressDrawTarget::stderr().is_hidden();
    loop {
        thread::sleep(TICK);
        let Some(shown) = shared.upgrade() else { return };
        let mut shown = shown.lock().unwrap_or_else(PoisonError::into_inner);
        if in_terminal {
            shown.draw(Instant::now());
        } else if let Some(line) = shown.work.due_line(Instant::now()) {
            let _ = writeln!(std::io::stderr().lock(), "{line}");
        }
    }
}

impl Shown {
    /// Draws the bar of long work.
    fn draw(&mut self, now: Instant) {
        let (Some(stage), elapsed) = (self.work.stage, now - self.work.began) else { return };
        if elapsed < SHORT {
            return;
        }
        if self.bar.is_hidden() || self.bar.is_finished() {
            let target = ProgressDrawTarget::stderr_with_hz(FRAMES);
            self.bar = ProgressBar::with_draw_target(Some(FULL), target).with_style(style());
        }
        self.bar.set_message(stage);
        let left = self.work.left(now);
        self.bar.set_prefix(left.map_or_else(String::new, |left| format!("{} left", rough(left))));
        self.bar.set_position((self.work.fraction * FULL as f64) as u64);
        self.bar.tick();
    }
}

impl Work {
    fn new(began: Instant) -> Self {
        Self { stage: None, fraction: 0.0, began, due: SHORT, expected: None, told: None }
    }

    /// Takes an update. Returns whether it begins other work: its fraction starts again.
    fn update(&mut self, Update { stage, done, fraction, .. }: Update, now: Instant) -> bool {
        // Fractions of one work are rounded sums.
        let restarts = done == 0 && (fraction == 0.0 || fraction + 1e-6 < self.fraction);
        let is_new = restarts || (done == 0 && self.stage.is_none());
        if restarts {
            *self = Self::new(now);
        }
        self.stage = Some(stage);
        self.fraction = fraction.max(self.fraction);
        let elapsed = now - self.began;
        if elapsed >= SETTLE && self.fraction > 0.0 {
            self.expected = Duration::try_from_secs_f64(elapsed.as_secs_f64() / self.fraction).ok();
        }
        is_new
    }

    /// The remaining time; none while it is unknown. It never rises: an estimate a little above the
    /// last one is the last one, and a higher one is none.
    fn left(&mut self, now: Instant) -> Option<Duration> {
        let left = self.expected?.saturating_sub(now - self.began);
        let last = self.told.unwrap_or(left);
        if left > last + last / 4 {
            return None;
        }
        self.told = Some(left.min(last));
        self.told
    }

    /// The work in one line, if it runs and a line is due.
    fn due_line(&mut self, now: Instant) -> Option<String> {
        let (stage, elapsed) = (self.stage?, now - self.began);
        if elapsed < self.due {
            return None;
        }
        self.due = elapsed + elapsed.min(RARELY);
        let left = self.left(now).map_or_else(String::new, |left| format!(", about {} left", rough(left)));
        Some(format!("{stage}: {:.0} % after {}{left}", 100.0 * self.fraction, rough(elapsed)))
    }
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
    ProgressStyle::with_template("{msg:!12} {wide_bar} {percent:>3} % {prefix:>11}")
        .unwrap_or_else(|_| ProgressStyle::default_bar())
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
        let mut work = Work::new(began);
        let at = |seconds| began + Duration::from_secs(seconds);
        assert_eq!(work.due_line(at(9)), None);
        assert!(work.update(update("check", 0, 0.0), began));
        work.update(update("check", 100, 0.25), at(9));
        assert!(!work.update(update("join", 0, 0.25 - 1e-12), at(9)));
        assert!(!work.update(update("join", 50, 0.5), at(20)));
        assert_eq!(work.due_line(at(20)).unwrap(), "join: 50 % after 20 s, about 20 s left");
        // A late update of another thread.
        assert!(!work.update(update("join", 49, 0.49), at(40)));
        assert_eq!(work.due_line(at(40)).unwrap(), "join: 50 % after 40 s");
        // After a line for people the same work goes on.
        work.stage = None;
        assert!(work.update(update("prune", 0, 0.75), at(60)));
        assert_eq!(work.due_line(at(80)).unwrap(), "prune: 75 % after 80 s, about 0 s left");
        assert!(work.update(update("search", 0, 0.0), at(90)));
        assert_eq!(work.due_line(at(91)), None);
        assert_eq!(work.due_line(at(92)).unwrap(), "search: 0 % after 2 s");
    }

    #[test]
    fn lines_begin_after_two_seconds_and_come_ever_more_rarely() {
        let began = Instant::now();
        let mut work = Work::new(began);
        work.update(update("join", 0, 0.0), began);
        let is_due = |second: &u64| work.due_line(began + Duration::from_secs(*second)).is_some();
        let seconds: Vec<u64> = (0..1500).filter(is_due).collect();
        assert_eq!(seconds, [2, 4, 8, 16, 32, 64, 128, 256, 512, 812, 1112, 1412]);
    }

    #[test]
    fn the_remaining_time_never_rises() {
        let began = Instant::now();
        let mut work = Work::new(began);
        // Work that is four times as slow in its middle.
        let fraction = |second: u64| match second {
            ..20 => second as f64 / 100.0,
            20..100 => 0.2 + (second - 20) as f64 / 400.0,
            _ => (0.4 + (second - 100) as f64 / 100.0).min(1.0),
        };
        let mut told = Vec::new();
        for second in 0..160 {
            let now = began + Duration::from_secs(second);
            // A stage reports rarely: between its updates the clock runs.
            if second % 3 == 0 {
                work.update(update("join", second, fraction(second)), now);
            }
            told.extend(work.left(now));
        }
        assert!(told.windows(2).all(|pair| pair[1] <= pair[0]), "{told:?}");
        assert!(told.len() > 20 && told[0] > Duration::from_secs(80), "{told:?}");
        assert!(told.last().is_some_and(|left| *left < Duration::from_secs(5)), "{told:?}");
    }

    #[test]
    fn durations_are_rounded() {
        let text = |seconds| rough(Duration::from_secs(seconds));
        assert_eq!([text(0), text(99), text(100), text(5940)], ["0 s", "99 s", "2 min", "99 min"]);
        assert_eq!([text(6000), text(36_000), text(400_000)], ["1.7 h", "10.0 h", "5 days"]);
    }
}
