//! Graph indexes for approximate nearest-neighbour search on GPUs and CPUs.
//!
//! A build makes a k-NN graph by two-phase GNN-Descent and prunes it by Collect-Filter-Store into
//! CAGRA, NSG, NSSG, Vamana, DPG, tau-MNG or alpha-CNG. The source is Li et al., *Scalable Graph
//! Indexing using GPUs for Approximate Nearest Neighbor Search* (SIGMOD 2026), called "the paper"
//! throughout.
//!
//! ```
//! use tagore::{Builder, Index, Metric, Progress, Strategy, Synth, ground_truth, search};
//!
//! # let error = |source| tagore::Error::Io { path: "tmp".into(), source };
//! # let folder = tempfile::tempdir().map_err(error)?;
//! # let path = folder.path().join("sift.tagore");
//! let synth = Synth::new(2000, 24, 1)?; // or Vectors::open("sift_base.fvecs")
//! let (base, queries) = (synth.base(), synth.queries(20));
//! Builder::new(Strategy::nsg()).knn(32).build(&base)?.save(&path)?;
//!
//! let index = Index::open(&path)?;
//! let found = search(&index, &base, &queries, 10, 100, &Progress::silent())?;
//! let truth = ground_truth(&base, &queries, Metric::L2, 10, &Progress::silent())?;
//! assert_eq!(found.ids(0)[0], truth.ids(0)[0]);
//! # Ok::<(), tagore::Error>(())
//! ```
//!
//! Work runs on the calling rayon pool; `pool.install(|| ...)` chooses another. The same seed and
//! input give the same bytes on any number of threads. The library prints nothing. Long work takes
//! a [`Progress`], which reports and cancels, and emits `tracing` events.

#[cfg(target_endian = "big")]
compile_error!("tagore maps little-endian files into memory and needs a little-endian target");

// Compiles and runs the code in the README as a doc test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod atomic_file;
mod build;
mod cluster;
mod descent;
mod device;
mod error;
mod eval;
mod file_set;
mod flush;
pub mod gpu;
mod index;
mod memory;
pub mod outofcore;
mod parallel;
mod progress;
mod prune;
mod quantize;
mod report;
mod search;
mod text;
mod vectors;

pub use atomic_file::{check_output, temporary_path, with_suffix, write_file};
pub use build::{BuildPlan, BuildStats, Builder, Target};
pub use descent::{
    CellSettings, DEFAULT_KNN, Descent, DescentStats, DevicePlan, Iterations, KnnGraph, KnnSample,
    MAX_ITERATIONS, MAX_KNN, PlannedStage, Start,
};
pub use device::Device;
pub use error::{Error, Remedy, Result};
pub use eval::{DistanceConvention, Evaluation, KnnTruth, RecallSample, TestQueries, evaluate, knn_recall};
pub use index::{
    Description, Export, Fingerprint, Index, IndexFormat, Layer, MAX_DEGREE, MAX_LAYER_BEAM, Statistics,
};
pub use memory::{host_memory_bytes, peak_host_bytes, return_large_buffers};
pub use progress::{Progress, Update};
pub use prune::{Collect, CustomRule, Filter, MAX_CANDIDATES, PruneStats, Strategy};
pub use report::{BeamQuality, BuildCost, KnnQuality, Measure, Report, SearchQuality, StageCost};
#[cfg(feature = "plots")]
pub use report::{Point, Series, check_plot, recall_qps_plot, timeline_plot};
pub use search::exact::{ExactSearch, ExactStats, ground_truth};
pub use search::{MAX_WIDTH, SearchResult, Searcher, search};
pub use text::{grouped, one_line, path_text};
pub use vectors::distance::instruction_set;
pub use vectors::{
    DataShape, ElementType, Format, GroundTruth, MAX_DIM, MAX_ROWS, Metric, QueryKind, Repeated, Synth,
    SynthKind, Vectors, with_mapped_file_at,
};
