//! Output of the command: JSON lines on standard output, text for people on standard error.

use std::fmt::Display;
use std::io::{Error as IoError, ErrorKind, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;
pub(crate) use tagore::grouped;
use tagore::{Error, Progress, Update, one_line, write_file};

use crate::error::Result;

/// The two standard streams and the progress bar.
pub(crate) struct Output {
    json: bool,
    progress: Progress,
    bar: Arc<Mutex<Bar>>,
    /// The first error of printing a JSON line.
    failed: OnceLock<IoError>,
}

/// Limit in bytes of a line for people.
const LINE: usize = 980;

struct Bar {
    bar: ProgressBar,
    stage: &'static str,
}

impl Bar {
    /// Shows `update`. A new stage replaces the bar.
    fn show(&mut self, update: Update) {
        if self.stage != update.stage || update.done == 0 {
            self.bar.finish_and_clear();
            // The bar hides itself where standard error is no terminal.
            self.bar = ProgressBar::new(update.total).with_style(style()).with_message(update.stage);
            // Ticks keep the clock running between updates. indicatif panics if the system has no
            // thread left for them.
            if !self.bar.is_hidden() && std::thread::Builder::new().spawn(|| ()).is_ok() {
                self.bar.enable_steady_tick(Duration::from_millis(200));
            }
            self.stage = update.stage;
        }
        self.bar.set_position(update.done);
    }
}

fn style() -> ProgressStyle {
    ProgressStyle::with_template("{msg:>12} {bar:40} {percent:>3}% {elapsed} (left {eta})")
        .unwrap_or_else(|_| ProgressStyle::default_bar())
}

impl Output {
    pub(crate) fn new(json: bool) -> Self {
        let bar = Arc::new(Mutex::new(Bar { bar: ProgressBar::hidden(), stage: "" }));
        let shown = Arc::clone(&bar);
        let progress = Progress::new(move |update| {
            // A thread that finds the bar locked skips this update.
            if update.done == 0 {
                shown.lock().unwrap_or_else(PoisonError::into_inner).show(update);
            } else if let Ok(mut bar) = shown.try_lock() {
                bar.show(update);
            }
        });
        Self { json, progress, bar, failed: OnceLock::new() }
    }

    /// The progress of all work, which signals cancel.
    pub(crate) fn progress(&self) -> &Progress {
        &self.progress
    }

    /// Prints a JSON object as one line under `--json`.
    pub(crate) fn event(&self, event: &Value) {
        if self.json {
            match writeln!(std::io::stdout().lock(), "{event}") {
                // The work goes on for its files if the reader is gone.
                Err(error) if error.kind() != ErrorKind::BrokenPipe => {
                    // A later error is dropped.
                    let _ = self.failed.set(error);
                }
                _ => (),
            }
        }
    }

    /// Fails if a JSON line could not be printed.
    pub(crate) fn check(&self) -> Result<()> {
        match self.failed.get() {
            Some(error) => {
                Err(Error::Io { path: "standard output".into(), source: error.kind().into() }.into())
            }
            None => Ok(()),
        }
    }

    /// Prints a line for people, with control characters escaped.
    pub(crate) fn say(&self, text: impl Display) {
        self.finish();
        let _ = writeln!(std::io::stderr().lock(), "{}", one_line(&text.to_string(), LINE));
    }

    /// Prints a warning.
    pub(crate) fn warn(&self, text: impl Display) {
        self.say(format_args!("warning: {text}"));
    }

    /// Prints an error.
    pub(crate) fn error(&self, text: impl Display) {
        self.say(format_args!("error: {text}"));
    }

    /// Removes the progress bar.
    pub(crate) fn finish(&self) {
        let mut bar = self.bar.lock().unwrap_or_else(PoisonError::into_inner);
        bar.bar.finish_and_clear();
        bar.stage = "";
    }
}

/// Writes JSON objects to a file, one per line. The file appears complete or not at all.
pub(crate) fn save_events(path: &Path, events: &[Value]) -> Result<()> {
    let lines: String = events.iter().map(|event| format!("{event}\n")).collect();
    Ok(write_file(path, lines.as_bytes())?)
}
