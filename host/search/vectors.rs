//! The vectors that a search on a GPU walks on.

use std::fmt;
use std::str::FromStr;

use crate::{ElementType, Error};

/// The vectors that searches on a GPU walk on. A walk reads about a thousand rows per query, and
/// memory bounds it: smaller rows are read in less time.
///
/// With a copy, a search takes two steps. It walks on the copy, then computes the exact distances
/// of the nearest rows that it found ([`Searcher::rerank`](super::Searcher::rerank)) and returns
/// the nearest of these. Distances are exact; a row that the copy hides among others is missing.
///
/// Data of one byte per component, or of f32 values that are all whole numbers from 0 to 255, is
/// searched as it is, and so is f16 with [`F16`](Self::F16).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SearchVectors {
    /// The base itself: the answers are those of the CPU, bit for bit.
    #[default]
    Stored,
    /// A copy in f16, centred and scaled: half of the memory of f32.
    F16,
    /// A copy in 8-bit integers, centred and scaled: a quarter of the memory of f32.
    Int8,
}

impl SearchVectors {
    /// The name: `stored`, `f16` or `int8`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stored => "stored",
            Self::F16 => "f16",
            Self::Int8 => "int8",
        }
    }

    /// The element type of the copy of a base that has `own` on a device; none if the base serves.
    pub(super) fn copy_of(self, own: ElementType) -> Option<ElementType> {
        match (self, own) {
            (Self::Stored, _) | (_, ElementType::U8 | ElementType::I8) => None,
            (Self::F16, ElementType::F16) => None,
            (Self::F16, _) => Some(ElementType::F16),
            (Self::Int8, _) => Some(ElementType::I8),
        }
    }
}

impl fmt::Display for SearchVectors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for SearchVectors {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        let all = [Self::Stored, Self::F16, Self::Int8];
        let found = all.into_iter().find(|vectors| vectors.name() == name);
        found.ok_or_else(|| Error::argument("vectors", name, "stored, f16 or int8"))
    }
}
