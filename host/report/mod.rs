//! Reports on an index's quality and build cost, as data (`docs/report.md`).

mod cost;
mod made;
mod measure;
mod self_recall;
mod warnings;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use serde::Serialize;
use tagore_device::key::NO_ID;
use tagore_text::path_text;

pub use cost::{BuildCost, StageCost};
pub use measure::Measure;
use measure::Quality;
pub use self_recall::SelfRecall;

use crate::atomic_file::HeldFile;
use crate::descent::KnnSample;
use crate::vectors::space::Space;
use crate::{ElementType, Error, Index, Result, Vectors, gpu};

/// Quality and build cost of an index. The JSON keys are those of `docs/report.md`.
///
/// ```
/// use tagore::{Builder, BuildCost, Measure, Report, Strategy, Synth};
///
/// let base = Synth::new(2000, 16, 1)?.base();
/// let builder = Builder::new(Strategy::nsg()).knn(32).sample(1000);
/// let (index, stats) = builder.build_with_stats(&base, None)?;
/// let mut report = Report::measure(&index, Some(&base), &stats.sample, &Measure::default())?;
/// report.build = Some(BuildCost::in_memory(&builder, &stats));
/// assert!(report.search.is_some_and(|search| search.recall > 0.95));
/// # Ok::<(), tagore::Error>(())
/// ```
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Version of this library.
    pub version: &'static str,
    /// Version of its kernels.
    pub kernels: String,
    /// Date and time of the measurements.
    pub date: String,
    /// Processor, cores, memory and system of the machine that measured.
    pub machine: String,
    /// File of the index, if it was opened from one or written to one.
    pub file: Option<String>,
    /// File of the base, if it was opened from one.
    pub base: Option<String>,
    /// Kind, such as `nsg`.
    pub index: String,
    /// Number of nodes.
    pub n: usize,
    /// Components per vector.
    pub dim: u32,
    /// Type of the components.
    #[serde(rename = "type")]
    pub element: ElementType,
    /// Metric of the index.
    pub metric: &'static str,
    /// Seed of the build.
    pub seed: u64,
    /// Build parameters recorded in the index.
    pub parameters: BTreeMap<String, String>,
    /// Entry points.
    pub entries: Vec<u32>,
    /// Number of rows that repeat an earlier row and are no nodes of the graph.
    pub repeated: u64,
    /// Largest degree allowed.
    pub max_degree: usize,
    /// Mean degree.
    pub mean_degree: f64,
    /// Number of nodes of each degree, from 0 to the largest allowed.
    pub degrees: Vec<u64>,
    /// Number of edges.
    pub edges: u64,
    /// Edges from a node to itself.
    pub self_edges: u64,
    /// Repeated edges: second and later occurrences of an id in a row.
    pub duplicate_edges: u64,
    /// Nodes that no path from the entry points reaches.
    pub unreachable: u64,
    /// Share of reachable nodes, 0 to 1.
    pub reachable: f64,
    /// Nodes without edges to them, entry points apart.
    pub without_edges: u64,
    /// Quality of the k-NN graph under the index, if a sample of its lists was kept.
    pub knn: Option<KnnQuality>,
    /// Quality of searches, if the base was given and has more than one row.
    pub search: Option<SearchQuality>,
    /// The share of a sample of rows that a search for the row finds; none where `search` is none.
    pub self_recall: Option<SelfRecall>,
    /// Seconds spent on this report.
    pub seconds: f64,
    /// Cost of the build, for an index just built.
    pub build: Option<BuildCost>,
}

/// Quality of a k-NN graph.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KnnQuality {
    /// Number of random nodes compared with exact search.
    pub nodes: usize,
    /// Neighbours per node.
    pub k: usize,
    /// Recall, 0 to 1, at 10 and at `k`.
    pub recall: BTreeMap<usize, f64>,
}

/// Quality of searches. Queries are random rows of the base, and the search of each leaves its row
/// out: recall is that of new queries of the same data.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SearchQuality {
    /// Number of queries.
    pub queries: usize,
    /// Neighbours per query: 10, or all others if there are fewer.
    pub k: usize,
    /// The beam that the index is judged at.
    pub beam: usize,
    /// Recall at that beam, 0 to 1.
    pub recall: f64,
    /// Queries per second at that beam.
    pub qps: f64,
    /// Device of `qps` and `distances`, such as `cpu` or `cuda:0`.
    pub device: String,
    /// Results of all beams.
    pub beams: Vec<BeamQuality>,
    /// Searches at the last beam that ended in a wrong place.
    pub trapped: Trapped,
}

/// Searches that find less than half of the neighbours, and whose results lie much nearer to each
/// other than to the query.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Trapped {
    /// Searches that end among equal rows.
    pub equal: usize,
    /// Searches that end in a dense spot of the base.
    pub dense: usize,
    /// A row of the first such place.
    pub row: Option<u32>,
}

impl Trapped {
    /// Squared distances of results to each other, as a share of those to the query: at most of a
    /// dense spot, and of equal rows after rounding.
    const DENSE: f32 = 4e-4;
    const EQUAL: f32 = 1e-9;

    /// Counts the search for row `query` of the base that found the rows `ids`.
    fn add(&mut self, space: &Space<'_>, query: u32, ids: &[u32]) {
        let (first, mut distances) = (ids.first().copied(), Vec::new());
        let Some(row) = first.filter(|_| ids.len() > 1 && !ids.contains(&NO_ID)) else { return };
        space.rule_distances(row, ids, &mut distances);
        let wide = distances.iter().copied().fold(0.0, f32::max);
        space.rule_distances(query, &[row], &mut distances);
        let [away] = distances[..] else { return };
        let place = match wide {
            _ if wide <= Self::EQUAL * away => &mut self.equal,
            _ if wide <= Self::DENSE * away => &mut self.dense,
            _ => return,
        };
        *place += 1;
        self.row.get_or_insert(row);
    }
}

/// Quality of searches at one beam.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct BeamQuality {
    /// The beam.
    pub beam: usize,
    /// Recall, 0 to 1.
    pub recall: f64,
    /// Queries per second of one run of all queries, from queries to results in host memory.
    pub qps: f64,
    /// Distances computed per query.
    pub distances: f64,
}

impl Report {
    /// Counts nodes and edges of `index`. With its `base`, also searches it, and compares the lists
    /// of `knn`, if any, with exact search. Reads all of the index and, for a sample of
    /// [`Measure::nodes`] queries, all of the base.
    ///
    /// # Errors
    /// If the index has no nodes or does not belong to `base`, a device is missing or has too
    /// little memory, or the work is cancelled.
    pub fn measure(
        index: &Index,
        base: Option<&Vectors>,
        knn: &KnnSample,
        measure: &Measure,
    ) -> Result<Self> {
        if index.is_empty() {
            return Err(Error::mismatch(index.describe(), "0 nodes", "at least 1"));
        }
        let began = Instant::now();
        // A GPU searches while the host counts.
        let mut counted = Err(Error::Cancelled);
        let judged = rayon::in_place_scope(|scope| {
            scope.spawn(|_| counted = index.statistics_beside(measure.unreachable, &measure.progress));
            base.map_or(Ok(Quality::default()), |base| measure.quality(index, base, knn))
        });
        let (statistics, quality) = (counted?, judged?);
        let Quality { knn, search, self_recall, edges_to } = quality;
        let edges_to = edges_to.map_or_else(|| index.edges_to(&measure.progress), Ok)?;
        let (description, shape) = (index.description(), index.fingerprint());
        let n = index.len();
        Ok(Self {
            version: env!("CARGO_PKG_VERSION"),
            kernels: gpu::kernels(),
            date: made::date(),
            machine: made::machine(),
            file: index.path().map(path_text),
            base: base.and_then(Vectors::path).map(path_text),
            index: description.kind.clone(),
            n,
            dim: shape.dim,
            element: shape.element,
            metric: description.metric.name_for(shape.element),
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
            without_edges: index.without_edges(&edges_to),
            knn,
            search,
            self_recall,
            seconds: began.elapsed().as_secs_f64(),
            build: None,
        })
    }

    /// Writes the report as JSON.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        self.save_in(HeldFile::hold(path)?)
    }

    /// As [`save`](Self::save), to a file that is held.
    #[doc(hidden)] // For the command.
    pub fn save_in(&self, file: HeldFile) -> Result<()> {
        let mut json =
            serde_json::to_vec_pretty(self).map_err(|error| Error::io(file.path())(error.into()))?;
        json.push(b'\n');
        file.write(&json)
    }
}
