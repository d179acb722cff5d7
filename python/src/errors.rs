//! Errors of the library as exceptions, in which parameters and remedies are those of Python.

use std::any::Any;

use pyo3::prelude::*;
use tagore::{Error, Remedy};
use tagore_text::path_text;

/// Names of parameters in errors.
pub(crate) struct Names {
    /// The array that a faulty value was found in.
    pub vectors: &'static str,
    /// Parameters with another name in the library, each with its name in Python.
    pub renamed: &'static [(&'static str, &'static str)],
}

impl Default for Names {
    fn default() -> Self {
        Self { vectors: "x", renamed: &[] }
    }
}

/// The exception of an error of the library.
pub(crate) fn exception(py: Python<'_>, error: Error, names: &Names) -> PyErr {
    let kind = match &error {
        Error::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound => "MissingFileError",
        Error::Io { .. } | Error::File { .. } | Error::Unfinished { .. } => "FileError",
        Error::Value { path: Some(_), .. } => "FileError",
        Error::Argument { .. } | Error::Mismatch { .. } | Error::Value { .. } => "ArgumentError",
        Error::DeviceMemory { .. } | Error::HostMemory { .. } => "OutOfMemoryError",
        Error::Device { .. } => "DeviceError",
        _ => "Error",
    };
    let exception = raise(py, kind, &text(&error, names));
    if let Error::Io { path, source } = &error {
        // OSError has these; without them the error is still the right one.
        let value = exception.value(py);
        let _ = value.setattr("filename", path_text(path));
        if let Some(number) = source.raw_os_error() {
            let _ = value.setattr("errno", number);
            let text = py.import("os").and_then(|os| os.call_method1("strerror", (number,)));
            let _ = text.and_then(|text| value.setattr("strerror", text));
        }
    }
    exception
}

/// The exception of a wrong argument.
pub(crate) fn argument(py: Python<'_>, parameter: &str, found: impl ToString, expected: &str) -> PyErr {
    let found = tagore_text::one_line(&found.to_string(), 160);
    raise(py, "ArgumentError", &format!("{parameter}: found {found}, expected {expected}"))
}

/// The exception of a fault of this library.
pub(crate) fn of_panic(py: Python<'_>, panic: &(dyn Any + Send)) -> PyErr {
    let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
    raise(py, "Error", &format!("internal error, please report it: {}", text.unwrap_or("unknown")))
}

/// An exception of `tagore_ann._errors`.
fn raise(py: Python<'_>, kind: &str, text: &str) -> PyErr {
    let made = py
        .import("tagore_ann._errors")
        .and_then(|module| module.getattr(kind))
        .and_then(|class| class.call1((text,)));
    made.map_or_else(|error| error, PyErr::from_value)
}

/// The text of an error, in the names of Python.
fn text(error: &Error, names: &Names) -> String {
    match error {
        Error::Argument { parameter, .. } => {
            let renamed = names.renamed.iter().find(|(from, _)| from == parameter);
            let text = error.to_string();
            match renamed {
                Some((from, to)) => format!("{to}{}", text.strip_prefix(from).unwrap_or(&text)),
                None => text,
            }
        }
        Error::Value { path: None, .. } => {
            let text = error.to_string();
            format!("{}{}", names.vectors, text.strip_prefix("vectors").unwrap_or(&text))
        }
        Error::Mismatch { .. } => {
            let text = error.to_string();
            let rest = text.strip_prefix("vectors:").or(text.strip_prefix("query:"));
            rest.map_or(text.clone(), |rest| format!("{}:{rest}", names.vectors))
        }
        Error::DeviceMemory { device, stage, required, largest: (name, bytes), free, remedies } => {
            let remedies: Vec<String> = remedies.iter().map(remedy).collect();
            format!(
                "{device}: needs {required} bytes of memory in stage {stage} (largest buffer: {name}, {bytes}), \
                 free {free}: {}",
                remedies.join(", or ")
            )
        }
        Error::Unfinished { folder } => format!(
            "{}: found an unfinished build, expected resume=True to continue it, or another work_dir",
            path_text(folder)
        ),
        _ => error.to_string(),
    }
}

/// A remedy of the library as arguments.
pub(crate) fn remedy(remedy: &Remedy) -> String {
    match remedy {
        Remedy::GpuMemory(bytes) => format!("build cluster by cluster: build_file(.., gpu_memory={bytes})"),
        Remedy::Knn(k) => format!("pass knn={k}"),
        Remedy::Cpu => "pass device=\"cpu\"".to_owned(),
        Remedy::ElementType(element) => format!("convert x to {element}, such as x.astype(numpy.float16)"),
        other => other.to_string(),
    }
}
