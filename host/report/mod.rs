//! What became of a build, and what it took: a report that a program or a person can hold an index to
//! (`docs/report.md`).

mod cost;
mod html;
mod measure;
mod plots;
mod timeline;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::Path;
use std::time::Instant;

use serde::{Serialize, Serializer};

pub use cost::{BuildCost, StageCost};
pub use measure::Measure;
pub use timeline::timeline_plot;

use crate::atomic_file::AtomicFile;
use crate::descent::KnnSample;
use crate::{ElementType, Error, Index, Metric, Result, Vectors, gpu};

/// Below this share of nodes that can be reached, and this recall, an index is not sound.
const LEAST_REACHABLE: f64 = 0.999;
const LEAST_RECALL: f64 = 0.9;

/// How good an index is, and what building it took. As JSON its keys are those of `docs/report.md`.
///
/// ```
/// use tagore::{Builder, BuildCost, Measure, Report, Strategy, Synth};
///
/// let base = Synth::new(2000, 16, 1)?.base();
/// let builder = Builder::new(Strategy::nsg()).knn(32).sample(1000);
/// let (index, stats) = builder.build_with_stats(&base, None)?;
/// let mut report = Report::of(&index, Some(&base), &stats.sample, &Measure::default())?;
/// report.build = Some(BuildCost::in_memory(&builder, &stats));
/// assert!(report.search.is_some_and(|search| search.recall > 0.95));
/// # Ok::<(), tagore::Error>(())
/// ```
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The version of this library.
    pub version: &'static str,
    /// The kernels that it carries.
    pub kernels: String,
    /// The kind, such as `nsg`.
    pub index: String,
    /// Nodes.
    pub n: usize,
    /// Components of a vector.
    pub dim: u32,
    /// Their type.
    #[serde(rename = "type", serialize_with = "name")]
    pub element: ElementType,
    /// The metric that the index was built for.
    #[serde(serialize_with = "name")]
    pub metric: Metric,
    /// The seed that it was built with.
    pub seed: u64,
    /// The parameters that the index says it was built with.
    pub parameters: BTreeMap<String, String>,
    /// The entry points.
    pub entries: Vec<u32>,
    /// Rows that are no nodes of the graph, since they repeat an earlier row.
    pub repeated: u64,
    /// The largest degree that a node may have.
    pub max_degree: usize,
    /// The mean degree.
    pub mean_degree: f64,
    /// Nodes of each degree, from 0 to the largest that they may have.
    pub degrees: Vec<u64>,
    /// Edges in all.
    pub edges: u64,
    /// Edges of a node to itself.
    pub self_edges: u64,
    /// Edges that a row holds more than once.
    pub duplicate_edges: u64,
    /// Nodes that no path from the entry points leads to.
    pub unreachable: u64,
    /// The share of the others, 0 to 1.
    pub reachable: f64,
    /// The k-NN graph that the index was pruned from, if lists of it were kept.
    pub knn: Option<KnnQuality>,
    /// What searches find, if there was a base to search.
    pub search: Option<SearchQuality>,
    /// Seconds that this report took.
    pub seconds: f64,
    /// What building the index took, if it has just been built.
    pub build: Option<BuildCost>,
}

/// How good a k-NN graph is.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KnnQuality {
    /// Random nodes whose lists were compared with exact search.
    pub nodes: usize,
    /// Neighbours per node.
    pub k: usize,
    /// The share of the true neighbours, 0 to 1, at 10 and at `k`.
    pub recall: BTreeMap<usize, f64>,
}

/// What searches find: the queries are random rows of the base, none of which is its own neighbour.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SearchQuality {
    /// Queries.
    pub queries: usize,
    /// Neighbours asked for per query: 10, or all others if there are fewer.
    pub k: usize,
    /// The beam width that the index is judged at.
    pub beam: usize,
    /// The share of the true neighbours found at that beam, 0 to 1.
    pub recall: f64,
    /// What searched, such as `cpu` or `cuda:0`.
    pub device: String,
    /// Every beam width.
    pub beams: Vec<BeamQuality>,
}

/// What searches find at a beam width.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct BeamQuality {
    /// The beam width.
    pub beam: usize,
    /// The share of the true neighbours found, 0 to 1.
    pub recall: f64,
    /// Distances computed per query.
    pub distances: f64,
}

impl Report {
    /// Counts what `index` is like; with `base`, which it was built over, also searches it, and compares the lists of `knn`
    /// with exact search, if there are any. All of the index is read, and of the base what exact search of
    /// [`Measure::nodes`] queries reads: all of it.
    ///
    /// # Errors
    /// If the index has no nodes or is not of `base`, a device is not there or has no room, or the work is cancelled.
    pub fn of(index: &Index, base: Option<&Vectors>, knn: &KnnSample, measure: &Measure) -> Result<Self> {
        if index.is_empty() {
            return Err(Error::mismatch(index.describe(), "0 nodes", "at least 1"));
        }
        let began = Instant::now();
        let statistics = index.statistics(&measure.progress)?;
        let (knn, search) = match base {
            Some(base) => measure.quality(index, base, knn)?,
            None => (None, None),
        };
        let (description, base) = (index.description(), index.fingerprint());
        let n = index.len();
        Ok(Self {
            version: env!("CARGO_PKG_VERSION"),
            kernels: gpu::kernels(),
            index: description.kind.clone(),
            n,
            dim: base.dim,
            element: base.element,
            metric: description.metric,
            seed: description.seed,
            parameters: description.parameters.clone(),
            entries: index.entries().to_vec(),
            repeated: index.repeated().len() as u64,
            max_degree: index.max_degree(),
            mean_degree: statistics.edges as f64 / n as f64,
            degrees: statistics.degrees,
            edges: statistics.edges,
            self_edges: statistics.self_edges,
            duplicate_edges: statistics.duplicate_edges,
            unreachable: statistics.unreachable,
            reachable: (n as u64 - statistics.unreachable) as f64 / n as f64,
            knn,
            search,
            seconds: began.elapsed().as_secs_f64(),
            build: None,
        })
    }

    /// What is wrong with the index, if anything is: a sentence for each, which says what it means
    /// and what to do. Nodes that cannot be reached count from one in 1,000 on, and a recall@10 at
    /// beam 100 of less than 0.9.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.reachable < LEAST_REACHABLE {
            warnings.push(format!(
                "{} of {} nodes cannot be reached: no search finds them; build nsg, vamana or nssg, which reach all, or \
                 raise the degree",
                self.unreachable, self.n
            ));
        }
        if let Some(search) = self.search.as_ref().filter(|search| search.recall < LEAST_RECALL) {
            let SearchQuality { k, beam, recall, .. } = search;
            let has_poor_lists =
                |knn: &KnnQuality| knn.recall.get(&knn.k).is_some_and(|&recall| recall < 0.9);
            let remedy = if self.knn.as_ref().is_some_and(has_poor_lists) {
                "its k-NN graph is poor: run more iterations of descent, or raise knn"
            } else {
                "search with a wider beam, or raise the degree"
            };
            warnings.push(format!(
                "searches of beam {beam} find {:.1} % of the {k} nearest: {remedy}",
                100.0 * recall
            ));
        }
        warnings
    }

    /// Writes the report as JSON.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let mut json = serde_json::to_vec_pretty(self).map_err(|error| Error::io(path)(error.into()))?;
        json.push(b'\n');
        write(path, &json)
    }

    /// Writes the report as a page of HTML that needs no other file, with its plots in it.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn save_html(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let page =
            html::page(self).map_err(|error| Error::io(path)(std::io::Error::other(error.to_string())))?;
        write(path, page.as_bytes())
    }
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut file = AtomicFile::create(path)?;
    file.write_all(bytes)?;
    file.commit()
}

fn name<S: Serializer>(value: &impl Display, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}
