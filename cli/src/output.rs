//! What the command says: JSON lines on standard output, everything for people on standard error.

use std::fmt::Display;
use std::io::{Error as IoError, ErrorKind, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;
use tagore::{Error, Progress, Result, Update, one_line, write_file};

/// The two standard streams and the progress bar.
pub(crate) struct Output {
    json: bool,
    progress: Progress,
    bar: Arc<Mutex<Bar>>,
    /// Why a JSON line could not be printed.
    failed: OnceLock<IoError>,
}

/// The most bytes of a line for people.
const LINE: usize = 980;

struct Bar {
    bar: ProgressBar,
    stage: &'static str,
}

impl Bar {
    /// Shows `update`; a stage that begins anew replaces the bar.
    fn show(&mut self, update: Update) {
        if self.stage != update.stage || update.done == 0 {
            self.bar.finish_and_clear();
            // Hidden by itself where standard error is no terminal.
            self.bar = ProgressBar::new(update.total).with_style(style()).with_message(update.stage);
            // The clock goes on between updates; starting its thread panics where the system has none left.
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
            // A thread that finds the bar busy goes on with its work; the next update will do.
            if update.done == 0 {
                shown.lock().unwrap_or_else(PoisonError::into_inner).show(update);
            } else if let Ok(mut bar) = shown.try_lock() {
                bar.show(update);
            }
        });
        Self { json, progress, bar, failed: OnceLock::new() }
    }

    /// The handle that shows progress and stops at Ctrl-C.
    pub(crate) fn progress(&self) -> &Progress {
        &self.progress
    }

    /// Prints a JSON object as one line, if `--json` asks for it.
    pub(crate) fn event(&self, event: &Value) {
        if self.json {
            match writeln!(std::io::stdout().lock(), "{event}") {
                // A reader that has gone away is no reason to stop the work.
                Err(error) if error.kind() != ErrorKind::BrokenPipe => {
                    // The first reason is told; the work goes on, for its files.
                    let _ = self.failed.set(error);
                }
                _ => (),
            }
        }
    }

    /// An error if a JSON line could not be printed.
    pub(crate) fn check(&self) -> Result<()> {
        match self.failed.get() {
            Some(error) => Err(Error::Io { path: "standard output".into(), source: error.kind().into() }),
            None => Ok(()),
        }
    }

    /// Prints a line for people, in which control characters of paths and files are escaped.
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

/// Writes JSON objects to a file, a line each. The file appears whole or not at all.
pub(crate) fn save_events(path: &Path, events: &[Value]) -> Result<()> {
    let lines: String = events.iter().map(|event| format!("{event}\n")).collect();
    write_file(path, lines.as_bytes())
}

/// A count with its thousands apart: 1,234,567.
pub(crate) fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_set_apart() {
        for (count, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(grouped(count), text);
        }
    }
}
