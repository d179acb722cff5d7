//! Bytes of lists and rows, and device memory for the lists of a cluster.

use tagore_device::key::Key;

use crate::Metric;
use crate::gpu::MemoryPlan;
use crate::vectors::gpu::{Base, OnDevice};

/// Nodes of one merge on a device, at most.
pub(crate) const MERGED_AT_ONCE: usize = 1 << 16;

/// Bytes of a waiting list: `degree` keys.
pub(crate) const fn list_bytes(degree: usize) -> usize {
    size_of::<Key>() * degree
}

/// Bytes of a finished row: an id and `degree` ids.
pub(crate) const fn row_bytes(degree: usize) -> usize {
    size_of::<u32>() * (1 + degree)
}

/// Device memory for the vectors, rows and lists of `n` members: `dim` components, `degree`
/// neighbours.
pub(crate) fn cluster_memory<T: OnDevice>(n: usize, dim: usize, degree: usize, metric: Metric) -> MemoryPlan {
    let rows = MemoryPlan::new().with::<u32>("index rows", n * degree);
    Base::<T>::plan(n, dim, metric).and(&rows).and(&list_memory(n, degree))
}

/// Device memory for lists of `degree` neighbours of `n` members, without their vectors and rows.
pub(crate) fn list_memory(n: usize, degree: usize) -> MemoryPlan {
    let at_once = MERGED_AT_ONCE.min(n);
    MemoryPlan::new()
        .with::<u32>("ids of members", n)
        .with::<u32>("order of members", n)
        .with::<Key>("lists", n * degree)
        .with::<u32>("places", at_once)
        .with::<Key>("waiting lists", at_once * degree)
        .with::<u32>("merged rows", at_once * (1 + degree))
}
