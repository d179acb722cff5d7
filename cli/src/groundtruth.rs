//! `tagore groundtruth`

use serde_json::json;
use tagore::gpu::KernelTime;
use tagore::{ExactSearch, ExactStats, IdSet};

use crate::error::Result;
use crate::files::Files;
use crate::metric::MetricName;
use crate::options::{BaseAndQueries, Devices, Filter};
use crate::output::{Output, grouped, name};
use crate::results::ResultOptions;

/// The default number of neighbours, unless there are fewer.
const K: usize = 100;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    data: BaseAndQueries,
    /// Metric: l2, ip (inner product) or cosine; of bits hamming, also named l2
    #[arg(long, default_value = "l2")]
    metric: MetricName,
    /// Neighbours per query [default: 100, or all rows if fewer]
    #[arg(short)]
    k: Option<usize>,
    #[command(flatten)]
    filter: Filter,
    #[command(flatten)]
    results: ResultOptions,
    /// Device: auto, cpu, cuda, cuda:N, or several (cuda:N,M,..) that share the search
    #[arg(long, default_value = "auto")]
    device: Devices,
}

impl Args {
    pub(crate) fn run(self, output: &Output) -> Result<()> {
        let kind = self.results.kind(output.is_json())?;
        Files::read(self.data.files())
            .and_read(&self.filter.file)
            .write(kind, [self.results.path()])
            .check(output)?;
        let (base, queries) = self.data.open()?;
        let metric = self.metric.resolve(base.element_type())?;
        let filter = self.filter.open(&base)?;
        let k = self.k.unwrap_or(K.min(filter.as_ref().map_or(base.len(), IdSet::len).max(1)));
        let search = ExactSearch::new(k).metric(metric).among(filter).devices(&self.device.0);
        let (truth, stats) = search.progress(output.progress().clone()).run(&base, &queries)?;
        self.results.write(&truth, output)?;
        let ExactStats { device, seconds, jit, kernels } = &stats;
        let count = queries.len();
        output.say(format_args!(
            "{} queries on {device} in {seconds:.2} s -> {}",
            grouped(count),
            name(self.results.path())
        ));
        let mut times = serde_json::Map::new();
        for KernelTime { kernel, launches, seconds, .. } in kernels {
            output.say(format_args!("{kernel:<20} {launches:>6} launches {:>10.3} ms", seconds * 1e3));
            times.insert((*kernel).to_owned(), json!({ "launches": launches, "seconds": seconds }));
        }
        output.event(&json!({
            "event": "groundtruth", "n": base.len(), "dim": base.dim(), "queries": count, "k": k,
            "device": device, "seconds": seconds, "jit": jit, "kernels": times,
        }));
        Ok(())
    }
}
