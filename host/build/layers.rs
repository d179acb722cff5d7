//! Layers above a graph, and the test that decides whether its searches need them.

use std::sync::{Mutex, MutexGuard};
use std::time::Instant;

use tagore_device::key::{self, Key};

use super::growth::growth;
use super::layer_nodes::{Rounds, nodes_above};
use super::monotonic;
use super::{Builder, Layering};
use crate::descent::{DescentStats, KnnGraph, sampled};
use crate::gpu::Gpu;
use crate::index::{Graph, Layer, Layered, Start};
use crate::loops::{map_with, rows_mut, try_map_with};
use crate::parallel::locked;
use crate::search::beam::{BeamLimits, BeamSearch, BeamTask};
use crate::search::exact::ExactSearch;
use crate::search::gpu::NodeSearch;
use crate::vectors::Repeated;
use crate::vectors::space::Space;
use crate::{Device, Metric, Progress, Result, Strategy, Vectors};

/// Nodes of the test: a search for each shows whether searches reach the right part of the graph.
/// As many of the remote nodes at most.
const SAMPLE: usize = 1024;

/// Test searches that may go astray before layers are built: one in 250.
const MAX_LOST_SEARCHES: usize = SAMPLE / 250;

/// Test searches for remote nodes that may go astray before layers are built: one in 50, and
/// [`MAX_LOST_SEARCHES`] in any case. Most single nodes that no path reaches lie amid others, where
/// searches end near them.
const REMOTE_PER_LOST: usize = 50;

/// Test searches that may go astray from a layer before one of more nodes is built: one in 125.
/// More nodes take longer to build, and searches more distances.
const MAX_LOST_FROM_LAYER: usize = SAMPLE / 125;

/// Beam of the test searches: narrow, since the entry points matter most for a narrow beam.
pub(super) const BEAM: usize = 32;

/// Beams tried for a layer. A search that goes astray in a layer does so with any beam below.
pub(super) const LAYER_BEAMS: [usize; 11] = [2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64];

/// One test search in a thousand.
const LOST_TOLERANCE: usize = SAMPLE / 1000;

/// The test of a layer tries this many wider beams after the best one.
const MAX_TRIES_WITHOUT_GAIN: usize = 4;

/// Degree of layers that are not monotonic graphs, and neighbours per node of the k-NN graphs they
/// are pruned from. A step of a larger degree and a narrower beam takes fewer distances where the
/// nodes are hard to search, as one node of each of thousands of clusters is.
pub(super) const DEGREE: usize = 40;
pub(super) const KNN: usize = 64;

/// Minimum number of nodes of a graph with layers: the entry points alone cover a smaller one.
pub(super) const MIN_NODES: usize = 64;

/// The graph below a new layer.
pub(crate) struct LowerGraph<'a, G> {
    pub base: &'a Vectors,
    /// The base as a space; only list distances are used.
    pub space: &'a Space<'a>,
    pub graph: &'a G,
    /// Repeated rows of the base, which are not nodes of the graph.
    pub repeated: &'a Repeated,
    /// Nodes that no path from the entry points reaches, and some in groups far from all others: a
    /// random sample misses those of small groups. None if they are not known.
    pub remote: &'a [u32],
    /// Maximum number of nodes of the lowest layer.
    pub most: usize,
    /// Searches of the graph on the device that holds the base.
    pub on_device: Option<&'a Mutex<NodeSearch>>,
}

impl<G> LowerGraph<'_, G> {
    /// The nodes of the graph.
    pub(super) fn nodes(&self) -> usize {
        self.base.len() - self.repeated.len()
    }
}

/// The outcome of a test.
#[derive(Clone, Copy)]
struct Outcome {
    /// Searches that went astray.
    lost: usize,
    /// Those of them for remote nodes.
    lost_remote: usize,
    /// Distances that all searches computed.
    distances: u64,
    /// The growth of list distances, if the nodes found tell it.
    growth: Option<f32>,
}

impl Outcome {
    /// Whether the outcome `with` layers is better than this one without: half as many lost
    /// searches, or no more of them and fewer distances.
    fn is_improved_by(&self, with: &Self) -> bool {
        2 * with.lost <= self.lost || with.lost <= self.lost && with.distances < self.distances
    }
}

/// The place of a layer's beam among `tried`, the outcomes of beams from the narrowest on: the
/// narrowest that loses at most [`LOST_TOLERANCE`] searches more than the best, or a wider one that
/// loses fewer and takes at most 1 % more distances.
fn place_of_beam(tried: &[Outcome]) -> usize {
    let fewest = tried.iter().map(|outcome| outcome.lost).min().unwrap_or(0);
    let first = tried.iter().position(|outcome| outcome.lost <= fewest + LOST_TOLERANCE).unwrap_or(0);
    let most = tried[first].distances + tried[first].distances / 100;
    let places = (first..tried.len()).filter(|&place| tried[place].distances <= most);
    places.min_by_key(|&place| tried[place].lost).unwrap_or(first)
}

/// Whether a wider beam may lose fewer searches than those `tried`, at least one, from the
/// narrowest on: not after [`MAX_TRIES_WITHOUT_GAIN`] that lost no fewer.
fn may_find_more(tried: &[Outcome]) -> bool {
    let fewest = tried.iter().map(|outcome| outcome.lost).min().unwrap_or(0);
    let best = tried.iter().position(|outcome| outcome.lost == fewest).unwrap_or(0);
    fewest > 0 && tried.len() - 1 - best < MAX_TRIES_WITHOUT_GAIN
}

/// Searches for a sample of the nodes of a graph. A search goes astray if its best result is
/// farther than the median neighbour of the node, for a remote node than the first quarter of them,
/// since a small group has few: it ended in another part of the data.
struct Test<'a, G> {
    below: &'a LowerGraph<'a, G>,
    /// Nodes that have neighbours: random ones, then remote ones.
    nodes: Vec<u32>,
    /// The number of remote ones.
    remote: usize,
    /// The distance beyond which the search for each node is astray.
    limits: Vec<f32>,
    /// Norms of the random nodes, under inner product alone.
    norms: Vec<f32>,
    progress: &'a Progress,
}

impl<'a, G: Graph> Test<'a, G> {
    fn new(below: &'a LowerGraph<'a, G>, seed: u64, progress: &'a Progress) -> Result<Self> {
        let mut nodes = sampled(below.nodes(), SAMPLE, seed);
        nodes.iter_mut().for_each(|node| *node = below.repeated.nth_unique(*node));
        let has_neighbors = |&node: &u32| !below.graph.neighbors(node).is_empty();
        nodes.retain(has_neighbors);
        let random = nodes.len();
        let remote = sampled(below.remote.len(), SAMPLE, seed).into_iter();
        nodes.extend(remote.map(|place| below.remote[place as usize]).filter(has_neighbors));
        let (amid, remote) = nodes.split_at(random);
        let limits = [below.quantiles(amid, 2)?, below.quantiles(remote, 4)?].concat();
        let (norms, remote) = (below.norms(amid)?, remote.len());
        Ok(Self { below, nodes, remote, limits, norms, progress })
    }

    /// Searches from `start`; on a device, from where it was told to start.
    fn search_from(&self, start: Start<'_>) -> Result<Outcome> {
        let (found, distances) = match self.below.searches() {
            Some(mut search) => search.nearest(self.below.space, &self.nodes, BEAM, self.progress)?,
            None => self.find(start)?,
        };
        let distance = |key: Key| if key == key::NONE { f32::INFINITY } else { key::distance(key) };
        let nearest = found.chunks_exact(BEAM).map(|beam| distance(beam[0]));
        let is_lost: Vec<bool> = nearest.zip(&self.limits).map(|(nearest, &limit)| nearest > limit).collect();
        let count = |searches: &[bool]| searches.iter().filter(|&&is_lost| is_lost).count();
        let random = self.nodes.len() - self.remote;
        let lost_remote = count(&is_lost[random..]);
        let (nodes, beams) = (&self.nodes[..random], found.chunks_exact(BEAM).take(random));
        let growth = growth(self.below.space.metric(), nodes, &self.norms, beams);
        Ok(Outcome { lost: count(&is_lost), lost_remote, distances, growth })
    }

    /// Whether the `outcome` without layers shows that searches need none.
    fn is_passed_by(&self, outcome: &Outcome) -> bool {
        let most = MAX_LOST_SEARCHES.max(self.remote / REMOTE_PER_LOST);
        outcome.lost - outcome.lost_remote <= MAX_LOST_SEARCHES && outcome.lost_remote <= most
    }

    /// Searches from `entries`.
    fn score_unlayered(&self, entries: &[u32]) -> Result<Outcome> {
        let start = Start::at(entries);
        self.below.start(start)?;
        self.search_from(start)
    }

    /// Sets the beam of the lowest of `layers`, entered at `entries`; returns the outcome with it.
    fn tune_beam(&self, layers: &mut [Layer], entries: &[u32]) -> Result<Outcome> {
        self.below.start(Start { layers, ..Start::at(entries) })?;
        let mut tried: Vec<Outcome> = Vec::with_capacity(LAYER_BEAMS.len());
        for beam in LAYER_BEAMS {
            layers[0].set_beam(beam);
            if let Some(mut search) = self.below.searches() {
                search.set_beam(beam);
            }
            let outcome = self.search_from(Start { layers, ..Start::at(entries) })?;
            tried.push(outcome);
            if !may_find_more(&tried) {
                break;
            }
        }
        let place = place_of_beam(&tried);
        layers[0].set_beam(LAYER_BEAMS[place]);
        Ok(tried[place])
    }

    /// The beam that a search from `start` on the CPU finds for each node, and the distances of all
    /// searches.
    fn find(&self, start: Start<'_>) -> Result<(Vec<Key>, u64)> {
        let &LowerGraph { space, graph, .. } = self.below;
        let limits = BeamLimits::all_of(BEAM);
        let mut found = vec![key::NONE; self.nodes.len() * BEAM];
        let computed = try_map_with(
            (rows_mut(&mut found, BEAM), &self.nodes[..]),
            || BeamSearch::new(space.len()),
            |search, (beam, &node)| {
                self.progress.check()?;
                let before = search.computed();
                let task = BeamTask { query: space.query(node), start, limits, among: None };
                search.run(space, graph, task, |_| ());
                beam.iter_mut().zip(search.found()).for_each(|(to, key)| *to = key);
                Ok(search.computed() - before)
            },
        )?;
        Ok((found, computed.into_iter().sum()))
    }
}

impl<G: Graph> LowerGraph<'_, G> {
    /// The searches on a device, if there are any.
    pub(super) fn searches(&self) -> Option<MutexGuard<'_, NodeSearch>> {
        self.on_device.map(locked)
    }

    /// The GPU of these searches, if there is one: the emulator takes hours for a layer.
    pub(super) fn gpu(&self) -> Option<Gpu> {
        self.searches().map(|search| search.gpu().clone()).filter(Gpu::takes_ptx)
    }

    /// Begins later searches on a device at `start`.
    fn start(&self, start: Start<'_>) -> Result<()> {
        self.searches().map_or(Ok(()), |mut search| search.start(self.space.len(), start))
    }

    /// The norms of `nodes` under inner product; none under other metrics.
    fn norms(&self, nodes: &[u32]) -> Result<Vec<f32>> {
        let space = self.space;
        if space.metric() != Metric::InnerProduct {
            return Ok(Vec::new());
        }
        if space.vectors().is_readable() {
            return Ok(nodes.iter().map(|&node| space.norm(space.query(node))).collect());
        }
        let part = space.part(nodes)?;
        Ok((0..nodes.len() as u32).map(|place| part.norm(part.query(place))).collect())
    }

    /// The distance from each of `nodes` within which one in `share` of its neighbours lie.
    fn quantiles(&self, nodes: &[u32], share: usize) -> Result<Vec<f32>> {
        let &LowerGraph { space, graph, .. } = self;
        if space.vectors().is_readable() {
            let distance = |distances: &mut Vec<f32>, &node: &u32| {
                space.list_distances(space.query(node), graph.neighbors(node), distances);
                quantile(distances, share)
            };
            return Ok(map_with(nodes, Vec::new, distance));
        }
        let rows: Vec<u32> =
            nodes.iter().flat_map(|&node| [&[node], graph.neighbors(node)].concat()).collect();
        let part = space.part(&rows)?;
        let (mut first, mut distances) = (0, Vec::new());
        let distance = |&node: &u32| {
            let end = first + 1 + graph.neighbors(node).len() as u32;
            let places: Vec<u32> = (first + 1..end).collect();
            part.list_distances(part.query(first), &places, &mut distances);
            first = end;
            quantile(&mut distances, share)
        };
        Ok(nodes.iter().map(distance).collect())
    }
}

/// The distance within which one in `share` of at least one lie: the median, for 2.
fn quantile(distances: &mut [f32], share: usize) -> f32 {
    let place = distances.len() / share;
    *distances.select_nth_unstable_by(place, f32::total_cmp).1
}

/// Logs the seconds of a stage that began at `began`, for a layer of `nodes` nodes.
fn log_stage(stage: &str, nodes: usize, began: Instant) {
    tracing::debug!(stage, nodes, seconds = began.elapsed().as_secs_f64(), "a stage ends");
}

/// The strategy of a layer of `nodes` nodes.
pub(super) fn strategy(nodes: usize) -> Strategy {
    Strategy::cagra().degree(DEGREE.min(nodes - 1))
}

impl Builder {
    /// Builds the layers that searches of a graph need, above its `entries`; none if they need
    /// none.
    pub(crate) fn layers_over(
        &self,
        below: &LowerGraph<'_, impl Graph>,
        entries: Vec<u32>,
    ) -> Result<Layered> {
        if below.nodes() < MIN_NODES {
            return Ok(Layered::at(entries));
        }
        let test = Test::new(below, self.descent.seed, &self.descent.progress)?;
        let testing = Instant::now();
        let without = test.score_unlayered(&entries)?;
        log_stage("test without layers", below.nodes(), testing);
        let unlayered = Layered { growth: without.growth, ..Layered::at(entries) };
        // Layers are stacked up to a small one: hnswlib and FAISS enter at one node.
        let is_enough = test.is_passed_by(&without) && self.layering != Layering::Always;
        if is_enough || self.layering == Layering::GrowthOnly {
            return Ok(unlayered);
        }
        let mut best: Option<(Outcome, Layered)> = None;
        // Under inner product random nodes lose fewer of the test's searches, and more of others.
        let random = (self.descent.metric != Metric::InnerProduct).then_some(Rounds::Random);
        for rounds in [Rounds::First, Rounds::All].into_iter().chain(random) {
            let Some((mut layers, highest)) = self.layers_above(below, rounds)? else { break };
            let testing = Instant::now();
            let with = test.tune_beam(&mut layers, &highest)?;
            log_stage("layer beams", layers[0].nodes().len(), testing);
            let (nodes, beam) = (layers[0].nodes().len(), layers[0].beam());
            tracing::info!(nodes, beam, without = without.lost, with = with.lost, "searches begin in layers");
            if best.as_ref().is_none_or(|(best, _)| with.lost < best.lost) {
                best = Some((with, Layered { entries: highest, layers, growth: with.growth }));
            }
            if with.lost <= MAX_LOST_FROM_LAYER {
                break;
            }
        }
        let pays =
            |(with, _): &(Outcome, _)| self.layering == Layering::Always || without.is_improved_by(with);
        Ok(best.filter(pays).map_or(unlayered, |(_, layered)| layered))
    }

    /// The layers above a graph, lowest first, and the entry points of the highest; none if they
    /// would have fewer than two nodes.
    fn layers_above(
        &self,
        below: &LowerGraph<'_, impl Graph>,
        rounds: Rounds,
    ) -> Result<Option<(Vec<Layer>, Vec<u32>)>> {
        let choosing = Instant::now();
        let nodes = nodes_above(below, rounds, self.descent.seed, &self.descent.progress)?;
        log_stage("layer nodes", nodes.len(), choosing);
        if nodes.len() < 2 {
            return Ok(None);
        }
        let vectors = below.base.select(&nodes)?;
        // The base has passed the check of values, so its rows need none.
        vectors.validated(0.0);
        let building = Instant::now();
        let Layered { entries, layers, .. } = self.layer_over(&vectors, below.gpu().as_ref())?;
        log_stage("layer", nodes.len(), building);
        let layers = layers.into_iter().map(|layer| layer.renamed(&nodes)).collect();
        let highest = entries.into_iter().map(|entry| nodes[entry as usize]).collect();
        Ok(Some((layers, highest)))
    }

    /// Builds a layer of all rows, and the layers above it: a monotonic graph for searches with a
    /// narrow beam, on `gpu` if given, else, of few nodes or of too many, a graph pruned from exact
    /// lists. Both are the same on any device.
    fn layer_over(&self, base: &Vectors, gpu: Option<&Gpu>) -> Result<Layered> {
        let n = base.len();
        // Inner products have no triangle inequality, on which the rule rests.
        let is_monotonic = (monotonic::MIN_NODES..=monotonic::max_nodes(base.dim())).contains(&n);
        if is_monotonic && self.descent.metric != Metric::InnerProduct {
            return self.monotonic_over(base, gpu);
        }
        let nodes: Vec<u32> = (0..n as u32).collect();
        let k = KNN.min(n - 1);
        // Exact search takes hours on the emulator.
        let device = if self.descent.device.is_emulated() { Device::Cpu } else { self.descent.device };
        let descent = self.descent.clone().knn(k).device(device);
        let descent = descent.of_part(n);
        let (metric, progress) = (descent.metric, &descent.progress);
        let space = Space::new(base, metric, progress)?;
        let search = ExactSearch::new(k).metric(metric).device(device).progress(progress.clone());
        let keys = search.neighbors_of(&space, &nodes)?;
        let graph = KnnGraph::from_keys(k, metric, n, &keys, DescentStats::default())?;
        let builder = Builder { layering: Layering::Always, ..Self::new(strategy(n)).descent(descent) };
        let index = builder.build_from(base, &graph)?;
        let layer = Layer::over(&index, &nodes, LAYER_BEAMS[0])?;
        let layers = [&[layer], index.layers()].concat();
        Ok(Layered { layers, ..Layered::at(index.entries().to_vec()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome_of(lost: usize, distances: u64) -> Outcome {
        Outcome { lost, lost_remote: 0, distances, growth: None }
    }

    #[test]
    fn a_beam_is_wider_where_it_loses_fewer_at_hardly_more_distances() {
        let place = |tried: &[(usize, u64)]| {
            place_of_beam(
                &tried.iter().map(|&(lost, distances)| outcome_of(lost, distances)).collect::<Vec<_>>(),
            )
        };
        assert_eq!(place(&[(3, 1000)]), 0);
        // One more than the fewest is few enough.
        assert_eq!(place(&[(9, 1000), (2, 1100), (1, 1200)]), 1);
        assert_eq!(place(&[(9, 1000), (2, 1100), (1, 1111)]), 2);
        assert_eq!(place(&[(9, 1000), (2, 1100), (1, 1112)]), 1);
        // As many losses do not widen it.
        assert_eq!(place(&[(1, 1000), (1, 1000), (0, 1010), (0, 900)]), 2);
        assert_eq!(place(&[(5, 1000), (5, 990), (5, 980)]), 0);
    }

    #[test]
    fn wider_beams_are_tried_while_they_may_lose_fewer() {
        let tried =
            |lost: &[usize]| may_find_more(&lost.iter().map(|&lost| outcome_of(lost, 0)).collect::<Vec<_>>());
        assert!(tried(&[9]) && tried(&[9, 9, 9, 9]) && tried(&[9, 8, 9, 9, 9]));
        assert!(!tried(&[9, 9, 9, 9, 9]) && !tried(&[9, 8, 9, 9, 9, 8]));
        assert!(!tried(&[0]) && !tried(&[3, 0]));
    }

    #[test]
    fn layers_stay_if_searches_lose_less_or_compute_less() {
        let without = outcome_of(6, 1000);
        for (lost, distances, stay) in [
            (3, 2000, true),
            (4, 2000, false),
            (4, 999, true),
            (6, 999, true),
            (6, 1000, false),
            (7, 10, false),
        ] {
            assert_eq!(without.is_improved_by(&outcome_of(lost, distances)), stay, "{lost}, {distances}");
        }
    }
}
