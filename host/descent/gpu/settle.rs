//! Lists on codes in bytes, settled on the device (`device/src/vectors/settle.rs`).

use std::time::Instant;

use cuda_std::launch::Kernel;
use tagore_device::key::Key;
use tagore_device::vectors::copy::vectors_copy_words;
use tagore_device::vectors::settle::{SETTLE_LISTS_THREADS, Settle, vectors_settle};

use super::{DeviceGraph, GpuLists};
use crate::gpu::{Buffer, Gpu, MemoryPlan, PlannedStage, Stages};
use crate::vectors::Vectors;
use crate::vectors::gpu::{Base, DeviceBase, Origin, Pick, RowsAt, metric_number, stride};
use crate::{Metric, Result};

/// The sizes of lists before and after they are settled.
#[derive(Clone, Copy)]
pub(in crate::descent) struct SettleShape {
    pub n: usize,
    pub dim: usize,
    /// Neighbours per node before.
    pub longer: usize,
    /// Neighbours per node after.
    pub k: usize,
    pub metric: Metric,
}

impl SettleShape {
    fn rests(&self) -> MemoryPlan {
        MemoryPlan::new().with::<i8>("rests", self.n * stride::<i8>(self.dim))
    }

    fn nearest(&self) -> MemoryPlan {
        MemoryPlan::new().with::<Key>("nearest", self.n * self.k)
    }

    /// The stages, with the codes and lists that descent leaves on the device.
    pub(in crate::descent) fn stages(&self) -> Vec<PlannedStage> {
        let &Self { n, dim, longer, metric, .. } = self;
        let mut stages = Stages::over(GpuLists::plan(Base::<i8>::plan(n, dim, metric), n, longer));
        stages.add("settle", &self.rests(), [vectors_settle::NAME]);
        stages.add("shorten", &self.nearest(), [vectors_copy_words::NAME]);
        stages.into_vec()
    }
}

impl DeviceGraph {
    /// Settles the lists of codes in bytes, whose `rests` are given: keeps the `k` nearest of each.
    pub(in crate::descent) fn settle(&mut self, gpu: &Gpu, rests: &Vectors, k: usize) -> Result<()> {
        let (DeviceBase::I8(base), rows) = (&self.base, Origin::<i8>::new(gpu, rests)?) else {
            return Err(gpu.error("rests of codes that are no bytes"));
        };
        let (n, dim, longer, metric) = (rests.len(), rests.dim(), self.lists.k, self.lists.metric);
        let shape = SettleShape { n, dim, longer, k, metric };
        let copying = Instant::now();
        let mut rests: Buffer<i8> = shape.rests().reserve(gpu)?.buffer("rests")?;
        rows.copy(gpu, Pick::Range(0..n), &mut rests, stride::<i8>(dim))?;
        gpu.synchronize()?;
        self.stats.copy += copying.elapsed().as_secs_f64();

        let settling = Instant::now();
        let codes = base.rows();
        let settle = Settle {
            codes: codes.values,
            rests: rests.view(),
            order: self.lists.order.view(),
            lists: self.lists.keys.view_mut(),
            stride: codes.stride,
            dim: codes.dim,
            k: longer as u32,
            metric: metric_number(metric),
        };
        let grid = [n as u32, 1, 1];
        // SAFETY: codes and rests have one stride, lists hold rows, the order each once; the memory
        // outlives the work.
        unsafe { gpu.launch::<vectors_settle>(grid, SETTLE_LISTS_THREADS, (settle,))? };
        let (pairs, key) = ((n * longer) as u64, size_of::<Key>() as u64);
        let vectors = (pairs + n as u64) * 2 * u64::from(codes.stride);
        gpu.count_work(vectors_settle::NAME, vectors + pairs * 2 * key, pairs * 2 * u64::from(codes.dim));
        // The memory of the rests serves the shorter lists.
        gpu.synchronize()?;
        drop(rests);

        let mut nearest: Buffer<Key> = shape.nearest().reserve(gpu)?.buffer("nearest")?;
        let [stride, row_bytes] = [longer, k].map(|keys| keys * size_of::<Key>());
        let values = self.lists.keys.view().cast();
        let rows = RowsAt { values, stride, count: n, dim: row_bytes, size: 1 };
        rows.copy(gpu, Pick::Range(0..n), nearest.view_mut().cast(), row_bytes, false)?;
        gpu.synchronize()?;
        (self.lists.keys, self.lists.k) = (nearest, k);
        self.stats.seconds += settling.elapsed().as_secs_f64();
        self.stats.distances += pairs;
        Ok(())
    }
}
