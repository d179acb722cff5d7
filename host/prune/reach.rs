//! Reachability: every node hangs on a tree that grows from the entry points.

use tagore_device::descent::key;

use super::rows::Rows;
use crate::Result;
use crate::progress::Progress;
use crate::search::beam::{BeamSearch, Limits};
use crate::vectors::space::Space;

/// The search for the reached nodes nearest to an unreached one.
const NEAREST: Limits = Limits { beam: 64, expansions: usize::MAX };

/// A node that has no parent in the tree yet.
const UNREACHED: u32 = u32::MAX;

/// Makes every node reachable from `entries` without raising any degree above that of `rows`, and
/// returns how many nodes had to be attached.
///
/// The tree is grown breadth first. A node it does not reach hangs on the nearest reached node with
/// room, else in place of that node's longest edge outside the tree; if all its edges are in the
/// tree, on the next nearest. The growth goes on from there. Replacing an edge outside the tree
/// leaves all that was reached reached.
pub(super) fn connect(
    space: &Space<'_>,
    rows: &mut Rows,
    entries: &[u32],
    progress: &Progress,
) -> Result<usize> {
    let nodes = rows.len();
    let mut tree = Tree { parent: vec![UNREACHED; nodes], queue: Vec::new() };
    for &entry in entries {
        tree.reach(entry, entry);
    }
    tree.grow(rows);
    let mut search = BeamSearch::new(nodes);
    let mut attached = 0;
    for node in 0..nodes as u32 {
        if tree.parent[node as usize] != UNREACHED {
            continue;
        }
        progress.check()?;
        search.run(space, rows, space.point(node), entries, NEAREST, |_| ());
        let near: Vec<u32> = search.found().map(|key| key as u32).collect();
        if !attach_nearest(space, rows, &mut tree, node, near) {
            // The search met only nodes whose edges all carry the tree; some other node has room.
            let reached = (0..nodes as u32).filter(|&id| tree.parent[id as usize] != UNREACHED).collect();
            attach_nearest(space, rows, &mut tree, node, reached);
        }
        attached += 1;
        tree.grow(rows);
    }
    Ok(attached)
}

/// Hangs `node` on the nearest of `reached` that can take it; false if none can.
fn attach_nearest(space: &Space<'_>, rows: &mut Rows, tree: &mut Tree, node: u32, reached: Vec<u32>) -> bool {
    let mut distances = Vec::new();
    space.rule_distances(node, &reached, &mut distances);
    let mut keys: Vec<u64> = reached.iter().zip(&distances).map(|(&id, &d)| key::pack(d, id)).collect();
    keys.sort_unstable();
    for parent in keys.into_iter().map(|key| key as u32) {
        if rows.push(parent, node) || replace_longest(space, rows, tree, parent, node) {
            tree.reach(node, parent);
            return true;
        }
    }
    false
}

/// Replaces the longest edge of `parent` that does not carry the tree by one to `node`.
fn replace_longest(space: &Space<'_>, rows: &mut Rows, tree: &Tree, parent: u32, node: u32) -> bool {
    let neighbors = rows.row(parent).to_vec();
    let mut distances = Vec::new();
    space.rule_distances(parent, &neighbors, &mut distances);
    let free = (0..neighbors.len()).filter(|&slot| tree.parent[neighbors[slot] as usize] != parent);
    let longest = free.max_by_key(|&slot| key::pack(distances[slot], neighbors[slot]));
    longest.is_some_and(|slot| {
        rows.replace(parent, slot, node);
        true
    })
}

struct Tree {
    /// The node each node was reached from; an entry point is its own parent.
    parent: Vec<u32>,
    /// Reached nodes whose neighbours have not been looked at.
    queue: Vec<u32>,
}

impl Tree {
    fn reach(&mut self, node: u32, parent: u32) {
        self.parent[node as usize] = parent;
        self.queue.push(node);
    }

    fn grow(&mut self, rows: &Rows) {
        let mut next = 0;
        while next < self.queue.len() {
            let node = self.queue[next];
            next += 1;
            for &neighbor in rows.row(node) {
                if self.parent[neighbor as usize] == UNREACHED {
                    self.reach(neighbor, node);
                }
            }
        }
        self.queue.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vectors::{Metric, Vectors};

    fn reachable(rows: &Rows, entries: &[u32]) -> usize {
        let mut tree = Tree { parent: vec![UNREACHED; rows.len()], queue: Vec::new() };
        entries.iter().for_each(|&entry| tree.reach(entry, entry));
        tree.grow(rows);
        tree.parent.iter().filter(|&&parent| parent != UNREACHED).count()
    }

    /// `n` points on a line, each with the given edges.
    fn check(n: usize, degree: usize, entries: &[u32], edges: impl Fn(u32) -> Vec<u32>) {
        let base = Vectors::from_f32((0..n).map(|i| i as f32).collect(), 1).unwrap();
        let space = Space::new(&base, Metric::L2).unwrap();
        let mut rows = Rows::new(n, degree);
        for node in 0..n as u32 {
            edges(node).into_iter().for_each(|id| assert!(rows.push(node, id)));
        }
        let missing = n - reachable(&rows, entries);
        let attached = connect(&space, &mut rows, entries, &Progress::silent()).unwrap();
        assert_eq!(reachable(&rows, entries), n);
        assert!(attached <= missing && (attached > 0) == (missing > 0));
        for node in 0..n as u32 {
            let mut row = rows.row(node).to_vec();
            row.sort_unstable();
            row.dedup();
            assert_eq!(row.len(), rows.row(node).len(), "a duplicate edge at {node}");
            assert!(!row.contains(&node) && row.len() <= degree);
        }
    }

    #[test]
    fn nodes_without_edges_are_attached() {
        for degree in [1, 2, 7] {
            check(50, degree, &[25], |_| vec![]);
        }
    }

    #[test]
    fn full_rows_give_up_an_edge_outside_the_tree() {
        // Pairs that know only each other: every row is full at degree 1.
        check(40, 1, &[0], |node| vec![node ^ 1]);
        check(41, 2, &[0, 7], |node| if node == 40 { vec![] } else { vec![node ^ 1] });
        // A ring needs nothing.
        check(30, 1, &[3], |node| vec![(node + 1) % 30]);
    }
}
