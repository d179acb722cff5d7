//! Collect, Filter and Store on a device.

use std::time::Instant;

use tagore_device::key::Key;
use tagore_device::prune::detours::{prune_detours, prune_detours_unbalanced};
use tagore_device::prune::store::MERGED;

use super::collect::collect;
use super::filter::{filter, filter_serially};
use super::ids::take_ids;
use super::medoid::medoid;
use super::path::path;
use super::plan::PruneShape;
use super::rank::{RankedLists, rank};
use super::reverse::Reverse;
use super::store::{merge, store};
use super::{Candidates, Chunk, Collected, Forward, PruneKernels};
use crate::descent::GpuLists;
use crate::gpu::{Buffer, Gpu};
use crate::index::random_entries;
use crate::memory::peak_host_bytes;
use crate::prune::collect::HOP;
use crate::prune::strategy::{Collect, Entry, Filter, Store, Strategy};
use crate::prune::{PruneStats, Pruned};
use crate::vectors::gpu::Base;
use crate::vectors::space::Space;
use crate::{Progress, Result};

/// Arguments of a pruning, checked and complete.
pub(crate) struct Pruning<'a> {
    pub gpu: &'a Gpu,
    pub space: &'a Space<'a>,
    pub shape: PruneShape<'a>,
    /// Whether to filter with the baseline kernel, if the filter has one.
    pub baseline_kernels: bool,
    pub seed: u64,
    pub progress: &'a Progress,
}

impl Pruning<'_> {
    /// Prunes the graph of `base`. Returns the padded rows, on the device.
    pub(crate) fn run<T: PruneKernels>(
        &self,
        base: &Base<T>,
        lists: GpuLists,
    ) -> Result<Pruned<Buffer<u32>>> {
        let stage = self.progress.stage("prune", 2 * self.space.len() as u64);
        let measurement = self.gpu.measure()?;
        let began = Instant::now();
        let PruneShape { strategy, n, .. } = self.shape;
        let entries = match strategy.entry {
            Entry::Medoid => vec![medoid(self.gpu, self.space, base)?],
            Entry::Random => random_entries(n, self.seed),
        };
        let ranked = || RankedLists::new(self.gpu, &lists.keys, n, lists.k);
        let ranks = strategy.counts_detours().then(ranked).transpose()?;
        let forward = self.forward(base, &lists, ranks.as_ref(), &entries)?;
        stage.advance(n as u64)?;
        let order = lists.order;
        drop(lists.keys);
        let rows = self.store(base, ranks.as_ref(), &order, forward)?;
        let mut stats = PruneStats { seconds: began.elapsed().as_secs_f64(), ..PruneStats::default() };
        stage.advance(n as u64)?;

        let measured = measurement.end()?;
        self.gpu.name().clone_into(&mut stats.device);
        stats.device_name = self.gpu.device_name().map(str::to_owned);
        stats.jit = measured.jit_seconds;
        stats.kernels = measured.kernels;
        stats.peak_gpu_bytes = measured.peak_bytes;
        stats.peak_host_bytes = peak_host_bytes();
        Ok(Pruned { rows, entries, stats })
    }

    /// Collect and Filter: the forward edges of each row, at most the degree.
    fn forward<T: PruneKernels>(
        &self,
        base: &Base<T>,
        lists: &GpuLists,
        ranks: Option<&RankedLists>,
        entries: &[u32],
    ) -> Result<Forward> {
        let Self { gpu, shape, .. } = *self;
        let PruneShape { strategy, n, .. } = shape;
        let keys = shape.forward().reserve(gpu)?.buffer("forward edges")?;
        let mut forward = Forward { keys, rows: n, width: strategy.degree };
        if let Some(ranks) = ranks.filter(|_| shape.takes_lists()) {
            // The lists are the candidates.
            let count = strategy.candidates.min(lists.k);
            let chunk = Chunk { order: &lists.order, range: 0..n };
            let candidates = Candidates::by_place(&chunk, &lists.keys, lists.k);
            self.rank(ranks, Candidates { count, by_row: true, ..candidates }, &mut forward)?;
            return Ok(forward);
        }
        let (limit, at_once) = (shape.limit(), shape.collected_at_once());
        let memory = shape.candidates().reserve(gpu)?;
        let mut keys: Buffer<Key> = memory.buffer("candidates")?;
        let mut entry_buffer: Buffer<u32> = memory.buffer("entries")?;
        entry_buffer.upload(entries)?;
        for first in (0..n).step_by(at_once) {
            self.progress.check()?;
            let chunk = Chunk { order: &lists.order, range: first..(first + at_once).min(n) };
            let to = Collected { chunk: &chunk, keys: &mut keys, limit };
            match shape.collect {
                Collect::OneHop => collect(gpu, base, lists, 0, to)?,
                Collect::TwoHop => collect(gpu, base, lists, HOP, to)?,
                Collect::Path => path(gpu, base, lists, &entry_buffer, to)?,
            }
            self.filter(base, ranks, Candidates::by_place(&chunk, &keys, limit), &mut forward)?;
        }
        Ok(forward)
    }

    /// Filters by detours if `ranks` are given, else by the rule.
    fn filter<T: PruneKernels>(
        &self,
        base: &Base<T>,
        ranks: Option<&RankedLists>,
        candidates: Candidates<'_>,
        forward: &mut Forward,
    ) -> Result<()> {
        if let Some(ranks) = ranks {
            return self.rank(ranks, candidates, forward);
        }
        if let (true, &Filter::Distance { alpha }) = (self.baseline_kernels, &self.shape.strategy.filter) {
            return filter_serially(self.gpu, base, alpha, candidates, forward);
        }
        filter(self.gpu, base, &self.shape, candidates, forward)
    }

    fn rank(&self, lists: &RankedLists, candidates: Candidates<'_>, forward: &mut Forward) -> Result<()> {
        let (gpu, strategy) = (self.gpu, self.shape.strategy);
        if self.baseline_kernels {
            rank::<prune_detours_unbalanced>(gpu, strategy, lists, candidates, forward)
        } else {
            rank::<prune_detours>(gpu, strategy, lists, candidates, forward)
        }
    }

    /// Reverse edges and Store: the ids of each row.
    fn store<T: PruneKernels>(
        &self,
        base: &Base<T>,
        ranks: Option<&RankedLists>,
        order: &Buffer<u32>,
        mut forward: Forward,
    ) -> Result<Buffer<u32>> {
        let Self { gpu, shape, .. } = *self;
        let PruneShape { n, strategy: &Strategy { degree, store: stored, .. }, .. } = shape;
        let reverse = Reverse::new(gpu, forward.view(), shape.rank())?;
        let mut ids: Buffer<u32> = shape.rows().reserve(gpu)?.buffer("index rows")?;
        match stored {
            Store::Interleave => store(gpu, forward.view(), &reverse, &mut ids, degree)?,
            Store::Refilter => {
                let stride = MERGED as usize;
                let at_once = shape.merged_at_once();
                let mut merged: Buffer<Key> = shape.merged().reserve(gpu)?.buffer("merged edges")?;
                for first in (0..n).step_by(at_once) {
                    self.progress.check()?;
                    let chunk = Chunk { order, range: first..(first + at_once).min(n) };
                    merge(gpu, forward.view(), &reverse, &chunk, &mut merged)?;
                    // No later chunk reads the forward edges of this one, so the filter may
                    // overwrite them.
                    let candidates = Candidates::by_place(&chunk, &merged, stride);
                    let candidates = Candidates { pass_short: true, ..candidates };
                    self.filter(base, ranks, candidates, &mut forward)?;
                }
                take_ids(gpu, forward.view(), &mut ids, degree)?;
            }
        }
        // The caller measures the time.
        gpu.synchronize()?;
        Ok(ids)
    }
}
