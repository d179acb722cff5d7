//! How far a search goes: the nodes that it keeps, and when it stops.

use tagore_device::search::beam::stop::Stop;

use crate::{Index, Metric};

/// Nodes that an adaptive search keeps, in beams, at most: where the data is dense it expands more
/// nodes than its beam.
const ROOM: usize = 2;

/// A search stops by the distance at this rank at least: one distance alone tells little of those
/// around, as that of the first row found of a few that lie together.
const MIN_RANK: usize = 10;

/// A search of a layer expands no node beyond this multiple of the nearest list distance it found.
/// List distances are squares, so the bound is twice as far. A search that has met a node of the
/// query's cluster finds nothing nearer from other clusters, where clusters lie apart.
const FACTOR_IN_LAYERS: f32 = 4.0;

/// The kernels of beam search, by the nodes that they hold.
#[derive(Clone, Copy)]
#[repr(usize)]
pub(super) enum BeamCapacity {
    Nodes64 = 64,
    Nodes128 = 128,
    Nodes256 = 256,
    Nodes512 = 512,
}

impl BeamCapacity {
    /// The first kernel that holds `kept` nodes; the last where none does.
    pub(super) const fn for_nodes(kept: usize) -> Self {
        match kept {
            0..=64 => Self::Nodes64,
            65..=128 => Self::Nodes128,
            129..=256 => Self::Nodes256,
            _ => Self::Nodes512,
        }
    }
}

/// The breadth of a search.
///
/// A search that keeps L nodes expands the L nearest nodes it finds, for every query. One that
/// stops at the distance that the L-th neighbour has on average expands L nodes on average: fewer
/// for easy queries, more for hard ones. At as many distances it misses fewer neighbours
/// (docs/search.md).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Breadth {
    /// Nodes that the search expands, about, on average over queries.
    pub beam: usize,
    /// Nodes that it keeps.
    pub kept: usize,
    pub stop: Stop,
}

impl Breadth {
    /// A search that expands all of the `beam` nodes that it keeps.
    pub(crate) const fn fixed(beam: usize) -> Self {
        Self { beam, kept: beam, stop: Stop::NEVER }
    }

    /// A search of a layer that keeps `beam` nodes. It stops by distance, except under inner
    /// product, where a ratio of list distances means nothing.
    pub(super) const fn of_layer(beam: usize, metric: Metric) -> Self {
        let stop = match metric {
            Metric::InnerProduct => Stop::NEVER,
            Metric::L2 | Metric::Cosine => Stop { rank: 0, factor: FACTOR_IN_LAYERS, slack: 0.0 },
        };
        Self { beam, kept: beam, stop }
    }

    /// A search for `k` nodes that stops by distance. Without `growth`
    /// ([`Start`](crate::index::Start)) it is fixed.
    pub(super) fn adaptive(k: usize, beam: usize, metric: Metric, growth: Option<f32>) -> Self {
        let Some(growth) = growth.map(f64::from) else { return Self::fixed(beam) };
        let rank = k.max(MIN_RANK).min(beam);
        let ranks = beam as f64 / rank as f64;
        let (factor, slack) = match metric {
            Metric::InnerProduct => (1.0, growth * libm::log(ranks)),
            Metric::L2 | Metric::Cosine => (libm::pow(ranks, growth), 0.0),
        };
        let stop = Stop { rank: rank as u32 - 1, factor: factor as f32, slack: slack as f32 };
        Self { beam, kept: Self::kept(beam), stop }
    }

    /// Nodes that an adaptive search with this beam keeps: as many on a CPU as on a GPU. No more
    /// than the kernel of its beam holds, since the next kernel takes longer for each distance. Two
    /// more for each more of the beam, until the kernel is full: recall grows without steps.
    pub(crate) fn kept(beam: usize) -> usize {
        let (held, below) = match BeamCapacity::for_nodes(beam) {
            BeamCapacity::Nodes64 => (BeamCapacity::Nodes64 as usize, 0),
            held => (held as usize, held as usize / 2),
        };
        (ROOM * beam - below).min(held).max(beam)
    }

    /// The growth by which searches of `index` stop; none if they are fixed, as those on codes of
    /// inner products are: products of codes have another scale than those of the vectors.
    pub(super) fn growth(index: &Index, on_codes: bool) -> Option<f32> {
        let tells = !on_codes || index.metric() != Metric::InnerProduct;
        index.start().growth.filter(|_| tells)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn adaptive(k: usize, beam: usize, metric: Metric) -> Breadth {
        Breadth::adaptive(k, beam, metric, Some(0.125))
    }

    #[test]
    fn the_bound_is_the_average_distance_at_the_rank_of_the_beam() {
        let Breadth { beam, kept, stop } = adaptive(10, 100, Metric::L2);
        assert_eq!((beam, kept, stop.rank, stop.slack), (100, 128, 9, 0.0));
        assert!((stop.factor - 10f32.powf(0.125)).abs() < 1e-6, "{}", stop.factor);
        assert_eq!(adaptive(10, 100, Metric::Cosine).stop, stop);
        let product = adaptive(10, 100, Metric::InnerProduct).stop;
        assert_eq!((product.rank, product.factor), (9, 1.0));
        assert!((product.slack - 0.125 * 10f32.ln()).abs() < 1e-6, "{}", product.slack);
        // A beam of k stops at the first farther node, as a search that keeps k nodes does.
        assert_eq!(adaptive(7, 7, Metric::L2).stop, Stop { rank: 6, factor: 1.0, slack: 0.0 });
    }

    #[test]
    fn searches_of_layers_stop_at_twice_the_nearest_distance() {
        for metric in [Metric::L2, Metric::Cosine] {
            let stop = Stop { rank: 0, factor: 4.0, slack: 0.0 };
            assert_eq!(Breadth::of_layer(8, metric), Breadth { stop, ..Breadth::fixed(8) });
        }
        assert_eq!(Breadth::of_layer(8, Metric::InnerProduct), Breadth::fixed(8));
    }

    #[test]
    fn a_search_keeps_what_the_kernel_of_its_beam_holds() {
        let of_beams = [(1, 2), (32, 64), (50, 64), (64, 64), (70, 76), (100, 128), (257, 258), (600, 600)];
        for (beam, kept) in of_beams {
            assert_eq!(adaptive(1, beam, Metric::L2).kept, kept);
        }
        // No beam more makes a search much wider.
        for beam in 1..512 {
            let more = adaptive(1, beam + 1, Metric::L2).kept - Breadth::kept(beam);
            assert!(more <= ROOM, "{beam}: {more}");
        }
        assert_eq!(Breadth::adaptive(1, 64, Metric::L2, None), Breadth::fixed(64));
    }
}
