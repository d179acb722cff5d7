//! The kernels that a pruning will launch.

use cuda_std::launch::Kernel;
use tagore_device::prune::detours::{prune_detours, prune_detours_unbalanced};
use tagore_device::prune::gram::prune_gram_spread;
use tagore_device::prune::ids::prune_ids;
use tagore_device::prune::reverse::{prune_edge_sources, prune_edge_targets, prune_edges, prune_edges_count};
use tagore_device::prune::store::{prune_merge, prune_store};

use super::filter::by_products;
use super::{PruneKernels, path};
use crate::Metric;
use crate::gpu::sort;
use crate::prune::strategy::{Collect, Entry, Filter, Store, Strategy};
use crate::vectors::Element;

/// The kernels of pruning lists of `k` by `strategy` over a base of type `T` and `dim` components
/// on the device.
/// Kernels of a user's rule are not among them.
pub(crate) fn kernels<T: PruneKernels>(
    strategy: &Strategy,
    (metric, dim, k): (Metric, usize, usize),
    baseline: bool,
) -> Vec<&'static str> {
    let mut kernels = vec![prune_edges_count::NAME, prune_edges::NAME, prune_edge_sources::NAME];
    kernels.extend(sort::KERNELS);
    if strategy.entry == Entry::Medoid {
        kernels.extend([T::MedoidSums::NAME, T::MedoidNearest::NAME]);
    }
    let ranks = strategy.counts_detours();
    // As `PruneShape::takes_lists`.
    let collect = strategy.collect_from(k);
    if !(ranks && collect == Collect::OneHop && metric != Metric::Cosine) {
        kernels.push(if collect == Collect::Path { path::kernel::<T>(dim) } else { T::Collect::NAME });
    }
    match (&strategy.filter, baseline) {
        _ if ranks => {
            let detours = if baseline { prune_detours_unbalanced::NAME } else { prune_detours::NAME };
            kernels.extend([prune_ids::NAME, detours]);
        }
        (Filter::Distance { .. }, true) => kernels.push(T::Serial::NAME),
        (Filter::Custom(custom), _) if custom.ptx.is_some() => (),
        _ if by_products::<T>(strategy, metric, dim) => kernels.push(prune_gram_spread::NAME),
        (filter, _) => kernels.extend(filter.rule().map(|rule| rule.kernel(<T as Element>::TYPE))),
    }
    if !(ranks && strategy.store == Store::Interleave) {
        kernels.push(prune_edge_targets::NAME);
    }
    match strategy.store {
        Store::Interleave => kernels.push(prune_store::NAME),
        Store::Refilter => kernels.extend([prune_merge::NAME, prune_ids::NAME]),
    }
    kernels
}
