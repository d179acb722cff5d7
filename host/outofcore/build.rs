//! A build that is out of core, from end to end.

use std::path::{Path, PathBuf};
use std::sync::mpsc::sync_channel;
use std::thread::{self, ScopedJoinHandle};
use std::time::Instant;

use super::local::LocalLists;
use super::log::{Bins, WorkFolder};
use super::merge::{Merged, Merger};
use super::partition::{Cluster, Partition};
use super::{CacheUse, ClusterPlan, Dispatch, Dispatcher, Order};
use crate::index::IndexFile;
use crate::prune::{Entry, random_entries};
use crate::vectors::Rows;
use crate::vectors::distance::{SquaredL2, one_to_many};
use crate::vectors::embedding::Embedding;
use crate::{Builder, Description, Error, Fingerprint, Index, Result, Vectors};

/// Cluster medoids that an index is entered at, beside the global one.
const CLUSTER_ENTRIES: usize = 32;

/// Builds an index cluster by cluster, with work files on disk.
///
/// ```
/// use tagore::outofcore::{ClusterPlan, Limits, OutOfCore};
/// use tagore::{Builder, Index, Strategy, Synth};
///
/// # let folder = tempfile::tempdir().map_err(|source| tagore::Error::Io { path: "tmp".into(), source })?;
/// # let path = folder.path().join("index.tagore");
/// let base = Synth::new(1000, 8, 0)?.base(); // or a file that is larger than memory
/// let builder = Builder::new(Strategy::vamana()).knn(20);
/// let limits = Limits { cluster_size: Some(400), ..Limits::default() };
/// if let Some(plan) = ClusterPlan::new(&builder, &base, &limits)? {
///     OutOfCore::new(builder, plan).build(&base, &path)?;
/// }
/// assert_eq!(Index::open(&path)?.len(), 1000);
/// # Ok::<(), tagore::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct OutOfCore {
    builder: Builder,
    plan: ClusterPlan,
    order: Order,
    work: Option<PathBuf>,
}

/// What a build took that was out of core.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OutOfCoreStats {
    /// Clusters.
    pub clusters: usize,
    /// Bytes of the clusters' files.
    pub cluster_bytes: u64,
    /// How often the first list of a node was in memory when the second came.
    pub cache: CacheUse,
    /// Bytes of lists that were written to disk, and read again.
    pub spilled_bytes: u64,
    /// Nodes that no path from the entry points leads to.
    pub unreachable: u64,
    /// Seconds of partitioning.
    pub partition: f64,
    /// Seconds of building clusters and merging their lists.
    pub build: f64,
    /// Seconds of writing the index.
    pub write: f64,
}

impl OutOfCore {
    /// Builds in the clusters of `plan`, which [`ClusterPlan::new`] has made with the same builder.
    pub fn new(builder: Builder, plan: ClusterPlan) -> Self {
        Self { builder, plan, order: Order::default(), work: None }
    }

    /// The order in which clusters are built.
    #[must_use]
    pub fn order(self, order: Order) -> Self {
        Self { order, ..self }
    }

    /// The folder of the work files, which must not be there yet, or be empty; it is removed in the end. Unless set,
    /// it is beside the index: `x.work` for `x`.
    #[must_use]
    pub fn work_dir(self, folder: PathBuf) -> Self {
        Self { work: Some(folder), ..self }
    }

    /// Builds the index of `base`, of which a part is in memory at a time if it is mapped from a file, and writes it to `output`.
    /// Nodes that cannot be reached are counted, not connected.
    ///
    /// # Errors
    /// As [`Builder::build`]; or if work files or the index cannot be written, there is not enough room on the
    /// disk, or a work file has been damaged.
    pub fn build(&self, base: &Vectors, output: &Path) -> Result<OutOfCoreStats> {
        let Self { builder, plan, .. } = self;
        builder.strategy.check()?;
        base.validate()?;
        let (seed, progress) = (builder.descent.seed, &builder.descent.progress);
        let beside = || {
            let mut name = output.as_os_str().to_owned();
            name.push(".work");
            PathBuf::from(name)
        };
        let folder = WorkFolder::create(&self.work.clone().unwrap_or_else(beside))?;
        folder.check_free(plan.disk_bytes)?;

        let began = Instant::now();
        let embedding = Embedding::new(base, builder.descent.metric);
        let log = folder.log("clusters")?;
        let partition = Partition::new(base, &embedding, plan, log, (seed, progress))?;
        let mut stats = OutOfCoreStats {
            clusters: partition.graph.clusters(),
            cluster_bytes: partition.bytes(),
            partition: began.elapsed().as_secs_f64(),
            ..OutOfCoreStats::default()
        };

        let began = Instant::now();
        let (merged, description) = self.merge(&folder, &partition, &embedding, base.len())?;
        stats.build = began.elapsed().as_secs_f64();
        (stats.cache, stats.spilled_bytes) = (merged.cache, merged.spilled_bytes);

        let began = Instant::now();
        let entries = match builder.strategy.entry {
            Entry::Medoid => spread(base, &embedding, &merged),
            Entry::Random => random_entries(base.len(), seed),
        };
        self.write(output, base, &merged, (&description, &entries))?;
        stats.write = began.elapsed().as_secs_f64();
        stats.unreachable = Index::open(output)?.unreachable();
        Ok(stats)
    }

    /// Builds all clusters, while one thread reads the next and another merges the last. Nothing is held but what these
    /// three work with and what waits to be merged.
    fn merge(
        &self,
        folder: &WorkFolder,
        partition: &Partition,
        embedding: &Embedding,
        nodes: usize,
    ) -> Result<(Merged, Description)> {
        let Self { builder, plan, .. } = self;
        let progress = &builder.descent.progress;
        let dispatcher = Dispatcher::new(self.order).cache(plan.cache).seed(builder.descent.seed);
        let dispatches = dispatcher.dispatch(&partition.graph)?;
        let (bins, buffer) = plan.row_bins;
        let rows = Bins::new(folder.log("rows")?, bins, buffer);
        let shape = (nodes, partition.graph.clusters(), builder.strategy.max_degree());
        let mut merger = Merger::new(shape, folder.log("lists")?, rows);
        let stage = progress.stage("build", dispatches.len() as u64);
        thread::scope(|scope| {
            let (send_cluster, clusters) = sync_channel::<Result<(Dispatch, Cluster)>>(0);
            let (send_lists, lists) = sync_channel::<(Option<u32>, Option<LocalLists>)>(0);
            scope.spawn(move || {
                for dispatch in dispatches {
                    let read = partition.read(dispatch.load).map(|cluster| (dispatch, cluster));
                    let failed = read.is_err();
                    // Nobody receives any more once something else has failed.
                    if send_cluster.send(read).is_err() || failed {
                        break;
                    }
                }
            });
            let merging = scope.spawn(move || {
                for (evict, lists) in lists {
                    evict.map_or(Ok(()), |cluster| merger.evict(cluster))?;
                    lists.map_or(Ok(()), |lists| merger.take(&lists))?;
                }
                Ok(merger)
            });
            let mut description = None;
            for read in clusters {
                let (dispatch, cluster) = read?;
                stage.advance(1)?;
                // Where vectors are equal, clusters may be empty.
                let lists = if cluster.ids.is_empty() {
                    None
                } else {
                    Some(LocalLists::build(builder, cluster, embedding, &partition.mean)?)
                };
                if let Some(lists) = &lists {
                    description.get_or_insert_with(|| self.description(lists, shape.1));
                }
                if send_lists.send((dispatch.evict, lists)).is_err() {
                    break;
                }
            }
            drop(send_lists);
            let merged = join(merging)?.end()?;
            let description = description.ok_or_else(|| Error::mismatch("base", "0 rows", "at least 1"))?;
            Ok((merged, description))
        })
    }

    /// What the index of all is, from that of a cluster.
    fn description(&self, lists: &LocalLists, clusters: usize) -> Description {
        let mut description = lists.description.clone();
        // Each cluster took its own.
        description.parameters.remove("iterations");
        description.parameters.insert("clusters".to_owned(), clusters.to_string());
        description.parameters.insert("cluster-size".to_owned(), self.plan.cluster_size.to_string());
        description
    }

    /// Writes the index, range by range.
    fn write(
        &self,
        output: &Path,
        base: &Vectors,
        merged: &Merged,
        (description, entries): (&Description, &[u32]),
    ) -> Result<()> {
        let Merged { rows, nodes_per_bin, degrees, .. } = merged;
        let degree = self.builder.strategy.max_degree();
        let stage = self.builder.descent.progress.stage("write", rows.count() as u64);
        let shape = (base.len(), degree);
        let mut file = IndexFile::create(output, description, Fingerprint::of(base), shape, entries)?;
        file.write(bytemuck::cast_slice(degrees))?;
        file.end_section()?;
        for bin in 0..rows.count() {
            let first = bin * nodes_per_bin;
            let nodes = base.len().saturating_sub(first).min(*nodes_per_bin);
            let mut sorted = vec![u32::MAX; nodes * degree];
            rows.read(bin, |piece| {
                for record in piece.chunks_exact(4 + 4 * degree) {
                    let node: u32 = bytemuck::pod_read_unaligned(&record[..4]);
                    let row = &mut sorted[(node as usize - first) * degree..][..degree];
                    bytemuck::cast_slice_mut(row).copy_from_slice(&record[4..]);
                }
            })?;
            file.write(bytemuck::cast_slice(&sorted))?;
            stage.advance(1)?;
        }
        file.commit()
    }
}

/// The result of a thread; its panic goes on here.
fn join<T>(thread: ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// The node nearest to the mean of all, and the entry points of clusters that are furthest from those before them.
fn spread(base: &Vectors, embedding: &Embedding, merged: &Merged) -> Vec<u32> {
    let places: Vec<u32> = (0..merged.entries.len() as u32).collect();
    let candidates = embedding.rows(base, places.len(), |place| merged.entries[place] as usize);
    let mut point = embedding.rows(base, 1, |_| merged.central as usize);
    let mut entries = vec![merged.central];
    let mut least = vec![f32::INFINITY; places.len()];
    let mut distances = vec![0.0; places.len()];
    while entries.len() <= CLUSTER_ENTRIES {
        if let (Rows::F32(rows), Rows::F32(from)) = (candidates.rows(), point.rows()) {
            one_to_many::<SquaredL2, f32>(from.row(0), rows, &places, &mut distances);
        }
        least.iter_mut().zip(&distances).for_each(|(least, &distance)| *least = least.min(distance));
        let furthest = places.iter().rev().max_by(|&&a, &&b| least[a as usize].total_cmp(&least[b as usize]));
        // What is left lies where there are entry points already.
        let Some(&place) = furthest.filter(|&&place| least[place as usize] > 0.0) else { break };
        let entry = merged.entries[place as usize];
        entries.push(entry);
        point = embedding.rows(base, 1, |_| entry as usize);
    }
    entries
}
