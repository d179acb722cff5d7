//! Tests of the library through its public interface.
#![expect(clippy::unwrap_used, reason = "a test stops at the first error")]

mod api;
mod b1;
mod bf16;
mod build;
mod cancelled;
mod compressed;
mod dirty;
mod dirty_codes;
mod diskann;
mod edges;
mod faulty_imports;
mod filtered;
mod foreign;
mod foreign_ids;
mod formats;
mod gpu;
mod index_file;
mod knn;
mod left_out;
mod live;
#[cfg(target_os = "linux")]
mod live_crashes;
mod live_meanwhile;
mod machines;
mod merged;
mod outofcore;
mod progress;
mod queries;
mod range;
mod reference;
mod repeated;
mod report;
mod search;
mod shared;
mod skip;
mod source;
mod storage;
mod synth;
mod truth;
mod truth_files;
mod updated;
