//! Recall and throughput of an index, and recall of its k-NN graph, over a sample.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use super::{BeamQuality, KnnQuality, SearchQuality};
use crate::build::estimate::{self, SEARCHES};
use crate::descent::{KnnSample, sampled};
use crate::eval::KnnTruth;
use crate::held::Held;
use crate::outofcore::Limits;
use crate::search::Engine;
use crate::search::exact::ExactSearch;
use crate::vectors::shape::device_type;
use crate::vectors::space::Space;
use crate::{DataShape, Device, Index, Progress, ResidentIndex, Result, Search, Vectors};

/// Neighbours per query.
const K: usize = 10;

/// Beams; the report judges the index at the last.
const BEAMS: [usize; 3] = [20, 50, BEAM];
const BEAM: usize = 100;

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
    pub(super) fn quality(
        &self,
        index: &Index,
        base: &Vectors,
        lists: &KnnSample,
    ) -> Result<(Option<KnnQuality>, Option<SearchQuality>)> {
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
        let nodes = if has_lists { lists.nodes().to_vec() } else { sampled(n, self.nodes, self.seed) };
        if nodes.is_empty() {
            return Ok((None, None));
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
        let truth = KnnTruth::of_nodes(space, nodes.clone(), deepest, &exact)?;
        let knn = has_lists.then(|| {
            let ks = [K.min(lists.k()), lists.k()];
            let recall: BTreeMap<_, _> = ks.into_iter().zip(truth.recall_of_sample(lists, &ks)).collect();
            KnnQuality { nodes: nodes.len(), k: lists.k(), recall }
        });
        let nodes: Vec<u32> = match rows {
            Some(rows) => nodes.iter().map(|&node| rows[node as usize]).collect(),
            None => nodes,
        };
        let search = search(&engine, &base.select(&nodes)?, (&nodes, &truth), k, &by_index)?;
        Ok((knn, Some(search)))
    }

    /// Bytes of index and base on a device.
    fn device_bytes(&self, index: &Index, base: &Vectors, space: &Space<'_>) -> Result<u64> {
        let element = device_type(&DataShape::of(base, &self.progress.unwatched())?, index.metric());
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

/// Searches for `nodes` at every beam.
fn search(
    engine: &Engine<'_>,
    rows: &Vectors,
    (nodes, truth): (&[u32], &KnnTruth),
    k: usize,
    progress: &Progress,
) -> Result<SearchQuality> {
    let queries = engine.space().queries(rows, &progress.unwatched())?;
    let at = |(beam, progress): (usize, Progress)| {
        // One more neighbour, for the query itself.
        let began = Instant::now();
        let found = engine.run(&queries, Search::new(k + 1).beam(beam), &progress)?;
        let seconds = began.elapsed().as_secs_f64();
        let count = nodes.len() as f64;
        let others = nodes.iter().enumerate().map(|(query, &node)| {
            let pairs = found.ids(query).iter().zip(found.distances(query));
            let others = pairs.filter(|&(&id, _)| id != node).map(|(_, &distance)| distance);
            others.collect::<Vec<f32>>()
        });
        let recall = truth.recall_at(k, others);
        Ok(BeamQuality { beam, recall, qps: count / seconds, distances: found.computed() as f64 / count })
    };
    let parts = progress.parts(BEAMS.map(|beam| beam as f64));
    let beams = BEAMS.into_iter().zip(parts).map(at).collect::<Result<Vec<_>>>()?;
    let (recall, qps) = beams.last().map_or((1.0, 0.0), |judged| (judged.recall, judged.qps));
    let device = engine.runs_on().to_owned();
    Ok(SearchQuality { queries: nodes.len(), k, beam: BEAM, recall, qps, device, beams })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Builder, Report, Strategy, Synth};

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
            Report::of(&index, Some(&base), &KnnSample::default(), &measure).unwrap().search.unwrap()
        };
        let (on_gpu, on_cpu) = (recall(2 * bytes), recall(2 * bytes - 1));
        assert_eq!([on_gpu.device.as_str(), on_cpu.device.as_str()], ["emulated", "cpu"]);
        assert_eq!(on_gpu.recall, on_cpu.recall);
    }
}
