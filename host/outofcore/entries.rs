//! Where searches of an index that was built in clusters enter it.

use super::merge::Merged;
use crate::Vectors;
use crate::vectors::TypedRows;
use crate::vectors::distance::{SquaredL2, one_to_many};
use crate::vectors::embedding::Embedding;

/// Cluster medoids that an index is entered at, beside the global one. Each costs every search a distance, and few shorten
/// its way as much as many.
const CLUSTER_ENTRIES: usize = 8;

/// The node nearest to the mean of all, and the entry points of clusters that are furthest from those before them.
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
        // What is left lies where there are entry points already.
        let Some(&place) = furthest.filter(|&&place| least[place as usize] > 0.0) else { break };
        let entry = merged.entries[place as usize];
        entries.push(entry);
        point = embedding.rows(base, 1, |_| entry as usize);
    }
    entries
}
