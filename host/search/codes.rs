//! What searches walk on in place of the vectors.

use std::fmt;
use std::sync::Arc;

use super::coded::Coded;
use super::edges::EdgeCodes;
use crate::index::Index;
use crate::quantize::Compression;
use crate::vectors::space::Space;
use crate::{Error, Result};

/// What searches walk on in place of the vectors ([`Searcher::compressed`](crate::Searcher)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SearchCodes {
    /// Codes of the rows, of one or two bytes per component.
    Rows(Compression),
    /// A bit per component for each edge of the graph, stored beside the edges, and the vectors of
    /// the nodes that a search expands.
    Edges,
}

impl SearchCodes {
    /// What the option `vectors` names: `f16`, `int8` or `edges`; none for `full`, the vectors
    /// themselves.
    ///
    /// # Errors
    /// If it is another name.
    pub fn named(name: &str) -> Result<Option<Self>> {
        if name == "edges" {
            return Ok(Some(Self::Edges));
        }
        let rows = Compression::named(name);
        let rows = rows.map_err(|_| Error::argument("vectors", name, "full, f16, int8 or edges"))?;
        Ok(rows.map(Self::Rows))
    }

    /// The name in options: `f16`, `int8` or `edges`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rows(compression) => compression.name(),
            Self::Edges => "edges",
        }
    }

    /// The way of compressing rows, if rows have codes.
    pub(crate) fn compression(self) -> Option<Compression> {
        match self {
            Self::Rows(compression) => Some(compression),
            Self::Edges => None,
        }
    }
}

impl From<Compression> for SearchCodes {
    fn from(compression: Compression) -> Self {
        Self::Rows(compression)
    }
}

impl fmt::Display for SearchCodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The codes of an index or its base.
#[derive(Clone)]
pub(super) enum Codes {
    Rows(Arc<Coded>),
    Edges(Arc<EdgeCodes>),
}

impl Codes {
    /// Fits codes to `index` and the rows of `space`.
    ///
    /// # Errors
    /// If codes of rows would not be smaller than the vectors, the index has dense spots, whose
    /// rows codes of edges do not tell apart, or the vectors lie on a device that fails.
    pub(super) fn new(space: &Space<'_>, index: &Index, codes: SearchCodes) -> Result<Self> {
        match codes {
            SearchCodes::Rows(compression) => Ok(Self::Rows(Arc::new(Coded::new(space, compression)?))),
            SearchCodes::Edges if index.spots().is_some() => {
                let found = "edges for an index with dense spots, whose rows differ too little for it";
                Err(Error::argument("vectors", found, "full"))
            }
            SearchCodes::Edges => Ok(Self::Edges(Arc::new(EdgeCodes::new(space)?))),
        }
    }

    /// The codes of rows.
    pub(super) fn rows(&self) -> Option<&Arc<Coded>> {
        match self {
            Self::Rows(coded) => Some(coded),
            Self::Edges(_) => None,
        }
    }

    /// The codes of edges.
    pub(super) fn edges(&self) -> Option<&Arc<EdgeCodes>> {
        match self {
            Self::Rows(_) => None,
            Self::Edges(codes) => Some(codes),
        }
    }
}
