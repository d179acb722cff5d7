//! The input and output files of a command: no output is written over another file of it.

use std::fs;
use std::path::{Path, PathBuf};

use tagore::{Error, Result, check_output, path_text, temporary_path};

/// Input and output files of a command. A command collects all of them before it reads the first.
#[derive(Default)]
pub(crate) struct Files {
    inputs: Vec<PathBuf>,
    outputs: Vec<PathBuf>,
    work: Option<PathBuf>,
}

impl Files {
    /// Files of a command with these inputs.
    pub(crate) fn read<P: AsRef<Path>>(inputs: impl IntoIterator<Item = P>) -> Self {
        Self::default().and_read(inputs)
    }

    /// Adds inputs.
    pub(crate) fn and_read<P: AsRef<Path>>(mut self, inputs: impl IntoIterator<Item = P>) -> Self {
        self.inputs.extend(inputs.into_iter().map(|path| path.as_ref().to_owned()));
        self
    }

    /// Adds outputs.
    pub(crate) fn write<P: AsRef<Path>>(mut self, outputs: impl IntoIterator<Item = P>) -> Self {
        self.outputs.extend(outputs.into_iter().map(|path| path.as_ref().to_owned()));
        self
    }

    /// Sets the folder of work files, which is removed at the end.
    pub(crate) fn work_in(mut self, folder: PathBuf) -> Self {
        self.work = Some(folder);
        self
    }

    /// Refuses an output that is an input under any name or link, that is another output, or that
    /// cannot be written.
    pub(crate) fn check(&self) -> Result<()> {
        let inputs: Vec<(Identity, &PathBuf)> = identities(&self.inputs);
        let mut written: Vec<(Identity, &PathBuf)> = Vec::new();
        for output in &self.outputs {
            let identity = Identity::of(output);
            if let Some((_, input)) = inputs.iter().find(|(input, _)| *input == identity) {
                return refuse(
                    output,
                    format_args!("the input {}", path_text(input)),
                    "a file that is not read",
                );
            }
            if let Some((_, other)) = written.iter().find(|(other, _)| *other == identity) {
                let found = format!("the output {} too", path_text(other));
                return refuse(output, found, "a file of its own for each output");
            }
            let temporary = Identity::of(&temporary_path(output));
            if let Some((_, input)) = inputs.iter().find(|(input, _)| *input == temporary) {
                let found = format!("its temporary file is the input {}", path_text(input));
                return refuse(output, found, "another name");
            }
            written.push((identity, output));
        }
        if let Some(work) = &self.work {
            let folder = resolved(work);
            let mut files = self.inputs.iter().chain(&self.outputs);
            if let Some(file) = files.find(|file| resolved(file).starts_with(&folder)) {
                let expected = "a folder for work files alone: it is removed at the end";
                return refuse(work, format_args!("{} in the work folder", path_text(file)), expected);
            }
        }
        self.outputs.iter().try_for_each(check_output)
    }
}

fn refuse(path: &Path, found: impl ToString, expected: &str) -> Result<()> {
    Err(Error::File { path: path.to_owned(), found: found.to_string(), expected: expected.to_owned() })
}

fn identities(paths: &[PathBuf]) -> Vec<(Identity, &PathBuf)> {
    paths.iter().map(|path| (Identity::of(path), path)).collect()
}

/// The identity of a file, independent of its name.
#[derive(PartialEq, Eq)]
enum Identity {
    /// Device and inode of an existing file.
    #[cfg(unix)]
    Inode(u64, u64),
    /// The path without links.
    Path(PathBuf),
}

impl Identity {
    fn of(path: &Path) -> Self {
        #[cfg(unix)]
        if let Ok(found) = fs::metadata(path) {
            use std::os::unix::fs::MetadataExt;
            return Self::Inode(found.dev(), found.ino());
        }
        Self::Path(resolved(path))
    }
}

/// `path` with the links of its existing part resolved.
fn resolved(path: &Path) -> PathBuf {
    if let Ok(path) = fs::canonicalize(path) {
        return path;
    }
    match (path.parent(), path.file_name()) {
        (Some(folder), Some(name)) => {
            let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
            resolved(folder).join(name)
        }
        _ => path.to_owned(),
    }
}
