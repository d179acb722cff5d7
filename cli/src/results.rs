//! Results of searches as text: CSV or JSON lines.

use std::fmt::Write;
use std::path::Path;

use tagore::SearchResult;

use crate::output::STANDARD;

/// A format of results as text.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum TextFormat {
    /// A row per neighbour: query, rank, id, distance.
    Csv,
    /// A JSON object per query: its ids and distances, nearest first.
    JsonLines,
}

impl TextFormat {
    /// The format of a file by its extension; none for a binary one. Standard output takes CSV, or
    /// JSON lines under `--json`, where each line has an event.
    pub(crate) fn for_path(path: &Path, is_json: bool) -> Option<Self> {
        if path.as_os_str() == STANDARD {
            return Some(if is_json { Self::JsonLines } else { Self::Csv });
        }
        let extension = path.extension()?.to_ascii_lowercase();
        match extension.to_str()? {
            "csv" => Some(Self::Csv),
            "jsonl" => Some(Self::JsonLines),
            _ => None,
        }
    }

    /// The results of all queries.
    pub(crate) fn text(self, result: &SearchResult) -> String {
        let mut text = match self {
            Self::Csv => "query,rank,id,distance\n".to_owned(),
            Self::JsonLines => String::new(),
        };
        for query in 0..result.len() {
            let pairs = result.ids(query).iter().zip(result.distances(query));
            // Adding 0 turns -0 into 0. Empty slots end a query that reached fewer than k nodes.
            let found = pairs.filter(|&(&id, _)| id != u32::MAX).map(|(&id, &distance)| (id, distance + 0.0));
            match self {
                Self::Csv => {
                    for (rank, (id, distance)) in (1..).zip(found) {
                        // Writing to a string cannot fail.
                        let _ = writeln!(text, "{query},{rank},{id},{distance}");
                    }
                }
                Self::JsonLines => {
                    let (ids, distances): (Vec<u32>, Vec<f32>) = found.unzip();
                    // Debug writes whole vectors as JSON has them, and as few digits as f32 needs.
                    let _ = writeln!(
                        text,
                        "{{\"event\":\"result\",\"query\":{query},\"ids\":{ids:?},\"distances\":{distances:?}}}"
                    );
                }
            }
        }
        text
    }
}
