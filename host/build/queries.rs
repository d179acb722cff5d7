//! Builds for queries that do not look like the base.

use std::sync::Arc;
use std::time::Instant;

use tagore_device::key::{Key, NONE};

use super::graph::OnDevice;
use super::memory::Unfinished;
use super::{BuildStats, Builder};
use crate::index::Graph;
use crate::loops::{for_each, rows, rows_mut};
use crate::prune::Pruned;
use crate::prune::queries::{Fitted, NEAREST, QuerySample};
use crate::search::exact::ExactSearch;
use crate::vectors::space::Space;
use crate::{Device, Error, Repeated, Result, Vectors};

/// Fewer queries do not show what others look like.
const MIN_QUERIES: usize = 100;

/// Rows of a base in a file whose distances are computed at a time.
const ROWS_AT_ONCE: usize = 1 << 22;

impl Builder {
    /// Fits the index to queries that do not look like the base, such as texts among images, by a
    /// sample of them: at least 100, about one for each ten rows for the whole gain (docs/data.md).
    /// No sample unless set.
    ///
    /// The sample's exact neighbours show which edges and entry points its searches lack. They are
    /// added, within the degree, if searches for a part of the sample that is held out, a tenth or
    /// 200, find more by them; [`BuildStats::queries`](crate::BuildStats::queries) tells. Other
    /// queries are found nearly as before.
    ///
    /// ```
    /// use tagore::{Builder, QueryKind, Strategy, Synth};
    /// let synth = Synth::new(2000, 32, 1)?.query_kind(QueryKind::Tower);
    /// let builder = Builder::new(Strategy::vamana()).queries(synth.queries(500));
    /// let (_, stats) = builder.build_with_stats(&synth.base(), None)?;
    /// assert_eq!(stats.queries.map(|fitted| fitted.held_out), Some(125));
    /// # Ok::<(), tagore::Error>(())
    /// ```
    pub fn queries(mut self, sample: impl Into<Option<Vectors>>) -> Self {
        self.queries = sample.into().map(Arc::new);
        self
    }

    /// Checks that the sample of queries fits `space`, before the build.
    pub(crate) fn check_queries(&self, space: &Space<'_>) -> Result<()> {
        let Some(sample) = self.queries.as_ref().filter(|_| self.of_vectors.is_none()) else { return Ok(()) };
        let wrong = |found: String, expected: String| {
            let name = sample.path().map_or_else(|| "queries".to_owned(), |path| path.display().to_string());
            Err(Error::mismatch(name, found, expected))
        };
        if sample.len() < MIN_QUERIES {
            let expected = format!("at least {MIN_QUERIES}: fewer do not show what others look like");
            return wrong(format!("{} queries", sample.len()), expected);
        }
        if sample.dim() != space.dim() {
            return wrong(format!("dimension {}", sample.dim()), format!("{} as in the base", space.dim()));
        }
        space.queries(sample, &self.descent.progress.unwatched()).map(drop)
    }

    /// Fits the graph to the sample of queries, if there is one. Returns the entry points that were
    /// added.
    pub(super) fn fit_unfinished(
        &self,
        space: &Space<'_>,
        Unfinished { pruned: Pruned { rows, entries, .. }, on_device, .. }: &mut Unfinished,
        stats: &mut BuildStats,
    ) -> Result<Vec<u32>> {
        let Some(fitted) = self.fit_queries(space, rows, entries)? else { return Ok(Vec::new()) };
        fitted.rows.iter().for_each(|(node, row)| rows.set(*node, row));
        if let Some(OnDevice { edges, .. }) = on_device.as_mut().filter(|_| !fitted.rows.is_empty()) {
            edges.upload(rows.padded())?;
        }
        *entries = fitted.entries;
        stats.queries = Some(fitted.stats);
        Ok(fitted.added_entries)
    }

    /// Fits a graph over the rows of `space`, which searches enter at `entries`, to the sample of
    /// queries, if there is one.
    fn fit_queries(&self, space: &Space<'_>, graph: &impl Graph, entries: &[u32]) -> Result<Option<Fitted>> {
        let Some(sample) = &self.queries else { return Ok(None) };
        let unwatched = self.descent.progress.unwatched();
        if self.of_vectors.as_deref().is_some_and(|(_, vectors)| vectors.len() != space.len()) {
            tracing::warn!(
                "the part of the rows outside dense spots is not fitted to the queries: build on full vectors"
            );
            return Ok(None);
        }
        // Codes tell too little of queries that do not look like their rows.
        let of_vectors = self.space_of_vectors(space)?;
        let space = of_vectors.as_ref().unwrap_or(space);
        space.vectors().on_host()?;
        let (began, depth) = (Instant::now(), NEAREST.min(space.len()));
        let queries = &space.queries(sample, &unwatched)?;
        let keys = &self.exact(depth, self.descent.device).nearest_to(space, queries)?;
        let progress = &self.descent.progress;
        let sample = QuerySample { space, queries, keys, depth, progress };
        self.fit_to(&sample, graph, entries, began).map(Some)
    }

    /// As [`fit_queries`](Self::fit_queries) for a `base` in a file, whose rows are read in parts,
    /// and where the nodes are the rows that are not `repeated`.
    pub(crate) fn fit_queries_of_file(
        &self,
        base: &Vectors,
        repeated: &Repeated,
        graph: &impl Graph,
        entries: &[u32],
        device: Device,
    ) -> Result<Option<Fitted>> {
        let Some(sample) = &self.queries else { return Ok(None) };
        let (began, depth) = (Instant::now(), NEAREST.min(base.len()));
        let (metric, progress) = (self.descent.metric, self.descent.progress.unwatched());
        let mut keys = vec![NONE; sample.len() * depth];
        for first in (0..base.len()).step_by(ROWS_AT_ONCE) {
            let part = base.part(first..base.len().min(first + ROWS_AT_ONCE))?;
            let space = Space::new(&part, metric, &progress)?;
            let k = depth.min(part.len());
            let near = self.exact(k, device).nearest_to(&space, &space.queries(sample, &progress)?)?;
            for_each((rows_mut(&mut keys, depth), rows(&near, k)), |(keys, near)| {
                let near = near.iter().map(|&key| key + first as Key);
                let mut both: Vec<Key> = keys.iter().copied().chain(near).collect();
                both.sort_unstable();
                keys.copy_from_slice(&both[..depth]);
            });
        }
        let space = Space::unprepared(base, metric);
        // A copy of a row is no node, and takes no place.
        for_each(rows_mut(&mut keys, depth), |keys| {
            let mut kept = 0;
            for place in 0..depth {
                if !repeated.contains(keys[place] as u32) {
                    keys[kept] = keys[place];
                    kept += 1;
                }
            }
            keys[kept..].fill(NONE);
        });
        let (space, queries) = (&space, &space.queries(sample, &progress)?);
        let sample = QuerySample { space, queries, keys: &keys, depth, progress: &self.descent.progress };
        self.fit_to(&sample, graph, entries, began).map(Some)
    }

    fn fit_to(
        &self,
        sample: &QuerySample<'_>,
        graph: &impl Graph,
        entries: &[u32],
        began: Instant,
    ) -> Result<Fitted> {
        let mut fitted = sample.fit(graph, self.strategy.degree, entries)?;
        fitted.stats.seconds = began.elapsed().as_secs_f64();
        fitted.stats.log();
        Ok(fitted)
    }

    /// In a build on codes, the space of the vectors of all rows of `space`; none for a part.
    pub(super) fn space_of_vectors(&self, space: &Space<'_>) -> Result<Option<Space<'_>>> {
        let all = self.of_vectors.as_deref().filter(|(_, vectors)| vectors.len() == space.len());
        let unwatched = self.descent.progress.unwatched();
        all.map(|(builder, vectors)| Space::new(vectors, builder.descent.metric, &unwatched)).transpose()
    }

    /// The exact search for `k` rows.
    pub(super) fn exact(&self, k: usize, device: Device) -> ExactSearch {
        // It takes hours on the emulator, and finds the same on every device.
        let device = if device.is_emulated() { Device::Cpu } else { device };
        let progress = self.descent.progress.unwatched();
        ExactSearch::new(k).metric(self.descent.metric).device(device).progress(progress)
    }
}
