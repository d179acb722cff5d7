//! Monotonic graphs on a GPU.

use tagore_device::key::Key;
use tagore_device::prune::monotonic::{
    MONOTONIC_THREADS, Monotonic as Arguments, left_keys, prune_monotonic_f16, prune_monotonic_f32,
    prune_monotonic_i8, prune_monotonic_u8,
};

use crate::Result;
use crate::gpu::{Buffer, Gpu};
use crate::memory::filled;
use crate::vectors::gpu::{AnyOrigin, Base, OnDevice, Origin, stage_kernels, with_typed};
use crate::vectors::space::Space;

stage_kernels! {
    /// The kernel of monotonic graphs.
    pub(crate) trait MonotonicKernels {
        Monotonic (Arguments<Self>,):
            prune_monotonic_f32 prune_monotonic_f16 prune_monotonic_u8 prune_monotonic_i8;
    }
}

/// Maximum number of blocks. Their lists then take less memory than the k-NN lists of the graph
/// below, which has at least six times the nodes.
const BLOCKS: usize = 512;

/// The ends of the edges of each row of `space` on `gpu`: `degree` ids per row, nearest first, then
/// [`NO_ID`](tagore_device::key::NO_ID). An edge removes a longer one if its end is nearer to the
/// longer one's end by the factor `slack`.
pub(crate) fn monotonic(gpu: &Gpu, space: &Space<'_>, slack: f32, degree: usize) -> Result<Vec<u32>> {
    with_typed!(AnyOrigin::of_space(gpu, space)?, rows => edges(gpu, space, &rows, slack, degree))
}

fn edges<T: OnDevice + MonotonicKernels>(
    gpu: &Gpu,
    space: &Space<'_>,
    rows: &Origin<'_, T>,
    slack: f32,
    degree: usize,
) -> Result<Vec<u32>> {
    let (n, blocks) = (space.len(), space.len().min(BLOCKS));
    let base = Base::upload(gpu, space, rows)?;
    let mut left: Buffer<Key> = gpu.buffer("nodes left", blocks * left_keys(n as u32) as usize)?;
    let mut edges: Buffer<u32> = gpu.buffer("edges of a layer", n * degree)?;
    let arguments = Arguments {
        rows: base.rows(),
        left: left.view_mut(),
        edges: edges.view_mut(),
        count: n as u32,
        degree: degree as u32,
        slack,
        padding: 0,
    };
    // SAFETY: each block has its keys, each row its edges, and the buffers outlive the work: the
    // download waits for it.
    unsafe { gpu.launch::<T::Monotonic>([blocks as u32, 1, 1], MONOTONIC_THREADS, (arguments,))? };
    let mut found = filled(0, n * degree)?;
    edges.download(&mut found)?;
    Ok(found)
}
