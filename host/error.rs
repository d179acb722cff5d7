//! The one error type of the library.
//!
//! Errors name parameters and remedies as values, not as text. So the command writes them as flags,
//! and the Python package as keyword arguments.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use tagore_text::{one_line, path_text};

use crate::ElementType;

/// An error of a caller's [`Source`](crate::Source) or [`RowSink`](crate::RowSink), which
/// [`Error::Store`] carries. The `?` operator makes one of any error.
pub type StoreError = Box<dyn std::error::Error + Send + Sync>;

/// A failure: its place, the value found and the value expected. Displays as one line of less than
/// 1,000 bytes, in which control characters of paths and of file contents are escaped.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be read or written.
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A file with unexpected content.
    File {
        /// The file.
        path: PathBuf,
        /// Its content.
        found: String,
        /// The content expected.
        expected: String,
    },
    /// A value of a vector that cannot be used: a NaN, an infinity, or a value outside the target
    /// type.
    Value {
        /// The file, if the vectors came from one.
        path: Option<PathBuf>,
        /// The row, from 0.
        row: usize,
        /// The dimension, from 0.
        dim: usize,
        /// The value found.
        value: String,
        /// The values allowed.
        expected: String,
    },
    /// An argument out of its range, or at odds with another.
    Argument {
        /// The parameter as the library names it, such as `host_memory`.
        parameter: &'static str,
        /// Its value.
        found: String,
        /// The values allowed.
        expected: String,
    },
    /// Two inputs of different dimensions or sizes, or an index and a base of another index.
    Mismatch {
        /// The input at odds with the other.
        what: String,
        /// Its value.
        found: String,
        /// The value of the other input.
        expected: String,
    },
    /// A failure of a caller's [`Source`](crate::Source) or [`RowSink`](crate::RowSink).
    Store {
        /// `source` or `sink`.
        place: &'static str,
        /// The first row of the failed call.
        row: usize,
        /// The error of the store; `downcast_ref` gives its type back.
        source: StoreError,
    },
    /// A failure of a device or of its driver.
    Device {
        /// The device, such as `cuda:0`.
        device: String,
        /// The failure; an error of the driver has its CUDA name.
        problem: String,
    },
    /// Memory of the host that the system refused.
    HostMemory {
        /// Bytes of the refused allocation, or of the work that it was for.
        required: u64,
    },
    /// A stage that needs more device memory than is free.
    DeviceMemory {
        /// The device, such as `cuda:0`.
        device: String,
        /// The stage that needs most.
        stage: &'static str,
        /// Bytes of its buffers.
        required: u64,
        /// Name and bytes of its largest buffer.
        largest: (&'static str, u64),
        /// Free bytes on the device.
        free: u64,
        /// Changes with which the build fits.
        remedies: Vec<Remedy>,
    },
    /// A work folder with the files of an unfinished build, and a build that was not told to
    /// resume.
    Unfinished {
        /// The work folder.
        folder: PathBuf,
    },
    /// Work cancelled through its [`Progress`](crate::Progress).
    Cancelled,
}

/// A change to a build with which it fits a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Remedy {
    /// Limit device memory to this many bytes, so that the index is built cluster by cluster.
    GpuMemory(u64),
    /// Lower the neighbours per node of the k-NN graph to this number, the largest that fits.
    Knn(usize),
    /// Convert the vectors to a smaller type.
    ElementType(ElementType),
    /// Build on the CPU.
    Cpu,
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::GpuMemory(bytes) => write!(f, "set gpu_memory to {bytes} to build cluster by cluster"),
            Self::Knn(k) => write!(f, "lower knn to {k}"),
            Self::ElementType(element) => write!(f, "convert the vectors to {element}"),
            Self::Cpu => f.write_str("build on the CPU"),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { path, source } => {
                write!(f, "{}: {}", path_text(path), one_line(&source.to_string(), TEXT))
            }
            Self::File { path, found, expected } => differs(f, &path_text(path), found, expected),
            Self::Value { path, row, dim, value, expected } => {
                let source = path.as_deref().map_or_else(|| "vectors".to_owned(), path_text);
                differs(f, &format!("{source}: row {row}, dimension {dim}"), value, expected)
            }
            Self::Argument { parameter, found, expected } => differs(f, parameter, found, expected),
            Self::Mismatch { what, found, expected } => differs(f, &one_line(what, PATH), found, expected),
            Self::Store { place, row, source } => {
                write!(f, "{place}: row {row}: {}", one_line(&source.to_string(), PROBLEM))
            }
            Self::Device { device, problem } => write!(f, "{device}: {}", one_line(problem, PROBLEM)),
            Self::DeviceMemory { device, stage, required, largest: (name, bytes), free, remedies } => {
                write!(
                    f,
                    "{device}: needs {required} bytes of memory in stage {stage} (largest buffer: {name}, {bytes}), \
                     free {free}: "
                )?;
                let remedies: Vec<String> = remedies.iter().map(Remedy::to_string).collect();
                f.write_str(&remedies.join("; "))
            }
            Self::HostMemory { required } => write!(
                f,
                "memory: the system refused {required} bytes more: free some, or raise its limit (ulimit -v)"
            ),
            Self::Unfinished { folder } => {
                differs(f, &path_text(folder), "an unfinished build", "resume, or another work folder")
            }
            Self::Cancelled => f.write_str("interrupted"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            Self::Store { source, .. } => Some(source.as_ref()),
            _ => None,
        }
    }
}

/// Writes the value found at `place`, and the value expected there.
fn differs(f: &mut fmt::Formatter<'_>, place: &str, found: &str, expected: &str) -> fmt::Result {
    write!(f, "{place}: found {}, expected {}", one_line(found, FOUND), one_line(expected, TEXT))
}

/// The result of this library's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// For `map_err` on an operation on `path`.
    pub(crate) fn io(path: &Path) -> impl FnOnce(io::Error) -> Self + '_ {
        move |source| Self::Io { path: path.to_owned(), source }
    }

    /// The failure of a caller's store at `place`; an error of this library stays as it is.
    pub(crate) fn store(place: &'static str, row: usize, source: StoreError) -> Self {
        source.downcast().map_or_else(|source| Self::Store { place, row, source }, |error| *error)
    }

    pub(crate) fn file(path: &Path, found: impl ToString, expected: impl ToString) -> Self {
        Self::File { path: path.to_owned(), found: found.to_string(), expected: expected.to_string() }
    }

    pub(crate) fn argument(parameter: &'static str, found: impl ToString, expected: impl ToString) -> Self {
        Self::Argument { parameter, found: found.to_string(), expected: expected.to_string() }
    }

    pub(crate) fn mismatch(what: impl ToString, found: impl ToString, expected: impl ToString) -> Self {
        Self::Mismatch { what: what.to_string(), found: found.to_string(), expected: expected.to_string() }
    }
}

// Limits in bytes of the parts of an error: together less than 1,000.
const FOUND: usize = 160;
const PATH: usize = 400;
const TEXT: usize = 380;
const PROBLEM: usize = 900;

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
            Error::store("source", usize::MAX, long.clone().into()),
            Error::Device { device: "cuda:0".to_owned(), problem: long },
        ];
        for error in errors {
            let text = error.to_string();
            assert!(text.len() < 990, "{} bytes: {text}", text.len());
            assert!(!text.chars().any(char::is_control), "{text}");
        }
    }
}
