//! Graph indexes for approximate nearest-neighbour search on GPUs and CPUs.
//!
//! A build makes a k-NN graph by two-phase GNN-Descent and prunes it by Collect-Filter-Store into
//! CAGRA, NSG, NSSG, Vamana, DPG, tau-MNG or alpha-CNG. The source is Li et al., *Scalable Graph
//! Indexing using GPUs for Approximate Nearest Neighbor Search* (SIGMOD 2026), called "the paper"
//! throughout.
//!
//! ```
//! use tagore::{
//!     Builder, Index, Metric, Progress, Search, Searcher, Strategy, Synth, ground_truth,
//! };
//!
//! # let error = |source| tagore::Error::Io { path: "tmp".into(), source };
//! # let folder = tempfile::tempdir().map_err(error)?;
//! # let path = folder.path().join("sift.tagore");
//! let synth = Synth::new(2000, 24, 1)?; // or Vectors::open("sift_base.fvecs")
//! let (base, queries) = (synth.base(), synth.queries(20));
//! Builder::new(Strategy::nsg()).knn(32).build(&base)?.save(&path)?;
//!
//! let truth = ground_truth(&base, &queries, Metric::L2, 10, &Progress::silent())?;
//! let searcher = Searcher::new(Index::open(&path)?, base, &Progress::silent())?;
//! let found = searcher.search(&queries, Search::new(10).beam(100), &Progress::silent())?;
//! assert_eq!(found.ids(0)[0], truth.ids(0)[0]);
//! # Ok::<(), tagore::Error>(())
//! ```
//!
//! Work runs on the calling rayon pool; `pool.install(|| ...)` chooses another. The same seed and
//! input give the same bytes on any number of threads. The library prints nothing. Long work takes
//! a [`Progress`], which reports and cancels, and emits `tracing` events.
//!
//! # Vectors from anywhere
//!
//! | the vectors are in | use | copies |
//! | --- | --- | --- |
//! | a file | [`Vectors::open`] | one, in memory |
//! | a large file, which no one writes | [`Vectors::map`], `unsafe` | none: mapped |
//! | a `Vec`, `Arc<[T]>`, or array of another library | [`Vectors::from_owner`] | none |
//! | some columns of an array | [`Vectors::from_strided`] | none |
//! | aligned bytes | [`Vectors::from_bytes`] | none |
//! | rows of a collection | [`Vectors::from_rows`] | one |
//! | a database | [`Vectors::from_source`] | one, in memory |
//! | a database larger than memory | [`Vectors::spooled`] | one, in a file without a name |
//!
//! Values are f32, f16, bf16, u8 or i8. [`Ids`] holds the caller's own ids of the rows. A graph
//! goes back to a database through a [`RowSink`]. `examples/redb.rs` does all of it in one
//! database.
//!
//! # Threads
//!
//! - [`Vectors`], [`Index`], [`Ids`], [`KnnGraph`] and [`GroundTruth`] are read only, `Send` and
//!   `Sync`: share them in an `Arc`. Clones of [`Vectors`], of [`Ids`] and of mapped indexes share
//!   memory.
//! - [`Searcher`] is `Send` and `Sync`; any number of threads search one at the same time.
//! - [`Builder`], [`Descent`], [`ExactSearch`] and [`outofcore::OutOfCore`] are settings, `Send`
//!   and `Sync`, and cheap to clone. Builds may run at the same time.
//! - [`Progress`] is `Send` and `Sync`. Clones are the same handle, so one thread cancels the work
//!   of another.
//! - [`Source`] and [`RowSink`] are used by the calling thread alone, and need not be `Send`.
//!
//! # Defaults
//!
//! A [`Builder`] has the defaults of its [`Strategy`], and for the k-NN graph those of [`Descent`]:
//! [`DEFAULT_KNN`] neighbours, L2, seed 0, [`Device::Auto`].
//!
//! | kind | degree | candidates, from | filter, threshold | entry points |
//! | --- | --- | --- | --- | --- |
//! | [`cagra`](Strategy::cagra) | 32 | own list | detours | 32 random nodes |
//! | [`dpg`](Strategy::dpg) | 32 | 48, own list | spread of directions | 32 random nodes |
//! | [`nsg`](Strategy::nsg) | 50 | 72, path | distance, 1 | medoid |
//! | [`nssg`](Strategy::nssg) | 50 | 60, two hops | angle, 60 degrees | 32 random nodes |
//! | [`vamana`](Strategy::vamana) | 32 | 96, path | distance, alpha 1.1 | medoid |
//! | [`tau_mng`](Strategy::tau_mng) | 50 | 72, path | distance, tau 0 | medoid |
//! | [`alpha_cng`](Strategy::alpha_cng) | 50 | 72, path | distance, alpha 1.1, tau 0 | medoid |
//!
//! Lists of at least two thirds of as many neighbours are the candidates, without a path or a
//! second hop, unless [`Strategy::collect`] is called.
//!
//! # In a service
//!
//! Builds and searches compute, so they do not belong on the threads of an async runtime: share a
//! [`Searcher`] in an `Arc`, and search in tokio's `spawn_blocking`, as `examples/service` does. A
//! request that is dropped cancels its work if a guard calls [`Progress::cancel`] on drop.

#[cfg(target_endian = "big")]
compile_error!("tagore maps little-endian files into memory and needs a little-endian target");

// Compile and run the code in these pages as doc tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
#[cfg(doctest)]
#[doc = include_str!("../docs/how-to-database.md")]
struct Databases;

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
mod held;
mod index;
mod items;
#[cfg(test)]
mod kernel_contracts;
mod live;
mod loops;
mod memory;
pub mod outofcore;
mod parallel;
mod progress;
mod prune;
mod quantize;
mod regular_file;
mod report;
mod same_file;
mod search;
#[cfg(unix)]
#[cfg_attr(
    not(any(feature = "cuda", test)),
    expect(dead_code, reason = "the cache of kernels alone needs some")
)]
mod unix;
mod vectors;
#[cfg(windows)]
#[cfg_attr(
    not(any(feature = "cuda", test)),
    expect(dead_code, reason = "the cache of kernels alone needs some")
)]
mod windows;

#[cfg(unix)]
use unix as platform;
#[cfg(windows)]
use windows as platform;

#[doc(hidden)] // For the command, which writes text and pages.
pub use atomic_file::{HeldFile, write_file};
pub use build::{BuildPlan, BuildStats, Builder, IndexMerge, IndexUpdate, MergeStats, Target, UpdateStats};
pub use descent::{
    CellSettings, DEFAULT_KNN, Descent, DescentStats, DevicePlan, Iterations, KnnGraph, KnnSample,
    MAX_ITERATIONS, MAX_KNN, Start,
};
pub use device::{Device, Preparation, close_devices};
pub use error::{Error, Remedy, Result, StoreError};
pub use eval::{DistanceConvention, Evaluation, KnnTruth, RecallSample, TestQueries, evaluate, knn_recall};
pub use index::{
    Description, Export, Fingerprint, Index, IndexFormat, IndexRoom, Layer, MAX_DEGREE, MAX_LAYER_BEAM,
    RowSink, Statistics,
};
pub use live::{LiveIndex, LiveNeighbor, LiveResult, Snapshot};
pub use memory::{check_room, host_memory_bytes, peak_host_bytes};
pub use parallel::{THREAD_STACK, start_threads, thread_pool};
pub use progress::{Progress, Update};
pub use prune::{Collect, CustomRule, Filter, MAX_CANDIDATES, PruneStats, QueryStats, Strategy};
pub use quantize::Compression;
pub use report::{
    BeamQuality, BuildCost, KnnQuality, Measure, Report, SearchQuality, SelfRecall, StageCost, Trapped,
};
pub use same_file::{check_output, real_path};
pub use search::exact::{ExactSearch, ExactStats, ground_truth};
pub use search::{
    MAX_WIDTH, Neighbor, ResidentIndex, Search, SearchCodes, SearchResult, Searcher, prepare_search,
};
pub use vectors::distance::instruction_set;
#[doc(hidden)] // For the command, which reads arrays of other types.
pub use vectors::npy::Header as NpyHeader;
#[doc(hidden)] // For the command, which measures a device.
pub use vectors::start_seconds;
pub use vectors::{
    Bits, Component, DataShape, DeviceMemory, DeviceResults, DeviceRows, ElementType, Fault, Format,
    GroundTruth, IdSet, Ids, MAX_DIM, MAX_ROWS, Metric, QueryKind, Repeated, Source, Synth, SynthKind,
    Vectors, changed_while_read,
};
