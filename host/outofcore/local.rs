//! The index of one cluster, as lists that can be merged.

use std::ops::Range;

use rayon::prelude::*;

use super::lists::{DeviceLists, HostLists, Lists, Members};
use super::partition::Cluster;
use crate::prune::Built;
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
        is_to_come: impl Fn(u32) -> bool + Sync,
    ) -> Result<Self> {
        let Cluster { number, ids, others, vectors } = cluster;
        let descent = builder.descent.of_part(ids.len());
        let stage = descent.progress.stage("build", 0);
        let builder = builder.clone().sample(0).descent(descent.clone());
        let Built { index, stats, on_device } = builder.build_and_keep(&vectors, None)?;
        let distance = |out: &mut Vec<f32>, member: usize| {
            embedding.embed(&vectors.row(member), out);
            let terms = out.iter().zip(mean).map(|(&x, y)| (f64::from(x) - y).powi(2));
            (terms.sum::<f64>(), ids[member])
        };
        let distances = (0..ids.len()).into_par_iter().map_init(|| vec![0f32; mean.len()], distance);
        let central = distances.reduce(|| (f64::INFINITY, u32::MAX), nearer);
        let entry = ids[index.entries()[0] as usize];

        let other_of = |member: u32| others[member as usize];
        let mut order: Vec<u32> = (0..ids.len() as u32).collect();
        // Members are in ascending order of ids, and stay so beside each other.
        order.par_sort_unstable_by_key(|&member| {
            (!is_to_come(other_of(member)), other_of(member), member)
        });
        let mut end = 0;
        let parcels = order.chunk_by(|&a, &b| other_of(a) == other_of(b)).map(|members| {
            let begin = end;
            end += members.len();
            (other_of(members[0]), begin..end)
        });
        let parcels = parcels.collect();
        let members = Members { ids, order };
        // Under inner product distances have to be those of the whole base, or lists could not be compared.
        let lists: Box<dyn Lists> = match on_device {
            Some((gpu, base)) => {
                let lifts = embedding.lifts(&vectors);
                drop(vectors);
                with_base!(base, base => {
                    Box::new(DeviceLists::new(&gpu, base, lifts.as_deref(), &index, members)?)
                })
            }
            None => Box::new(HostLists::new(embedding.space(vectors)?, &index, members, &stage)?),
        };
        Ok(Self { cluster: number, parcels, lists, central, entry, stats })
    }
}

/// The nearer of two nodes; of equally near ones the first.
pub(super) fn nearer(a: (f64, u32), b: (f64, u32)) -> (f64, u32) {
    if a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)).is_le() { a } else { b }
}
