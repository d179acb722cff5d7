//! Evaluation of results: recall, throughput, ground truth.

mod convention;
mod recall;
mod truth_check;

pub use convention::DistanceConvention;
pub use recall::{Evaluation, KnnTruth, RecallSample, TestQueries, evaluate, knn_recall};
