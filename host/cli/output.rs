//! What the command says: JSON lines on standard output, everything for people on standard error.

use std::fmt::Display;
use std::io::{Error as IoError, ErrorKind, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;
use tagore::{Error, Progress, Result, Update};

/// The two standard streams and the progress bar.
pub(crate) struct Output {
    json: bool,
    progress: Progress,
    bar: Arc<Mutex<Bar>>,
}

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
        Self { json, progress, bar }
    }

    /// The handle that shows progress and stops at Ctrl-C.
    pub(crate) fn progress(&self) -> &Progress {
        &self.progress
    }

    /// Prints a JSON object as one line, if `--json` asks for it.
    pub(crate) fn event(&self, event: &Value) {
        if self.json {
            // A reader that has gone away is no reason to stop the work.
            let _ = writeln!(std::io::stdout().lock(), "{event}");
        }
    }

    /// Prints a line for people.
    pub(crate) fn say(&self, text: impl Display) {
        self.finish();
        let _ = writeln!(std::io::stderr().lock(), "{text}");
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
    let error = |source: IoError| Error::Io { path: path.to_owned(), source };
    // Renaming over a device or a pipe would destroy it.
    if std::fs::metadata(path).is_ok_and(|found| !found.is_file()) {
        return Err(error(IoError::new(ErrorKind::InvalidInput, "not a regular file")));
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut builder = tempfile::Builder::new();
    builder.prefix(".tagore-");
    // Temporary files are private by default; this one is the user's, so the umask decides.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    // The kind alone: the whole error names the temporary file.
    let mut file = builder.tempfile_in(folder).map_err(|source| error(source.kind().into()))?;
    let lines: String = events.iter().map(|event| format!("{event}\n")).collect();
    file.as_file_mut().write_all(lines.as_bytes()).map_err(error)?;
    file.persist(path).map(drop).map_err(|failed| error(failed.error))
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
