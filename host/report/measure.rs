//! Recall and throughput of an index, and recall of its k-NN graph, over a sample.
//!
//! Rows of the base as queries flatter an index, whose edges lead to each of them. So the searches
//! that tell recall leave their row out: they neither enter it nor follow its edges. No kernel does
//! that, so they run on the CPU. Throughput is that of searches on the device of the index, which
//! run meanwhile.
//!
//! The nodes whose k-NN lists are judged are the queries too, so one exact search is the truth of
//! both.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use super::self_recall::{self, SelfRecall};
use super::{BeamQuality, KnnQuality, SearchQuality, Trapped};
use crate::build::estimate::{self, SEARCHES};
use crate::descent::{KnnSample, sampled};
use crate::eval::KnnTruth;
use crate::held::Held;
use crate::outofcore::Limits;
use crate::search::Engine;
use crate::search::exact::ExactSearch;
use crate::vectors::queries::Queries;
use crate::vectors::shape::device_type;
use crate::vectors::space::Space;
use crate::{
    DataShape, Device, Error, Index, Progress, ResidentIndex, Result, Search, SearchResult, Vectors,
};

/// Neighbours per query.
pub(super) const K: usize = 10;

/// Beams; the report judges the index at the last.
const BEAMS: [usize; 3] = [20, 50, BEAM];
pub(super) const BEAM: usize = 100;

/// The CPU, as an engine names it.
const CPU: &str = "cpu";

/// Settings of a report's measurements.
#[derive(Clone, Debug)]
pub struct Measure {
    /// Number of random nodes to query by index and by exact search; 0 to skip both. The nodes of a
    /// [`KnnSample`] that is not empty take precedence.
    pub nodes: usize,
    /// Seed of the sample.
    pub seed: u64,
    /// Device of exact search.
    pub exact_on: Device,
    /// Device of index searches. They run on the CPU if index and base would take more than half of
    /// the device memory: exact search needs the rest.
    pub search_on: Device,
    /// Limit of device memory, in bytes; default: free memory.
    pub gpu_memory: Option<u64>,
    /// The index and its base on a GPU, where the build has left them: searches there copy neither
    /// again.
    pub resident: Option<ResidentIndex>,
    /// The number of nodes that cannot be reached, if it is known, as after a build in clusters;
    /// else the report counts them.
    pub unreachable: Option<u64>,
    /// Handle for progress and cancellation.
    pub progress: Progress,
}

impl Default for Measure {
    fn default() -> Self {
        Self {
            nodes: 1000,
            seed: 0,
            exact_on: Device::Auto,
            search_on: Device::Auto,
            gpu_memory: None,
            resident: None,
            unreachable: None,
            progress: Progress::silent(),
        }
    }
}

impl Measure {
    /// Sets both devices, with the CPU in place of the emulator, which would take hours for the
    /// same result.
    #[must_use]
    pub fn on(self, device: Device) -> Self {
        let device = if device.is_emulated() { Device::Cpu } else { device };
        Self { exact_on: device, search_on: device, ..self }
    }

    /// The recall of `lists` and of searches, both from one exact search.
    pub(super) fn quality(&self, index: &Index, base: &Vectors, lists: &KnnSample) -> Result<Quality> {
        let [exactly, by_index] = self.progress.parts([index.len() as f64, SEARCHES]);
        let engine = Engine::new(Held::Borrowed(index), Held::Borrowed(base), &self.progress.unwatched())?;
        let bytes = self.device_bytes(index, base, engine.space())?;
        let resident = self.resident.as_ref().filter(|there| there.is_on(self.search_on));
        let (engine, gpu_memory) = match resident {
            Some(there) => {
                (engine.resident(there)?, self.gpu_memory.map(|allowed| allowed.saturating_sub(bytes)))
            }
            None => {
                let (search_on, gpu_memory) = self.memory(index, bytes)?;
                (engine.devices(&[search_on])?, gpu_memory)
            }
        };
        // Rows that were left out of the build are no neighbours.
        let rows: Option<Vec<u32>> = index.left_out().map(|rows| rows.complement().iter().collect());
        let part = rows
            .as_ref()
            .map(|rows| Space::owned(base.select(rows)?, index.metric(), &self.progress.unwatched()));
        let part = part.transpose()?;
        let space = part.as_ref().unwrap_or(engine.space());
        let n = space.len();
        let has_lists = !lists.nodes().is_empty();
        let sample = if has_lists { lists.nodes().to_vec() } else { sampled(n, self.nodes, self.seed) };
        // A single row has no neighbours to find.
        if sample.is_empty() || n == 1 {
            return Ok(Quality::default());
        }
        let k = K.min(n - 1);
        let deepest = k.max(lists.k());
        let mut exact = ExactSearch::new(deepest).device(self.exact_on).progress(exactly);
        if let Some(bytes) = gpu_memory {
            exact = exact.device_memory(bytes);
        }
        if let (Some(there), None) = (engine.base_on(self.exact_on), &part) {
            exact = exact.there(Arc::clone(there));
        }
        let nodes: Vec<u32> = match rows {
            Some(rows) => sample.iter().map(|&node| rows[node as usize]).collect(),
            None => sample.clone(),
        };
        let selected = base.select(&nodes)?;
        let queries = engine.space().queries(&selected, &self.progress.unwatched())?;
        let searches = Searches { engine: &engine, queries: &queries, nodes: &nodes, k };
        let unwatched = self.progress.unwatched();
        let truth = || KnnTruth::of_nodes(space, sample, deepest, &exact);
        let (truth, on_host, timed) = if engine.runs_on() == CPU {
            let [without_rows, plain] = by_index.parts([2.0, 1.0]);
            (truth()?, self.on_host(&searches, &without_rows)?, searches.timed(&plain)?)
        } else {
            // The CPU works beside the device.
            let mut on_host = Err(Error::Cancelled);
            let on_device = rayon::in_place_scope(|scope| {
                scope.spawn(|_| on_host = self.on_host(&searches, &unwatched));
                Ok::<_, Error>((truth()?, searches.timed(&by_index)?))
            });
            let (truth, timed) = on_device?;
            (truth, on_host?, timed)
        };
        let knn = has_lists.then(|| {
            let ks = [K.min(lists.k()), lists.k()];
            let recall: BTreeMap<_, _> = ks.into_iter().zip(truth.recall_of_sample(lists, &ks)).collect();
            KnnQuality { nodes: nodes.len(), k: lists.k(), recall }
        });
        let OnHost { found, edges_to, far } = on_host;
        let search = searches.judge(&found, &timed, &truth);
        let self_recall = self_recall::measure(&engine, &edges_to, &far, self.seed, &unwatched)?;
        Ok(Quality { knn, search: Some(search), self_recall: Some(self_recall), edges_to: Some(edges_to) })
    }

    /// The work of the CPU.
    fn on_host(&self, searches: &Searches<'_, '_>, progress: &Progress) -> Result<OnHost> {
        searches.engine.space().vectors().on_host()?;
        let k = searches.k.max(1);
        let found =
            searches.engine.run_without_rows(searches.queries, searches.nodes, k, &BEAMS, progress)?;
        let edges_to = searches.engine.index().edges_to(progress)?;
        let far = self_recall::farthest(searches.engine.space(), self.seed, progress)?;
        Ok(OnHost { found, edges_to, far })
    }

    /// Bytes of index and base on a device.
    fn device_bytes(&self, index: &Index, base: &Vectors, space: &Space<'_>) -> Result<u64> {
        let element = device_type(&DataShape::inspect(base, &self.progress.unwatched())?, index.metric());
        let edges = index.max_degree() * size_of::<u32>();
        Ok((index.len() * (space.dim() * element.size() + edges)) as u64)
    }

    /// The device of searches of an index that takes `bytes` there, and the limit of device memory
    /// for exact search beside them.
    fn memory(&self, index: &Index, bytes: u64) -> Result<(Device, Option<u64>)> {
        let allowed = match self.gpu_memory {
            Some(bytes) => Some(bytes),
            None => Limits::available(self.search_on, index.len())?.gpu_memory,
        };
        if allowed.is_some_and(|allowed| bytes > allowed / 2) {
            return Ok((Device::Cpu, self.gpu_memory));
        }
        Ok((self.search_on, self.gpu_memory.map(|allowed| allowed - bytes)))
    }

    /// Estimated seconds of the measurements of an index of `data` on the CPU.
    pub fn estimated_seconds(&self, data: &DataShape) -> f64 {
        estimate::measuring(data, self.nodes.min(data.rows), rayon::current_num_threads())
    }
}

/// What searches of an index tell.
#[derive(Default)]
pub(super) struct Quality {
    pub knn: Option<KnnQuality>,
    pub search: Option<SearchQuality>,
    pub self_recall: Option<SelfRecall>,
    /// Edges to each node, if they were counted ([`Index::edges_to`]).
    pub edges_to: Option<Vec<u8>>,
}

/// Results of the CPU.
struct OnHost {
    /// Results at each beam, as if the row of each query were not in the base.
    found: Vec<SearchResult>,
    edges_to: Vec<u8>,
    far: Vec<u32>,
}

/// Searches for rows of the base at each beam.
struct Searches<'a, 'e> {
    engine: &'a Engine<'e>,
    queries: &'a Queries<'a>,
    /// The row of each query.
    nodes: &'a [u32],
    k: usize,
}

impl Searches<'_, '_> {
    /// Distances and seconds of plain searches on the device of the engine, at each beam.
    fn timed(&self, progress: &Progress) -> Result<Vec<(u64, f64)>> {
        let at = |(beam, progress): (usize, Progress)| {
            let began = Instant::now();
            let found = self.engine.run(self.queries, Search::new(self.k.max(1)).beam(beam), &progress)?;
            Ok((found.computed(), began.elapsed().as_secs_f64()))
        };
        let parts = progress.parts(BEAMS.map(|beam| beam as f64));
        BEAMS.into_iter().zip(parts).map(at).collect()
    }

    /// The quality of the results `found` without the rows of the queries; `timed` tells the
    /// throughput.
    fn judge(&self, found: &[SearchResult], timed: &[(u64, f64)], truth: &KnnTruth) -> SearchQuality {
        let (k, count) = (self.k, self.nodes.len() as f64);
        let others = |found: &SearchResult, query: usize| -> Vec<(u32, f32)> {
            let pairs = found.ids(query).iter().copied().zip(found.distances(query).iter().copied());
            pairs.filter(|&(id, _)| id != self.nodes[query]).take(k).collect()
        };
        let distances = |found: &SearchResult, query| -> Vec<f32> {
            others(found, query).into_iter().map(|(_, distance)| distance).collect()
        };
        let at = |(place, found): (usize, &SearchResult)| {
            let lists = (0..self.nodes.len()).map(|query| distances(found, query));
            let recall = truth.lists().recall_at(k, lists);
            let (computed, seconds) = timed[place];
            BeamQuality {
                beam: BEAMS[place],
                recall,
                qps: count / seconds,
                distances: computed as f64 / count,
            }
        };
        let beams: Vec<BeamQuality> = found.iter().enumerate().map(at).collect();
        let (recall, qps) = beams.last().map_or((1.0, 0.0), |judged| (judged.recall, judged.qps));
        let mut trapped = Trapped::default();
        if let Some(found) = found.last() {
            for query in 0..self.nodes.len() {
                let hits = truth.lists().hits_of(query, k, &distances(found, query));
                if 2 * hits < k {
                    let ids: Vec<u32> = others(found, query).into_iter().map(|(id, _)| id).collect();
                    trapped.add(self.engine.space(), self.nodes[query], &ids);
                }
            }
        }
        let device = self.engine.runs_on().to_owned();
        SearchQuality { queries: self.nodes.len(), k, beam: BEAM, recall, qps, device, beams, trapped }
    }
}

#[cfg(test)]
mod tests {
    use tagore_device::key::NO_ID;

    use super::*;
    use crate::index::{Graph, Layer};
    use crate::search::bridge::Bridges;
    use crate::{Builder, Neighbor, Report, Strategy, Synth};

    #[test]
    fn searches_leave_half_of_the_device_memory_to_exact_search() {
        let base = Synth::new(300, 16, 1).unwrap().base();
        let index =
            Builder::new(Strategy::cagra().degree(8)).knn(8).device(Device::Cpu).build(&base).unwrap();
        // Rows of 16 f32 and 8 edges.
        let bytes = 300 * (16 + 8) * 4;
        let recall = |gpu_memory: u64| {
            let emulated = Device::Emulated;
            let measure = Measure {
                nodes: 20,
                exact_on: Device::Cpu,
                search_on: emulated,
                gpu_memory: Some(gpu_memory),
                ..Measure::default()
            };
            Report::measure(&index, Some(&base), &KnnSample::default(), &measure).unwrap().search.unwrap()
        };
        let (on_gpu, on_cpu) = (recall(2 * bytes), recall(2 * bytes - 1));
        assert_eq!([on_gpu.device.as_str(), on_cpu.device.as_str()], ["emulated", "cpu"]);
        assert_eq!(on_gpu.recall, on_cpu.recall);
    }

    /// The row of `at` without `node`, with bridges in its place.
    fn cut(space: &Space<'_>, graph: &impl Graph, growth: Option<f32>, at: u32, node: u32) -> Vec<u32> {
        let row = graph.neighbors(at);
        if at == node {
            return Vec::new();
        }
        let mut bridges = Bridges::default();
        let bridges =
            if row.contains(&node) { bridges.replacements(space, graph, growth, at, node) } else { &[] };
        row.iter().copied().filter(|&id| id != node).chain(bridges.iter().copied()).collect()
    }

    /// The index without `node`, in its layers too.
    fn without(index: &Index, base: &Vectors, node: u32) -> Index {
        let space = Space::new(base, index.metric(), &Progress::silent()).unwrap();
        let growth = index.start().growth;
        let rows: Vec<Vec<u32>> =
            (0..index.len() as u32).map(|at| cut(&space, index, growth, at, node)).collect();
        let layers = index.layers().iter().map(|layer| {
            let degree = layer.padded_rows().len() / layer.nodes().len();
            let padded = layer.nodes().iter().flat_map(|&at| {
                let mut row = cut(&space, layer, growth, at, node);
                row.resize(degree, NO_ID);
                row
            });
            Layer::new(layer.nodes().to_vec(), degree, padded.collect(), layer.beam())
        });
        let layers: Vec<Layer> = layers.collect();
        let entries = match index.entries() {
            // A search that would start at the node alone starts at its neighbours.
            [only] if *only == node => match layers.last() {
                Some(_) => Graph::neighbors(index.layers().last().unwrap(), node).to_vec(),
                None => index.neighbors(node as usize).to_vec(),
            },
            entries => entries.iter().copied().filter(|&id| id != node).collect(),
        };
        let description = index.description().clone();
        Index::from_rows(description, base, &rows, entries).unwrap().with_layers(layers, growth)
    }

    #[test]
    fn a_search_without_a_row_is_one_of_the_graph_without_it() {
        let base = Synth::new(400, 8, 1).unwrap().base();
        let plain = Builder::new(Strategy::nsg()).knn(20).device(Device::Cpu).build(&base).unwrap();
        assert!(plain.start().growth.is_some() && plain.layers().is_empty());
        // Searches begin in the layer.
        let mut nodes: Vec<u32> = (0..400).step_by(4).chain(plain.entries().iter().copied()).collect();
        nodes.sort_unstable();
        nodes.dedup();
        let next = |place: usize| [nodes[(place + 1) % nodes.len()], nodes[(place + 7) % nodes.len()]];
        let edges = (0..nodes.len()).flat_map(next).collect();
        let layered =
            plain.clone().with_layers(vec![Layer::new(nodes.clone(), 2, edges, 4)], plain.start().growth);
        let silent = Progress::silent();
        for index in [plain, layered] {
            let engine = Engine::new(Held::Borrowed(&index), Held::Borrowed(&base), &silent).unwrap();
            let rows: Vec<u32> = (0..400).step_by(7).chain(index.entries().iter().copied()).collect();
            let selected = base.select(&rows).unwrap();
            let queries = engine.space().queries(&selected, &silent).unwrap();
            let beams = [20, 50];
            let found = engine.run_without_rows(&queries, &rows, 10, &beams, &silent).unwrap();
            for (query, &row) in rows.iter().enumerate() {
                let other = without(&index, &base, row);
                let other = Engine::new(Held::Borrowed(&other), Held::Borrowed(&base), &silent).unwrap();
                for (beam, found) in beams.into_iter().zip(&found) {
                    let search = Search::new(10).beam(beam);
                    let expected = other.run_one(&base.host_row(row as usize), search).unwrap();
                    let neighbors: Vec<Neighbor> = found.neighbors(query).take(10).collect();
                    assert_eq!(
                        neighbors,
                        expected,
                        "row {row}, beam {beam}, {} layers",
                        index.layers().len()
                    );
                }
            }
        }
    }
}
