//! Collect, Filter and Store on a device.

use std::ops::Range;
use std::time::Instant;

use tagore_device::key::{Key, NONE};
use tagore_device::prune::store::MERGED;

use super::collect::collect;
use super::filter::filter;
use super::ids::take_ids;
use super::medoid::medoid;
use super::path::path;
use super::rank::{RankedLists, rank};
use super::reverse::Reverse;
use super::shape::PruneShape;
use super::store::{merge, store};
use super::{Candidates, Chunk, Collected, Forward, PruneKernels};
use crate::descent::GpuLists;
use crate::gpu::{Buffer, Communicator};
use crate::index::random_entries;
use crate::prune::collect::HOP;
use crate::prune::strategy::{Collect, Entry, Store, Strategy};
use crate::prune::{PruneStats, Pruned};
use crate::vectors::gpu::Base;
use crate::vectors::space::Space;
use crate::{Progress, Result};

/// Arguments of a pruning, checked and complete.
pub(crate) struct Pruning<'a> {
    /// The rank of this device among those that prune the graph, which all hold the base and the
    /// lists.
    pub devices: Communicator<'a>,
    pub space: &'a Space<'a>,
    pub shape: PruneShape<'a>,
    pub seed: u64,
    pub progress: &'a Progress,
}

impl Pruning<'_> {
    /// Prunes the graph of `base`. Returns the padded rows, on the first device.
    pub(crate) fn run<T: PruneKernels>(
        &self,
        base: &Base<T>,
        lists: GpuLists,
    ) -> Result<Option<Pruned<Buffer<u32>>>> {
        let stage = self.progress.stage("prune", 2 * self.space.len() as u64);
        let began = Instant::now();
        let (gpu, PruneShape { strategy, n, .. }) = (self.devices.gpu(), self.shape);
        let entries = match strategy.entry {
            Entry::Medoid => vec![medoid(gpu, self.space, base)?],
            Entry::Random => random_entries(n, self.seed),
        };
        let ranked = || RankedLists::new(gpu, &lists.keys, n, lists.k);
        let ranks = strategy.counts_detours().then(ranked).transpose()?;
        let forward = self.forward(base, &lists, ranks.as_ref(), &entries)?;
        stage.advance(n as u64)?;
        let order = lists.order;
        drop(lists.keys);
        let rows = self.store(base, ranks.as_ref(), &order, forward)?;
        let stats = PruneStats { seconds: began.elapsed().as_secs_f64(), ..PruneStats::default() };
        stage.advance(n as u64)?;
        Ok(rows.map(|rows| Pruned { rows, entries, stats }))
    }

    /// The places of the order of nodes that this device has.
    fn own(&self) -> Range<usize> {
        self.devices.own(&self.devices.shares(self.shape.n))
    }

    /// The other places.
    fn others(&self) -> [Range<usize>; 2] {
        let own = self.own();
        [0..own.start, own.end..self.shape.n]
    }

    /// Collect and Filter: the forward edges of each row, at most the degree.
    fn forward<T: PruneKernels>(
        &self,
        base: &Base<T>,
        lists: &GpuLists,
        ranks: Option<&RankedLists>,
        entries: &[u32],
    ) -> Result<Forward> {
        let (gpu, shape, own) = (self.devices.gpu(), self.shape, self.own());
        let PruneShape { strategy, n, .. } = shape;
        let keys = shape.forward().reserve(gpu)?.buffer("forward edges")?;
        let mut forward = Forward { keys, rows: n, width: strategy.degree };
        if self.devices.count() > 1 {
            // Rows of other devices are empty.
            forward.keys.fill(NONE as u8)?;
        }
        if let Some(ranks) = ranks.filter(|_| shape.takes_lists()) {
            // The lists are the candidates.
            let count = strategy.candidates.min(lists.k);
            let chunk = Chunk { order: &lists.order, range: own };
            let candidates = Candidates::by_place(&chunk, &lists.keys, lists.k);
            self.filter(base, Some(ranks), Candidates { count, by_row: true, ..candidates }, &mut forward)?;
            self.devices.all_reduce_min(&mut forward.keys)?;
            return Ok(forward);
        }
        let (limit, at_once) = (shape.limit(), shape.collected_at_once());
        let memory = shape.candidates().reserve(gpu)?;
        let mut keys: Buffer<Key> = memory.buffer("candidates")?;
        let mut entry_buffer: Buffer<u32> = memory.buffer("entries")?;
        entry_buffer.upload(entries)?;
        for first in own.clone().step_by(at_once) {
            self.progress.check()?;
            let chunk = Chunk { order: &lists.order, range: first..(first + at_once).min(own.end) };
            let to = Collected { chunk: &chunk, keys: &mut keys, limit };
            match shape.collect {
                Collect::OneHop => collect(gpu, base, lists, 0, to)?,
                Collect::TwoHop => collect(gpu, base, lists, HOP, to)?,
                Collect::Path => path(gpu, base, lists, &entry_buffer, to)?,
            }
            self.filter(base, ranks, Candidates::by_place(&chunk, &keys, limit), &mut forward)?;
        }
        self.devices.all_reduce_min(&mut forward.keys)?;
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
            return rank(self.devices.gpu(), self.shape.strategy, ranks, candidates, forward);
        }
        filter(self.devices.gpu(), base, &self.shape, candidates, forward)
    }

    /// Reverse edges and Store: the ids of each row, on the first device.
    fn store<T: PruneKernels>(
        &self,
        base: &Base<T>,
        ranks: Option<&RankedLists>,
        order: &Buffer<u32>,
        mut forward: Forward,
    ) -> Result<Option<Buffer<u32>>> {
        let (gpu, shape) = (self.devices.gpu(), self.shape);
        let &Strategy { degree, store: stored, .. } = shape.strategy;
        let is_first = self.devices.is_first();
        if stored == Store::Interleave && !is_first {
            return Ok(None);
        }
        let reverse = Reverse::new(gpu, forward.view(), shape.rank())?;
        if stored == Store::Refilter {
            self.refilter(base, ranks, order, &reverse, &mut forward)?;
        }
        if !is_first {
            return Ok(None);
        }
        let mut ids: Buffer<u32> = shape.rows().reserve(gpu)?.buffer("index rows")?;
        match stored {
            Store::Interleave => store(gpu, forward.view(), &reverse, &mut ids, degree)?,
            Store::Refilter => take_ids(gpu, forward.view(), &mut ids, degree)?,
        }
        // The caller measures the time.
        gpu.synchronize()?;
        Ok(Some(ids))
    }

    /// Filters the forward and reverse edges of all rows into their forward edges.
    fn refilter<T: PruneKernels>(
        &self,
        base: &Base<T>,
        ranks: Option<&RankedLists>,
        order: &Buffer<u32>,
        reverse: &Reverse,
        forward: &mut Forward,
    ) -> Result<()> {
        let (gpu, shape, stride) = (self.devices.gpu(), self.shape, MERGED as usize);
        let at_once = shape.merged_at_once();
        let mut merged: Buffer<Key> = shape.merged().reserve(gpu)?.buffer("merged edges")?;
        let chunks = |part: Range<usize>| {
            let end = part.end;
            part.step_by(at_once).map(move |first| Chunk { order, range: first..(first + at_once).min(end) })
        };
        for chunk in chunks(self.own()) {
            self.progress.check()?;
            merge(gpu, forward.view(), reverse, &chunk, &mut merged)?;
            // No later chunk reads the forward edges of this one, so the filter may overwrite them.
            let candidates = Candidates::by_place(&chunk, &merged, stride);
            self.filter(base, ranks, Candidates { pass_short: true, ..candidates }, forward)?;
        }
        if self.devices.count() > 1 {
            // Nodes without candidates have no edges: the rows of other devices become empty.
            merged.fill(NONE as u8)?;
            for chunk in self.others().into_iter().flat_map(chunks) {
                let candidates = Candidates::by_place(&chunk, &merged, stride);
                self.filter(base, ranks, Candidates { pass_short: true, ..candidates }, forward)?;
            }
        }
        self.devices.all_reduce_min(&mut forward.keys)
    }
}
