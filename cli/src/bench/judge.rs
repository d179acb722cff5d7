//! How benches judge what they build.

use std::path::PathBuf;

use tagore::{Device, Evaluation, GroundTruth, Index, Progress, Result, Searcher, Vectors};

use crate::output::Output;

/// Searches that indexes are judged by, if there are queries.
#[derive(clap::Args)]
pub(super) struct JudgeOptions {
    /// Queries to judge the indexes by
    #[arg(long, value_name = "QUERIES", requires = "groundtruth")]
    queries: Option<PathBuf>,
    /// The exact nearest neighbours of the queries
    #[arg(long, value_name = "GT", requires = "queries")]
    groundtruth: Option<PathBuf>,
    /// Neighbours asked for per query
    #[arg(short, default_value_t = 10)]
    pub k: usize,
    /// Beam widths to judge at
    #[arg(long, value_delimiter = ',', default_value = "20,50,100,200", value_name = "L,..")]
    beams: Vec<usize>,
}

impl JudgeOptions {
    /// What is read.
    pub(super) fn files(&self) -> impl Iterator<Item = &PathBuf> {
        self.queries.iter().chain(&self.groundtruth)
    }

    /// Opens the queries and their neighbours.
    pub(super) fn open(&self, progress: &Progress) -> Result<Option<Judge<'_>>> {
        let Some((queries, truth)) = self.queries.as_ref().zip(self.groundtruth.as_ref()) else {
            return Ok(None);
        };
        Ok(Some(Judge {
            options: self,
            queries: Vectors::open(queries)?,
            truth: GroundTruth::open(truth, progress)?,
        }))
    }
}

/// Queries, and what should be found.
pub(super) struct Judge<'a> {
    options: &'a JudgeOptions,
    queries: Vectors,
    truth: GroundTruth,
}

impl Judge<'_> {
    /// Searches an index over `base` with every beam.
    pub(super) fn evaluate(
        &self,
        index: &Index,
        base: &Vectors,
        device: Device,
        output: &Output,
    ) -> Result<Vec<Evaluation>> {
        let Self { options: JudgeOptions { k, beams, .. }, queries, truth } = self;
        {
            let progress = output.progress();
            Searcher::new(index, base, progress)?
                .device(device)?
                .evaluate(queries, truth, *k, beams, progress)
        }
    }
}
