//! The nodes of a layer, chosen on a GPU.

use tagore_device::prune::layer_nodes::{LAYER_NODES, LAYER_THREADS, LayerNodes, layer_leave, layer_take};

use crate::gpu::{Buffer, Gpu};
use crate::memory::filled;
use crate::search::gpu::EdgeRows;
use crate::{Progress, Result};

/// The nodes that a first round, or `all` rounds, take of a graph, ascending.
pub(crate) fn layer_nodes(
    gpu: &Gpu,
    edges: EdgeRows<'_>,
    all: bool,
    seed: u64,
    progress: &Progress,
) -> Result<Vec<u32>> {
    let EdgeRows { ids, nodes, degree } = edges;
    let words = nodes.div_ceil(32);
    let mut left: Buffer<u32> = gpu.buffer("nodes left", words)?;
    let mut first: Buffer<u32> = gpu.buffer("nodes of a round", words)?;
    let mut taken: Buffer<u32> = gpu.buffer("nodes of a layer", words)?;
    let mut found: Buffer<u32> = gpu.buffer("number found", 1)?;
    left.fill(0xff)?;
    taken.fill(0)?;
    loop {
        progress.check()?;
        first.fill(0)?;
        found.fill(0)?;
        let arguments = LayerNodes {
            edges: ids.view(),
            left: left.view_mut(),
            first: first.view_mut(),
            taken: taken.view_mut(),
            found: found.view_mut(),
            seed,
            count: nodes as u32,
            degree: degree as u32,
        };
        let grid = [(nodes as u32).div_ceil(LAYER_NODES), 1, 1];
        // SAFETY: every id in the rows is a node, and every set has a bit for each node. The
        // buffers outlive the work.
        unsafe { gpu.launch::<layer_take>(grid, LAYER_THREADS, (arguments,))? };
        let mut count = [0];
        found.download(&mut count)?;
        if !all || count[0] == 0 {
            break;
        }
        // SAFETY: this kernel too reads rows of nodes and changes bits of nodes alone.
        unsafe { gpu.launch::<layer_leave>(grid, LAYER_THREADS, (arguments,))? };
    }
    let mut bits = filled(0u32, words)?;
    taken.download(&mut bits)?;
    let is_taken = |&node: &u32| bits[node as usize / 32] >> (node % 32) & 1 != 0;
    Ok((0..nodes as u32).filter(is_taken).collect())
}
