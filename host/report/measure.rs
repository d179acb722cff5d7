//! Recall of an index and of the k-NN graph that it comes from, over a sample.

use std::collections::BTreeMap;

use super::{BeamQuality, KnnQuality, SearchQuality};
use crate::descent::{KnnSample, sampled};
use crate::eval::KnnTruth;
use crate::search::exact::ExactSearch;
use crate::{Device, Index, Progress, Result, Searcher, Vectors};

/// Neighbours asked for per query.
const K: usize = 10;

/// Beam widths, and the one that the index is judged at.
const BEAMS: [usize; 3] = [20, 50, BEAM];
const BEAM: usize = 100;

/// How a report measures.
#[derive(Clone, Debug)]
pub struct Measure {
    /// Random nodes that searches are compared with exact search for; those of a [`KnnSample`] that is not empty are taken
    /// instead. With none nothing is searched.
    pub nodes: usize,
    /// The seed that they are drawn from.
    pub seed: u64,
    /// Where exact search runs.
    pub exact_on: Device,
    /// Where the index is searched; a GPU must have room for index and base.
    pub search_on: Device,
    /// Device memory that exact search may use, in bytes; all that is free if not given.
    pub gpu_memory: Option<u64>,
    /// The handle that is told of progress and may cancel.
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
            progress: Progress::silent(),
        }
    }
}

impl Measure {
    /// Measures on `device`. The emulator would take hours to find what the CPU finds.
    #[must_use]
    pub fn on(self, device: Device) -> Self {
        let device = if device.is_emulated() { Device::Cpu } else { device };
        Self { exact_on: device, search_on: device, ..self }
    }

    /// The recall of `lists` and of searches. One exact search is the truth of both.
    pub(super) fn quality(
        &self,
        index: &Index,
        base: &Vectors,
        lists: &KnnSample,
    ) -> Result<(Option<KnnQuality>, Option<SearchQuality>)> {
        let searcher = Searcher::new(index, base, &self.progress)?.device(self.search_on)?;
        let n = index.len();
        let has_lists = !lists.nodes().is_empty();
        let nodes = if has_lists { lists.nodes().to_vec() } else { sampled(n, self.nodes, self.seed) };
        if nodes.is_empty() {
            return Ok((None, None));
        }
        let k = K.min(n - 1);
        let deepest = k.max(lists.k());
        let mut exact = ExactSearch::new(deepest).device(self.exact_on).progress(self.progress.clone());
        if let Some(bytes) = self.gpu_memory {
            exact = exact.device_memory(bytes);
        }
        let truth = KnnTruth::of_nodes(searcher.space(), nodes.clone(), deepest, &exact)?;
        let knn = has_lists.then(|| {
            let ks = [K.min(lists.k()), lists.k()];
            let recall: BTreeMap<_, _> = ks.into_iter().zip(truth.recall_of_sample(lists, &ks)).collect();
            KnnQuality { nodes: nodes.len(), k: lists.k(), recall }
        });
        let search = self.search(&searcher, &base.select(&nodes), (&nodes, &truth), k)?;
        Ok((knn, Some(search)))
    }

    /// Searches for `nodes` at every beam width.
    fn search(
        &self,
        searcher: &Searcher<'_>,
        rows: &Vectors,
        (nodes, truth): (&[u32], &KnnTruth),
        k: usize,
    ) -> Result<SearchQuality> {
        let queries = searcher.space().queries(rows, &self.progress)?;
        let at = |beam: usize| {
            // One more, for the query itself.
            let found = searcher.run(&queries, k + 1, beam, &self.progress)?;
            let others = nodes.iter().enumerate().map(|(query, &node)| {
                let pairs = found.ids(query).iter().zip(found.distances(query));
                let others = pairs.filter(|&(&id, _)| id != node).map(|(_, &distance)| distance);
                others.collect::<Vec<f32>>()
            });
            let recall = truth.recall_at(k, others);
            Ok(BeamQuality { beam, recall, distances: found.computed() as f64 / nodes.len() as f64 })
        };
        let beams = BEAMS.into_iter().map(at).collect::<Result<Vec<_>>>()?;
        let recall = beams.last().map_or(1.0, |judged| judged.recall);
        let device = searcher.runs_on().to_owned();
        Ok(SearchQuality { queries: nodes.len(), k, beam: BEAM, recall, device, beams })
    }
}
