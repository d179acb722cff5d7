//! Memory and files of layers, before they are built.

use std::iter::successors;

use super::layer_nodes::MIN_STEP;
use super::layers::{DEGREE, KNN, strategy};
use super::plan::BuildPlan;
use super::target::Target;
use super::{Builder, monotonic};
use crate::DataShape;
use crate::search::visited::Visited;
use crate::vectors::space::Space;

/// Maximum number of nodes of a layer above an out-of-core index: the exact search for their lists
/// takes quadratic time.
const MAX_NODES: usize = 1 << 20;

/// Words of a layer in a file beside its nodes and edges (`docs/formats.md`).
const LAYER_WORDS: usize = 3;

impl Builder {
    /// Maximum number of nodes of the lowest layer whose build fits `device` and `host` bytes of
    /// memory, and the host bytes of that build. None if not even 2 nodes fit.
    pub(crate) fn largest_layer(
        &self,
        data: &DataShape,
        target: Target,
        device: u64,
        host: u64,
    ) -> Option<(usize, u64)> {
        let fits = |nodes: usize| {
            let plan = self.layer_plan(data, nodes, target);
            let bytes = self.layer_bytes(data, nodes, &plan, target);
            (plan.device_bytes() <= device && bytes <= host).then_some(bytes)
        };
        let (mut size, mut too_many) = (2, (data.rows / MIN_STEP).min(MAX_NODES) + 1);
        let mut bytes = fits(size).filter(|_| size < too_many)?;
        while too_many - size > 1 {
            let middle = size.midpoint(too_many);
            match fits(middle) {
                Some(more) => (size, bytes) = (middle, more),
                None => too_many = middle,
            }
        }
        Some((size, bytes))
    }

    /// Bytes of all layers in a file, if the lowest has `nodes` nodes.
    pub(crate) fn layer_file_bytes(nodes: usize) -> usize {
        // Each is at most a sixth of the one below. Fewer nodes may have more edges.
        let sizes = successors(Some(nodes), |nodes| Some(nodes / MIN_STEP)).take_while(|&nodes| nodes > 0);
        let edges = |nodes: usize| (nodes.min(monotonic::MAX_NODES) * monotonic::DEGREE).max(nodes * DEGREE);
        4 * sizes.map(|nodes| edges(nodes) + nodes + LAYER_WORDS).sum::<usize>()
    }

    fn layer_plan(&self, data: &DataShape, nodes: usize, target: Target) -> BuildPlan {
        let k = KNN.min(nodes - 1);
        let builder = Self::new(strategy(nodes)).descent(self.descent.clone().knn(k));
        builder.plan_of(&data.part(nodes), k, target)
    }

    /// Host bytes of choosing the nodes of a layer and building it.
    fn layer_bytes(&self, data: &DataShape, nodes: usize, plan: &BuildPlan, target: Target) -> u64 {
        let searches = Visited::plan(data.rows, target.threads).bytes();
        // Exact lists as keys, and as ids and distances beside them.
        let lists = Space::plan(nodes, data.dim, data.element, self.descent.metric)
            .with::<[u64; 2]>("lists", nodes * KNN);
        // The selection has a bit for each row of the base. It finds up to four times the nodes it
        // keeps, and holds them twice while collecting.
        let found = nodes as u64 * (4 * 2 * size_of::<u32>() + data.row_bytes()) as u64
            + data.rows.div_ceil(8) as u64;
        let layers = Self::layer_file_bytes(nodes) as u64;
        let parts = [plan.peak_of_stages().max(lists.bytes()), found, layers, plan.process.bytes()];
        // This layer stays in memory while the layers above it are built.
        let building = parts.into_iter().fold(0, u64::saturating_add);
        building.saturating_add(building / MIN_STEP as u64).saturating_add(searches)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_of_any_sizes_fit_their_bytes() {
        let words = |nodes: usize, degree: usize| nodes * (degree + 1) + LAYER_WORDS;
        for (lowest, sizes) in [
            (2, vec![(2, 1)]),
            (16_384, vec![(16_384, 128), (2_730, 128), (455, 128)]),
            (60_000, vec![(60_000, 40), (10_000, 128), (1_666, 128)]),
            (200_000, vec![(200_000, 40), (16_384, 128), (2_730, 128)]),
            (60_000, vec![(16_384, 128), (2_730, 128)]),
        ] {
            let used: usize = sizes.into_iter().map(|(nodes, degree)| words(nodes, degree)).sum();
            assert!(4 * used <= Builder::layer_file_bytes(lowest), "{lowest}");
        }
    }
}
