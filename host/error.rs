//! The one error type of the library.

use std::io;
use std::path::{Path, PathBuf};

use crate::text::{one_line, path_text};

/// What went wrong, where, what was found and what was expected. Displays as one line of less than 1,000 bytes, in which
/// control characters of paths and of what files hold are escaped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Reading or writing a file failed.
    #[error("{}: {}", path_text(path), one_line(&source.to_string(), TEXT))]
    Io {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// A file does not hold what it should.
    #[error("{}: found {}, expected {}", path_text(path), one_line(found, FOUND), one_line(expected, TEXT))]
    File {
        /// The file.
        path: PathBuf,
        /// What it holds.
        found: String,
        /// What it should hold.
        expected: String,
    },
    /// A vector holds a value that cannot be used: a NaN, an infinity, or one that the type it is
    /// converted to does not have.
    #[error(
        "{}: row {row}, dimension {dim}: found {}, expected {}",
        source_name(path),
        one_line(value, FOUND),
        one_line(expected, TEXT)
    )]
    Value {
        /// The file, if the vectors came from one.
        path: Option<PathBuf>,
        /// The row, from 0.
        row: usize,
        /// The dimension, from 0.
        dim: usize,
        /// The value found.
        value: String,
        /// The values that can be used.
        expected: String,
    },
    /// An argument is out of its range or does not fit the others.
    #[error("{what}: found {}, expected {}", one_line(found, FOUND), one_line(expected, TEXT))]
    Argument {
        /// The parameter, or the flag of the command line.
        what: &'static str,
        /// Its value.
        found: String,
        /// What it should be.
        expected: String,
    },
    /// Two inputs do not belong together: dimensions, sizes, or an index and its base.
    #[error(
        "{}: found {}, expected {}",
        one_line(what, PATH),
        one_line(found, FOUND),
        one_line(expected, TEXT)
    )]
    Mismatch {
        /// What does not fit.
        what: String,
        /// Its value.
        found: String,
        /// The value of the other input.
        expected: String,
    },
    /// A device, or the driver, failed or has no room.
    #[error("{device}: {}", one_line(problem, PROBLEM))]
    Device {
        /// The device, such as `cuda:0`.
        device: String,
        /// What went wrong; an error of the driver has its CUDA name.
        problem: String,
    },
    /// The work was cancelled through its [`Progress`](crate::Progress).
    #[error("interrupted")]
    Cancelled,
}

/// The result of this library's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// For `map_err` on an operation on `path`.
    pub(crate) fn io(path: &Path) -> impl FnOnce(io::Error) -> Self + '_ {
        move |source| Self::Io { path: path.to_owned(), source }
    }

    pub(crate) fn file(path: &Path, found: impl ToString, expected: impl ToString) -> Self {
        Self::File { path: path.to_owned(), found: found.to_string(), expected: expected.to_string() }
    }

    pub(crate) fn argument(what: &'static str, found: impl ToString, expected: impl ToString) -> Self {
        Self::Argument { what, found: found.to_string(), expected: expected.to_string() }
    }

    pub(crate) fn mismatch(what: impl ToString, found: impl ToString, expected: impl ToString) -> Self {
        Self::Mismatch { what: what.to_string(), found: found.to_string(), expected: expected.to_string() }
    }
}

// The most bytes that an error shows of its parts: together less than 1,000.
const FOUND: usize = 160;
const PATH: usize = 400;
const TEXT: usize = 380;
const PROBLEM: usize = 900;

fn source_name(path: &Option<PathBuf>) -> String {
    path.as_deref().map_or_else(|| "vectors".to_owned(), path_text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_one_short_line() {
        let long = "\n\u{1b}[31m".repeat(10_000);
        let path = PathBuf::from(&long);
        let errors = [
            Error::Io { path: path.clone(), source: io::Error::other(long.clone()) },
            Error::file(&path, &long, &long),
            Error::Value { path: Some(path), row: 1, dim: 1, value: long.clone(), expected: long.clone() },
            Error::argument("degree", &long, &long),
            Error::mismatch(&long, &long, &long),
            Error::Device { device: "cuda:0".to_owned(), problem: long },
        ];
        for error in errors {
            let text = error.to_string();
            assert!(text.len() < 990, "{} bytes: {text}", text.len());
            assert!(!text.chars().any(char::is_control), "{text}");
        }
    }
}
