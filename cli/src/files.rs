//! The input and output files of a command: no output is written over another file of it.

use std::io::{IsTerminal as _, stdout};
use std::path::{Path, PathBuf};

use tagore::{Error, Result, check_output, real_path};
use tagore_text::path_text;

use crate::output::{Output, is_standard};
use crate::read::file_of;

/// The content of an output: its extensions, and whether standard output may take it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// An index of this library.
    Index,
    /// A k-NN graph: ids and distances.
    Graph,
    /// Results of searches: ids, or text.
    Results,
    /// JSON lines.
    Lines,
    /// A report as JSON.
    Json,
    /// A report as a page.
    Html,
    /// A plot.
    Plot,
    /// Vectors or results in a binary format; the command itself checks the extension.
    Binary,
    /// The command itself checks the extension.
    Any,
}

impl Kind {
    /// The extensions that name the kind; a file without one is of the kind too.
    fn extensions(self) -> &'static [&'static str] {
        match self {
            Self::Index => &["tagore"],
            Self::Graph => &["bin", "gt"],
            Self::Results => &["bin", "gt", "ivecs", "ibin", "npy", "csv", "jsonl"],
            Self::Lines => &["jsonl", "json"],
            Self::Json => &["json"],
            Self::Html => &["html", "htm"],
            Self::Plot => &["svg"],
            Self::Binary | Self::Any => &[],
        }
    }

    /// Refuses standard output for content that it cannot take.
    fn check_standard(self, path: &Path, is_json: bool) -> Result<()> {
        match self {
            Self::Results | Self::Lines | Self::Json => Ok(()),
            Self::Binary if is_json => {
                refuse(path, "standard output, which takes JSON lines", "a file, or no --json")
            }
            Self::Binary if stdout().is_terminal() => {
                refuse(path, "a terminal", "a pipe or a file: the format is binary")
            }
            Self::Binary => Ok(()),
            _ => refuse(path, "standard output", "a file (./- for one of this name)"),
        }
    }

    /// Refuses a path with the extension of another kind, and standard output for some kinds.
    fn check(self, path: &Path, is_json: bool) -> Result<()> {
        if is_standard(path) {
            return self.check_standard(path, is_json);
        }
        let known = self.extensions();
        let Some(extension) = path.extension().filter(|_| !known.is_empty()) else { return Ok(()) };
        if known.iter().any(|known| extension.eq_ignore_ascii_case(known)) {
            return Ok(());
        }
        let found = format!("the extension .{}", extension.to_string_lossy());
        let names: Vec<String> = known.iter().map(|known| format!(".{known}")).collect();
        let expected = match self {
            Self::Index => ".tagore or none: `tagore convert` writes the formats of other systems".to_owned(),
            Self::Graph => format!("{} or none: formats of ids alone hold no distances", names.join(", ")),
            _ => format!("{} or none", names.join(", ")),
        };
        refuse(path, found, &expected)
    }
}

/// Input and output files of a command. A command collects all of them before it reads the first.
#[derive(Default)]
pub(crate) struct Files {
    inputs: Vec<PathBuf>,
    outputs: Vec<(PathBuf, Kind)>,
    work: Option<PathBuf>,
}

impl Files {
    /// Files of a command with these inputs.
    pub(crate) fn read<P: AsRef<Path>>(inputs: impl IntoIterator<Item = P>) -> Self {
        Self::default().and_read(inputs)
    }

    /// Adds inputs.
    pub(crate) fn and_read<P: AsRef<Path>>(mut self, inputs: impl IntoIterator<Item = P>) -> Self {
        self.inputs.extend(inputs.into_iter().map(|path| file_of(path.as_ref()).to_owned()));
        self
    }

    /// Adds outputs.
    pub(crate) fn write<P: AsRef<Path>>(mut self, kind: Kind, outputs: impl IntoIterator<Item = P>) -> Self {
        self.outputs.extend(outputs.into_iter().map(|path| (path.as_ref().to_owned(), kind)));
        self
    }

    /// Sets the folder of work files, which is removed at the end.
    pub(crate) fn work_in(mut self, folder: PathBuf) -> Self {
        self.work = Some(folder);
        self
    }

    /// Refuses an output that is an input under any name or link, that is another output, that has
    /// the extension of another kind, or that cannot be written; and an input from standard input,
    /// unless it is one of vectors.
    pub(crate) fn check(&self, output: &Output) -> Result<()> {
        output.writes(self.outputs.iter().map(|(path, _)| path.as_path()));
        if let Some(input) = self.inputs.iter().find(|input| is_standard(input)) {
            return refuse(input, "standard input", "a file: only vectors can come from standard input");
        }
        let files = || self.outputs.iter().map(|(path, _)| path).filter(|path| !is_standard(path));
        let mut written: Vec<(PathBuf, &PathBuf)> = Vec::new();
        for file in files() {
            let path = real_path(file);
            if let Some((_, other)) = written.iter().find(|(other, _)| *other == path) {
                let found = format!("the output {} too", path_text(other));
                return refuse(file, found, "a file of its own for each output");
            }
            check_output(file, &self.inputs)?;
            written.push((path, file));
        }
        if let Some(work) = &self.work {
            let folder = real_path(work);
            let mut all = self.inputs.iter().chain(files());
            if let Some(file) = all.find(|file| real_path(file).starts_with(&folder)) {
                let expected = "a folder for work files alone: it is removed at the end";
                return refuse(work, format_args!("{} in the work folder", path_text(file)), expected);
            }
        }
        self.outputs.iter().try_for_each(|(path, kind)| kind.check(path, output.is_json()))
    }
}

fn refuse(path: &Path, found: impl ToString, expected: &str) -> Result<()> {
    Err(Error::File { path: path.to_owned(), found: found.to_string(), expected: expected.to_owned() })
}
