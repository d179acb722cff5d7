//! Errors of the command, in which parameters of the library are flags.

use std::fmt;
use std::path::Path;

use tagore::Remedy;

use crate::output::sized;

/// A failure of the command.
#[derive(Debug)]
pub(crate) enum Error {
    /// Flags out of their range, or at odds with each other: exit code 2.
    Usage(String),
    /// A check of the command's own that failed: exit code 1.
    Failed(String),
    /// A failure of the library: exit code 2 for an argument, 130 after a signal, else 1.
    Library(tagore::Error),
}

/// The result of the command's functions.
pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Wrong usage, as `text` says.
    pub(crate) fn usage(text: impl Into<String>) -> Self {
        Self::Usage(text.into())
    }

    /// A file with unexpected content.
    pub(crate) fn file(path: &Path, found: impl ToString, expected: impl ToString) -> Self {
        let (found, expected) = (found.to_string(), expected.to_string());
        tagore::Error::File { path: path.to_owned(), found, expected }.into()
    }

    /// The error with parameter `to` in place of `from`, for flags of another name than the
    /// library's.
    pub(crate) fn renamed(self, from: &str, to: &'static str) -> Self {
        match self {
            Self::Library(tagore::Error::Argument { parameter, found, expected }) if parameter == from => {
                Self::Library(tagore::Error::Argument { parameter: to, found, expected })
            }
            other => other,
        }
    }

    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) | Self::Library(tagore::Error::Argument { .. }) => crate::WRONG_USAGE,
            Self::Library(tagore::Error::Cancelled) => crate::INTERRUPTED,
            Self::Failed(_) | Self::Library(_) => crate::FAILED,
        }
    }
}

impl From<tagore::Error> for Error {
    fn from(error: tagore::Error) -> Self {
        Self::Library(error)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(text) | Self::Failed(text) => f.write_str(text),
            Self::Library(error) => library(f, error),
        }
    }
}

/// Writes an error of the library, with flags for its parameters and remedies.
fn library(f: &mut fmt::Formatter<'_>, error: &tagore::Error) -> fmt::Result {
    use tagore::Error::{Argument, DeviceMemory, Unfinished};
    match error {
        Argument { parameter, .. } => {
            let text = error.to_string();
            write!(f, "{}{}", flag(parameter), text.strip_prefix(parameter).unwrap_or(&text))
        }
        DeviceMemory { device, stage, required, largest: (name, bytes), free, remedies } => {
            let remedies: Vec<String> = remedies.iter().map(remedy).collect();
            write!(
                f,
                "{device}: needs {} of memory in stage {stage} (largest buffer: {name}, {}), free {}: {}",
                sized(*required),
                sized(*bytes),
                sized(*free),
                remedies.join(", or ")
            )
        }
        Unfinished { folder } => write!(
            f,
            "{}: found an unfinished build, expected --resume to continue it, or another --work-dir",
            tagore_text::path_text(folder)
        ),
        _ => write!(f, "{error}"),
    }
}

/// The flag of a parameter of the library: `--host-memory` for `host_memory`.
fn flag(parameter: &str) -> String {
    if parameter == "k" { "-k".to_owned() } else { format!("--{}", parameter.replace('_', "-")) }
}

/// A remedy of the library as flags.
pub(crate) fn remedy(remedy: &Remedy) -> String {
    match remedy {
        Remedy::GpuMemory(bytes) => format!("set --gpu-memory {bytes} to build cluster by cluster"),
        Remedy::Knn(k) => format!("lower --knn to {k}"),
        Remedy::Cpu => "build with --device cpu".to_owned(),
        // Converting the vectors takes another command, not another flag.
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_flags() {
        let text = |parameter| {
            let (found, expected) = ("3".to_owned(), "at least 16".to_owned());
            Error::from(tagore::Error::Argument { parameter, found, expected }).to_string()
        };
        assert_eq!(text("cluster_size"), "--cluster-size: found 3, expected at least 16");
        assert_eq!(text("k"), "-k: found 3, expected at least 16");
        let error = Error::from(tagore::Error::DeviceMemory {
            device: "cuda:0".to_owned(),
            stage: "join",
            required: 20 << 20,
            largest: ("nearest", 15 << 20),
            free: 10,
            remedies: vec![Remedy::Knn(5), Remedy::GpuMemory(10), Remedy::Cpu],
        });
        assert_eq!(
            error.to_string(),
            "cuda:0: needs 20.0 MiB of memory in stage join (largest buffer: nearest, 15.0 MiB), free 10 bytes: \
             lower --knn to 5, or set --gpu-memory 10 to build cluster by cluster, or build with --device cpu"
        );
    }
}
