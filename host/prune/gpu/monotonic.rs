//! Monotonic rows on a GPU.

use tagore_device::key::Key;
use tagore_device::prune::monotonic::{
    MONOTONIC_THREADS, Monotonic, monotonic_slots, prune_monotonic_f16, prune_monotonic_f32,
    prune_monotonic_i8, prune_monotonic_u8,
};

use crate::gpu::{Buffer, Gpu, MemoryPlan};
use crate::vectors::gpu::{AnyOrigin, Base, OnDevice, Origin, stage_kernels, with_origin};
use crate::vectors::space::Space;
use crate::{Progress, Result};

stage_kernels! {
    /// Kernels of monotonic rows.
    pub(crate) trait MonotonicKernels {
        MonotonicRows (Monotonic<Self>,):
            prune_monotonic_f32 prune_monotonic_f16 prune_monotonic_u8 prune_monotonic_i8;
    }
}

/// Most blocks at a time: several for each multiprocessor of any device.
const BLOCKS: usize = 1024;

/// Most bytes of candidates. Each block has room for all rows.
const CANDIDATES: usize = 256 << 20;

/// Nodes that a block takes in one launch: between launches the build may be cancelled.
const NODES_OF_BLOCK: usize = 4;

/// Blocks for `n` rows.
fn blocks(n: usize) -> usize {
    let of_block = monotonic_slots(n as u32) as usize * size_of::<Key>();
    (CANDIDATES / of_block).clamp(1, BLOCKS).min(n)
}

/// Device memory beside the rows.
fn plan(n: usize, most: usize) -> MemoryPlan {
    MemoryPlan::new()
        .with::<Key>("candidates", blocks(n) * monotonic_slots(n as u32) as usize)
        .with::<u32>("edges", n * most)
}

/// Device bytes of [`monotonic`] for `n` rows, at least 1, of `row_bytes` bytes.
pub(crate) fn monotonic_bytes(n: usize, most: usize, row_bytes: usize) -> u64 {
    // Rows begin at multiples of 16 bytes. Each may have a lift.
    let row_bytes = row_bytes.next_multiple_of(16) + size_of::<f32>();
    plan(n, most).bytes() + (n * row_bytes) as u64
}

/// The edges of each row among all others by NSG's rule, in order of distance: `most` ids per row,
/// `u32::MAX` behind the last. Bit for bit those of the CPU. Not under inner product.
///
/// # Errors
/// If the device lacks memory or fails, or the work is cancelled.
pub(crate) fn monotonic(gpu: &Gpu, space: &Space<'_>, most: usize, progress: &Progress) -> Result<Vec<u32>> {
    with_origin!(AnyOrigin::own(gpu, space.vectors())?, origin => run(gpu, space, &origin, (most, progress)))
}

fn run<T: OnDevice + MonotonicKernels>(
    gpu: &Gpu,
    space: &Space<'_>,
    origin: &Origin<'_, T>,
    (most, progress): (usize, &Progress),
) -> Result<Vec<u32>> {
    let (n, blocks) = (space.len(), blocks(space.len()));
    let base = Base::upload(gpu, space, origin)?;
    let memory = plan(n, most).reserve(gpu)?;
    let mut left: Buffer<Key> = memory.buffer("candidates")?;
    let mut edges: Buffer<u32> = memory.buffer("edges")?;
    let at_once = blocks * NODES_OF_BLOCK;
    for first in (0..n).step_by(at_once) {
        progress.check()?;
        let arguments = Monotonic {
            rows: base.rows(),
            left: left.view_mut(),
            edges: edges.view_mut().offset(first * most),
            count: n as u32,
            first: first as u32,
            nodes: at_once.min(n - first) as u32,
            most: most as u32,
        };
        // SAFETY: the buffers have the lengths that the arguments give, and outlive the work.
        unsafe {
            gpu.launch::<T::MonotonicRows>([blocks as u32, 1, 1], MONOTONIC_THREADS, (arguments,))?;
        }
        gpu.synchronize()?;
    }
    let mut ids = vec![0; n * most];
    edges.download(&mut ids)?;
    Ok(ids)
}
