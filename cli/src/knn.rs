//! `tagore knn`

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Instant;

use tagore::{Error, PruneStats, Result};

use super::files::Files;
use super::options::{DescentOptions, Input, Seconds, built, verify};
use super::output::Output;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    input: Input,
    /// Where the graph goes: ids, then distances, in the layout of a ground truth
    #[arg(short, long, value_name = "GRAPH")]
    output: Option<PathBuf>,
    #[command(flatten)]
    descent: DescentOptions,
    /// Measure recall on N random nodes against exact search
    #[arg(long, value_name = "N")]
    verify: Option<NonZeroUsize>,
}

impl Args {
    pub(crate) fn run(self, output: &Output) -> Result<()> {
        let began = Instant::now();
        Files::read([&self.input.input]).write(&self.output).check()?;
        let devices = self.descent.device.0.len();
        if devices > 1 {
            let expected = "one, as for all but builds out of core".to_owned();
            return Err(Error::Argument { what: "device", found: format!("{devices} devices"), expected });
        }
        let (base, read) = self.input.read(output.progress())?;
        let graph = self.descent.build(&base, output)?;
        let writing = Instant::now();
        if let Some(path) = &self.output {
            graph.save(path)?;
        }
        let write = writing.elapsed().as_secs_f64();
        let total = began.elapsed().as_secs_f64();
        let recall = self
            .verify
            .map(|sample| verify(&graph, &base, sample.get(), &self.descent, output))
            .transpose()?;
        let stats = (graph.stats(), &PruneStats::default());
        let mut event =
            built("knn", &base, stats, &Seconds { read, write, total }, (graph.k(), graph.k() as f64));
        if let Some(recall) = recall {
            event["recall"] = recall;
        }
        output.event(&event);
        Ok(())
    }
}
