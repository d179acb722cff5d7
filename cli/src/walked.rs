//! What builds and searches walk on: `--vectors` and `--rerank`.

use std::fmt;
use std::str::FromStr;

use tagore::{Compression, SearchCodes, Searcher};

use crate::error::{Error, Result};

/// The codes of the vectors that a build walks on, or the vectors themselves if none.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Walk(pub Option<Compression>);

impl FromStr for Walk {
    type Err = tagore::Error;

    fn from_str(name: &str) -> tagore::Result<Self> {
        Compression::named(name).map(Self)
    }
}

impl fmt::Display for Walk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.0.map_or("full", Compression::name))
    }
}

/// The codes that searches walk on, or the vectors themselves if none.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SearchWalk(Option<SearchCodes>);

impl FromStr for SearchWalk {
    type Err = tagore::Error;

    fn from_str(name: &str) -> tagore::Result<Self> {
        SearchCodes::named(name).map(Self)
    }
}

impl fmt::Display for SearchWalk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.0.map_or("full", SearchCodes::name))
    }
}

/// What builds walk on: `--vectors` of `build` and `plan`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum BuiltOn {
    /// The vectors, or codes of one byte if only these fit memory.
    #[default]
    Auto,
    /// As named.
    Named(Walk),
}

impl BuiltOn {
    /// The codes that were named.
    pub(crate) fn compression(self) -> Option<Compression> {
        match self {
            Self::Auto => None,
            Self::Named(walk) => walk.0,
        }
    }
}

impl FromStr for BuiltOn {
    type Err = tagore::Error;

    fn from_str(name: &str) -> tagore::Result<Self> {
        if name == "auto" { Ok(Self::Auto) } else { name.parse().map(Self::Named) }
    }
}

impl fmt::Display for BuiltOn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.pad("auto"),
            Self::Named(walk) => walk.fmt(f),
        }
    }
}

#[derive(clap::Args)]
pub(crate) struct Walked {
    /// What searches walk on: full, the vectors themselves; their codes in f16 or int8, which take
    /// less memory, and the nearest nodes are then reranked by the vectors; or edges, codes of a
    /// bit per component beside the edges of the graph
    #[arg(long, default_value_t, value_name = "TYPE")]
    vectors: SearchWalk,
    /// Nodes of the beam that a search on codes reranks [default: 128, or twice k if more]
    #[arg(long, value_name = "N")]
    rerank: Option<usize>,
}

impl Walked {
    /// Sets what searches walk on. Before the devices are set, so that they hold no more than they
    /// need.
    pub(crate) fn set(&self, searcher: Searcher) -> Result<Searcher> {
        let searcher = match (self.codes(), self.rerank) {
            (None, None) => return Ok(searcher),
            (None | Some(SearchCodes::Edges), Some(rerank)) => {
                let on = self.vectors;
                return Err(Error::usage(format!(
                    "--rerank: found {rerank} with --vectors {on}, expected f16 or int8: others need no reranking"
                )));
            }
            (Some(codes), None) => searcher.compressed(codes),
            (Some(codes), Some(rerank)) => searcher.rerank(rerank).compressed(codes),
        };
        Ok(searcher?)
    }

    /// The codes that searches walk on, if any.
    pub(crate) fn codes(&self) -> Option<SearchCodes> {
        self.vectors.0
    }

    /// The name in lines of JSON.
    pub(crate) fn name(&self) -> String {
        self.vectors.to_string()
    }
}
