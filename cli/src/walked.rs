//! What builds and searches walk on: `--vectors` and `--rerank`.

use std::fmt;
use std::str::FromStr;

use tagore::{Compression, Searcher};

use crate::error::{Error, Result};

/// The vectors themselves, or codes of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Walk {
    Full,
    Codes(Compression),
}

impl Walk {
    /// The codes, if any.
    pub(crate) fn compression(self) -> Option<Compression> {
        match self {
            Self::Full => None,
            Self::Codes(compression) => Some(compression),
        }
    }
}

impl FromStr for Walk {
    type Err = tagore::Error;

    fn from_str(name: &str) -> tagore::Result<Self> {
        if name == "full" { Ok(Self::Full) } else { name.parse().map(Self::Codes) }
    }
}

impl fmt::Display for Walk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full => f.pad("full"),
            Self::Codes(compression) => compression.fmt(f),
        }
    }
}

#[derive(clap::Args)]
pub(crate) struct Walked {
    /// What searches walk on: full, the vectors themselves, or their codes in f16 or int8, which
    /// take less memory; the nearest nodes are then reranked by the vectors
    #[arg(long, default_value_t = Walk::Full, value_name = "TYPE")]
    vectors: Walk,
    /// Nodes of the beam that a search on codes reranks [default: 32, or twice k if more]
    #[arg(long, value_name = "N")]
    rerank: Option<usize>,
}

impl Walked {
    /// Sets what searches walk on. Before the devices are set, so that they hold no more than they
    /// need.
    pub(crate) fn set(&self, searcher: Searcher) -> Result<Searcher> {
        let searcher = match (self.vectors, self.rerank) {
            (Walk::Full, None) => return Ok(searcher),
            (Walk::Full, Some(rerank)) => {
                let text = "--vectors full, expected f16 or int8: the vectors need no reranking";
                return Err(Error::usage(format!("--rerank: found {rerank} with {text}")));
            }
            (Walk::Codes(compression), None) => searcher.compressed(compression),
            (Walk::Codes(compression), Some(rerank)) => searcher.rerank(rerank).compressed(compression),
        };
        Ok(searcher?)
    }

    /// The name in lines of JSON.
    pub(crate) fn name(&self) -> String {
        self.vectors.to_string()
    }
}
