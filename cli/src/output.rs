//! Output of the command: results on standard output, and notes, warnings, errors and progress on
//! standard error.

use std::fmt::Display;
use std::fs::File;
use std::io::{Error as IoError, ErrorKind, Write};
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

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
    /// Whether progress and notes are left out.
    quiet: bool,
    progress: Progress,
    bar: Bar,
    /// Whether standard output takes JSON lines or a file, so that text goes to standard error.
    is_taken: AtomicBool,
    /// Whether the command writes no file, so that its work is in vain once standard output is
    /// closed.
    only_prints: AtomicBool,
    is_closed: AtomicBool,
    /// The first error of writing to standard output.
    failed: OnceLock<IoError>,
}

/// The name of standard output as a file.
pub(crate) const STANDARD: &str = "-";

/// Limit in bytes of a line for people.
const LINE: usize = 980;

impl Output {
    pub(crate) fn new(json: bool, quiet: bool) -> Self {
        let bar = Bar::new();
        let shown = bar.clone();
        let progress =
            if quiet { Progress::silent() } else { Progress::new(move |update| shown.show(update)) };
        Self {
            json,
            quiet,
            progress,
            bar,
            is_taken: json.into(),
            only_prints: false.into(),
            is_closed: false.into(),
            failed: OnceLock::new(),
        }
    }

    /// Notes the files that the command writes, before it prints anything.
    pub(crate) fn writes<'a>(&self, files: impl Iterator<Item = &'a Path> + Clone) {
        self.is_taken.fetch_or(files.clone().any(is_standard), Ordering::Relaxed);
        self.only_prints.store({ files }.all(is_standard), Ordering::Relaxed);
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
    pub(crate) fn print(&self, text: &str) {
        self.print_with(|out| out.write_all(text.as_bytes()));
    }

    fn print_with(&self, write: impl FnOnce(&mut dyn Write) -> std::io::Result<()>) {
        let mut written = Ok(());
        self.bar.suspend(|| {
            let mut out = std::io::stdout().lock();
            written = write(&mut out).and_then(|()| out.flush());
        });
        match written {
            Ok(()) => {}
            // The reader is gone. The work goes on for its files, if it writes any.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {
                self.is_closed.store(true, Ordering::Relaxed);
                if self.only_prints.load(Ordering::Relaxed) {
                    self.progress.cancel();
                }
            }
            // A later error is dropped.
            Err(error) => _ = self.failed.set(error),
        }
    }

    /// Whether standard output was closed by its reader.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Relaxed)
    }

    /// Writes a file of text, or standard output for `-`. A file appears complete or not at all.
    pub(crate) fn write(&self, path: &Path, text: &str) -> Result<()> {
        if is_standard(path) {
            self.print(text);
            return Ok(());
        }
        Ok(write_file(path, text.as_bytes())?)
    }

    /// Writes a file by `save`, or for `-` its bytes to standard output. They come from a copy in
    /// `$TMPDIR`, as the library writes files alone.
    pub(crate) fn save(&self, path: &Path, save: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
        if !is_standard(path) {
            return save(path);
        }
        let failed = |source| Error::Io { path: std::env::temp_dir(), source };
        let folder = tempfile::Builder::new().prefix("tagore-").tempdir().map_err(failed)?;
        let copy = folder.path().join("output");
        save(&copy)?;
        let mut copy = File::open(copy).map_err(failed)?;
        self.print_with(|out| std::io::copy(&mut copy, out).map(drop));
        Ok(())
    }

    /// Writes JSON objects to a file or to standard output, one per line.
    pub(crate) fn write_events(&self, path: &Path, events: &[Value]) -> Result<()> {
        if self.json && is_standard(path) {
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

    /// Prints a line of the result, with control characters escaped: on standard output, or where
    /// that takes JSON lines or a file, as a note.
    pub(crate) fn result(&self, text: impl Display) {
        if self.is_taken.load(Ordering::Relaxed) {
            return self.say(text);
        }
        self.print(&format!("{}\n", line(text)));
    }

    /// Prints a note: a line on standard error about the work, unless the command is quiet.
    pub(crate) fn say(&self, text: impl Display) {
        if !self.quiet {
            self.bar.say(&line(text));
        }
    }

    /// Prints a warning.
    pub(crate) fn warn(&self, text: impl Display) {
        self.bar.say(&line(format_args!("warning: {text}")));
    }

    /// Prints an error.
    pub(crate) fn error(&self, text: impl Display) {
        self.bar.say(&line(format_args!("error: {text}")));
    }

    /// Removes the progress bar.
    pub(crate) fn finish(&self) {
        self.bar.finish();
    }
}

/// Whether `path` is that of standard input or output.
pub(crate) fn is_standard(path: &Path) -> bool {
    path.as_os_str() == STANDARD
}

/// The name of an output in a note.
pub(crate) fn name(path: &Path) -> String {
    if is_standard(path) { "standard output".to_owned() } else { path.display().to_string() }
}

/// One line of `text`, with control characters escaped.
fn line(text: impl Display) -> String {
    one_line(&spool::named(&text.to_string()), LINE)
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
