//! The breadth-first tree of a graph on a GPU.

use tagore_device::prune::tree::{TREE_THREADS, Tree, UNREACHED, place, prune_tree};

use crate::Result;
use crate::gpu::{Buffer, Gpu};
use crate::memory::touched_zeros;
use crate::search::gpu::EdgeRows;

/// Levels between two looks at the device. Most trees have fewer, and a level without nodes takes
/// microseconds.
const LEVELS: u32 = 12;

/// The tree of all nodes that edges reach from `entries`: the place ([`place`]) of each node. An
/// entry point is its own parent.
pub(crate) fn tree(gpu: &Gpu, edges: EdgeRows<'_>, entries: &[u32]) -> Result<Vec<u64>> {
    let EdgeRows { ids, nodes, degree } = edges;
    let mut places: Buffer<u64> = gpu.buffer("places in a tree", nodes)?;
    let mut deepest: Buffer<u32> = gpu.buffer("deepest level", 1)?;
    // Every byte of an unreached place is this one.
    places.fill(UNREACHED as u8)?;
    for &entry in entries {
        places.upload_at(entry as usize, &[place(0, entry)])?;
    }
    deepest.fill(0)?;
    let mut level = 0;
    loop {
        for level in level..level + LEVELS {
            let arguments = Tree {
                edges: ids.view(),
                places: places.view_mut(),
                deepest: deepest.view_mut(),
                count: nodes as u32,
                degree: degree as u32,
                level,
                padding: 0,
            };
            let grid = [(nodes as u32).div_ceil(TREE_THREADS), 1, 1];
            // SAFETY: every id in the rows is a node and has a place. The buffers outlive the work.
            unsafe { gpu.launch::<prune_tree>(grid, TREE_THREADS, (arguments,))? };
        }
        level += LEVELS;
        let mut last = [0];
        deepest.download(&mut last)?;
        if last[0] < level {
            break;
        }
    }
    let mut found = touched_zeros(nodes)?;
    places.download(&mut found)?;
    Ok(found)
}

#[cfg(test)]
mod tests {
    use tagore_device::key::NO_ID;
    use tagore_device::random::{Draws, Stage};

    use super::*;
    use crate::prune::gpu::testing::{devices, upload};

    /// The tree by its definition, level by level.
    fn reference(ids: &[u32], nodes: usize, degree: usize, entries: &[u32]) -> Vec<u64> {
        let mut places = vec![UNREACHED; nodes];
        entries.iter().for_each(|&entry| places[entry as usize] = place(0, entry));
        for level in 0..nodes as u32 {
            let of_level = |&node: &u32| (places[node as usize] >> 32) as u32 == level;
            let nodes: Vec<u32> = (0..nodes as u32).filter(of_level).collect();
            for node in nodes {
                for &end in ids[node as usize * degree..][..degree].iter().filter(|&&end| end != NO_ID) {
                    if places[end as usize] == UNREACHED {
                        places[end as usize] = place(level + 1, node);
                    }
                }
            }
        }
        places
    }

    #[test]
    fn trees_are_those_of_the_definition() {
        // A chain of more levels than are launched at a time, with a node that no edge leads to.
        let chain: Vec<u32> = (0..3 * LEVELS).map(|node| if node == 20 { NO_ID } else { node + 1 }).collect();
        let chain = [&chain[..], &[NO_ID]].concat();
        let (nodes, degree) = (700usize, 40usize);
        let draws = Draws::new(3, Stage::Test, 4, 0);
        // Few ends, and rows of up to all slots.
        let id = |i: usize| match draws.below(i as u64, 800) {
            end if i % degree < i / degree % 41 && end < 700 => end as u32 / 10 * 10 + i as u32 % 3,
            _ => NO_ID,
        };
        let wide: Vec<u32> = (0..nodes * degree).map(id).collect();
        for gpu in devices() {
            for (ids, degree, entries) in [
                (&chain, 1, &[0][..]),
                (&chain, 1, &[30, 2]),
                (&wide, degree, &[39]),
                (&wide, degree, &[5, 640]),
            ] {
                let nodes = ids.len() / degree;
                let on_device = upload(&gpu, ids);
                let edges = EdgeRows { ids: &on_device, nodes, degree };
                let found = tree(&gpu, edges, entries).unwrap();
                assert!(found == reference(ids, nodes, degree, entries), "{nodes} x {degree}, {entries:?}");
            }
        }
    }
}
