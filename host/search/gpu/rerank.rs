//! Exact distances of the nodes that a search on codes found (`device/src/search/rerank.rs`).

use std::ops::Range;

use cuda_std::f16;
use cuda_std::launch::Kernel;
use tagore_device::block::rows::Rows;
use tagore_device::key::{self, Key};
use tagore_device::search::rerank::{RERANK_THREADS, Rerank, search_rerank_f16, search_rerank_f32};

use super::BatchLimits;
use crate::gpu::{Buffer, Gpu};
use crate::loops::{for_each_with, rows, rows_mut};
use crate::search::coded::Reranked;
use crate::vectors::gpu::{Base, OnDevice, Origin, Pick, metric_number, stride};
use crate::vectors::queries::Queries;
use crate::vectors::space::Space;
use crate::{ElementType, Metric, Result};

/// Memory of a device that stays free beside the vectors, for batches of queries.
const SPARE: u64 = 1 << 30;

/// The vectors that codes were made of.
pub(super) enum FullRows {
    F32(Base<f32>),
    F16(Base<f16>),
    /// In host memory: the device has no room for them.
    OnHost,
}

/// The exact distances of one set of queries.
pub(super) struct Reranking<'a> {
    pub rows: &'a FullRows,
    pub space: &'a Space<'a>,
    pub queries: &'a Queries<'a>,
}

/// The keys of one batch of queries.
pub(super) struct FoundBatch<'a> {
    /// `limits.walked` per query.
    pub keys: &'a Buffer<Key>,
    /// The numbers of the queries.
    pub range: Range<usize>,
    pub limits: BatchLimits<'a>,
}

/// An element type with a kernel.
trait RerankKernel: OnDevice {
    type Kernel: Kernel<Arguments = (Rerank<Self>,)>;
}

impl RerankKernel for f32 {
    type Kernel = search_rerank_f32;
}

impl RerankKernel for f16 {
    type Kernel = search_rerank_f16;
}

/// The kernel that reranks by vectors of this type.
pub(crate) fn kernel(element: ElementType) -> &'static str {
    match element {
        ElementType::F16 => search_rerank_f16::NAME,
        _ => search_rerank_f32::NAME,
    }
}

impl FullRows {
    /// Copies the rows of `space`, f32 or f16, to a device that has room for them.
    ///
    /// # Errors
    /// If the device fails.
    pub(super) fn new(gpu: &Gpu, space: &Space<'_>) -> Result<Self> {
        let free = gpu.free_memory()?.saturating_sub(SPARE);
        let (n, dim, metric) = (space.len(), space.dim(), space.metric());
        let vectors = space.vectors();
        match vectors.element_type() {
            ElementType::F32 if Base::<f32>::plan(n, dim, metric).bytes() <= free => {
                Ok(Self::F32(Base::upload(gpu, space, &Origin::new(gpu, vectors)?)?))
            }
            ElementType::F16 if Base::<f16>::plan(n, dim, metric).bytes() <= free => {
                Ok(Self::F16(Base::upload(gpu, space, &Origin::new(gpu, vectors)?)?))
            }
            _ => vectors.on_host().map(|()| Self::OnHost),
        }
    }
}

impl Reranking<'_> {
    /// The nearest `limits.k` keys per query.
    pub(super) fn run(&self, gpu: &Gpu, found: &FoundBatch<'_>) -> Result<Buffer<Key>> {
        let count = found.range.len() * found.limits.k;
        let mut reranked: Buffer<Key> = gpu.buffer("reranked", count)?;
        match self.rows {
            FullRows::F32(base) => self.launch(gpu, base, found, &mut reranked)?,
            FullRows::F16(base) => self.launch(gpu, base, found, &mut reranked)?,
            FullRows::OnHost => self.on_host(found, &mut reranked)?,
        }
        Ok(reranked)
    }

    fn launch<T: RerankKernel>(
        &self,
        gpu: &Gpu,
        base: &Base<T>,
        FoundBatch { keys, range, limits }: &FoundBatch<'_>,
        reranked: &mut Buffer<Key>,
    ) -> Result<()> {
        let (count, dim, metric) = (range.len(), self.space.dim(), self.space.metric());
        let stride = stride::<T>(dim);
        let (mut values, mut lifts): (Buffer<T>, Buffer<f32>) =
            (gpu.buffer("full queries", count * stride)?, gpu.buffer("lifts of queries", count)?);
        let zero = self.queries.zero().get(range.clone()).unwrap_or_default();
        let queries = Origin::new(gpu, self.queries.vectors())?;
        queries.copy(gpu, Pick::Range(range.clone()), &mut values, stride)?;
        let is_lifted = metric == Metric::Cosine && !zero.is_empty();
        if is_lifted {
            let of_queries: Vec<f32> = zero.iter().map(|&zero| if zero { -1.0 } else { 0.0 }).collect();
            lifts.upload(&of_queries)?;
        }
        let rerank = Rerank {
            base: base.rows(),
            queries: Rows {
                values: values.view(),
                lifts: lifts.view(),
                stride: stride as u32,
                dim: dim as u32,
                lifted: u32::from(is_lifted),
                square: -1.0,
            },
            found: keys.view(),
            reranked: reranked.view_mut(),
            walked: limits.walked as u32,
            k: limits.k as u32,
            metric: metric_number(metric),
            padding: 0,
        };
        // SAFETY: keys found are of rows of the base; the buffers hold as many queries and keys,
        // and are freed after the work.
        unsafe { gpu.launch::<T::Kernel>([count as u32, 1, 1], RERANK_THREADS, (rerank,))? };
        let rows = count as u64 * limits.walked as u64;
        gpu.count_work(T::Kernel::NAME, rows * (stride * size_of::<T>()) as u64, 0);
        Ok(())
    }

    fn on_host(&self, found: &FoundBatch<'_>, reranked: &mut Buffer<Key>) -> Result<()> {
        let FoundBatch { keys: found, range, limits: BatchLimits { k, walked, .. } } = found;
        self.queries.vectors().on_host()?;
        let mut keys = vec![key::NONE; range.len() * walked];
        found.download(&mut keys)?;
        let mut nearest = vec![key::NONE; range.len() * k];
        let lists = ((rows_mut(&mut nearest, *k), rows(&keys, *walked)), range.clone());
        for_each_with(lists, Reranked::default, |room, ((nearest, keys), query)| {
            let exact = room.rerank(self.space, self.queries.query(query), keys.iter().copied());
            let exact = &exact[..exact.len().min(*k)];
            nearest[..exact.len()].copy_from_slice(exact);
        });
        reranked.upload(&nearest)
    }
}
