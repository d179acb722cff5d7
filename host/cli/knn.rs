//! `tagore knn`

use std::path::PathBuf;
use std::time::Instant;

use tagore::{Error, PruneStats, Result};

use super::options::{DescentOptions, Input, Seconds, built, check_output, verify};
use super::output::Output;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    input: Input,
    /// Where the graph goes: GRAPH.ibin (ids) and GRAPH.fbin (distances)
    #[arg(short, long, value_name = "GRAPH")]
    output: Option<PathBuf>,
    #[command(flatten)]
    descent: DescentOptions,
    /// Measure recall on N random nodes against exact search
    #[arg(long, value_name = "N")]
    verify: Option<usize>,
}

impl Args {
    pub(crate) fn run(self, output: &Output) -> Result<()> {
        let began = Instant::now();
        self.output.as_deref().map(check_output).transpose()?;
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
        let recall =
            self.verify.map(|sample| verify(&graph, &base, sample, &self.descent, output)).transpose()?;
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
