//! File formats of vectors and ids, by extension.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::vectors::ElementType;
use crate::{Error, Result};

/// A file format of vectors or ids; all are little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// f32 rows, each after its dimension as an i32.
    Fvecs,
    /// u8 rows, each after its dimension as an i32.
    Bvecs,
    /// Rows of 32-bit ids, each after its length as an i32.
    Ivecs,
    /// The numbers of rows and columns, as two u32 or two u64, then f32 rows.
    Fbin,
    /// As [`Fbin`](Self::Fbin), with f16 rows.
    F16bin,
    /// As [`Fbin`](Self::Fbin), with bf16 rows.
    Bf16bin,
    /// As [`Fbin`](Self::Fbin), with u8 rows.
    U8bin,
    /// As [`Fbin`](Self::Fbin), with i8 rows.
    I8bin,
    /// As [`Fbin`](Self::Fbin), with rows of bits, eight to a byte. The columns are bits.
    B1bin,
    /// As [`Fbin`](Self::Fbin), with rows of 32-bit ids.
    Ibin,
    /// A two-dimensional NumPy array.
    Npy,
}

/// The framing of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::vectors) enum Framing {
    /// Each row after its length.
    Vecs,
    /// A header with the numbers of rows and columns, then all rows.
    Bin,
    /// A header as text, then all rows.
    Npy,
}

impl Format {
    /// All formats.
    pub const ALL: [Self; 11] = [
        Self::Fvecs,
        Self::Bvecs,
        Self::Ivecs,
        Self::Fbin,
        Self::F16bin,
        Self::Bf16bin,
        Self::U8bin,
        Self::I8bin,
        Self::B1bin,
        Self::Ibin,
        Self::Npy,
    ];

    /// The name, such as `fbin`, which is also the extension.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fvecs => "fvecs",
            Self::Bvecs => "bvecs",
            Self::Ivecs => "ivecs",
            Self::Fbin => "fbin",
            Self::F16bin => "f16bin",
            Self::Bf16bin => "bf16bin",
            Self::U8bin => "u8bin",
            Self::I8bin => "i8bin",
            Self::B1bin => "b1bin",
            Self::Ibin => "ibin",
            Self::Npy => "npy",
        }
    }

    /// The format named by the extension of `path`, in any case. The suffix that the big-ann tools
    /// append to files with the first rows of a larger one, as in `base.fbin.crop_nb_1000`, is
    /// ignored.
    ///
    /// # Errors
    /// If the extension is missing or names no format.
    pub fn from_path(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let whole = extension(path);
        let cropped = whole.as_deref().is_some_and(|e| e.starts_with("crop_nb_"));
        let suffix =
            if cropped { path.file_stem().and_then(|stem| extension(Path::new(stem))) } else { whole };
        match suffix {
            Some(name) => name
                .parse()
                .map_err(|_| Error::file(path, format_args!("the extension .{name}"), names(&Self::ALL))),
            None => Err(Error::file(path, "no extension", names(&Self::ALL))),
        }
    }

    /// The type of the vectors. None for npy, whose header gives it, and for ids.
    pub const fn element(self) -> Option<ElementType> {
        match self {
            Self::Fvecs | Self::Fbin => Some(ElementType::F32),
            Self::F16bin => Some(ElementType::F16),
            Self::Bf16bin => Some(ElementType::Bf16),
            Self::Bvecs | Self::U8bin => Some(ElementType::U8),
            Self::I8bin => Some(ElementType::I8),
            Self::B1bin => Some(ElementType::B1),
            Self::Ivecs | Self::Ibin | Self::Npy => None,
        }
    }

    pub(in crate::vectors) const fn framing(self) -> Framing {
        match self {
            Self::Fvecs | Self::Bvecs | Self::Ivecs => Framing::Vecs,
            Self::Fbin
            | Self::F16bin
            | Self::Bf16bin
            | Self::U8bin
            | Self::I8bin
            | Self::B1bin
            | Self::Ibin => Framing::Bin,
            Self::Npy => Framing::Npy,
        }
    }

    /// Whether files of this format hold ids only. Npy files may hold either.
    pub const fn holds_ids(self) -> bool {
        matches!(self, Self::Ivecs | Self::Ibin)
    }

    /// Whether files of this format may hold ids.
    pub(in crate::vectors) const fn may_hold_ids(self) -> bool {
        matches!(self, Self::Ivecs | Self::Ibin | Self::Npy)
    }

    /// The formats that may hold vectors, for errors.
    pub(in crate::vectors) fn vector_names() -> String {
        names(&Self::ALL.into_iter().filter(|format| !format.holds_ids()).collect::<Vec<_>>())
    }

    /// The formats that may hold ids, for errors.
    pub(in crate::vectors) fn id_names() -> String {
        names(&Self::ALL.into_iter().filter(|format| format.may_hold_ids()).collect::<Vec<_>>())
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Format {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let suffix = Self::ALL.into_iter().find(|format| format.name().eq_ignore_ascii_case(name));
        suffix.ok_or_else(|| Error::argument("format", name, names(&Self::ALL)))
    }
}

fn extension(path: &Path) -> Option<String> {
    path.extension().map(|e| e.to_string_lossy().to_ascii_lowercase())
}

/// Joins names as `a, b or c`.
fn names(formats: &[Format]) -> String {
    let names: Vec<&str> = formats.iter().map(|format| format.name()).collect();
    match names.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => names.concat(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extensions_name_formats() {
        for format in Format::ALL {
            assert_eq!(format.name().parse::<Format>().unwrap(), format);
            assert_eq!(Format::from_path(format!("a.b/x.{format}")).unwrap(), format);
            assert_eq!(Format::from_path(format!("x.{}", format.name().to_uppercase())).unwrap(), format);
            assert!(format.may_hold_ids() || format.element().is_some());
        }
        assert_eq!(Format::from_path("base.1B.u8bin.crop_nb_1000000").unwrap(), Format::U8bin);
    }

    #[test]
    fn errors_name_the_extension_found() {
        let all = "fvecs, bvecs, ivecs, fbin, f16bin, bf16bin, u8bin, i8bin, b1bin, ibin or npy";
        let text = |path: &str| Format::from_path(path).unwrap_err().to_string();
        assert_eq!(text("a/x.csv"), format!("a/x.csv: found the extension .csv, expected {all}"));
        assert_eq!(text("a.b/x"), format!("a.b/x: found no extension, expected {all}"));
        assert_eq!(text("x.crop_nb_5"), format!("x.crop_nb_5: found no extension, expected {all}"));
        assert_eq!(
            "csv".parse::<Format>().unwrap_err().to_string(),
            format!("format: found csv, expected {all}")
        );
        assert_eq!(Format::vector_names(), "fvecs, bvecs, fbin, f16bin, bf16bin, u8bin, i8bin, b1bin or npy");
    }
}
