//! Store on a device: rows of ids from forward and reverse edges.

use cuda_std::launch::Kernel;
use tagore_device::key::Key;
use tagore_device::prune::store::{
    MERGE_THREADS, MERGED, MergeReverse, STORE_ROWS, STORE_THREADS, Store, prune_merge, prune_store,
};

use super::reverse::Reverse;
use super::{Chunk, KeyRows};
use crate::Result;
use crate::gpu::{Buffer, Gpu};
use crate::prune::rows::GraphRows;

/// Writes rows of `degree` ids: the better half of the forward edges, then reverse edges, then the
/// rest of the forward edges (CAGRA and DPG).
pub(super) fn store(
    gpu: &Gpu,
    forward: KeyRows<'_>,
    reverse: &Reverse,
    ids: &mut Buffer<u32>,
    degree: usize,
) -> Result<()> {
    let KeyRows { keys, rows, width } = forward;
    let store = Store {
        forward: keys.view(),
        reverse: reverse.sources.view(),
        offsets: reverse.offsets.view(),
        ids: ids.view_mut(),
        rows: rows as u32,
        width: width as u32,
        degree: degree as u32,
        first: degree.div_ceil(2).min(width) as u32,
    };
    let grid = [(rows as u32).div_ceil(STORE_ROWS), 1, 1];
    // SAFETY: the buffers have the lengths that the arguments give, and outlive the work.
    unsafe { gpu.launch::<prune_store>(grid, STORE_THREADS, (store,))? };
    gpu.count_work(prune_store::NAME, (rows * (width * 8 + (degree + 1) * 4)) as u64, 0);
    Ok(())
}

/// Writes to `merged` the nearest [`MERGED`] forward and reverse edges of each node of the chunk,
/// the candidates of a second run of the filter. Reverse edges must be ranked by distance.
pub(super) fn merge(
    gpu: &Gpu,
    forward: KeyRows<'_>,
    reverse: &Reverse,
    chunk: &Chunk<'_>,
    merged: &mut Buffer<Key>,
) -> Result<()> {
    let KeyRows { keys, width, .. } = forward;
    let merge = MergeReverse {
        forward: keys.view(),
        reverse: reverse.sources.view(),
        offsets: reverse.offsets.view(),
        nodes: chunk.nodes(),
        merged: merged.view_mut(),
        width: width as u32,
        padding: 0,
    };
    // SAFETY: the buffers have the lengths that the arguments give, and outlive the work.
    unsafe { gpu.launch::<prune_merge>([chunk.len() as u32, 1, 1], MERGE_THREADS, (merge,))? };
    gpu.count_work(prune_merge::NAME, (chunk.len() * (width + MERGED as usize) * 8) as u64, 0);
    Ok(())
}

/// Copies rows of `degree` ids to the host, into `room` of their length.
pub(crate) fn download(ids: &Buffer<u32>, mut room: Vec<u32>, degree: usize) -> Result<GraphRows> {
    ids.download(&mut room)?;
    GraphRows::from_padded(room, degree)
}

#[cfg(test)]
mod tests {
    use tagore_device::key::{self, NONE};

    use super::super::ids::take_ids;
    use super::super::reverse::Rank;
    use super::super::testing::{cases, devices, download as values, forward_on_cpu, upload};
    use super::*;
    use crate::Progress;
    use crate::prune::{Strategy, cpu};

    #[test]
    fn rows_are_stored_as_on_the_cpu() {
        cases(|space, graph| {
            let n = graph.len();
            for (strategy, degree, rank) in [
                (Strategy::cagra(), 1, Rank::Place),
                (Strategy::cagra(), 7, Rank::Place),
                (Strategy::dpg(), 10, Rank::Distance),
            ] {
                let strategy = strategy.degree(degree);
                let width = degree;
                let expected = cpu::prune(space, graph, &strategy, 1, &Progress::silent()).unwrap();
                let expected = expected.rows.into_parts();
                let forward = forward_on_cpu(space, graph, &strategy, width);
                for gpu in devices() {
                    let forward = upload(&gpu, &forward);
                    let forward = KeyRows { keys: &forward, rows: n, width };
                    let reverse = Reverse::new(&gpu, forward, rank).unwrap();
                    let mut ids = upload(&gpu, &vec![0u32; n * degree]);
                    store(&gpu, forward, &reverse, &mut ids, degree).unwrap();
                    let found = download(&ids, vec![0; n * degree], degree).unwrap();
                    assert_eq!(found.into_parts(), expected, "{} {degree}", strategy.kind());
                }
            }
        });
    }

    #[test]
    fn both_directions_are_merged() {
        cases(|space, graph| {
            let (n, width) = (graph.len(), 8);
            // Neither filter accepts in the order of distances.
            for strategy in [Strategy::cagra(), Strategy::dpg()] {
                let forward = forward_on_cpu(space, graph, &strategy, width);
                let edges = |a: u32| forward[a as usize * width..][..width].iter().filter(|&&k| k != NONE);
                let mut expected: Vec<Vec<Key>> =
                    (0..n as u32).map(|a| edges(a).copied().collect()).collect();
                for a in 0..n as u32 {
                    for &key in edges(a) {
                        let mut distance = Vec::new();
                        space.order_distances(key as u32, &[a], &mut distance);
                        expected[key as u32 as usize].push(key::pack(distance[0], a));
                    }
                }
                for keys in &mut expected {
                    keys.sort_unstable();
                    keys.dedup();
                    keys.resize(MERGED as usize, NONE);
                }
                let order: Vec<u32> = (0..n as u32).rev().collect();
                expected.reverse();
                for gpu in devices() {
                    let (forward, nodes) = (upload(&gpu, &forward), upload(&gpu, &order));
                    let (forward, chunk) =
                        (KeyRows { keys: &forward, rows: n, width }, Chunk { order: &nodes, range: 0..n });
                    let reverse = Reverse::new(&gpu, forward, Rank::Distance).unwrap();
                    let mut merged = upload(&gpu, &vec![0u64; n * MERGED as usize]);
                    merge(&gpu, forward, &reverse, &chunk, &mut merged).unwrap();
                    assert_eq!(values(&merged, n * MERGED as usize), expected.concat());
                }
            }
        });
    }

    #[test]
    fn keys_become_rows() {
        for gpu in devices() {
            let keys =
                upload(&gpu, &[key::pack(1.0, 7), key::pack(0.5, 3), key::pack(2.0, 1), NONE, NONE, NONE]);
            let mut ids = upload(&gpu, &[0u32; 6]);
            take_ids(&gpu, KeyRows { keys: &keys, rows: 3, width: 2 }, &mut ids, 2).unwrap();
            let rows = download(&ids, vec![0; 6], 2).unwrap();
            assert_eq!((rows.row(0), rows.row(1), rows.row(2)), (&[7, 3][..], &[1][..], &[][..]));
        }
    }
}
