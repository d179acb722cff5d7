//! The end of a descent: exact distances of all lists, and exact search for lacking ones.

use std::time::Instant;

use cuda_std::launch::Kernel;
use cuda_std::memory::GlobalMut;
use tagore_device::descent::cells::{
    FINISH_EXACT_NODES, FINISH_EXACT_THREADS, Finish, FinishExact, cells_finish_exact, cells_finish_f16,
    cells_finish_f32, cells_finish_i8, cells_finish_u8,
};
use tagore_device::descent::renumber::renumber_vectors;
use tagore_device::key::Key;
use tagore_device::search::exact::RERANK_THREADS;

use super::{Build, DescentKernels, DescentShape, DeviceGraph, GpuLists, Nodes, Original, WORD};
use crate::gpu::{Buffer, MemoryPlan, PlannedStage, Stages};
use crate::search::exact::gpu::{QuerySet, add_zero_vectors, least_plan};
use crate::vectors::gpu::{Base, Order, metric_number, stage_kernels};
use crate::{Metric, Result};

stage_kernels! {
    /// Kernels of exact distances of lists.
    pub(crate) trait FinishKernels {
        Finish (Finish<Self>,): cells_finish_f32 cells_finish_f16 cells_finish_u8 cells_finish_i8;
    }
}

/// The stage that ends a descent.
const FINISH: &str = "finish";

/// A list is reliable if its last distance is at least this multiple of the rounding error of its
/// node.
const MAX_ROUNDING: f32 = 16.0;

/// A copy of one list to a device takes as long as one of this many bytes there and back.
const BYTES_PER_COPY: usize = 12 << 10;

/// Rows whose lists are short, or whose last distance is about their rounding error.
#[derive(Default)]
pub(super) struct Lacking {
    /// Ascending.
    rows: Vec<u32>,
    /// Bytes on the device for the search that completes the lists.
    room: u64,
}

impl Lacking {
    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}

/// The output of the kernels that finish lists.
struct Found {
    keys: GlobalMut<Key>,
    lacking: GlobalMut<u32>,
    count: GlobalMut<u32>,
}

impl DescentShape {
    /// Plans the end of a descent.
    pub(super) fn plan_finish<T: DescentKernels>(&self, stages: &mut Stages) {
        if !self.is_rounded::<T>() {
            let kernel = renumber_vectors::NAME;
            stages.add("reorder", &self.reorder::<T>(), [kernel]);
        }
        stages.free(&["vectors", "places"]);
        stages.hold(&self.finish());
        stages.hold(&Base::<T>::lifts(if self.metric == Metric::L2 { 0 } else { self.n }));
        let kernel = if self.has_exact_keys::<T>() { cells_finish_exact::NAME } else { T::Finish::NAME };
        stages.add(FINISH, &MemoryPlan::new(), [kernel]);
        // Exact search may keep the element type of the vectors. The data decides whether a few
        // rows need it, so its kernels are not compiled ahead.
        let least = if self.narrowed { least_plan::<f32> } else { least_plan::<T> };
        let bytes = least(self.n, self.dim, self.k).bytes() as usize;
        stages.add("complete", &MemoryPlan::new().with::<u8>("exact search", bytes), []);
    }

    /// Buffers of the final lists.
    fn finish(&self) -> MemoryPlan {
        MemoryPlan::new()
            .with::<Key>("nearest", self.n * self.k)
            .with::<u32>("lacking", self.n)
            .with::<u32>("lacking count", 1)
    }

    /// Bytes for the exact search that completes lists: the peak of the build less the buffers of
    /// its last stage.
    fn room_to_complete<T: DescentKernels>(&self) -> u64 {
        let stages = self.stages::<T>();
        let finish = stages.iter().find(|stage| stage.name == FINISH);
        PlannedStage::peak(&stages) - finish.map_or(0, |stage| stage.buffers.bytes())
    }
}

impl Build<'_> {
    /// Computes the exact distances of all lists, turns nodes into rows, and sorts the lists.
    pub(super) fn finish<T: DescentKernels>(
        &self,
        mut original: Original<T>,
        mut nodes: Nodes<T>,
        scale: f32,
    ) -> Result<(Base<T>, GpuLists, Lacking)> {
        let (n, k, metric) = (self.space.len(), self.shape.k, self.space.metric());
        if let Some(places) = original.places.take() {
            let memory = self.shape.reorder::<T>().reserve(self.gpu)?;
            let to_rows = Order { gpu: self.gpu, vectors: places.view(), count: n };
            let (values, stride) = (original.values.view_mut().cast(), nodes.tiles.stride);
            to_rows.apply(values, stride as usize, &mut memory.buffer("vectors")?)?;
            self.count_renumbering(stride, 2);
        }
        drop(nodes.rounded.take());
        // The memory of the rounded copy and of columns serves larger buffers.
        self.gpu.synchronize()?;
        let memory = self.shape.finish().reserve(self.gpu)?;
        let mut keys = memory.buffer("nearest")?;
        let mut lacking: Buffer<u32> = memory.buffer("lacking")?;
        let mut count: Buffer<u32> = memory.buffer("lacking count")?;
        count.fill(0)?;
        let out = Found { keys: keys.view_mut(), lacking: lacking.view_mut(), count: count.view_mut() };
        if self.shape.has_exact_keys::<T>() {
            self.finish_exact(&nodes, out)?;
        } else {
            self.finish_lists(&original, &nodes, MAX_ROUNDING / scale, out)?;
        }
        let mut length = [0];
        count.download(&mut length)?;
        let mut found = vec![0; length[0] as usize];
        lacking.download(&mut found)?;
        found.sort_unstable();
        let lists = GpuLists { keys, k, metric, order: nodes.order };
        let dim = self.space.dim();
        let narrowed = self.space.device_row_bytes() != dim * size_of::<T>();
        let room = DescentShape { narrowed, ..self.shape }.room_to_complete::<T>();
        let base = Base::new(self.gpu, self.space, original.values, original.stride)?;
        Ok((base, lists, Lacking { rows: found, room }))
    }

    /// Computes the exact distances of all lists from the original vectors.
    fn finish_lists<T: DescentKernels>(
        &self,
        original: &Original<T>,
        nodes: &Nodes<T>,
        least_per_error: f32,
        out: Found,
    ) -> Result<()> {
        let finish = Finish::<T> {
            rows: original.values.view(),
            order: nodes.order.view(),
            lists: nodes.lists.view(),
            errors: original.errors.view(),
            nearest: out.keys,
            lacking: out.lacking,
            lacking_count: out.count,
            stride: original.stride as u32,
            dim: self.space.dim() as u32,
            k: self.shape.k as u32,
            metric: metric_number(self.space.metric()),
            least_per_error,
            padding: 0,
        };
        let grid = [self.space.len() as u32, 1, 1];
        // SAFETY: lists hold nodes, the order rows; the memory outlives the work.
        unsafe { self.gpu.launch::<T::Finish>(grid, RERANK_THREADS, (finish,))? };
        self.count_finish::<T>(original.stride);
        Ok(())
    }

    /// Makes exact distances of the keys of bytes, which lack only the norm of the node.
    fn finish_exact<T: DescentKernels>(&self, nodes: &Nodes<T>, out: Found) -> Result<()> {
        let n = self.space.len() as u32;
        let finish = FinishExact {
            norms: nodes.biases.view().cast(),
            order: nodes.order.view(),
            lists: nodes.lists.view(),
            nearest: out.keys,
            lacking: out.lacking,
            lacking_count: out.count,
            nodes: n,
            k: self.shape.k as u32,
        };
        let grid = [n.div_ceil(FINISH_EXACT_NODES), 1, 1];
        // SAFETY: lists hold nodes, the order rows, and norms are integers; the memory outlives the
        // work.
        unsafe { self.gpu.launch::<cells_finish_exact>(grid, FINISH_EXACT_THREADS, (finish,))? };
        self.count_finish_exact();
        Ok(())
    }

    /// Searches exactly for the neighbours of the lacking rows of `graph`, and adds the zero
    /// vectors under cosine.
    pub(in crate::descent) fn complete(&self, graph: &mut DeviceGraph) -> Result<()> {
        let (space, k, began) = (self.space, self.shape.k, Instant::now());
        let DeviceGraph { lists, stats, .. } = graph;
        let Lacking { rows: lacking, room } = std::mem::take(&mut graph.lacking);
        if lacking.is_empty() && space.zero().is_empty() {
            return Ok(());
        }
        let silent = self.progress.unwatched();
        let build = Build { progress: &silent, ..*self };
        let found = build.search(&QuerySet::of_nodes(space, &lacking), Some(room))?;
        let exact = || lacking.iter().zip(found.chunks_exact(k));
        stats.completed = lacking.len() as u64;
        stats.distances += stats.completed * (space.len() as u64 - 1);
        let are_few = lacking.len() * BYTES_PER_COPY < space.len() * k * size_of::<Key>();
        if space.zero().is_empty() && are_few {
            exact().try_for_each(|(&row, list)| lists.keys.upload_at(row as usize * k, list))?;
            stats.seconds += began.elapsed().as_secs_f64();
            return Ok(());
        }
        let mut keys = lists.download()?;
        let all_rows: Vec<u32> = (0..space.len() as u32).collect();
        add_zero_vectors(space, None, &QuerySet::of_nodes(space, &all_rows), k, &mut keys);
        for (&row, list) in exact() {
            keys[row as usize * k..][..k].copy_from_slice(list);
        }
        lists.keys.upload(&keys)?;
        stats.seconds += began.elapsed().as_secs_f64();
        Ok(())
    }

    /// Counts the work of the exact distances of all lists, for vectors of `stride` components.
    fn count_finish<T: FinishKernels>(&self, stride: usize) {
        let (n, k) = (self.nodes(), self.shape.k as u64);
        let vectors = n * (k + 1) * (stride * size_of::<T>()) as u64;
        let lists = n * (2 * self.list_bytes() + (k + 1) * WORD);
        self.gpu.count_work(T::Finish::NAME, vectors + lists, n * k * self.operations());
    }

    /// Counts the work of finishing lists whose keys hold exact values.
    fn count_finish_exact(&self) {
        let bytes = self.nodes() * (2 * self.list_bytes() + 3 * WORD);
        self.gpu.count_work(cells_finish_exact::NAME, bytes, 0);
    }
}
