//! `tagore knn`

use std::path::PathBuf;
use std::time::Instant;

use tagore::PruneStats;

use crate::error::{Error, Result};
use crate::files::{Files, Kind};
use crate::number;
use crate::options::{Built, DescentOptions, Input, Seconds, verify};
use crate::output::Output;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    input: Input,
    /// File of the graph: ids, then distances, in the layout of a ground truth
    #[arg(short, long, value_name = "GRAPH")]
    output: Option<PathBuf>,
    #[command(flatten)]
    descent: DescentOptions,
    /// Measure recall of N random nodes by exact search
    #[arg(long, value_name = "N", value_parser = number::positive)]
    verify: Option<u32>,
}

impl Args {
    pub(crate) fn run(self, output: &Output) -> Result<()> {
        let began = Instant::now();
        Files::read([self.input.path()]).write(Kind::Graph, &self.output).check(output)?;
        let devices = self.descent.device.0.len();
        if devices > 1 {
            return Err(Error::usage(format!(
                "--device: found {devices} devices, expected one: a k-NN graph is built on one"
            )));
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
            .map(|sample| verify(&graph, &base, sample as usize, &self.descent, output))
            .transpose()?;
        let (prune, seconds) = (PruneStats::default(), Seconds { read, write, total });
        let built = Built {
            rows: base.len(),
            dim: base.dim(),
            descent: graph.stats(),
            prune: &prune,
            seconds: &seconds,
            knn: graph.k(),
            mean_degree: graph.k() as f64,
        };
        let mut event = built.event("knn");
        if let Some(recall) = recall {
            event["recall"] = recall;
        }
        output.event(&event);
        Ok(())
    }
}
