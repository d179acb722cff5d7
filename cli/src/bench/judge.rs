//! Recall and throughput of the indexes of a bench.

use std::path::PathBuf;
use std::sync::Arc;

use tagore::{Device, Evaluation, GroundTruth, Index, Progress, Searcher, TestQueries, Vectors};

use crate::error::Result;
use crate::options::open;
use crate::output::Output;
use crate::read::open_ids;
use crate::search::K;
use crate::spool;

/// Queries to search the indexes with, if given.
#[derive(clap::Args)]
#[command(next_help_heading = "Recall")]
pub(super) struct JudgeOptions {
    /// Queries to measure recall with
    #[arg(long, value_name = "QUERIES", requires = "groundtruth", value_parser = spool::vectors())]
    queries: Option<PathBuf>,
    /// Exact nearest neighbours of the queries
    #[arg(long, value_name = "GT", requires = "queries")]
    groundtruth: Option<PathBuf>,
    /// Neighbours per query [default: 10, or those of the ground truth if fewer]
    #[arg(short)]
    k: Option<usize>,
    /// Beam widths to measure
    #[arg(long, value_delimiter = ',', default_value = "20,50,100,200", value_name = "L,..")]
    beams: Vec<usize>,
}

impl JudgeOptions {
    /// Files to read.
    pub(super) fn files(&self) -> impl Iterator<Item = &PathBuf> {
        self.queries.iter().chain(&self.groundtruth)
    }

    /// Opens the queries and their ground truth.
    pub(super) fn open(&self, progress: &Progress) -> Result<Option<Judge<'_>>> {
        let Some((queries, truth)) = self.queries.as_ref().zip(self.groundtruth.as_ref()) else {
            return Ok(None);
        };
        let truth = open_ids(truth, progress)?;
        let k = self.k.unwrap_or(K.min(truth.k()));
        Ok(Some(Judge { options: self, k, queries: open(queries, None)?, truth }))
    }
}

/// Queries with their ground truth.
pub(super) struct Judge<'a> {
    options: &'a JudgeOptions,
    /// Neighbours per query.
    pub k: usize,
    queries: Vectors,
    truth: GroundTruth,
}

impl Judge<'_> {
    /// Searches an index over `base` with every beam.
    pub(super) fn evaluate(
        &self,
        index: Index,
        base: &Arc<Vectors>,
        device: Device,
        output: &Output,
    ) -> Result<Vec<Evaluation>> {
        let test = TestQueries::new(&self.queries, &self.truth, self.k);
        let searcher = Searcher::new(index, Arc::clone(base), output.progress())?.device(device)?;
        Ok(searcher.evaluate(test, &self.options.beams, output.progress())?)
    }
}
