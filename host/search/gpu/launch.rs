//! The launches of beam search.

use std::ops::Range;

use cuda_std::launch::Kernel;
use tagore_device::block::rows::Rows;
use tagore_device::key::{self, Key};
use tagore_device::search::beam::among::{
    BeamAmong, beam_among_128_f16, beam_among_128_f32, beam_among_128_i8, beam_among_128_u8,
    beam_among_512_f16, beam_among_512_f32, beam_among_512_i8, beam_among_512_u8, beam_among_layer_f16,
    beam_among_layer_f32, beam_among_layer_i8, beam_among_layer_u8,
};
use tagore_device::search::beam::search::{
    BeamSearch, SEARCH_COUNTERS, beam_search_64_f16, beam_search_64_f32, beam_search_64_i8,
    beam_search_64_u8, beam_search_128_f16, beam_search_128_f32, beam_search_128_i8, beam_search_128_u8,
    beam_search_256_f16, beam_search_256_f32, beam_search_256_i8, beam_search_256_u8, beam_search_512_f16,
    beam_search_512_f32, beam_search_512_i8, beam_search_512_u8, beam_search_layer_f16,
    beam_search_layer_f32, beam_search_layer_i8, beam_search_layer_u8, beam_search_wide_f16,
    beam_search_wide_f32, beam_search_wide_i8, beam_search_wide_u8,
};
use tagore_device::search::beam::walk::{BeamWalk, Graph};

use super::rerank::{FoundBatch, Reranking};
use super::{Among, BatchLimits, BeamShape, KeysTo, LayerOnGpu, OnGpu, Resident};
use crate::gpu::{Buffer, Gpu, KernelTime, MemoryPlan};
use crate::parallel::locked;
use crate::progress::StageProgress;
use crate::search::breadth::{BeamCapacity, Breadth};
use crate::search::edges::gpu::{EdgeCodesOnGpu, EdgeKernels};
use crate::search::passing::ENTRIES;
use crate::vectors::gpu::{
    Base, DeviceResults, OnDevice, Origin, Pick, metric_number, stage_kernels, stride,
};
use crate::{Metric, Result};

stage_kernels! {
    /// Kernels of beam search, without and with a filter: of beams of up to 64 to 512 nodes, and of
    /// layers.
    pub(crate) trait BeamKernels {
        Beam64 (BeamSearch<Self>,):
            beam_search_64_f32 beam_search_64_f16 beam_search_64_u8 beam_search_64_i8;
        Beam128 (BeamSearch<Self>,):
            beam_search_128_f32 beam_search_128_f16 beam_search_128_u8 beam_search_128_i8;
        Beam256 (BeamSearch<Self>,):
            beam_search_256_f32 beam_search_256_f16 beam_search_256_u8 beam_search_256_i8;
        Beam512 (BeamSearch<Self>,):
            beam_search_512_f32 beam_search_512_f16 beam_search_512_u8 beam_search_512_i8;
        BeamWide (BeamSearch<Self>,):
            beam_search_wide_f32 beam_search_wide_f16 beam_search_wide_u8 beam_search_wide_i8;
        BeamLayer (BeamSearch<Self>,):
            beam_search_layer_f32 beam_search_layer_f16 beam_search_layer_u8 beam_search_layer_i8;
        Among128 (BeamAmong<Self>,):
            beam_among_128_f32 beam_among_128_f16 beam_among_128_u8 beam_among_128_i8;
        Among512 (BeamAmong<Self>,):
            beam_among_512_f32 beam_among_512_f16 beam_among_512_u8 beam_among_512_i8;
        AmongLayer (BeamAmong<Self>,):
            beam_among_layer_f32 beam_among_layer_f16 beam_among_layer_u8 beam_among_layer_i8;
    }
}

/// The kernel of searches that keep `kept` nodes and expand `width` in a step, without or with a
/// filter.
pub(crate) fn kernel<T: BeamKernels>(kept: usize, width: usize, is_among: bool) -> &'static str {
    match (BeamCapacity::for_nodes(kept), is_among) {
        (_, false) if width > 1 => T::BeamWide::NAME,
        (BeamCapacity::Nodes64, false) => T::Beam64::NAME,
        (BeamCapacity::Nodes128, false) => T::Beam128::NAME,
        (BeamCapacity::Nodes256, false) => T::Beam256::NAME,
        (BeamCapacity::Nodes512, false) => T::Beam512::NAME,
        (BeamCapacity::Nodes64 | BeamCapacity::Nodes128, true) => T::Among128::NAME,
        (BeamCapacity::Nodes256 | BeamCapacity::Nodes512, true) => T::Among512::NAME,
    }
}

/// The kernels of searches without a filter that keep these numbers of nodes, of an index with
/// layers or without.
pub(crate) fn kernels<T: BeamKernels>(kept: &[usize], has_layers: bool) -> Vec<&'static str> {
    let layer = has_layers.then_some(T::BeamLayer::NAME);
    kept.iter().map(|&kept| kernel::<T>(kept, 1, false)).chain(layer).collect()
}

/// One launch: its graph, entry points and limits.
struct Stage<'a> {
    edges: &'a Buffer<u32>,
    /// Positions of nodes in a layer; none for the graph of all nodes.
    places: Option<&'a Buffer<u32>>,
    degree: usize,
    entries: Entries<'a>,
    /// The nodes that pass a filter, and the number of entries among them that follow `entries`.
    among: Option<(&'a PassingOnGpu, usize)>,
    limits: BatchLimits<'a>,
}

/// Entry points of one launch.
#[derive(Clone, Copy)]
enum Entries<'a> {
    /// The same nodes for all searches.
    Same(&'a Buffer<u32>),
    /// Each search's results of the previous launch, and their number.
    Found(&'a Buffer<Key>, usize),
}

/// `count` queries on the device.
struct QueryBuffers<'a, T> {
    values: &'a Buffer<T>,
    lifts: &'a Buffer<f32>,
    count: usize,
}

/// The output of a launch.
struct Output<'a> {
    found: &'a mut Buffer<Key>,
    computed: &'a mut Buffer<u64>,
}

/// Memory for up to `capacity` queries of `k` results.
pub(super) struct Batch<T> {
    capacity: usize,
    k: usize,
    /// Nodes carried from one layer to the next.
    carried: usize,
    queries: Buffer<T>,
    lifts: Buffer<f32>,
    found: Buffer<Key>,
    /// Keys found in the present and the next layer, which swap.
    in_layers: [Buffer<Key>; 2],
    computed: Buffer<u64>,
    /// The nodes that pass a filter, once a search has had one.
    passing: Option<PassingOnGpu>,
    /// The queries' codes, for searches on codes of edges.
    codes: Buffer<u32>,
}

/// The nodes that searches with a filter walk on.
struct PassingOnGpu {
    /// A bit per node.
    words: Buffer<u32>,
    entries: Buffer<u32>,
}

impl PassingOnGpu {
    fn new(gpu: &Gpu, words: usize) -> Result<Self> {
        Ok(Self {
            words: gpu.buffer("passing nodes", words)?,
            entries: gpu.buffer("passing entries", ENTRIES)?,
        })
    }
}

impl<T: OnDevice> Batch<T> {
    /// Allocates buffers for searches that carry up to `carried` nodes from one layer to the next.
    fn new(task: &Task<'_>, capacity: usize, k: usize, carried: usize) -> Result<Self> {
        let (OnGpu { gpu, edge_codes, .. }, dim) = (task.on_gpu, task.dim);
        let words = edge_codes.as_ref().map_or(1, |codes| capacity * codes.query_words());
        let memory = MemoryPlan::new()
            .with::<T>("queries", capacity * stride::<T>(dim))
            .with::<f32>("query lifts", capacity)
            .with::<Key>("found", capacity * k)
            .with::<Key>("found in a layer", capacity * carried)
            .with::<Key>("found in the next layer", capacity * carried)
            .with::<u64>("computed", SEARCH_COUNTERS as usize)
            .with::<u32>("codes of queries", words)
            .reserve(gpu)?;
        let mut batch = Self {
            capacity,
            k,
            carried,
            queries: memory.buffer("queries")?,
            lifts: memory.buffer("query lifts")?,
            found: memory.buffer("found")?,
            in_layers: [memory.buffer("found in a layer")?, memory.buffer("found in the next layer")?],
            computed: memory.buffer("computed")?,
            passing: None,
            codes: memory.buffer("codes of queries")?,
        };
        batch.computed.fill(0)?;
        Ok(batch)
    }

    /// Copies the queries of `range`, which come from `rows`, here.
    fn load(&mut self, task: &Task<'_>, rows: &Origin<'_, T>, range: Range<usize>) -> Result<()> {
        let (count, pick, zero) = (range.len(), task.asked.pick(range), task.asked.zero);
        rows.copy(&task.on_gpu.gpu, pick.clone(), &mut self.queries, stride::<T>(task.dim))?;
        if !zero.is_empty() {
            let lift = |place| if zero[pick.row(place)] { -1.0 } else { 0.0 };
            self.lifts.upload(&(0..count).map(lift).collect::<Vec<f32>>())?;
        }
        Ok(())
    }

    /// Copies the nodes that pass a filter here, if there is one.
    fn load_passing(&mut self, gpu: &Gpu, among: Option<Among<'_>>) -> Result<()> {
        let Some(Among { words, entries }) = among else { return Ok(()) };
        let words: &[u32] = bytemuck::cast_slice(words);
        let mut there = match self.passing.take() {
            Some(there) => there,
            None => PassingOnGpu::new(gpu, words.len())?,
        };
        there.words.upload(words)?;
        there.entries.upload(entries)?;
        self.passing = Some(there);
        Ok(())
    }

    /// The number of distances computed since the counters were cleared.
    fn computed(&self) -> Result<u64> {
        let mut computed = [0; SEARCH_COUNTERS as usize];
        self.computed.download(&mut computed)?;
        Ok(computed.iter().sum())
    }
}

/// Takes the keys of a batch, `k` per query, and the number of its first query.
pub(in crate::search) type Take<'a> = &'a mut (dyn FnMut(usize, &[Key]) + 'a);

/// Work of a search.
#[derive(Default)]
pub(in crate::search) struct Work {
    /// Distances computed.
    pub computed: u64,
    /// Queries that codes do not hold, ascending.
    pub not_held: Vec<u32>,
    pub kernels: Vec<KernelTime>,
}

/// Where the keys of a batch go.
enum BatchKeysTo<'a> {
    Host(&'a mut [Key]),
    Device(&'a DeviceResults),
}

/// The queries of a search.
#[derive(Clone, Copy)]
pub(super) struct Asked<'a> {
    pub count: usize,
    /// The row of each query, if the queries are nodes of the base.
    pub nodes: Option<&'a [u32]>,
    /// Cosine: marks the rows that are zero vectors; empty if there are none.
    pub zero: &'a [bool],
}

impl<'a> Asked<'a> {
    /// The rows of some queries.
    fn pick(&self, queries: Range<usize>) -> Pick<'a> {
        self.nodes.map_or(Pick::Range(queries.clone()), |nodes| Pick::Ids(&nodes[queries]))
    }
}

/// A search for a set of queries.
#[derive(Clone, Copy)]
pub(super) struct Task<'a> {
    pub on_gpu: &'a OnGpu,
    pub dim: usize,
    pub metric: Metric,
    pub asked: Asked<'a>,
    pub limits: BatchLimits<'a>,
    pub stage: &'a StageProgress<'a>,
    /// For searches on codes.
    pub reranking: Option<&'a Reranking<'a>>,
}

impl Task<'_> {
    /// Searches for the queries `rows`.
    pub(super) fn run<T: BeamKernels + EdgeKernels>(
        &self,
        resident: &Resident<T>,
        rows: &Origin<'_, T>,
        to: KeysTo<'_>,
    ) -> Result<Work> {
        // The caller of results that stay on the device waits, so nothing is read back for it.
        let is_measured = to.is_measured();
        // Held to the end: searches of one base run one after another.
        let mut kept = locked(&resident.batch);
        let batch = self.batch(&mut kept)?;
        batch.load_passing(&self.on_gpu.gpu, self.limits.among)?;
        let measurement = is_measured.then(|| self.on_gpu.gpu.measure()).transpose()?;
        if is_measured {
            batch.computed.fill(0)?;
        }
        let mut reranked_rows = 0;
        self.in_batches(to, |range, to| {
            batch.load(self, rows, range.clone())?;
            self.walk(&resident.base, batch, range.len())?;
            let found = FoundBatch { keys: &batch.found, range: range.clone(), limits: self.limits };
            let rerank = |reranking: &Reranking<'_>| reranking.run(&self.on_gpu.gpu, &found);
            let reranked = self.reranking.map(rerank).transpose()?;
            reranked_rows += if reranked.is_some() { range.len() * self.limits.walked } else { 0 };
            self.hand_over(reranked.as_ref().unwrap_or(&batch.found), range, to)
        })?;
        let Some(measurement) = measurement else { return Ok(Work::default()) };
        let walked = batch.computed()?;
        self.count_rows::<T>(walked);
        let kernels = measurement.end()?.kernels;
        Ok(Work { computed: walked + reranked_rows as u64, kernels, ..Work::default() })
    }

    /// The kept buffers, or new ones if those are too small.
    fn batch<'b, T: OnDevice>(&self, kept: &'b mut Option<Batch<T>>) -> Result<&'b mut Batch<T>> {
        let (capacity, k) = (self.asked.count.min(self.limits.batch), self.limits.walked);
        let carried = self.on_gpu.layers.iter().map(|layer| layer.beam).max().unwrap_or(0);
        let fits = |batch: &Batch<T>| batch.capacity >= capacity && batch.k >= k && batch.carried >= carried;
        Ok(match kept.take().filter(fits) {
            Some(batch) => kept.insert(batch),
            None => kept.insert(Batch::new(self, capacity, k, carried)?),
        })
    }

    /// Hands over the keys of the queries of `range`. The caller waits for those that stay on the
    /// device.
    fn hand_over(&self, found: &Buffer<Key>, range: Range<usize>, to: BatchKeysTo<'_>) -> Result<()> {
        let k = self.limits.k;
        match to {
            BatchKeysTo::Host(keys) => found.download(keys),
            BatchKeysTo::Device(results) => {
                results.write(&self.on_gpu.gpu, found, range.start * k, range.len() * k)
            }
        }
    }

    /// Calls `search` for ranges of the queries.
    fn in_batches(
        &self,
        mut to: KeysTo<'_>,
        mut search: impl FnMut(Range<usize>, BatchKeysTo<'_>) -> Result<()>,
    ) -> Result<()> {
        let BatchLimits { k, batch: at_once, .. } = self.limits;
        let queries = self.asked.count;
        if queries * k == 0 {
            return Ok(());
        }
        let mut of_batch = match to {
            KeysTo::Host(_) | KeysTo::One(_) | KeysTo::Device(_) => Vec::new(),
            KeysTo::Batches(_) => vec![key::NONE; k * queries.min(at_once)],
        };
        for first in (0..queries).step_by(at_once) {
            let range = first..queries.min(first + at_once);
            let count = range.len();
            match &mut to {
                KeysTo::Host(keys) | KeysTo::One(keys) => {
                    search(range, BatchKeysTo::Host(&mut keys[first * k..][..count * k]))
                }
                KeysTo::Batches(take) => {
                    let keys = &mut of_batch[..count * k];
                    search(range, BatchKeysTo::Host(keys)).inspect(|_| take(first, keys))
                }
                KeysTo::Device(results) => search(range, BatchKeysTo::Device(results)),
            }?;
            self.stage.advance(count as u64)?;
        }
        Ok(())
    }

    /// Searches the layers, then the index.
    fn walk<T: BeamKernels + EdgeKernels>(
        &self,
        base: &Base<T>,
        batch: &mut Batch<T>,
        count: usize,
    ) -> Result<()> {
        let OnGpu { degree, edges, entries, layers, edge_codes, .. } = self.on_gpu;
        let Batch { queries, lifts, found, in_layers: [here, next], computed, passing, codes, .. } = batch;
        let passing = passing.as_ref().filter(|_| self.limits.among.is_some());
        let queries = QueryBuffers { values: queries, lifts, count };
        let (mut here, mut next) = (here, next);
        let mut entries = Entries::Same(entries);
        for layer in layers {
            let LayerOnGpu { degree, beam, ref edges, ref places } = *layer;
            let shape = self.on_gpu.shape_of_layer(layer, self.dim, self.metric, self.limits);
            let BeamShape { breadth, width, .. } = shape;
            let limits = BatchLimits { k: beam, breadth, width, ..self.limits };
            let among = passing.map(|passing| (passing, 0));
            let stage = Stage { edges, places: Some(places), degree, entries, among, limits };
            let output = Output { found: here, computed };
            self.launch(base, &stage, &queries, output, None)?;
            (here, next) = (next, here);
            entries = Entries::Found(next, beam);
        }
        let limits = BatchLimits { k: self.limits.walked, ..self.limits };
        let among = passing.zip(limits.among).map(|(there, among)| (there, among.entries.len()));
        let stage = Stage { edges, places: None, degree: *degree, entries, among, limits };
        let on_edges = edge_codes.as_ref().filter(|_| among.is_none()).map(|edges| (edges, codes));
        self.launch(base, &stage, &queries, Output { found, computed }, on_edges)
    }

    /// Counts the rows that the kernel of the beam has read. Rows alone: the number of edges read
    /// is not known.
    fn count_rows<T: BeamKernels + EdgeKernels>(&self, rows: u64) {
        if let (Some(codes), None) = (&self.on_gpu.edge_codes, self.limits.among) {
            return codes.count_rows::<T>(&self.on_gpu.gpu, self.limits.breadth.kept, rows);
        }
        let BatchLimits { breadth: Breadth { kept, .. }, width, among, .. } = self.limits;
        let bytes = rows * (stride::<T>(self.dim) * size_of::<T>()) as u64;
        let kernel = kernel::<T>(kept, width, among.is_some());
        self.on_gpu.gpu.count_work(kernel, bytes, 0);
    }

    /// Launches a search of a layer or of the index.
    fn launch<T: BeamKernels + EdgeKernels>(
        &self,
        base: &Base<T>,
        stage: &Stage<'_>,
        queries: &QueryBuffers<'_, T>,
        output: Output<'_>,
        on_edges: Option<(&EdgeCodesOnGpu, &mut Buffer<u32>)>,
    ) -> Result<()> {
        let (gpu, dim, degree) = (&self.on_gpu.gpu, self.dim, stage.degree);
        let BatchLimits { k, breadth, width, .. } = stage.limits;
        let shape = BeamShape { dim, degree, breadth, width, is_among: stage.among.is_some() };
        let slots = shape.slots(gpu.shared_memory());
        let slots =
            slots.map_err(|bytes| gpu.error(format_args!("search: {bytes} bytes of shared memory")))?;
        let (entries, entry_count, entry_stride, entry_shift) = match stage.entries {
            Entries::Same(entries) => (entries.view(), entries.len(), 0, 0),
            // The ids are the low words of the keys.
            Entries::Found(keys, count) => (keys.view().cast(), count, count, 1),
        };
        let ids = stage.edges.view();
        let search = BeamSearch {
            walk: BeamWalk {
                base: base.rows(),
                graph: Graph {
                    ids,
                    places: stage.places.map_or(ids, Buffer::view),
                    degree: degree as u32,
                    shift: 0,
                },
                entries,
                entry_count: entry_count as u32,
                entry_stride: entry_stride as u32,
                entry_shift,
                beam: breadth.kept as u32,
                width: width as u32,
                expansions: u32::MAX,
                slots,
                metric: metric_number(self.metric),
                stop: breadth.stop,
            },
            queries: Rows {
                values: queries.values.view(),
                lifts: queries.lifts.view(),
                stride: stride::<T>(dim) as u32,
                dim: dim as u32,
                lifted: u32::from(!self.asked.zero.is_empty()),
                square: -1.0,
            },
            found: output.found.view_mut(),
            computed: output.computed.view_mut(),
            k: k as u32,
            is_partial: u32::from(stage.places.is_some()),
        };
        if let Some((edges, codes)) = on_edges {
            return edges.search(gpu, search, queries.count as u32, codes);
        }
        let (grid, block) = ([queries.count as u32, 1, 1], 32 * width as u32);
        let (capacity, is_layer) = (BeamCapacity::for_nodes(breadth.kept), stage.places.is_some());
        let Some((passing, count)) = stage.among else {
            // SAFETY: ids and entries were checked to be rows of the base or nodes of a layer. The
            // batch has room for `count` queries. The download of the results waits for the work,
            // so all buffers outlive it.
            return unsafe {
                match (is_layer, capacity) {
                    _ if width > 1 => gpu.launch::<T::BeamWide>(grid, block, (search,)),
                    (true, _) => gpu.launch::<T::BeamLayer>(grid, block, (search,)),
                    (_, BeamCapacity::Nodes64) => gpu.launch::<T::Beam64>(grid, block, (search,)),
                    (_, BeamCapacity::Nodes128) => gpu.launch::<T::Beam128>(grid, block, (search,)),
                    (_, BeamCapacity::Nodes256) => gpu.launch::<T::Beam256>(grid, block, (search,)),
                    (_, BeamCapacity::Nodes512) => gpu.launch::<T::Beam512>(grid, block, (search,)),
                }
            };
        };
        let among = BeamAmong {
            search,
            passing: passing.words.view(),
            entries: passing.entries.view(),
            entry_count: count as u32,
            padding: 0,
        };
        // SAFETY: ids and entries were checked to be rows of the base or nodes of a layer. `words`
        // has a bit per node, and the first `count` values of `passing.entries` are nodes. The
        // batch has room for `count` queries. The download of the results waits for the work, so
        // all buffers outlive it.
        unsafe {
            match (is_layer, capacity) {
                (true, _) => gpu.launch::<T::AmongLayer>(grid, block, (among,)),
                (_, BeamCapacity::Nodes64 | BeamCapacity::Nodes128) => {
                    gpu.launch::<T::Among128>(grid, block, (among,))
                }
                (_, BeamCapacity::Nodes256 | BeamCapacity::Nodes512) => {
                    gpu.launch::<T::Among512>(grid, block, (among,))
                }
            }
        }
    }
}
