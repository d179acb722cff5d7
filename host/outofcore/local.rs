//! The index of one cluster, as lists that can be merged.

use std::ops::Range;

use rayon::prelude::*;

use super::lists::{DeviceLists, HostLists, Lists, Members};
use super::partition::Cluster;
use crate::build::Built;
use crate::vectors::embedding::Embedding;
use crate::vectors::gpu::with_base;
use crate::{BuildStats, Builder, Result};

/// The index of a cluster.
pub(super) struct LocalIndex {
    pub cluster: u32,
    /// The other clusters that members are in, and the places of these members: first those of clusters that are still to
    /// come.
    pub parcels: Vec<(u32, Range<usize>)>,
    pub lists: Box<dyn Lists>,
    /// The member nearest to the mean of the base, and its squared distance.
    pub central: (f64, u32),
    /// A node that the index is entered at.
    pub entry: u32,
    /// What building it took.
    pub stats: BuildStats,
}

impl LocalIndex {
    /// Builds the index of a cluster, which is not empty; `is_to_come` says which other clusters are built after it.
    pub(super) fn build(
        builder: &Builder,
        cluster: Cluster,
        (embedding, mean): (&Embedding, &[f64]),
        is_to_come: impl Fn(u32) -> bool,
    ) -> Result<Self> {
        let Cluster { number, ids, others, vectors } = cluster;
        let descent = builder.descent.of_part(ids.len());
        let stage = descent.progress.stage("build", 0);
        let builder = builder.clone().sample(0).layers(false).grouped(false).descent(descent.clone());
        let Built { index, stats, on_device } = builder.build_and_keep(&vectors, None)?;
        let distance = |out: &mut Vec<f32>, member: usize| {
            embedding.embed(&vectors.row(member), out);
            let terms = out.iter().zip(mean).map(|(&x, y)| (f64::from(x) - y).powi(2));
            (terms.sum::<f64>(), ids[member])
        };
        let distances = (0..ids.len()).into_par_iter().map_init(|| vec![0f32; mean.len()], distance);
        let central = distances.reduce(|| (f64::INFINITY, u32::MAX), nearer);
        let entry = ids[index.entries()[0] as usize];

        let (parcels, order) = parcels(&others, is_to_come);
        let members = Members { ids, order };
        // Under inner product distances have to be those of the whole base, or lists could not be compared.
        let lists: Box<dyn Lists> = match on_device {
            Some((gpu, base)) => {
                let lifts = embedding.lifts(&vectors, &descent.progress)?;
                drop(vectors);
                with_base!(base, base => {
                    Box::new(DeviceLists::new(&gpu, base, lifts, &index, members)?)
                })
            }
            None => Box::new(HostLists::new(
                embedding.space(vectors, &descent.progress)?,
                &index,
                members,
                &stage,
            )?),
        };
        Ok(Self { cluster: number, parcels, lists, central, entry, stats })
    }
}

/// The places of the members of each other cluster, those of clusters to come first, and which member is where: in ascending
/// order in each.
fn parcels(others: &[u32], is_to_come: impl Fn(u32) -> bool) -> (Vec<(u32, Range<usize>)>, Vec<u32>) {
    let clusters = others.iter().max().map_or(0, |&most| most as usize + 1);
    let mut counts = vec![0; clusters];
    others.iter().for_each(|&other| counts[other as usize] += 1);
    let mut there: Vec<u32> = (0..clusters as u32).filter(|&other| counts[other as usize] > 0).collect();
    there.sort_by_key(|&other| !is_to_come(other));
    let (mut begin, mut next) = (0, vec![0; clusters]);
    let places = there.into_iter().map(|other| {
        next[other as usize] = begin;
        begin += counts[other as usize];
        (other, next[other as usize]..begin)
    });
    let parcels = places.collect();
    let mut order = vec![0; others.len()];
    for (member, &other) in others.iter().enumerate() {
        order[next[other as usize]] = member as u32;
        next[other as usize] += 1;
    }
    (parcels, order)
}

/// The nearer of two nodes; of equally near ones the first.
pub(super) fn nearer(a: (f64, u32), b: (f64, u32)) -> (f64, u32) {
    if a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)).is_le() { a } else { b }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_together_by_their_other_cluster() {
        let (found, order) = parcels(&[4, 1, 4, 0, 7, 1], |other| other == 4 || other == 1);
        assert_eq!(found, [(1, 0..2), (4, 2..4), (0, 4..5), (7, 5..6)]);
        assert_eq!(order, [1, 5, 0, 2, 3, 4]);
    }
}
