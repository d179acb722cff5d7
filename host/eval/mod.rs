//! Evaluation of results: recall, throughput, ground truth, plots.

mod convention;
#[cfg(feature = "plots")]
pub(crate) mod plot;
mod recall;
mod truth_check;

pub use convention::DistanceConvention;
#[cfg(feature = "plots")]
pub use plot::{Series, recall_qps_plot};
pub use recall::{Evaluation, KnnTruth, RecallSample, TestQueries, evaluate, knn_recall};
