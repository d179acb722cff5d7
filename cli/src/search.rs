//! `tagore search`

use std::path::PathBuf;
use std::time::Instant;

use serde_json::json;
use tagore::{Device, GroundTruth, Index, Progress, Searcher, Vectors};

use crate::error::Result;
use crate::files::Files;
use crate::output::{Output, grouped};

/// An index, its base, queries, and the device of searches.
#[derive(clap::Args)]
pub(crate) struct Searched {
    /// Index
    #[arg(long, value_name = "INDEX")]
    index: PathBuf,
    /// Data set of the index
    #[arg(long, value_name = "BASE")]
    base: PathBuf,
    /// Queries
    #[arg(long, value_name = "QUERIES")]
    queries: PathBuf,
    /// Device of searches: auto, cpu, cuda or cuda:N
    #[arg(long, default_value = "auto")]
    device: Device,
    /// Nodes expanded per step of a search on a GPU, 1 to 8: 1 gives the results of the CPU, more
    /// give lower latency
    #[arg(long, default_value_t = 1, value_name = "W")]
    width: usize,
}

impl Searched {
    /// Files to read.
    pub(crate) fn files(&self) -> Files {
        Files::read([&self.index, &self.base, &self.queries])
    }

    pub(crate) fn open(&self) -> Result<(Index, Vectors, Vectors)> {
        let index = Index::open(&self.index)?;
        let (base, queries) = (Vectors::open(&self.base)?, Vectors::open(&self.queries)?);
        Ok((index, base, queries))
    }

    pub(crate) fn searcher<'a>(
        &self,
        index: &'a Index,
        base: &'a Vectors,
        progress: &Progress,
    ) -> Result<Searcher<'a>> {
        Ok(Searcher::new(index, base, progress)?.width(self.width)?.device(self.device)?)
    }
}

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    searched: Searched,
    /// Neighbours per query
    #[arg(short, default_value_t = 10)]
    k: usize,
    /// Beam width: wider beams find more and take longer
    #[arg(long, default_value_t = 100, value_name = "L")]
    beam: usize,
    /// File of ids and distances, in the layout of a ground truth
    #[arg(short, long, value_name = "RESULT")]
    output: PathBuf,
}

impl Args {
    pub(crate) fn run(self, output: &Output) -> Result<()> {
        self.searched.files().write([&self.output]).check()?;
        let (index, base, queries) = self.searched.open()?;
        let began = Instant::now();
        let searcher = self.searched.searcher(&index, &base, output.progress())?;
        let prepare = began.elapsed().as_secs_f64();
        let began = Instant::now();
        let result = searcher.search(&queries, self.k, self.beam, output.progress())?;
        let seconds = began.elapsed().as_secs_f64();
        let count = result.len() as f64;
        let distances = result.computed() as f64 / count.max(1.0);
        let (device, device_seconds) = (searcher.runs_on(), result.device_seconds());
        GroundTruth::from(result).save(&self.output)?;
        output.say(format_args!(
            "{} queries on {device} in {seconds:.3} s, {} distances each -> {}",
            grouped(count),
            grouped(distances.round()),
            self.output.display()
        ));
        output.event(&json!({
            "event": "search", "queries": count as u64, "k": self.k, "beam": self.beam,
            "device": device, "prepare": prepare, "seconds": seconds, "qps": count / seconds, "device_seconds": device_seconds,
            "device_qps": device_seconds.map(|seconds| count / seconds), "distances": distances,
        }));
        Ok(())
    }
}
