//! A build in memory.

use std::sync::Mutex;
use std::time::Instant;

use super::far::far_groups;
use super::graph::{OnDevice, PrunedRows};
use super::kept::{Earlier, KeptRows};
use super::spots::Odd;
use super::{BuildStats, Builder, Layering, LowerGraph, Target, estimate};
use crate::descent::{DescentStats, KnnGraph, sampled};
use crate::index::{Absent, Fingerprint, Index, Layered, PaddedRows};
use crate::memory::check_room;
use crate::parallel::unlocked;
use crate::prune::tree::Tree;
use crate::prune::{Entry, Pruned, reach};
use crate::search::gpu::NodeSearch;
use crate::vectors::Repeated;
use crate::vectors::mean::{common_mean, less_mean};
use crate::vectors::space::Space;
use crate::{DataShape, Error, IdSet, Metric, Result, Vectors};

/// Nodes nearest to a lone node that it has edges to.
const NEAREST_OF_LONE: usize = 16;

/// Share of the check of values in the time of a build, for progress.
const CHECK: f64 = 0.01;

/// An index and its statistics.
pub(super) struct Built {
    pub index: Index,
    pub stats: BuildStats,
}

/// The graph of a cluster.
pub(crate) struct BuiltCluster {
    pub pruned: Pruned<PrunedRows>,
    /// Rows far from all others, ascending.
    pub lone: Vec<u32>,
    pub descent: DescentStats,
}

/// Base rows split by their part in the graph: its nodes, ascending, and the absent rows.
struct NodeRows {
    rows: Vec<u32>,
    absent: Absent,
}

/// A pruned graph whose nodes may not all be found yet.
pub(super) struct Unfinished {
    pub pruned: Pruned,
    /// Nodes that searches for them must find.
    pub lone: Vec<u32>,
    /// Nodes in groups far from others.
    pub remote: Vec<u32>,
    pub on_device: Option<OnDevice>,
}

/// What a build begins with beside its base.
pub(super) enum Given<'a> {
    /// Nothing: it makes a k-NN graph.
    Nothing,
    /// The k-NN graph.
    Graph(&'a KnnGraph),
    /// Indexes of parts of the base, or of an earlier state of it.
    Index(Earlier<'a>),
    /// The rows that such indexes leave to the nodes.
    Rows(Box<KeptRows>),
}

impl<'a> Given<'a> {
    /// The k-NN graph, if that is given.
    fn graph(&self) -> Option<&'a KnnGraph> {
        if let Self::Graph(graph) = self { Some(graph) } else { None }
    }
}

impl NodeRows {
    /// The rows at the places `unique` among `chosen` rows, where the rows repeated in `absent` are
    /// places too; none if all rows are nodes.
    fn new(chosen: Option<Vec<u32>>, unique: Option<Vec<u32>>, absent: Absent) -> Option<Self> {
        let Some(chosen) = chosen else { return unique.map(|rows| Self { rows, absent }) };
        let Some(unique) = unique else { return Some(Self { rows: chosen, absent }) };
        let rows = unique.into_iter().map(|place| chosen[place as usize]).collect();
        Some(Self { rows, absent: Absent { repeated: absent.repeated.renamed(&chosen), ..absent } })
    }

    /// The node of each of `count` rows of the base; none (`u32::MAX`) if it is left out.
    fn places(&self, count: usize) -> Vec<u32> {
        self.absent.repeated.places(&self.rows, count)
    }

    /// The index of the nodes as one of `base`.
    fn extend(self, Built { index, mut stats }: Built, base: &Vectors) -> Result<Built> {
        let places = self.places(base.len());
        let Self { rows, absent } = self;
        stats.repeated = absent.repeated.len() as u64;
        let index = index.expanded(base, &rows, &places, absent)?;
        stats.resident = stats.resident.map(|there| there.expanded(&index, &places)).transpose()?.flatten();
        Ok(Built { index, stats })
    }
}

impl Builder {
    /// Builds the index of `base`. On a GPU the k-NN graph stays there until it has been pruned.
    ///
    /// If at least one row in 100 repeats an earlier row, the graph is built over one row of each
    /// group of equal rows, and searches return the others with it; see [`Index::repeated`].
    ///
    /// # Errors
    /// As [`Descent::build`](crate::Descent::build); or if a parameter of the strategy is out of
    /// its range.
    pub fn build(&self, base: &Vectors) -> Result<Index> {
        Ok(self.build_with_stats(base, None)?.0)
    }

    /// Builds the index of `base` from a given k-NN graph.
    ///
    /// # Errors
    /// If the graph is not one of `base` under this builder's metric, a parameter of the strategy
    /// is out of its range, or the work is cancelled.
    pub fn build_from(&self, base: &Vectors, graph: &KnnGraph) -> Result<Index> {
        Ok(self.build_with_stats(base, Some(graph))?.0)
    }

    /// Builds the index of `base`, from `graph` if given, and returns it with its statistics.
    ///
    /// # Errors
    /// As [`build`](Self::build) and [`build_from`](Self::build_from).
    pub fn build_with_stats(&self, base: &Vectors, graph: Option<&KnnGraph>) -> Result<(Index, BuildStats)> {
        let Built { index, stats } = self.build_any(base, graph.map_or(Given::Nothing, Given::Graph))?;
        Ok((index, stats))
    }

    /// As [`build_with_stats`](Self::build_with_stats). The nodes of the graph are chosen rows of
    /// the base, each of a group of equal rows once; less their mean, if they have a common
    /// direction; and codes of these, if asked for. The index of the nodes becomes one of the base
    /// at the end.
    pub(super) fn build_any(&self, base: &Vectors, given: Given<'_>) -> Result<Built> {
        self.strategy.check()?;
        let graph = given.graph();
        if graph.is_some() {
            self.check_full("from a given k-NN graph")?;
        }
        let (chosen, left_out) = self.chosen_rows(base, graph.is_some())?.unzip();
        let chosen_vectors;
        let vectors = match &chosen {
            // Not a clone: the base remembers what this build finds in it.
            None => base,
            Some(rows) => {
                chosen_vectors = base.only(rows)?;
                &chosen_vectors
            }
        };
        let k = self.k_for(vectors)?;
        let k = graph.map_or(Ok(k), |graph| self.check_graph(base, graph))?;
        self.strategy.check_list(k, vectors.len())?;
        let [checking, building] = self.descent.progress.parts([CHECK, 1.0 - CHECK]);
        let metric = self.descent.metric;
        let space = Space::new(vectors, metric, &checking)?;

        self.check_queries(&space)?;
        let began = Instant::now();
        let repeated = self.dedupe.then(|| Repeated::find(vectors, &space, &checking)).transpose()?;
        let repeated = repeated.filter(|repeated| repeated.is_worth_grouping(vectors.len()));
        let grouping = began.elapsed().as_secs_f64();
        let unique = repeated.as_ref().map(|repeated| repeated.others(0..vectors.len()));
        let unique_vectors;
        let (vectors, space) = match &unique {
            None => (vectors, space),
            Some(unique) => {
                let repeated = vectors.len() - unique.len();
                tracing::info!(rows = unique.len(), repeated, "equal rows are one node of the graph");
                if graph.is_some() {
                    tracing::warn!(
                        "equal rows fill the lists of the given k-NN graph: it is built anew without them"
                    );
                }
                drop(space);
                unique_vectors = vectors.only(unique)?;
                (&unique_vectors, Space::new(&unique_vectors, metric, &checking.unwatched())?)
            }
        };
        let k = k.min(vectors.len() - 1);

        // A sample of lists is one of all rows.
        let sample = if chosen.is_none() && unique.is_none() { self.sample } else { 0 };
        let builder = self.clone().among(None).dedupe(false).sample(sample);
        let builder = builder.keep_on_device(self.keep_on_device && chosen.is_none());
        let given = if unique.is_some() && graph.is_some() { Given::Nothing } else { given };
        let builder = if given.graph().is_none() && k > 0 { builder.knn(k) } else { builder };
        let absent = Absent { repeated: repeated.unwrap_or_default(), left_out };
        let nodes = NodeRows::new(chosen, unique, absent);
        let given = match given {
            Given::Index(earlier) => {
                let every_row = || (0..base.len() as u32).collect();
                let places = nodes.as_ref().map_or_else(every_row, |nodes| nodes.places(base.len()));
                Given::Rows(Box::new(earlier.kept(&places, vectors.len(), self.strategy.degree)?))
            }
            given => given,
        };
        let mut built = builder.progress(building).build_nodes(vectors, space, k, given)?;
        built.stats.grouping = grouping;
        match nodes {
            Some(nodes) => nodes.extend(built, base),
            None => Ok(built),
        }
    }

    /// Builds the index of `base`, whose space this is, with a node for every row, from lists of
    /// `k` or from what is `given`: of rows less their mean, if they have a common direction, and
    /// of codes, if asked for; in parts, if many rows have nearly one direction, or rows lie in
    /// groups far apart.
    fn build_nodes(&self, base: &Vectors, space: Space<'_>, k: usize, given: Given<'_>) -> Result<Built> {
        let (metric, unwatched) = (self.descent.metric, self.descent.progress.unwatched());
        // Codes are those of rows that are moved already. A layer has no parts.
        let is_layer = self.layering == Layering::Always;
        let may_part = self.of_vectors.is_none() && !is_layer;
        if may_part
            && given.graph().is_none()
            && let Some(spots) = self.spots_of_directions(&space)?
        {
            drop(space);
            let stats = BuildStats { knn: k, ..BuildStats::default() };
            return self.build_in_parts(base, &spots, stats);
        }
        let mut groups = if may_part { far_groups(base, metric, &unwatched)? } else { None };
        let mut mean = match (&groups, &self.of_vectors) {
            (None, None) => common_mean(base, metric)?,
            _ => None,
        };
        let is_ranked = given.graph().is_some() && (groups.take().is_some() || mean.take().is_some());
        if is_ranked && !is_layer {
            tracing::warn!(
                "rows have a common direction, by which the given k-NN graph ranks them all: build without it"
            );
        }
        if let Some(groups) = groups {
            return self.build_groups(base, groups, k);
        }
        let moved = mean.as_ref().map(|mean| less_mean(base, mean)).transpose()?;
        let (rows, space, builder) = match &moved {
            None => (base, space, self.clone()),
            Some(moved) => {
                drop(space);
                let builder = self.clone().sample(0).keep_on_device(false);
                (moved, Space::new(moved, metric, &unwatched)?, builder)
            }
        };
        let built = match self.compression {
            None => builder.build_every_row(rows, &space, k, given)?,
            Some(compression) => builder.build_on_codes(rows, &space, compression, k)?,
        };
        let is_of_base = moved.is_none() && self.compression.is_none();
        if is_of_base { Ok(built) } else { Ok(Built { index: built.index.over(base)?, ..built }) }
    }

    /// Builds the index of `base`, whose space this is, with a node for every row, from lists of
    /// `k` or from what is `given`.
    fn build_every_row(
        &self,
        base: &Vectors,
        space: &Space<'_>,
        k: usize,
        given: Given<'_>,
    ) -> Result<Built> {
        let graph = match given {
            Given::Rows(kept) => match self.changed(base, space, *kept, k)? {
                Some(built) => return Ok(built),
                None => None,
            },
            given => given.graph(),
        };
        let nodes = sampled(base.len(), self.sample, self.descent.seed);
        let gpus = self.gpus_with_room(base, space, k, graph.is_some())?;
        if gpus.is_empty() {
            let data = DataShape::new(base.len(), base.dim(), base.element_type())?;
            let planned = self.plan_of(&data, k, Target::cpu()).peak_host_bytes();
            let made = Space::plan(base.len(), base.dim(), data.element, self.descent.metric).bytes();
            check_room(planned.saturating_sub(made))?;
        }
        if graph.is_none()
            && let Some(spots) = self.spots_of_products(space)?
        {
            let stats = BuildStats { knn: k, ..BuildStats::default() };
            return self.build_in_parts(base, &spots, stats);
        }
        let weights = self.weights(base, k, !gpus.is_empty(), graph.is_some())?;
        let [descending, pruning, finishing] =
            self.descent.progress.parts(weights).map(|part| self.clone().progress(part));
        let graph = descending.graph_on(space, k, gpus, graph)?;
        let descent = graph.stats().clone();
        let Odd { spots, lone, remote } = graph.odd_rows(space)?;
        if let Some(spots) = spots {
            drop(graph);
            // No sample: the lists are not those of the index.
            let stats = BuildStats { knn: k, descent, ..BuildStats::default() };
            return pruning.build_in_parts(base, &spots, stats);
        }
        let sample = graph.sample(&nodes)?;
        let (pruned, on_device) = pruning.prune(space, graph)?;
        let stats = BuildStats { knn: k, descent, sample, ..BuildStats::default() };
        let mut graph = Unfinished { pruned, lone, remote, on_device };
        pruning.join_lone(space, &mut graph)?;
        finishing.finished(base, space, graph, stats)
    }

    /// Gives each lone node edges to the nodes nearest to it. They all lie in one direction from
    /// it, so a filter keeps the first of them, and a k-NN graph finds few: they are the farthest
    /// nodes of the data in that direction. Rows that are on a device alone are left as they are.
    fn join_lone(&self, space: &Space<'_>, graph: &mut Unfinished) -> Result<()> {
        let Unfinished { pruned: Pruned { rows, .. }, lone, on_device, .. } = graph;
        let k = NEAREST_OF_LONE.min(rows.stride() / 2);
        if lone.is_empty() || k == 0 || !space.vectors().is_readable() {
            return Ok(());
        }
        // Codes hold lone rows less well than others.
        let of_vectors = self.space_of_vectors(space)?;
        let space = of_vectors.as_ref().unwrap_or(space);
        let keys = self.exact(k, self.descent.device).neighbors_of(space, lone)?;
        for (&node, near) in lone.iter().zip(keys.chunks_exact(k)) {
            let near: Vec<u32> = near.iter().map(|&key| key as u32).collect();
            let others = rows.row(node).iter().filter(|id| !near.contains(id));
            let row: Vec<u32> = near.iter().chain(others).copied().take(rows.stride()).collect();
            rows.set(node, &row);
        }
        on_device.as_mut().map_or(Ok(()), |on| on.edges.upload(rows.padded()))
    }

    /// Builds the pruned graph of a cluster, with a node for every row, and finds the rows that are
    /// far from all others. The graph has no layers, and unreachable nodes are not attached: the
    /// merge keeps the nearest of both lists of a node, so edges that attach a node would be lost
    /// (docs/outofcore.md).
    pub(crate) fn build_cluster(&self, base: &Vectors) -> Result<BuiltCluster> {
        self.strategy.check()?;
        let k = self.k_for(base)?;
        self.strategy.check_list(k, base.len())?;
        let space = Space::new(base, self.descent.metric, &self.descent.progress)?;
        let gpu = self.gpu_with_room(base, &space, k, false)?;
        let graph = self.graph_on(&space, k, Vec::from_iter(gpu), None)?;
        let (descent, lone) = (graph.stats().clone(), graph.lone_rows(&space)?);
        Ok(BuiltCluster { pruned: self.prune_there(&space, graph)?, lone, descent })
    }

    /// Estimated times of descent, of pruning, and of layers and reach.
    fn weights(&self, base: &Vectors, k: usize, on_gpu: bool, is_given: bool) -> Result<[f64; 3]> {
        let data = DataShape::new(base.len(), base.dim(), base.element_type())?;
        let target = if on_gpu { Target::cuda() } else { Target::cpu() };
        let seconds = estimate::seconds(&self.resolve(&data, k, target));
        let of = |name: &str| seconds.iter().find(|stage| stage.0 == name).map_or(0.0, |stage| stage.1);
        Ok([if is_given { 0.0 } else { of("descent") }, of("prune"), of("reach")])
    }

    /// The builder of an index over `rows` of `all` rows of a base, from lists of at most `k`.
    pub(super) fn of_part(&self, k: usize, all: usize, rows: usize) -> Self {
        let descent = self.descent.clone().or_knn(k, all).of_part(rows);
        let descent = descent.progress(self.descent.progress.clone());
        // No sample: its lists would lack the other rows.
        self.clone().descent(descent).dedupe(false).sample(0).keep_on_device(false)
    }

    /// The chosen rows of `base`, ascending, and the set of the others; none if all are.
    fn chosen_rows(&self, base: &Vectors, is_given: bool) -> Result<Option<(Vec<u32>, IdSet)>> {
        let Some(among) = &self.among else { return Ok(None) };
        among.check("rows", base)?;
        if among.len() == base.len() {
            return Ok(None);
        }
        if among.is_empty() {
            return Err(Error::mismatch("rows", "an empty set", "at least one row to build over"));
        }
        if is_given {
            return Err(Error::argument("k-NN graph", "one of all rows", "none if rows are left out"));
        }
        Ok(Some((among.iter().collect(), among.complement())))
    }

    /// Checks, for a build out of core, that no rows of `rows` are left out, and that it is one on
    /// the vectors themselves.
    pub(crate) fn check_out_of_core(&self, rows: usize) -> Result<()> {
        self.check_full("out of core")?;
        match &self.among {
            Some(among) if among.len() < rows => {
                let expected = "all: out of core no rows can be left out";
                Err(Error::mismatch("rows", format_args!("{} of {rows}", among.len()), expected))
            }
            _ => Ok(()),
        }
    }

    /// Checks that `graph` belongs to `base` and this metric; returns its neighbours per node.
    fn check_graph(&self, base: &Vectors, graph: &KnnGraph) -> Result<usize> {
        if graph.len() != base.len() {
            let expected = format!("{} rows as {} has", base.len(), base.describe());
            return Err(Error::mismatch("k-NN graph", format_args!("{} nodes", graph.len()), expected));
        }
        if graph.metric() != self.descent.metric {
            return Err(Error::mismatch("k-NN graph", graph.metric(), self.descent.metric));
        }
        Ok(graph.k())
    }

    /// The index of a pruned graph of `base`. `stats` are those of its k-NN graph.
    pub(super) fn finished(
        &self,
        base: &Vectors,
        space: &Space<'_>,
        mut graph: Unfinished,
        mut stats: BuildStats,
    ) -> Result<Built> {
        let added = self.fit_unfinished(space, &mut graph, &mut stats)?;
        let (layered, search) = self.finish(base, space, &mut graph, &added)?;
        let Pruned { rows, stats: prune, .. } = graph.pruned;
        stats.prune = prune;
        let (degrees, neighbors) = rows.into_parts();
        let rows = PaddedRows { max_degree: self.strategy.degree, degrees, neighbors };
        let mut description = self.description(stats.knn);
        let (join, refine) = stats.descent.iterations;
        description.parameters.insert("iterations".to_owned(), format!("{join},{refine}"));
        let base = Fingerprint::compute(base)?;
        let Layered { entries, layers, growth } = layered;
        let element = space.vectors().element_type();
        let index = Index::new(description, base, rows, entries).with_layers(layers, growth);
        stats.resident = search.map(|search| search.into_resident(&index, element)).transpose()?;
        Ok(Built { index, stats })
    }

    /// Builds the layers that searches need, then attaches the nodes that are not reachable from
    /// the entry points, or from the lowest layer if the kind does not guarantee more. Searches for
    /// the `lone` nodes must find them. Searches enter at the `added` nodes, for queries, too.
    /// Returns the start of searches, and the graph on the device if it is to stay there.
    fn finish(
        &self,
        base: &Vectors,
        space: &Space<'_>,
        graph: &mut Unfinished,
        added: &[u32],
    ) -> Result<(Layered, Option<NodeSearch>)> {
        let Unfinished { pruned: Pruned { rows, entries, stats }, lone, remote, on_device } = graph;
        let is_readable = space.vectors().is_readable();
        // A thousand searches take a device as long as one. The emulator takes its time.
        let search = on_device.take_if(|on| !is_readable || self.is_layered() && on.gpu.takes_ptx());
        let degree = self.strategy.degree;
        let node_search = |OnDevice { gpu, base, edges }: OnDevice| NodeSearch::new(gpu, base, edges, degree);
        let search = search.map(node_search).transpose()?;
        let began = Instant::now();
        let stage = self.descent.progress.stage("reach", rows.len() as u64);
        let entries = std::mem::take(entries);
        // Under inner product, unreached nodes are short rows, which no query is for.
        let tells = self.is_layered() && space.metric() != Metric::InnerProduct;
        let tree = tells.then(|| Tree::new(rows, &entries, search.as_ref())).transpose()?;
        remote.extend(tree.iter().flat_map(Tree::unreached));
        let search = search.map(Mutex::new);
        let mut layered = if self.is_layered() {
            let (graph, repeated, remote) = (&*rows, &Repeated::default(), &remote[..]);
            let (most, on_device) = (usize::MAX, search.as_ref());
            let below = LowerGraph { base, space, graph, repeated, remote, most, on_device };
            self.layers_over(&below, entries)?
        } else {
            Layered::at(entries)
        };
        layered.enter_at(added);
        stats.layers = began.elapsed().as_secs_f64();
        let began = Instant::now();
        let mut search = search.map(unlocked);
        let Layered { entries, layers, .. } = &layered;
        let from = match (self.strategy.connect, layers.first(), self.strategy.entry) {
            (false, Some(lowest), _) => lowest.nodes(),
            // Formats of other systems hold one entry point for these kinds.
            (true, _, Entry::Medoid) => &entries[..1],
            _ => entries,
        };
        let tree = tree.filter(|_| layers.is_empty() && added.is_empty());
        let tree = tree.map_or_else(|| Tree::new(rows, from, search.as_ref()), Ok)?;
        let progress = &self.descent.progress;
        stats.attached = reach::connect(space, rows, from, &tree, search.as_mut(), progress)? as u64;
        stats.attached += reach::find_lone(space, rows, lone, layered.start(), from, progress)? as u64;
        let mut kept = match search {
            _ if !self.keep_on_device => None,
            None => on_device.take().map(node_search).transpose()?,
            search => search,
        };
        // Rows outside host memory have followed the changes.
        if let Some(kept) = kept.as_mut().filter(|_| is_readable && stats.attached > 0) {
            kept.set_rows(rows.padded())?;
        }
        stage.advance(rows.len() as u64)?;
        stats.connect = began.elapsed().as_secs_f64();
        stats.seconds += stats.layers + stats.connect;
        stats.log();
        Ok((layered, kept))
    }
}
