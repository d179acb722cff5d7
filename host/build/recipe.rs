//! What a build does, decided once before it begins: all choices that no value decides. Its stages
//! follow from them, each with its memory and its kernels, and from these the plan, what is
//! compiled ahead, and the estimate of time.

use std::borrow::Cow;

use cuda_std::launch::Kernel;
use tagore_device::descent::cells::PROPOSALS;
use tagore_device::key::Key;
use tagore_device::reduce::{reduce_marks, reduce_min};

use super::{BuildPlan, Builder, Target, estimate, layers};
use crate::gpu::{Communicator, Gpu, MemoryPlan, Overhead, PlannedStage};
use crate::index::IndexFile;
use crate::prune::gpu::{PruneShape, layer_kernels};
use crate::prune::{self, queries, reach};
use crate::quantize::{self, Compression};
use crate::search::exact::gpu::batch_of_all;
use crate::search::gpu::kernel as beam_kernel;
use crate::vectors::shape::{device_type, own_type, with_device_type};
use crate::vectors::space::Space;
use crate::{DataShape, DevicePlan, ElementType, Metric, Result, Start, Vectors};

/// Host bytes of the program itself.
const PROGRAM: u64 = 2 << 20;

/// Host bytes of a thread: its stack and the allocator's share.
const THREAD: u64 = 256 << 10;

/// A build of rows of some shape on some machine.
pub(crate) struct Recipe<'a> {
    /// The builder of the graph: that of codes, if the graph is built on codes.
    pub builder: Cow<'a, Builder>,
    /// What the graph is built on.
    pub data: DataShape,
    pub target: Target,
    /// Neighbours per node of the k-NN graph.
    pub k: usize,
    /// The start of descent; never `Auto`.
    pub start: Start,
    /// Element type of the vectors on a GPU.
    pub element: ElementType,
    /// Whether a GPU prunes the graph. If not, the CPU does.
    pub prunes_on_gpu: bool,
    /// GPUs that build the graph together, at least 1.
    pub gpus: usize,
    /// The k-NN graph on a GPU; none on the CPU.
    graph: Option<DevicePlan>,
    coded: Option<Coded>,
}

/// The vectors, where a build makes codes of them.
struct Coded {
    compression: Compression,
    vectors: DataShape,
    metric: Metric,
    /// Whether a second byte of each component settles lists.
    has_rests: bool,
}

impl Builder {
    /// Decides how lists of `k` are built and pruned, for checked parameters.
    pub(crate) fn resolve(&self, data: &DataShape, k: usize, target: Target) -> Recipe<'_> {
        let (builder, data, coded) = match self.compression {
            None => (Cow::Borrowed(self), *data, None),
            Some(compression) => {
                let (metric, has_rests) = (self.descent.metric, self.settles(k));
                let coded = Coded { compression, vectors: *data, metric, has_rests };
                (Cow::Owned(self.on_codes(k)), Self::codes_of(compression, data), Some(coded))
            }
        };
        let graph = target.gpu.map(|_| builder.descent.plan_of(&data, k));
        let start = match &graph {
            Some(graph) => graph.start,
            None => builder.descent.start_on_cpu(&data, k),
        };
        let shape = builder.pruning(data.rows, data.dim, k);
        let prunes_on_gpu = target.gpu.is_some() && shape.fits_gpu(target.takes_ptx, target.shared);
        let gpus = if builder.shares_lists(&data, k) { builder.all_devices().count() } else { 1 };
        let element = device_type(&data, builder.descent.metric);
        Recipe { builder, data, target, k, start, element, prunes_on_gpu, gpus, graph, coded }
    }

    /// The sizes of pruning lists of `k`.
    pub(super) fn pruning(&self, rows: usize, dim: usize, k: usize) -> PruneShape<'_> {
        PruneShape::new(&self.strategy, rows, dim, k, self.descent.metric)
    }
}

impl Recipe<'_> {
    fn pruning(&self) -> PruneShape<'_> {
        self.builder.pruning(self.data.rows, self.data.dim, self.k)
    }

    /// The stages on a GPU, in order; none on the CPU.
    pub(super) fn on_gpu(&self) -> Vec<PlannedStage> {
        let Some(graph) = self.graph.as_ref().filter(|_| self.k > 0) else { return Vec::new() };
        let mut stages = Vec::from_iter(self.coded.as_ref().map(Coded::stage));
        stages.extend_from_slice(&graph.stages);
        if self.prunes_on_gpu {
            stages.extend(with_device_type!(self.element, T => self.pruning().stages::<T>()));
        }
        if self.gpus > 1 {
            // Each device has what one alone has, and some of what another has found.
            let keys = self.data.rows.saturating_mul(self.builder.strategy.degree.max(PROPOSALS as usize));
            for stage in &mut stages {
                stage.buffers = stage.buffers.clone().and(&Communicator::plan(keys));
                stage.kernels.extend([reduce_marks::NAME, reduce_min::NAME]);
            }
        }
        stages
    }

    /// The kernels that the build launches on a GPU.
    pub(super) fn kernels(&self) -> Vec<&'static str> {
        let mut kernels: Vec<_> = self.on_gpu().into_iter().flat_map(|stage| stage.kernels).collect();
        if self.builder.is_layered() && self.data.rows >= layers::MIN_NODES {
            with_device_type!(self.element, T => {
                kernels.push(beam_kernel::<T>(layers::BEAM, 1, false));
                kernels.extend(layer_kernels::<T>());
            });
        }
        kernels
    }

    /// The stages on the host, in order, without what it has throughout.
    fn on_host(&self) -> Vec<PlannedStage> {
        let (n, threads) = (self.data.rows, self.target.threads);
        let Builder { strategy, descent, queries, .. } = &*self.builder;
        let rows = || prune::plan::rows(n, strategy.degree);
        let mut stages = Vec::new();
        if self.k > 0 {
            stages.extend(match &self.graph {
                Some(graph) if self.prunes_on_gpu => vec![self.beside_gpu(graph)],
                Some(graph) => {
                    let buffers = graph.host.only(&["nearest", "ids", "distances"]);
                    vec![PlannedStage::on_host("graph", buffers)]
                }
                None => descent.stages_on_cpu(&self.data, self.k, threads),
            });
            if !self.prunes_on_gpu {
                let settled = descent.has_residuals();
                stages.extend(prune::plan::stages_on_cpu(&self.pruning(), settled, threads));
            }
        }
        if !descent.is_of_cluster() {
            if let Some(sample) = queries {
                let fitting = queries::plan(sample.len(), n, strategy.degree);
                stages.push(PlannedStage::on_host("queries", rows().and(&fitting)));
            }
            stages.push(PlannedStage::on_host("reach", rows().and(&reach::plan(n, threads))));
        }
        if !(descent.is_of_cluster() && self.prunes_on_gpu) {
            // Rows of a cluster that a device prunes stay on it.
            stages.push(PlannedStage::on_host("index", rows()));
        }
        let throughout = self.throughout();
        for stage in &mut stages {
            stage.buffers = throughout.clone().and(&stage.buffers);
        }
        stages
    }

    /// The host's memory while a GPU builds the graph and prunes it.
    fn beside_gpu(&self, graph: &DevicePlan) -> PlannedStage {
        let n = self.data.rows;
        if self.start == Start::AllPairs {
            let lists = MemoryPlan::new().with::<Key>("lists", n * self.k).with::<u32>("nodes", 2 * n);
            let buffers = lists.with::<Key>("lists of a batch", batch_of_all(n) * self.k);
            return PlannedStage::on_host("exact search", buffers);
        }
        // The uploaded words, and the jobs they are made from.
        let jobs = graph.stages.iter().map(|stage| stage.buffers.only(&["jobs"]).bytes()).max();
        let buffers = MemoryPlan::new().with::<[u8; 3]>("jobs", jobs.unwrap_or(0) as usize);
        PlannedStage::on_host("descent", buffers)
    }

    /// Buffers of the host from beginning to end.
    fn throughout(&self) -> MemoryPlan {
        let space = |data: &DataShape, metric| Space::plan(data.rows, data.dim, data.element, metric);
        let graph = space(&self.data, self.builder.descent.metric);
        let Some(Coded { vectors, metric, has_rests, .. }) = &self.coded else { return graph };
        let codes = vectors.rows.saturating_mul(self.data.row_bytes());
        let coded = space(vectors, *metric).with::<u8>("codes", codes);
        coded.with::<u8>("rests", if *has_rests { codes } else { 0 }).and(&graph)
    }

    /// Fails before the build of `base` starts if it does not fit the GPU that is its target.
    pub(super) fn check_fits(&self, gpu: &Gpu, base: &Vectors) -> Result<()> {
        let free = self.target.free.unwrap_or(u64::MAX);
        // Values are read only if the type decides: f32 values that are bytes take less room.
        if PlannedStage::peak(&self.on_gpu()) <= free {
            return Ok(());
        }
        let data = DataShape::inspect(base, &self.builder.descent.progress)?;
        let stages = self.builder.resolve(&data, self.k, self.target).on_gpu();
        match PlannedStage::largest(&stages).filter(|stage| stage.buffers.bytes() > free) {
            None => Ok(()),
            Some(stage) => {
                Err(stage.does_not_fit(gpu, free, self.builder.remedies(&data, self.target, free)?))
            }
        }
    }

    /// The plan of the build.
    pub(super) fn plan(&self) -> BuildPlan {
        let Target { threads, gpu, .. } = self.target;
        let mut process = MemoryPlan::new()
            .with::<u8>("program", PROGRAM as usize)
            .with::<u8>("threads", threads * THREAD as usize);
        if let Some(Overhead { driver, staging, .. }) = gpu {
            process = process
                .with::<u8>("driver", driver as usize)
                .with::<u8>("staging (pinned)", staging as usize);
        }
        let device = self.on_gpu();
        let index = IndexFile::bytes(self.data.rows, self.builder.strategy.degree);
        BuildPlan {
            k: self.k,
            start: self.start,
            element: self.element,
            context: gpu.map_or(0, |gpu| gpu.context),
            pool: gpu.map_or(0, |gpu| gpu.pool(PlannedStage::peak(&device))),
            device,
            process,
            host: self.on_host(),
            disk: MemoryPlan::new().with::<u8>("index", index),
            seconds: estimate::seconds(self),
        }
    }
}

impl Coded {
    /// The stage that makes the codes on a GPU.
    fn stage(&self) -> PlannedStage {
        let &Self { compression, vectors: DataShape { rows, dim, .. }, metric, has_rests } = self;
        let from = own_type(&self.vectors, metric);
        let buffers = quantize::gpu::plan(from, compression, has_rests, rows, dim);
        PlannedStage { name: "codes", buffers, kernels: vec![quantize::gpu::kernel(from, compression)] }
    }
}
