//! The index of one cluster, as lists for merging.
//!
//! Vectors, rows and neighbour distances stay on the device until the cluster is merged there. Only
//! the lists that wait for a later cluster come to the host.

use std::ops::Range;

use super::lists::{ClusterLists, DeviceLists, HostLists, Members};
use crate::build::{BuiltCluster, OnDevice, PrunedRows};
use crate::descent::DescentStats;
use crate::loops::fold;
use crate::outofcore::partition::Cluster;
use crate::outofcore::store::CentralNode;
use crate::prune::{PruneStats, Pruned};
use crate::vectors::embedding::Embedding;
use crate::vectors::gpu::with_typed;
use crate::{Builder, Metric, Result};

/// The index of a cluster.
pub(crate) struct LocalIndex {
    pub cluster: u32,
    /// One parcel for each other cluster of the members. Parcels for later clusters come first.
    pub parcels: Vec<ParcelPlaces>,
    pub lists: Box<dyn ClusterLists>,
    /// The node nearest to the mean of the base, of members whose other cluster is to come.
    pub central: CentralNode,
    /// An entry point of the index.
    pub entry: u32,
    /// Members that may be far from all others, ascending.
    pub lone: Vec<u32>,
    pub descent: DescentStats,
    pub prune: PruneStats,
}

/// The members that a cluster shares with another one.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ParcelPlaces {
    pub other: u32,
    /// Their places in the order of [`Members`].
    pub places: Range<usize>,
}

impl LocalIndex {
    /// Builds the index of a non-empty cluster. `mean` is the mean of the base. `is_to_come` tells
    /// whether another cluster is built later.
    pub(crate) fn build(
        builder: &Builder,
        cluster: Cluster,
        embedding: &Embedding,
        mean: &[f64],
        is_to_come: impl Fn(u32) -> bool + Sync,
    ) -> Result<Self> {
        let Cluster { number, ids, others, vectors, is_small } = cluster;
        let descent = builder.descent.of_part(ids.len());
        let stage = descent.progress.stage("build", 0);
        let builder = builder.clone().descent(descent.clone()).of_clusters();
        let nearer = |(central, mut row): (CentralNode, Vec<f32>), member: usize| {
            // Each node counts in the first of its two clusters.
            if !is_to_come(others[member]) {
                return (central, row);
            }
            embedding.embed(&vectors, member, &mut row);
            let terms = row.iter().zip(mean).map(|(&x, y)| (f64::from(x) - y).powi(2));
            (central.nearer(CentralNode::new(terms.sum::<f64>(), ids[member])), row)
        };
        let start = || (CentralNode::NONE, vec![0f32; mean.len()]);
        let (central, _) = fold(0..ids.len(), start, nearer, |a, b| (a.0.nearer(b.0), a.1));
        let vectors = embedding.moved(vectors)?;
        let BuiltCluster { pruned, lone, descent: of_descent } = builder.build_cluster(&vectors)?;
        let Pruned { rows, entries, stats: prune } = pruned;
        let entry = ids[entries[0] as usize];
        let lone = match embedding.metric() {
            // All members may be far from one another, too.
            Metric::L2 | Metric::Cosine if is_small => ids.clone(),
            _ => lone.into_iter().map(|member| ids[member as usize]).collect(),
        };

        let (parcels, order) = parcels(&others, is_to_come);
        let members = Members { ids, order };
        // Distances under inner product lift by the largest norm of the whole base. With the norm
        // of the cluster, lists of different clusters could not be compared.
        let lists: Box<dyn ClusterLists> = match rows {
            PrunedRows::Device(there) => {
                let OnDevice { gpu, base, edges } = *there;
                let lifts = embedding.lifts(&vectors, &descent.progress)?;
                drop(vectors);
                let degree = builder.strategy.max_degree();
                with_typed!(base, base => Box::new(DeviceLists::new(&gpu, base, lifts, edges, degree, members)?))
            }
            PrunedRows::Host(rows) => {
                let space = embedding.space(vectors, &descent.progress)?;
                Box::new(HostLists::new(space, &rows, members, &stage)?)
            }
        };
        Ok(Self { cluster: number, parcels, lists, central, entry, lone, descent: of_descent, prune })
    }
}

/// Groups members by their other cluster, clusters to come first. Returns the places of each group,
/// and the member at each place. Members of a group ascend.
pub(crate) fn parcels(others: &[u32], is_to_come: impl Fn(u32) -> bool) -> (Vec<ParcelPlaces>, Vec<u32>) {
    let clusters = others.iter().max().map_or(0, |&most| most as usize + 1);
    let mut counts = vec![0; clusters];
    others.iter().for_each(|&other| counts[other as usize] += 1);
    let mut present: Vec<u32> = (0..clusters as u32).filter(|&other| counts[other as usize] > 0).collect();
    present.sort_by_key(|&other| !is_to_come(other));
    let (mut begin, mut next) = (0, vec![0; clusters]);
    let places = present.into_iter().map(|other| {
        next[other as usize] = begin;
        begin += counts[other as usize];
        ParcelPlaces { other, places: next[other as usize]..begin }
    });
    let parcels = places.collect();
    let mut order = vec![0; others.len()];
    for (member, &other) in others.iter().enumerate() {
        order[next[other as usize]] = member as u32;
        next[other as usize] += 1;
    }
    (parcels, order)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_grouped_by_their_other_cluster() {
        let (found, order) = parcels(&[4, 1, 4, 0, 7, 1], |other| other == 4 || other == 1);
        let expected = [(1, 0..2), (4, 2..4), (0, 4..5), (7, 5..6)];
        assert_eq!(found, expected.map(|(other, places)| ParcelPlaces { other, places }));
        assert_eq!(order, [1, 5, 0, 2, 3, 4]);
    }
}
