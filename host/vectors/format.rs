//! The names of file formats.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use super::ElementType;
use crate::{Error, Result};

/// A file format of rows of one width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Rows of an i32 dimension and f32 values.
    Fvecs,
    /// Rows of an i32 dimension and u8 values.
    Bvecs,
    /// Rows of an i32 dimension and i32 ids.
    Ivecs,
    /// A header of rows and dimension, then f32 values.
    Fbin,
    /// A header of rows and dimension, then f16 values.
    F16bin,
    /// A header of rows and dimension, then u8 values.
    U8bin,
    /// A header of rows and dimension, then i8 values.
    I8bin,
    /// A header of rows and width, then u32 ids.
    Ibin,
    /// A NumPy array of two dimensions.
    Npy,
}

impl Format {
    const ALL: [Self; 9] = [
        Self::Fvecs,
        Self::Bvecs,
        Self::Ivecs,
        Self::Fbin,
        Self::F16bin,
        Self::U8bin,
        Self::I8bin,
        Self::Ibin,
        Self::Npy,
    ];

    /// The name, which is also the file extension.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fvecs => "fvecs",
            Self::Bvecs => "bvecs",
            Self::Ivecs => "ivecs",
            Self::Fbin => "fbin",
            Self::F16bin => "f16bin",
            Self::U8bin => "u8bin",
            Self::I8bin => "i8bin",
            Self::Ibin => "ibin",
            Self::Npy => "npy",
        }
    }

    /// The element type of vectors in this format; none for ids and for npy, which says it itself.
    pub const fn element(self) -> Option<ElementType> {
        match self {
            Self::Fvecs | Self::Fbin => Some(ElementType::F32),
            Self::F16bin => Some(ElementType::F16),
            Self::Bvecs | Self::U8bin => Some(ElementType::U8),
            Self::I8bin => Some(ElementType::I8),
            Self::Ivecs | Self::Ibin | Self::Npy => None,
        }
    }

    /// Whether the format holds ids, not vectors.
    pub const fn holds_ids(self) -> bool {
        matches!(self, Self::Ivecs | Self::Ibin)
    }

    /// The format that the extension of `path` names.
    ///
    /// # Errors
    /// If there is no extension, or an unknown one.
    pub fn of(path: &Path) -> Result<Self> {
        let extension = path.extension().map(|e| e.to_string_lossy().to_lowercase());
        let known =
            extension.as_deref().and_then(|e| Self::ALL.into_iter().find(|format| format.name() == e));
        known.ok_or_else(|| {
            let found = extension.map_or("no extension".to_owned(), |e| format!("extension {e}"));
            Error::file(path, found, format_args!("{} (or give the format)", names()))
        })
    }
}

fn names() -> String {
    Format::ALL.map(Format::name).join(", ")
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Format {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::ALL
            .into_iter()
            .find(|format| format.name() == name)
            .ok_or_else(|| Error::argument("format", name, names()))
    }
}
