//! Evaluation of results: recall, throughput, ground truth, plots.

mod convention;
pub(crate) mod plot;
mod recall;
mod truth_check;

pub use convention::DistanceConvention;
pub use plot::{Series, recall_qps_plot};
pub use recall::{Evaluation, KnnTruth, evaluate, knn_recall};
