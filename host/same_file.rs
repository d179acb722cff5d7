//! Whether two paths name one file, so that no input is overwritten.

use std::path::{Path, PathBuf};

use crate::text::path_text;
use crate::{Error, Result};

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
        if let Ok(found) = std::fs::metadata(path) {
            use std::os::unix::fs::MetadataExt;
            return Self::Inode(found.dev(), found.ino());
        }
        Self::Path(real_path(path))
    }
}

/// Whether `a` and `b` name one file, under any name or link; files that do not exist yet too.
pub fn is_same_file(a: impl AsRef<Path>, b: impl AsRef<Path>) -> bool {
    Identity::of(a.as_ref()) == Identity::of(b.as_ref())
}

/// `path` with the links of its existing part resolved.
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

/// Refuses an `output` that is one of `inputs`, under any name or link.
///
/// ```
/// use tagore::check_no_input;
/// assert!(check_no_input("x.tagore", ["x.fbin"]).is_ok());
/// assert!(check_no_input("./x.fbin", ["x.fbin"]).is_err());
/// ```
///
/// # Errors
/// If it is one.
pub fn check_no_input<P: AsRef<Path>>(
    output: impl AsRef<Path>,
    inputs: impl IntoIterator<Item = P>,
) -> Result<()> {
    let output = output.as_ref();
    match inputs.into_iter().find(|input| is_same_file(output, input)) {
        Some(input) => {
            let found = format_args!("the input {}", path_text(input.as_ref()));
            Err(Error::file(output, found, "a file that is not read"))
        }
        None => Ok(()),
    }
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
            assert!(is_same_file(at(name), at("x")), "{name}");
            let error = check_no_input(at(name), [at("y"), at("x")]).unwrap_err().to_string();
            assert!(error.ends_with("x, expected a file that is not read"), "{error}");
        }
        // Neither exists.
        assert!(is_same_file(at("new"), at("sub/../new")));
        assert!(!is_same_file(at("new"), at("x")));
        check_no_input(at("new"), [at("x"), at("hard")]).unwrap();
    }
}
