//! Tests of the library through its public interface, and of the command.
#![expect(clippy::unwrap_used, reason = "a test stops at the first error")]

mod build;
mod cancelled;
mod command;
mod diskann;
mod faulty_imports;
mod foreign;
mod formats;
mod gpu;
mod index_file;
mod knn;
mod outofcore;
mod range;
mod reference;
mod repeated;
mod report;
mod search;
mod sparse;
mod synth;
mod truth;
