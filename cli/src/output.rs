//! Output of the command: JSON lines on standard output, text for people on standard error.

use std::fmt::Display;
use std::io::{Error as IoError, ErrorKind, Write};
use std::path::Path;
use std::sync::OnceLock;

use serde_json::Value;
use tagore::{Error, Progress, write_file};
pub(crate) use tagore_text::grouped;
use tagore_text::one_line;

use crate::bar::Bar;
use crate::error::Result;
use crate::spool;

/// The two standard streams and the progress bar.
pub(crate) struct Output {
    json: bool,
    progress: Progress,
    bar: Bar,
    /// The first error of writing to standard output.
    failed: OnceLock<IoError>,
}

/// The name of standard output as a file.
pub(crate) const STANDARD: &str = "-";

/// Limit in bytes of a line for people.
const LINE: usize = 980;

impl Output {
    pub(crate) fn new(json: bool) -> Self {
        let bar = Bar::new();
        let shown = bar.clone();
        Self { json, progress: Progress::new(move |update| shown.show(update)), bar, failed: OnceLock::new() }
    }

    /// The progress of all work, which signals cancel.
    pub(crate) fn progress(&self) -> &Progress {
        &self.progress
    }

    /// Whether JSON lines are printed.
    pub(crate) fn is_json(&self) -> bool {
        self.json
    }

    /// Prints a JSON object as one line under `--json`.
    pub(crate) fn event(&self, event: &Value) {
        if self.json {
            self.print(&format!("{}\n", spool::named(&event.to_string())));
        }
    }

    /// Writes text to standard output.
    fn print(&self, text: &str) {
        match std::io::stdout().lock().write_all(text.as_bytes()) {
            // The work goes on for its files if the reader is gone.
            Err(error) if error.kind() != ErrorKind::BrokenPipe => {
                // A later error is dropped.
                let _ = self.failed.set(error);
            }
            _ => (),
        }
    }

    /// Writes a file of text, or standard output for `-`. A file appears complete or not at all.
    pub(crate) fn write(&self, path: &Path, text: &str) -> Result<()> {
        if path.as_os_str() == STANDARD {
            self.print(text);
            return Ok(());
        }
        Ok(write_file(path, text.as_bytes())?)
    }

    /// Writes JSON objects to a file or to standard output, one per line.
    pub(crate) fn write_events(&self, path: &Path, events: &[Value]) -> Result<()> {
        if self.json && path.as_os_str() == STANDARD {
            // They are there already.
            return Ok(());
        }
        let lines: String = events.iter().map(|event| format!("{event}\n")).collect();
        self.write(path, &lines)
    }

    /// Fails if standard output could not be written.
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
        self.bar.say(&one_line(&spool::named(&text.to_string()), LINE));
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
        self.bar.finish();
    }
}

/// Bytes in the unit that leaves 1 to 4 digits before the point: 38.6 MiB.
pub(crate) fn sized(bytes: u64) -> String {
    let units = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let fitting = units.into_iter().find(|&(_, shift)| bytes >> shift > 0);
    fitting.map_or_else(
        || format!("{bytes} bytes"),
        |(unit, shift)| format!("{:.1} {unit}", bytes as f64 / (1u64 << shift) as f64),
    )
}
