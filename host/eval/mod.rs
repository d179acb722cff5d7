//! How good results are: recall, throughput, plots.

pub(crate) mod plot;
mod recall;

pub use plot::{Series, recall_qps_plot};
pub use recall::{Evaluation, KnnTruth, evaluate, knn_recall};
