//! Entry points of an index built in clusters.

use crate::index::random_entries;
use crate::prune::Entry;
use crate::vectors::TypedRows;
use crate::vectors::distance::{SquaredL2, one_to_many};
use crate::vectors::embedding::Embedding;
use crate::{Builder, Repeated, Vectors};

/// Maximum entry points of clusters, beside the medoid. Each costs every search a distance, and
/// eight shorten searches as much as more do.
const CLUSTER_ENTRIES: usize = 8;

/// Nodes of clusters that searches may begin at.
#[derive(Clone, Copy)]
pub(crate) struct Reached<'a> {
    /// The entry point of each cluster.
    pub clusters: &'a [u32],
    /// The node nearest to the mean of the base.
    pub central: u32,
}

/// The entry points of the index.
pub(crate) fn entry_points(
    builder: &Builder,
    base: &Vectors,
    embedding: &Embedding,
    repeated: &Repeated,
    nodes: Reached<'_>,
) -> Vec<u32> {
    match builder.strategy.entry {
        Entry::Medoid => spread(base, embedding, nodes),
        Entry::Random => {
            let places = random_entries(base.len() - repeated.len(), builder.descent.seed);
            places.into_iter().map(|place| repeated.nth_unique(place)).collect()
        }
    }
}

/// The node nearest to the mean of the base, and entry points of clusters, each the farthest from
/// the earlier ones.
fn spread(base: &Vectors, embedding: &Embedding, nodes: Reached<'_>) -> Vec<u32> {
    let Reached { clusters, central } = nodes;
    let places: Vec<u32> = (0..clusters.len() as u32).collect();
    let candidates = embedding.rows(base, places.len(), |place| clusters[place] as usize);
    let mut point = embedding.rows(base, 1, |_| central as usize);
    let mut entries = vec![central];
    let mut least = vec![f32::INFINITY; places.len()];
    let mut distances = vec![0.0; places.len()];
    while entries.len() <= CLUSTER_ENTRIES {
        if let (TypedRows::F32(rows), TypedRows::F32(from)) = (candidates.rows(), point.rows()) {
            one_to_many::<SquaredL2, f32>(from.row(0), rows, &places, &mut distances);
        }
        least.iter_mut().zip(&distances).for_each(|(least, &distance)| *least = least.min(distance));
        let furthest = places.iter().rev().max_by(|&&a, &&b| least[a as usize].total_cmp(&least[b as usize]));
        // At distance 0, all remaining candidates equal an entry point.
        let Some(&place) = furthest.filter(|&&place| least[place as usize] > 0.0) else { break };
        let entry = clusters[place as usize];
        entries.push(entry);
        point = embedding.rows(base, 1, |_| entry as usize);
    }
    entries
}
