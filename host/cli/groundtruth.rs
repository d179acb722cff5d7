//! `tagore groundtruth`

use std::path::PathBuf;
use std::time::Instant;

use serde_json::json;
use tagore::{Device, Metric, Result, Vectors, ground_truth};

use super::options::check_output;
use super::output::Output;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The data set
    #[arg(long, value_name = "BASE")]
    base: PathBuf,
    /// The queries
    #[arg(long, value_name = "QUERIES")]
    queries: PathBuf,
    /// l2, ip (inner product) or cosine
    #[arg(long, default_value = "l2")]
    metric: Metric,
    /// Neighbours to find per query
    #[arg(short, default_value_t = 100)]
    k: usize,
    /// Where ids and distances go, in the big-ann layout
    #[arg(short, long, value_name = "GT")]
    output: PathBuf,
    /// auto or cpu
    #[arg(long, default_value = "auto")]
    device: Device,
}

impl Args {
    pub(crate) fn run(self, output: &Output) -> Result<()> {
        check_output(&self.output)?;
        let (base, queries) = (Vectors::open(&self.base)?, Vectors::open(&self.queries)?);
        let began = Instant::now();
        let truth = ground_truth(&base, &queries, self.metric, self.k, output.progress())?;
        let seconds = began.elapsed().as_secs_f64();
        truth.save(&self.output)?;
        output.say(format_args!("{} queries in {seconds:.2} s -> {}", queries.len(), self.output.display()));
        output.event(&json!({
            "event": "groundtruth", "n": base.len(), "dim": base.dim(), "queries": queries.len(), "k": self.k,
            "device": self.device.name(), "seconds": seconds,
        }));
        Ok(())
    }
}
