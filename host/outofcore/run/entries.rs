//! Entry points of an index built in clusters.

use super::merge::Merged;
use crate::Vectors;
use crate::vectors::TypedRows;
use crate::vectors::distance::{SquaredL2, one_to_many};
use crate::vectors::embedding::Embedding;

/// Maximum entry points of clusters, beside the medoid. Each costs every search a distance, and
/// eight shorten searches as much as more do.
const CLUSTER_ENTRIES: usize = 8;

/// The node nearest to the mean of the base, and entry points of clusters, each the farthest from
/// the earlier ones.
pub(super) fn spread(base: &Vectors, embedding: &Embedding, merged: &Merged) -> Vec<u32> {
    let places: Vec<u32> = (0..merged.entries.len() as u32).collect();
    let candidates = embedding.rows(base, places.len(), |place| merged.entries[place] as usize);
    let mut point = embedding.rows(base, 1, |_| merged.central as usize);
    let mut entries = vec![merged.central];
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
        let entry = merged.entries[place as usize];
        entries.push(entry);
        point = embedding.rows(base, 1, |_| entry as usize);
    }
    entries
}
