//! Graph formats of other systems: their limits, and one file per family.
//!
//! A reader is a function from a [`Source`](import::Source) to a [`Graph`](import::Graph) of
//! unchecked rows; [`import`](import) checks the rows, the same way for all formats. A writer takes
//! an [`Export`]. Byte layouts: `docs/formats.md`.

mod arrays;
mod bytes;
mod diskann;
mod diskann_disk;
mod embedded;
mod export;
mod faiss;
mod groups;
mod hnswlib;
mod import;
mod kgraph;
mod layers;
mod nsg;
mod sink;

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

pub use export::Export;
pub use sink::RowSink;

use crate::{ElementType, Error, Result};

/// A file format of graph indexes.
///
/// | format | entry points | vectors | metric | limits |
/// | --- | --- | --- | --- | --- |
/// | `tagore` | all | no | yes | |
/// | `nsg` | the first | no | no | |
/// | `nssg` | all | no | no | |
/// | `kgraph` | none | no | no | |
/// | `hnswlib` | the first, or the top of the layers | f32 | no | degrees up to 65,535 |
/// | `faiss-nsg` | the first | f32 | `l2` and `ip` | nodes times the largest degree below 2^31 |
/// | `faiss-hnsw` | the first, or the top of the layers | f32 | `l2`, `ip` | below 2^31 nodes |
/// | `diskann` | the first | f32, u8, i8 | yes | fewer than 2^31 nodes, at least one edge |
/// | `diskann-disk` | all | f32, u8, i8 | yes | fewer than 2^31 nodes, degrees up to 512 |
/// | `ibin` | all, in a file of their own | no | no | at least one edge |
/// | `npy` | none | no | no | every node of one degree, which is not 0 |
/// | `csr` | none | no | no | |
///
/// An export drops what its format cannot hold: kind, parameters and seed, and the parts that the
/// table denies. An import takes the metric and the base, which gives the number of nodes and the
/// fingerprint. A format without entry points gets 32 random ones, as CAGRA does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum IndexFormat {
    /// The native file.
    Tagore,
    /// NSG's graph.
    Nsg,
    /// NSSG's graph: NSG's with any number of entry points.
    Nssg,
    /// KGraph's graph without distances (flag 1).
    Kgraph,
    /// An hnswlib index with its vectors.
    Hnswlib,
    /// A FAISS `IndexNSGFlat` (`INSf`).
    FaissNsg,
    /// A FAISS `IndexHNSWFlat` (`IHNf`).
    FaissHnsw,
    /// DiskANN's graph for search in memory, with its vectors in `x.data` beside `x`.
    Diskann,
    /// DiskANN's files for search on disk. The path is their common prefix: `P` for `P_disk.index`
    /// and the others. An export trains a product quantizer.
    DiskannDisk,
    /// Rows padded with `u32::MAX` as ibin, and the entry points in `x.entries.ibin` beside
    /// `x.ibin`.
    Ibin,
    /// A NumPy array of u32 with one row per node, for `cuvs.neighbors.cagra.from_graph`.
    Npy,
    /// Compressed sparse rows in two NumPy arrays: for `x.csr`, `x.indptr.npy` of n + 1 u64 and
    /// `x.indices.npy` of u32.
    Csr,
}

impl IndexFormat {
    /// All formats.
    pub const ALL: [Self; 12] = [
        Self::Tagore,
        Self::Nsg,
        Self::Nssg,
        Self::Kgraph,
        Self::Hnswlib,
        Self::FaissNsg,
        Self::FaissHnsw,
        Self::Diskann,
        Self::DiskannDisk,
        Self::Ibin,
        Self::Npy,
        Self::Csr,
    ];

    /// The name, such as `nsg`, which is also the extension.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tagore => "tagore",
            Self::Nsg => "nsg",
            Self::Nssg => "nssg",
            Self::Kgraph => "kgraph",
            Self::Hnswlib => "hnswlib",
            Self::FaissNsg => "faiss-nsg",
            Self::FaissHnsw => "faiss-hnsw",
            Self::Diskann => "diskann",
            Self::DiskannDisk => "diskann-disk",
            Self::Ibin => "ibin",
            Self::Npy => "npy",
            Self::Csr => "csr",
        }
    }

    /// Whether files of this format hold vectors, so that an export needs the base.
    pub const fn holds_vectors(self) -> bool {
        matches!(self, Self::Hnswlib | Self::FaissNsg | Self::FaissHnsw | Self::Diskann | Self::DiskannDisk)
    }

    /// Whether files of this format can hold HNSW's layers.
    pub const fn has_layers(self) -> bool {
        matches!(self, Self::Hnswlib | Self::FaissHnsw)
    }

    /// The most entry points in a file of this format; none for no limit.
    pub const fn max_entries(self) -> Option<usize> {
        match self {
            Self::Tagore | Self::Nssg | Self::DiskannDisk | Self::Ibin => None,
            Self::Nsg | Self::Hnswlib | Self::FaissNsg | Self::FaissHnsw | Self::Diskann => Some(1),
            Self::Kgraph | Self::Npy | Self::Csr => Some(0),
        }
    }

    /// All files of an index of this format at `path`, for [`Index::export`](crate::Index::export)
    /// and [`Index::import`](crate::Index::import).
    pub fn files(self, path: impl AsRef<Path>) -> Vec<PathBuf> {
        let path = path.as_ref();
        match self {
            Self::Ibin => arrays::ibin_files(path).into(),
            Self::Csr => arrays::csr_files(path).into(),
            Self::Diskann => diskann::files(path).into(),
            Self::DiskannDisk => diskann_disk::files(path),
            _ => vec![path.to_owned()],
        }
    }

    /// Why a graph of this size does not fit the format, as found and expected of an error.
    fn refusal(self, nodes: usize, max_degree: usize) -> Option<(String, String)> {
        let refuse = |found: String, most: usize| Some((found, format!("at most {most}")));
        match self {
            _ if nodes == 0 => Some(("an index without nodes".to_owned(), "at least one".to_owned())),
            Self::Ibin if max_degree == 0 => {
                Some(("an index without edges".to_owned(), "a degree of at least 1".to_owned()))
            }
            Self::Hnswlib if max_degree > hnswlib::MAX_LINKS => {
                refuse(format!("degree {max_degree}"), hnswlib::MAX_LINKS)
            }
            Self::FaissNsg | Self::FaissHnsw if nodes > faiss::MAX_NODES => {
                refuse(format!("{nodes} nodes"), faiss::MAX_NODES)
            }
            // FAISS multiplies the two in 32 bits.
            Self::FaissNsg if nodes.saturating_mul(max_degree) > faiss::MAX_NODES => {
                refuse(format!("{nodes} nodes x degree {max_degree}"), faiss::MAX_NODES)
            }
            Self::FaissHnsw if max_degree > faiss::MAX_DEGREE => {
                refuse(format!("degree {max_degree}"), faiss::MAX_DEGREE)
            }
            Self::Diskann | Self::DiskannDisk if nodes > diskann::MAX_NODES => {
                refuse(format!("{nodes} nodes"), diskann::MAX_NODES)
            }
            Self::DiskannDisk if max_degree > diskann_disk::MAX_DEGREE => {
                refuse(format!("degree {max_degree}"), diskann_disk::MAX_DEGREE)
            }
            _ => None,
        }
    }

    /// Refuses bits, which no system's format holds as vectors.
    fn check_element(self, path: &Path, element: ElementType) -> Result<()> {
        if self.holds_vectors() && element == ElementType::B1 {
            let found = format!("{element} vectors for {self}");
            return Err(Error::file(path, found, "another type, or a format of the graph alone for bits"));
        }
        Ok(())
    }

    /// The format named by the extension of `path`.
    ///
    /// # Errors
    /// If the extension is missing or names no format.
    pub fn from_path(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let Some(extension) = path.extension().map(|extension| extension.to_string_lossy()) else {
            return Err(Error::file(path, "no extension", names()));
        };
        let unknown = |_| Error::file(path, format_args!("the extension .{extension}"), names());
        extension.parse().map_err(unknown)
    }
}

impl fmt::Display for IndexFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for IndexFormat {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let known = Self::ALL.into_iter().find(|format| format.name().eq_ignore_ascii_case(name));
        known.ok_or_else(|| Error::argument("format", name, names()))
    }
}

/// The names of all formats, for errors.
fn names() -> String {
    let names = IndexFormat::ALL.map(IndexFormat::name);
    let (last, rest) = (names[names.len() - 1], &names[..names.len() - 1]);
    format!("{} or {last}", rest.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_formats_follow_from_size_and_degree() {
        let most = i32::MAX as usize;
        let refused =
            |format: IndexFormat, nodes, degree| format.refusal(nodes, degree).map(|(found, _)| found);
        for format in IndexFormat::ALL {
            assert_eq!(refused(format, 0, 0).as_deref(), Some("an index without nodes"), "{format}");
            assert_eq!(refused(format, 1, 0).is_some(), format == IndexFormat::Ibin, "{format}");
            assert_eq!(refused(format, 1000, 64), None, "{format}");
        }
        assert_eq!(refused(IndexFormat::FaissHnsw, most, 64), None);
        assert_eq!(refused(IndexFormat::FaissHnsw, most + 1, 64).as_deref(), Some("2147483648 nodes"));
        assert!(refused(IndexFormat::FaissNsg, most / 64, 64).is_none());
        assert!(refused(IndexFormat::FaissNsg, most / 64 + 1, 64).is_some());
        assert!(refused(IndexFormat::Hnswlib, most + 1, 65_535).is_none());
        assert_eq!(refused(IndexFormat::Hnswlib, 1, 65_536).as_deref(), Some("degree 65536"));
        assert!(refused(IndexFormat::FaissHnsw, 1, most).is_some());
        for format in [IndexFormat::Diskann, IndexFormat::DiskannDisk] {
            assert!(refused(format, most, 512).is_none() && refused(format, most + 1, 512).is_some());
            assert_eq!(refused(format, most, 513).is_some(), format == IndexFormat::DiskannDisk);
        }
    }
}
