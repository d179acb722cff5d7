//! The two phases of GNN-Descent on the device (paper section 4.1, Algorithm 1).

use cuda_std::launch::Kernel;
use cuda_std::memory::GlobalMut;
use tagore_device::descent::expand::{
    EXPAND_THREADS, Expand, descent_expand_b1, descent_expand_f16, descent_expand_i8, descent_expand_u8,
};
use tagore_device::descent::join::{JOIN_THREADS, Join, descent_join_f16, descent_join_i8, descent_join_u8};
use tagore_device::descent::merge::{
    COUNTERS, JOIN_PROPOSALS, MERGE_NODES, MERGE_THREADS, MergeJoin, descent_merge,
};
use tagore_device::descent::sample::{
    GATHER, ROW, SAMPLE, SAMPLE_NODES, SAMPLE_THREADS, Sample, descent_gather, descent_sample, descent_start,
};
use tagore_device::key::Key;
use tagore_device::random::{Draws, Stage};
use tagore_device::vectors::copy::vectors_copy_packed;

use super::{Build, DescentShape, Nodes, WORD};
use crate::Result;
use crate::descent::{DescentStats, Iterations, Purpose, Start};
use crate::gpu::{Buffer, MemoryPlan, Stages};
use crate::vectors::gpu::{RowsAt, TileVectors, stage_kernels};

stage_kernels! {
    /// Kernels of both phases.
    pub(crate) trait PhaseKernels {
        Join (Join<Self::Sum>,): descent_join_f16 descent_join_f16 descent_join_u8 descent_join_i8;
        Expand (Expand<Self::Sum>,):
            descent_expand_f16 descent_expand_f16 descent_expand_u8 descent_expand_i8;
        // Bits are bytes where they are not packed, so no other type is.
        ExpandPacked (Expand<Self::Sum>,):
            descent_expand_f16 descent_expand_f16 descent_expand_b1 descent_expand_i8;
    }
}

/// `auto` leaves phase 1 once an iteration adds a smaller share than this of the list entries.
const STOP_JOIN: f64 = 0.02;

/// `auto` ends phase 2 once an iteration adds a smaller share than this of the list entries. The
/// share is larger after a start from cells, since few near neighbours are left to find, and for an
/// index, whose pruning keeps few of the last ones.
const STOP_EXPAND: f64 = 0.0075;
const STOP_EXPAND_AFTER_CELLS: f64 = 0.015;
const STOP_EXPAND_FOR_INDEX: f64 = 0.03;

/// Bytes of a row of ids.
const ROW_BYTES: u64 = ROW as u64 * WORD;

/// Maximum number of neighbours that a node expands in one launch: more exceed the shared memory of
/// some devices.
pub(crate) const MAX_EXPANDED: usize = 16;

/// Buffers of the iterations, beside the nodes.
struct PhaseBuffers {
    rows: Buffer<u32>,
    changes: Buffer<u32>,
    distances: Buffer<u64>,
}

impl PhaseBuffers {
    /// The distances computed so far.
    fn computed(&self) -> Result<u64> {
        let mut distances = [0; COUNTERS as usize];
        self.distances.download(&mut distances)?;
        Ok(distances.iter().sum())
    }

    /// Keys that each of the first `iterations` iterations added to the lists.
    fn added(&self, iterations: usize) -> Result<Vec<u64>> {
        let mut changes = vec![0u32; COUNTERS as usize * iterations];
        self.changes.download(&mut changes)?;
        Ok(changes
            .chunks(COUNTERS as usize)
            .map(|sums| sums.iter().map(|&sum| u64::from(sum)).sum())
            .collect())
    }

    /// Counters of an iteration, numbered through both phases.
    fn changes(&mut self, iteration: u32) -> GlobalMut<u32> {
        self.changes.view_mut().offset((iteration * COUNTERS) as usize)
    }
}

/// Candidates of the joins, and bounds of the lists.
struct JoinCandidates {
    candidates: Buffer<Key>,
    bounds: Buffer<f32>,
}

impl DescentShape {
    /// Plans both phases.
    pub(super) fn plan_phases<T: PhaseKernels>(&self, stages: &mut Stages) {
        let (joins, expands) = self.phases();
        let iterations = self.iterations(joins.saturating_add(expands));
        if joins > 0 {
            let is_random = self.start == Start::Random;
            let first = if is_random { descent_start::NAME } else { descent_gather::NAME };
            let samples = (!is_random || joins > 1).then_some(descent_sample::NAME);
            let kernels = [T::Join::NAME, descent_merge::NAME, first].into_iter().chain(samples);
            stages.add("join", &iterations.clone().and(&self.joins()), kernels);
        }
        if expands > 0 {
            let expand = if self.is_bits() {
                vec![vectors_copy_packed::NAME, T::ExpandPacked::NAME]
            } else {
                vec![T::Expand::NAME]
            };
            let kernels = std::iter::once(descent_gather::NAME).chain(expand);
            stages.add("refine", &iterations.and(&self.packed()), kernels);
        }
    }

    /// Buffers of `count` iterations of both phases together.
    fn iterations(&self, count: u32) -> MemoryPlan {
        MemoryPlan::new()
            .with::<u32>("samples", self.n * ROW as usize)
            .with::<u32>("changes", COUNTERS as usize * count as usize)
            .with::<u64>("distances", COUNTERS as usize)
    }

    /// Further buffers of phase 1.
    fn joins(&self) -> MemoryPlan {
        MemoryPlan::new()
            .with::<Key>("candidates", self.n * JOIN_PROPOSALS as usize)
            .with::<f32>("list bounds", self.n)
    }

    /// Words of 32 bits per packed vector: rows are multiples of 16 bytes.
    fn packed_words(&self) -> usize {
        self.dim.div_ceil(128) * 4
    }

    /// Buffer of packed bits, which expansions read in place of the bytes that tiles read.
    fn packed(&self) -> MemoryPlan {
        let plan = MemoryPlan::new();
        if self.is_bits() { plan.with::<u32>("packed vectors", self.n * self.packed_words()) } else { plan }
    }
}

impl Build<'_> {
    /// Runs up to `joins` iterations of phase 1 and up to `expands` of phase 2.
    pub(super) fn phases<T: PhaseKernels>(
        &self,
        nodes: &mut Nodes<T>,
        start: Start,
        joins: u32,
        expands: u32,
        stats: &mut DescentStats,
    ) -> Result<()> {
        if (joins, expands) == (0, 0) {
            return Ok(());
        }
        let mut memory = self.memory(joins + expands)?;
        let (expected_joins, expected_expands) = self.shape.iterations.expected();
        let expected_joins = expected_joins.min(joins);
        let expected_expands = expected_expands.min(expands);
        let [joining, expanding] =
            self.progress.parts([f64::from(expected_joins), f64::from(expected_expands)]);
        if joins > 0 {
            let plan = self.shape.joins().reserve(self.gpu)?;
            let mut found = JoinCandidates {
                candidates: plan.buffer("candidates")?,
                bounds: plan.buffer("list bounds")?,
            };
            found.candidates.fill(0xff)?;
            // The float of these bytes is 3.4e38: no bound yet.
            found.bounds.fill(0x7f)?;
            if start != Start::Random {
                self.gather(nodes, &mut memory, 0, true)?;
            }
            let stage = joining.stage_of("join", u64::from(joins), u64::from(expected_joins));
            for iteration in 0..joins {
                self.join(nodes, &mut memory, &mut found, iteration, start)?;
                stats.iterations.0 += 1;
                stage.advance(1)?;
                // After a start from cells few keys are new, but these are the neighbours that the
                // cells missed.
                if start == Start::Random && self.has_converged(&memory, stats, STOP_JOIN)? {
                    break;
                }
            }
            stats.join_distances = memory.computed()?;
            self.count_joins::<T>(nodes.tiles.stride, start, stats);
        }
        let stop = match (start, self.shape.purpose) {
            (Start::Cells, Purpose::Index) => STOP_EXPAND_FOR_INDEX,
            (Start::Cells, _) => STOP_EXPAND_AFTER_CELLS,
            _ => STOP_EXPAND,
        };
        Build { progress: &expanding, ..*self }.expand(nodes, memory, expands, stop, stats)
    }

    fn memory(&self, iterations: u32) -> Result<PhaseBuffers> {
        let plan = self.shape.iterations(iterations).reserve(self.gpu)?;
        let mut memory = PhaseBuffers {
            rows: plan.buffer("samples")?,
            changes: plan.buffer("changes")?,
            distances: plan.buffer("distances")?,
        };
        memory.distances.fill(0)?;
        memory.changes.fill(0)?;
        Ok(memory)
    }

    /// Whether `auto` stops: the last iteration added less than `share` of all entries.
    fn has_converged(&self, memory: &PhaseBuffers, stats: &DescentStats, share: f64) -> Result<bool> {
        if self.shape.iterations != Iterations::Auto {
            return Ok(false);
        }
        let last = self.added(memory, stats)?.pop().unwrap_or(0);
        let added = last as f64 / (self.space.len() * self.shape.k) as f64;
        tracing::debug!(added, "share of entries that an iteration added");
        Ok(added < share)
    }

    /// Keys that each iteration added to the lists.
    fn added(&self, memory: &PhaseBuffers, stats: &DescentStats) -> Result<Vec<u64>> {
        let (joins, expansions) = stats.iterations;
        let mut added = memory.added((joins + expansions) as usize)?;
        // Every device joins all nodes, and expands a part of them.
        self.devices.all_reduce_sum(&mut added[joins as usize..])?;
        Ok(added)
    }

    /// The number mixed into the ids of an iteration.
    pub(super) fn salt(&self, iteration: u32) -> u32 {
        Draws::new(self.seed, Stage::Sample, iteration, 0).bits(0) as u32
    }

    fn sample<T: PhaseKernels>(
        &self,
        nodes: &mut Nodes<T>,
        memory: &mut PhaseBuffers,
        salt: u32,
        unvisit: bool,
    ) -> Result<(Sample, [u32; 3])> {
        memory.rows.fill(0xff)?;
        let n = self.space.len() as u32;
        let sample = Sample {
            lists: nodes.lists.view_mut(),
            rows: memory.rows.view_mut(),
            seed: self.seed,
            nodes: n,
            k: self.shape.k as u32,
            salt,
            unvisit: u32::from(unvisit),
        };
        Ok((sample, [n.div_ceil(SAMPLE_NODES), 1, 1]))
    }

    /// One iteration of phase 1.
    fn join<T: PhaseKernels>(
        &self,
        nodes: &mut Nodes<T>,
        memory: &mut PhaseBuffers,
        found: &mut JoinCandidates,
        iteration: u32,
        start: Start,
    ) -> Result<()> {
        let (gpu, n, salt) = (self.gpu, self.space.len() as u32, self.salt(iteration));
        let (sample, grid) = self.sample(nodes, memory, salt, false)?;
        // SAFETY: lists, rows and bounds are of all nodes, lists hold ids of nodes, and all outlive
        // the work.
        unsafe {
            if iteration == 0 && start == Start::Random {
                gpu.launch::<descent_start>(grid, SAMPLE_THREADS, (sample,))?;
            } else {
                gpu.launch::<descent_sample>(grid, SAMPLE_THREADS, (sample,))?;
            }
        }
        let join = Join::<T::Sum> {
            vectors: nodes.tiles.vectors,
            biases: nodes.biases.view(),
            rows: memory.rows.view(),
            bounds: found.bounds.view(),
            proposals: found.candidates.view_mut(),
            distances: memory.distances.view_mut(),
            stride: nodes.tiles.stride,
            units: nodes.tiles.units(),
            weight: T::weight(self.space.metric()),
            salt,
        };
        // SAFETY: vectors, biases, rows, bounds, proposals and distances are of all nodes, the
        // sample wrote ids of nodes to the rows, and all outlive the work.
        unsafe { gpu.launch::<T::Join>([n, 1, 1], JOIN_THREADS, (join,))? };
        let merge = MergeJoin {
            lists: nodes.lists.view_mut(),
            proposals: found.candidates.view_mut(),
            bounds: found.bounds.view_mut(),
            changes: memory.changes(iteration),
            nodes: n,
            k: self.shape.k as u32,
        };
        // SAFETY: lists, proposals and bounds are of all nodes, there is a count of changes for
        // each iteration, and all outlive the work.
        unsafe { gpu.launch::<descent_merge>([n.div_ceil(MERGE_NODES), 1, 1], MERGE_THREADS, (merge,)) }
    }

    /// Gathers the nearest neighbours and reverse neighbours of each node for phase 2.
    fn gather<T: PhaseKernels>(
        &self,
        nodes: &mut Nodes<T>,
        memory: &mut PhaseBuffers,
        salt: u32,
        unvisit: bool,
    ) -> Result<()> {
        let (sample, grid) = self.sample(nodes, memory, salt, unvisit)?;
        // SAFETY: the lists and rows are of all nodes, and hold ids of nodes; they outlive the
        // work.
        unsafe { self.gpu.launch::<descent_gather>(grid, SAMPLE_THREADS, (sample,))? };
        self.count_gathering(unvisit);
        Ok(())
    }

    /// A copy of tile vectors that are bits in bytes, eight of them to a byte; none of others.
    fn packed(&self, tiles: &TileVectors) -> Result<Option<(Buffer<u32>, TileVectors)>> {
        let shape = self.shape;
        if !shape.is_bits() {
            return Ok(None);
        }
        let plan = shape.packed().reserve(self.gpu)?;
        let mut bits: Buffer<u32> = plan.buffer("packed vectors")?;
        let words = shape.packed_words();
        let (stride, count, dim) = (tiles.stride as usize, self.space.len(), self.space.dim());
        let rows = RowsAt { values: tiles.vectors, stride, count, dim, size: 1 };
        rows.pack(self.gpu, bits.view_mut(), words)?;
        let stride = (words * size_of::<u32>()) as u32;
        let tiles = TileVectors { vectors: bits.view().cast(), stride };
        Ok(Some((bits, tiles)))
    }

    /// Runs up to `most` iterations of phase 2; `auto` stops once one adds less than `stop` of all
    /// entries.
    fn expand<T: PhaseKernels>(
        &self,
        nodes: &mut Nodes<T>,
        mut memory: PhaseBuffers,
        most: u32,
        stop: f64,
        stats: &mut DescentStats,
    ) -> Result<()> {
        let (gpu, parts) = (self.gpu, self.devices.shares(self.space.len()));
        let own = self.devices.own(&parts);
        let packed = self.packed(&nodes.tiles)?;
        let tiles = packed.as_ref().map_or(nodes.tiles, |(_, tiles)| *tiles);
        let stage =
            self.progress.stage_of("refine", u64::from(most), u64::from(self.shape.iterations.expected().1));
        for iteration in 0..most {
            let salt = self.salt(u32::MAX - iteration);
            for first in (0..self.expand).step_by(MAX_EXPANDED) {
                // Gathered anew for each launch: it also expands the neighbours that the last one
                // added.
                let salt = salt.wrapping_add(first as u32);
                self.gather(nodes, &mut memory, salt, (iteration, first) == (0, 0))?;
                let expand = Expand::<T::Sum> {
                    vectors: tiles.vectors,
                    biases: nodes.biases.view(),
                    rows: memory.rows.view(),
                    lists: nodes.lists.view_mut(),
                    changes: memory.changes(stats.iterations.0 + stats.iterations.1),
                    distances: memory.distances.view_mut(),
                    stride: tiles.stride,
                    units: tiles.units(),
                    weight: T::weight(self.space.metric()),
                    salt,
                    k: self.shape.k as u32,
                    expand: (self.expand - first).min(MAX_EXPANDED) as u32,
                    first: own.start as u32,
                    padding: 0,
                };
                let grid = [own.len() as u32, 1, 1];
                // SAFETY: the lists and rows are of all nodes, and hold ids of nodes; they outlive
                // the work.
                unsafe {
                    if packed.is_some() {
                        gpu.launch::<T::ExpandPacked>(grid, EXPAND_THREADS, (expand,))?;
                    } else {
                        gpu.launch::<T::Expand>(grid, EXPAND_THREADS, (expand,))?;
                    }
                }
                self.devices.all_gather(&mut nodes.lists, &parts, self.shape.k)?;
            }
            stats.iterations.1 += 1;
            stage.advance(1)?;
            if self.has_converged(&memory, stats, stop)? {
                break;
            }
        }
        let mut refined = [memory.computed()? - stats.join_distances];
        self.devices.all_reduce_sum(&mut refined)?;
        stats.refine_distances = refined[0];
        stats.distances += stats.join_distances + refined[0];
        if packed.is_some() {
            self.count_expansions::<T::ExpandPacked>(tiles.stride, stats);
        } else {
            self.count_expansions::<T::Expand>(tiles.stride, stats);
        }
        stats.added = self.added(&memory, stats)?;
        Ok(())
    }

    /// Counts the work of phase 1 from `stats`. The device counts pairs; the vectors per join are
    /// derived from the average number of pairs, as if all vectors were new.
    fn count_joins<T: PhaseKernels>(&self, stride: u32, start: Start, stats: &DescentStats) {
        let iterations = u64::from(stats.iterations.0);
        let joins = iterations * self.nodes();
        let random = u64::from(start == Start::Random && iterations > 0) * self.nodes();
        let ids = 2 * u64::from(SAMPLE) * WORD;
        self.gpu.count_work(descent_start::NAME, random * ids, 0);
        self.gpu.count_work(descent_sample::NAME, (joins - random) * (self.list_bytes() + ROW_BYTES), 0);

        let pairs = stats.join_distances;
        let average = pairs as f64 / joins.max(1) as f64;
        let vectors = joins as f64 * f64::midpoint(1.0, (1.0 + 8.0 * average).sqrt());
        let bytes = joins * ROW_BYTES + (vectors * (u64::from(stride) + 2 * WORD) as f64) as u64;
        self.gpu.count_work(T::Join::NAME, bytes, pairs * self.operations());
        let candidates = 2 * u64::from(JOIN_PROPOSALS) * size_of::<Key>() as u64;
        self.gpu.count_work(descent_merge::NAME, joins * (candidates + 2 * self.list_bytes() + WORD), 0);
    }

    /// Counts the work of one gathering.
    fn count_gathering(&self, unvisit: bool) {
        let read = if unvisit {
            2 * self.list_bytes()
        } else {
            (self.shape.k as u64).min(u64::from(GATHER)) * size_of::<Key>() as u64
        };
        self.gpu.count_work(descent_gather::NAME, self.nodes() * (read + ROW_BYTES), 0);
    }

    /// Counts the work of phase 2, by kernel `K`, from `stats`, as if every node had neighbours
    /// left to expand.
    fn count_expansions<K: Kernel>(&self, stride: u32, stats: &DescentStats) {
        let expansions = u64::from(stats.iterations.1) * self.nodes();
        let parents = self.expand.min(self.shape.k) as u64;
        let each = u64::from(stride) + 2 * self.list_bytes() + parents * ROW_BYTES;
        let bytes = expansions * each + stats.refine_distances * (u64::from(stride) + WORD);
        self.count_shared(K::NAME, bytes, stats.refine_distances * self.operations());
    }
}
