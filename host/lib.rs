//! `tagore` builds graph indexes for approximate nearest-neighbour search.

mod atomic_file;
mod descent;
mod device;
mod error;
mod eval;
mod index;
mod parallel;
mod progress;
mod prune;
mod search;
mod vectors;

pub use descent::{DEFAULT_KNN, Descent, DescentStats, Iterations, KnnGraph, MAX_KNN, Start};
pub use device::Device;
pub use error::{Error, Result};
pub use eval::{Evaluation, Series, evaluate, knn_recall, recall_qps_plot};
pub use index::{Description, Fingerprint, Index, Statistics};
pub use progress::{Progress, Update};
pub use prune::{Builder, Collect, Filter, MAX_CANDIDATES, MAX_DEGREE, Strategy};
pub use search::exact::ground_truth;
pub use search::{SearchResult, search};
pub use vectors::distance::instruction_set;
pub use vectors::{ElementType, Format, GroundTruth, MAX_DIM, MAX_ROWS, Metric, Synth, Vectors};
