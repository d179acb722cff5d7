//! Rows of ids from rows of keys.

use cuda_std::launch::Kernel;
use tagore_device::key::Key;
use tagore_device::prune::ids::{ID_ROWS, ID_THREADS, Ids, prune_ids};

use super::KeyRows;
use crate::Result;
use crate::gpu::{Buffer, Gpu};

/// Copies the ids of keys into rows `stride` ids apart, at least `width`, with `u32::MAX` in empty
/// slots.
pub(super) fn take_ids(gpu: &Gpu, from: KeyRows<'_>, ids: &mut Buffer<u32>, stride: usize) -> Result<()> {
    let KeyRows { keys, rows, width } = from;
    let take = Ids {
        keys: keys.view(),
        ids: ids.view_mut(),
        rows: rows as u32,
        width: width as u32,
        stride: stride as u32,
        padding: 0,
    };
    let grid = [(rows as u32).div_ceil(ID_ROWS), 1, 1];
    // SAFETY: both buffers hold `rows` rows and outlive the work.
    unsafe { gpu.launch::<prune_ids>(grid, ID_THREADS, (take,))? };
    gpu.count_work(
        prune_ids::NAME,
        (rows * (width * size_of::<Key>() + stride * size_of::<u32>())) as u64,
        0,
    );
    Ok(())
}
