//! Checks of outputs before long work: that none is an input, and that each can be written.

use std::path::{Path, PathBuf};

use tagore_text::path_text;

use crate::atomic_file::{AtomicFile, temporary_path};
use crate::platform::{self, FileId};
use crate::{Error, Result};

/// The identity of a file, independent of its name.
#[derive(PartialEq, Eq)]
enum Identity {
    /// An existing file.
    File(FileId),
    /// The path without links.
    Path(PathBuf),
}

impl Identity {
    fn read(path: &Path) -> Self {
        platform::identity_at(path).map_or_else(|_| Self::Path(real_path(path)), Self::File)
    }
}

/// Resolves the links of the existing part of `path`.
pub fn real_path(path: impl AsRef<Path>) -> PathBuf {
    let path = path.as_ref();
    if let Ok(path) = std::fs::canonicalize(path) {
        return path;
    }
    match (path.parent(), path.file_name()) {
        (Some(folder), Some(name)) => {
            let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
            real_path(folder).join(name)
        }
        _ => path.to_owned(),
    }
}

/// Checks, before long work, that `output` can be written: it is none of `inputs`, under any name
/// or link, its folder exists and is writable, it is no folder, device or pipe, and no other run is
/// writing it.
///
/// ```
/// use tagore::check_output;
/// assert!(check_output("x.tagore", ["x.fbin"]).is_ok());
/// assert!(check_output("./x.fbin", ["x.fbin"]).is_err());
/// ```
///
/// # Errors
/// If it cannot be written; the error names the obstacle.
pub fn check_output<P: AsRef<Path>>(
    output: impl AsRef<Path>,
    inputs: impl IntoIterator<Item = P>,
) -> Result<()> {
    check_no_input(output.as_ref(), inputs)?;
    AtomicFile::create(output.as_ref()).map(drop)
}

/// Refuses an `output` that is one of `inputs`, under any name or link, or whose temporary file is.
///
/// # Errors
/// If it is one.
pub(crate) fn check_no_input<P: AsRef<Path>>(
    output: &Path,
    inputs: impl IntoIterator<Item = P>,
) -> Result<()> {
    let (written, temporary) = (Identity::read(output), Identity::read(&temporary_path(output)));
    for input in inputs {
        let (input, name) = (Identity::read(input.as_ref()), path_text(input.as_ref()));
        if input == written {
            return Err(Error::file(output, format_args!("the input {name}"), "a file that is not read"));
        }
        if input == temporary {
            let found = format_args!("its temporary file is the input {name}");
            return Err(Error::file(output, found, "another name"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_input_is_known_by_any_name() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("x"), [1]).unwrap();
        std::fs::hard_link(at("x"), at("hard")).unwrap();
        std::fs::create_dir(at("sub")).unwrap();
        for name in ["x", "hard", "sub/../x"] {
            let error = check_output(at(name), [at("y"), at("x")]).unwrap_err().to_string();
            assert!(error.ends_with("x, expected a file that is not read"), "{error}");
        }
        // Neither exists.
        assert!(check_output(at("new"), [at("sub/../new")]).is_err());
        check_output(at("new"), [at("x"), at("hard")]).unwrap();
        // A temporary file of an earlier run is removed, unless it is the input.
        std::fs::write(at(".new.tagore-tmp"), [1]).unwrap();
        assert!(check_output(at("new"), [at(".new.tagore-tmp")]).is_err() && at(".new.tagore-tmp").exists());
        check_output(at("new"), [at("x")]).unwrap();
        assert!(!at(".new.tagore-tmp").exists());
    }
}
