//! How list distances grow with the rank of a neighbour, from searches for some nodes.

use tagore_device::key::{self, Key};

use crate::Metric;

/// Ranks, from 0 on and without the node itself, whose distances are compared. They are far enough
/// apart for the growth to be measured, and a narrow beam finds both.
const NEAR: usize = 3;
const FAR: usize = 23;

/// One node in this many may have a growth more than [`MAX_SPREAD`] times the median.
const NODES_PER_SPREAD: usize = 20;

/// Nodes of one data set differ by less: of photographs, the twentieth part of the nodes with the
/// largest growth begins at 4 times the median; of other sets, at 1.5 times.
const MAX_SPREAD: f64 = 8.0;

/// The growth of list distances ([`Start::growth`](crate::index::Start)): the median over `nodes`,
/// each with a beam of the keys nearest to it. Under L2 and cosine it is 2 / m, where m is the
/// intrinsic dimension (Levina and Bickel, *Maximum Likelihood Estimation of Intrinsic Dimension*,
/// 2004, who compare all ranks).
///
/// If nodes differ much, as where a part of the rows lies on a line, it is that of the nodes with
/// the largest: searches there would stop after a few nodes.
///
/// None if the nodes do not tell: they are too few, or distances at both ranks are mostly equal, as
/// among vectors of small whole numbers. `norms` are those of the nodes under inner product, else
/// not read.
pub(super) fn growth<'a>(
    metric: Metric,
    nodes: &[u32],
    norms: &[f32],
    beams: impl Iterator<Item = &'a [Key]>,
) -> Option<f32> {
    let difference = |(place, beam): (usize, &[Key])| {
        let node = nodes[place];
        let others = || beam.iter().filter(|&&key| key != key::NONE && key as u32 != node);
        let distance = |rank: usize| others().nth(rank).map(|&key| f64::from(key::distance(key)));
        let (near, far) = (distance(NEAR)?, distance(FAR)?);
        let difference = match metric {
            Metric::InnerProduct => (far - near) / f64::from(norms[place]),
            Metric::L2 | Metric::Cosine => libm::log(far / near),
        };
        difference.is_finite().then_some(difference)
    };
    let mut differences: Vec<f64> = beams.enumerate().filter_map(difference).collect();
    if differences.is_empty() {
        return None;
    }
    let count = differences.len();
    let mut at = |place: usize| *differences.select_nth_unstable_by(place, f64::total_cmp).1;
    let (median, high) = (at(count / 2), at(count - 1 - count / NODES_PER_SPREAD));
    let growth = if high > MAX_SPREAD * median { high } else { median };
    let growth = (growth / libm::log((FAR + 1) as f64 / (NEAR + 1) as f64)) as f32;
    (growth.is_finite() && growth > 0.0).then_some(growth)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The norm of a node.
    fn norm(node: usize) -> f32 {
        (node + 2) as f32
    }

    /// Beams of the first nodes, whose distances to others are `distance` of the node and the rank.
    fn beams(nodes: usize, distance: impl Fn(usize, f32) -> f32) -> Vec<Vec<Key>> {
        let beam = |node: usize| {
            let other = |rank: usize| key::pack(distance(node, rank as f32), (1000 + rank) as u32);
            std::iter::once(key::pack(f32::MIN, node as u32)).chain((1..32).map(other)).collect()
        };
        (0..nodes).map(beam).collect()
    }

    fn growth_of(metric: Metric, beams: &[Vec<Key>]) -> Option<f32> {
        let nodes: Vec<u32> = (0..beams.len() as u32).collect();
        let norms: Vec<f32> = (0..beams.len()).map(norm).collect();
        growth(metric, &nodes, &norms, beams.iter().map(Vec::as_slice))
    }

    #[test]
    fn distances_at_two_ranks_tell_the_growth() {
        for expected in [0.02, 0.125, 1.0, 2.0] {
            let powers = |node, rank: f32| rank.powf(expected) * (node + 1) as f32;
            let found = growth_of(Metric::L2, &beams(7, powers)).unwrap();
            assert!((found - expected).abs() < 1e-3 * expected, "{found} for {expected}");
            let products = |node, rank: f32| norm(node) * (expected * rank.ln() - 9.0);
            let found = growth_of(Metric::InnerProduct, &beams(7, products)).unwrap();
            assert!((found - expected).abs() < 1e-2 * expected, "{found} for {expected}");
        }
        // Nodes with neighbours at distance 0, or with short beams, do not count.
        let mut mixed = beams(9, |_, rank| rank.powf(0.2));
        mixed[3][1..6].fill(key::pack(0.0, 5));
        mixed[5].truncate(8);
        assert!((growth_of(Metric::Cosine, &mixed).unwrap() - 0.2).abs() < 1e-3);
    }

    #[test]
    fn the_largest_growth_counts_where_nodes_differ_much() {
        let some = |times: f32| {
            beams(100, move |node, rank| rank.powf(if node % 10 == 0 { 0.2 * times } else { 0.2 }))
        };
        let is = |found: Option<f32>, expected: f32| (found.unwrap() - expected).abs() < 1e-3 * expected;
        assert!(is(growth_of(Metric::L2, &some(7.0)), 0.2));
        assert!(is(growth_of(Metric::L2, &some(10.0)), 2.0));
        let few = beams(100, |node, rank| rank.powf(if node < 5 { 2.0 } else { 0.2 }));
        assert!(is(growth_of(Metric::L2, &few), 0.2));
    }

    #[test]
    fn some_data_does_not_tell() {
        assert_eq!(growth_of(Metric::L2, &[]), None);
        let mut short = beams(7, |_, rank| rank);
        short.iter_mut().for_each(|beam| beam.truncate(20));
        assert_eq!(growth_of(Metric::L2, &short), None);
        assert_eq!(growth_of(Metric::L2, &beams(7, |_, _| 2.0)), None);
    }
}
