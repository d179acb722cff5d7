//! The index of one cluster, as lists with distances that can be merged.

use rayon::prelude::*;
use tagore_device::descent::key::{self, Key};

use super::lengths::lengths;
use super::partition::Cluster;
use crate::vectors::embedding::Embedding;
use crate::{BuildStats, Builder, Result, Vectors};

/// The lists of a cluster's members.
pub(super) struct LocalLists {
    pub cluster: u32,
    /// The ids of the members, in ascending order.
    pub ids: Vec<u32>,
    /// The other cluster that each is in.
    pub others: Vec<u32>,
    /// The neighbours of each in ascending order, as rule distances and places among the members, padded to the
    /// degree with [`key::NONE`].
    pub keys: Vec<Key>,
    pub vectors: Vectors,
    /// The member nearest to the mean of the base, and its squared distance.
    pub central: (f64, u32),
    /// A node that the local index is entered at.
    pub entry: u32,
    /// What building them took.
    pub stats: BuildStats,
}

impl LocalLists {
    /// Builds the index of a cluster, which is not empty.
    pub(super) fn build(
        builder: &Builder,
        cluster: Cluster,
        embedding: &Embedding,
        mean: &[f64],
    ) -> Result<Self> {
        let Cluster { number, ids, others, vectors } = cluster;
        let descent = builder.descent.of_part(ids.len());
        let stage = descent.progress.stage("build", 0);
        let (index, stats) =
            builder.clone().sample(0).descent(descent.clone()).build_with_stats(&vectors, None)?;
        // Under inner product distances have to be those of the whole base, or lists could not be compared.
        let keys = lengths(&index, &embedding.space(&vectors)?, descent.device, &stage)?;
        let distance = |out: &mut Vec<f32>, member: usize| {
            embedding.embed(&vectors.row(member), out);
            let terms = out.iter().zip(mean).map(|(&x, y)| (f64::from(x) - y).powi(2));
            (terms.sum::<f64>(), ids[member])
        };
        let distances = (0..ids.len()).into_par_iter().map_init(|| vec![0f32; mean.len()], distance);
        let central = distances.reduce(|| (f64::INFINITY, u32::MAX), nearer);
        let entry = ids[index.entries()[0] as usize];
        Ok(Self { cluster: number, ids, others, keys, vectors, central, entry, stats })
    }
}

impl LocalLists {
    /// The key of the base for one of a member.
    pub(super) fn of_base(&self, key: Key) -> Key {
        if key == key::NONE { key } else { key >> 32 << 32 | u64::from(self.ids[key as u32 as usize]) }
    }

    /// Which member the node of this id is, if it is one.
    pub(super) fn member(&self, id: u32) -> Option<u32> {
        self.ids.binary_search(&id).ok().map(|place| place as u32)
    }
}

/// The nearer of two nodes; of equally near ones the first.
pub(super) fn nearer(a: (f64, u32), b: (f64, u32)) -> (f64, u32) {
    if a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)).is_le() { a } else { b }
}
