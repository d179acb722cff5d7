//! `tagore search`

use std::path::PathBuf;
use std::thread;
use std::time::Instant;

use serde_json::json;
use tagore::{Device, GroundTruth, IdSet, Index, Search, Searcher, Vectors, prepare_search};

use crate::error::Result;
use crate::files::Files;
use crate::options::{BaseAndQueries, Devices, Filter, open_index};
use crate::output::{Output, grouped, name};
use crate::results::ResultOptions;
use crate::walked::Walked;

/// An index, its base, queries, and the devices of searches.
#[derive(clap::Args)]
pub(crate) struct Searched {
    /// Index [default: the name of the base with the extension .tagore, as `tagore build` makes]
    #[arg(long, value_name = "INDEX")]
    index: Option<PathBuf>,
    #[command(flatten)]
    data: BaseAndQueries,
    /// Device of searches: auto, cpu, cuda, cuda:N, or several (cuda:N,M,..) that share the queries
    #[arg(long, default_value = "auto")]
    device: Devices,
    /// Nodes expanded per step of a search on a GPU, 1 to 8: 1 gives the results of the CPU, more
    /// give lower latency
    #[arg(long, default_value_t = 1, value_name = "W")]
    width: usize,
    #[command(flatten)]
    walked: Walked,
}

impl Searched {
    /// Files to read.
    pub(crate) fn files(&self) -> Files {
        Files::read(&self.index).and_read(self.data.files())
    }

    pub(crate) fn open(&self) -> Result<(Index, Vectors, Vectors)> {
        let index = match &self.index {
            Some(path) => open_index(path)?,
            None => self.data.open_index()?,
        };
        let (base, queries) = self.data.open()?;
        Ok((index, base, queries))
    }

    pub(crate) fn devices(&self) -> &[Device] {
        &self.device.0
    }

    pub(crate) fn searcher(&self, index: Index, base: Vectors, output: &Output) -> Result<Searcher> {
        let searcher = Searcher::new(index, base, output.progress())?.width(self.width)?;
        Ok(self.walked.set(searcher)?.devices(&self.device.0)?)
    }
}

/// Recall of some queries below which a warning tells it.
const LOW_RECALL: f64 = 0.8;

/// The default number of neighbours, unless there are fewer.
pub(crate) const K: usize = 10;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    searched: Searched,
    /// Neighbours per query [default: 10, or all rows if fewer]
    #[arg(short)]
    k: Option<usize>,
    /// Beam width: wider beams find more and take longer [default: 100, or twice k if more, up to
    /// 512]
    #[arg(long, value_name = "L")]
    beam: Option<usize>,
    #[command(flatten)]
    filter: Filter,
    /// Queries whose recall exact search measures, fewer for a large base
    #[arg(long, value_name = "N", default_value_t = 32)]
    verify: usize,
    #[command(flatten)]
    results: ResultOptions,
}

impl Args {
    pub(crate) fn run(self, output: &Output) -> Result<()> {
        let kind = self.results.kind(output.is_json())?;
        self.searched.files().and_read(&self.filter.file).write(kind, [self.results.path()]).check(output)?;
        let (index, base, queries) = self.searched.open()?;
        let filter = self.filter.open(&base)?;
        let passing = filter.as_ref().map_or(base.len(), IdSet::len);
        let k = self.k.unwrap_or(K.min(passing).max(1));
        let search = self.beam.iter().fold(Search::new(k), |search, &beam| search.beam(beam));
        let beam = search.beam_width();
        let began = Instant::now();
        // The device is opened, and kernels are compiled, while index and base are checked.
        let (devices, codes) = (&self.searched.device.0, self.searched.walked.codes());
        let _preparation = prepare_search(devices, &index, &base, &[beam], codes);
        let searcher = self.searched.searcher(index, base, output)?;
        let prepare = began.elapsed().as_secs_f64();
        let began = Instant::now();
        let search = filter.iter().fold(search, |search, ids| search.among(ids));
        let result = searcher.search(&queries, search, output.progress())?;
        let seconds = began.elapsed().as_secs_f64();
        let count = result.len() as f64;
        let distances = result.computed() as f64 / count.max(1.0);
        let short = result.short();
        let fewest = result.iter().map(Iterator::count).min().filter(|_| short > 0);
        let recall =
            searcher.sampled_recall(&queries, &result, filter.as_ref(), self.verify, output.progress())?;
        let (device, device_seconds) = (searcher.runs_on().to_owned(), result.device_seconds());
        thread::scope(|scope| {
            // Nothing needs the device any more. To close it takes a while, as to write does.
            let close = move || {
                drop(searcher);
                tagore::close_devices();
            };
            // Without a thread it closes when the command ends.
            let _ = thread::Builder::new().name("device".to_owned()).spawn_scoped(scope, close);
            self.results.write(&GroundTruth::from(result), output)
        })?;
        output.say(format_args!(
            "{} queries on {device} in {seconds:.3} s, {} distances each{} -> {}",
            grouped(count),
            grouped(distances.round()),
            recall.map_or(String::new(), |recall| format!(", recall@{k} {recall:.2} of some")),
            name(self.results.path())
        ));
        if passing < k {
            output.warn(format_args!("{passing} rows pass the filter, fewer than the {k} asked for"));
        } else if let Some(fewest) = fewest {
            output.warn(format_args!(
                "{} of {} queries found fewer than {} rows, {fewest} at least: no path of the index leads to more \
                 (inspect says how many nodes are lost); groundtruth compares with every row",
                grouped(short),
                grouped(count),
                k
            ));
        } else if let Some(recall) = recall.filter(|&recall| recall < LOW_RECALL) {
            output.warn(format_args!(
                "exact search finds more: recall@{k} {recall:.2} of some queries; raise --beam ({beam}), measure with \
                 eval, or build with --queries-sample if the queries lie elsewhere than the base"
            ));
        }
        output.event(&json!({
            "event": "search", "queries": count as u64, "k": k, "beam": beam,
            "device": device, "prepare": prepare, "seconds": seconds, "qps": count / seconds,
            "device_seconds": device_seconds, "device_qps": device_seconds.map(|seconds| count / seconds), "distances": distances,
            "short": short, "recall": recall, "passing": filter.map(|_| passing),
        }));
        Ok(())
    }
}
