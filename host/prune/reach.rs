//! Reach: attaches unreachable nodes to a tree that grows from the entry points.

use std::collections::{HashSet, VecDeque};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use rayon::prelude::*;
use tagore_device::key::{self, Key};

use super::rows::GraphRows;
use super::tree::{MIN_PARALLEL_NODES, Tree};
use crate::Result;
use crate::gpu::MemoryPlan;
use crate::index::{Graph, Start};
use crate::loops::{at_least, filter, for_each, map};
use crate::parallel::locked;
use crate::progress::Progress;
use crate::search::beam::{BeamLimits, BeamSearch, BeamTask};
use crate::search::gpu::NodeSearch;
use crate::search::visited::Visited;
use crate::vectors::Metric;
use crate::vectors::space::Space;

/// The search for the reached nodes nearest to an unreached one.
const NEAREST: BeamLimits = BeamLimits::all_of(64);

/// A search for a lone node finds it if it is among this many of the nearest nodes found.
pub(crate) const FOUND: usize = 32;

/// Unreached nodes searched for at a time, on the same graph. The number is enough for all threads.
/// It is small, since attaching one node may reach others and waste their searches.
pub(crate) const SEARCHES: usize = 256;

/// Host memory of [`connect`] for `n` nodes on `threads` threads.
pub(crate) fn plan(n: usize, threads: usize) -> MemoryPlan {
    // A level may hold most nodes, once in parts and once as a whole.
    MemoryPlan::new()
        .with::<u32>("parents", n)
        .with::<bool>("reached", n)
        .with::<bool>("listed", n)
        .with::<u32>("levels", 2 * n)
        .with::<u32>("pending", n)
        .and(&Visited::plan(n, threads))
}

/// Makes every node reachable from `entries` within the degree of `rows`, and returns the number of
/// attached nodes.
///
/// Under inner product, short rows without incoming edges stay unreachable. They are the answer to
/// hardly any query, they may be most of the base, and edges to them mislead searches.
///
/// The tree grows breadth first. An unreached node gets an edge from the nearest reached node with
/// a free slot or an edge outside the tree. Without a free slot, the new edge replaces the longest
/// edge outside the tree. The tree then grows from the attached node. Replacing an edge outside the
/// tree keeps all reached nodes reached.
///
/// `tree` is that of `entries`. The result does not depend on the number of threads.
pub(crate) fn connect(
    space: &Space<'_>,
    rows: &mut GraphRows,
    entries: &[u32],
    tree: &Tree,
    on_device: Option<&mut NodeSearch>,
    progress: &Progress,
) -> Result<usize> {
    let nodes = rows.len() as u32;
    // Rows outside host memory are searched where they are. Few others remain, and every edge that
    // they get would have to be copied there.
    let mut on_device = on_device.filter(|_| !space.vectors().is_readable());
    if let Some(search) = &mut on_device {
        search.start(rows.len(), Start::at(entries))?;
    }
    let mut near = Near { cpu: NodeSearches::new(space, Start::at(entries)), on_device, progress };
    let listed = (space.metric() == Metric::InnerProduct).then(|| listed(rows));
    let left_out = |node: u32| {
        listed.as_ref().is_some_and(|listed| !is_set(&listed[node as usize])) && space.is_short(node)
    };
    let mut pending = filter(0..nodes, |&node| !tree.is_reached(node) && !left_out(node));
    if space.metric() == Metric::InnerProduct {
        // Those of large products first: searches for others lead through them.
        pending.par_sort_by(|&a, &b| space.lift(a).total_cmp(&space.lift(b)).then(a.cmp(&b)));
    }
    let (mut attached, mut first, mut recent) = (0, 0, VecDeque::new());
    loop {
        let mut unreached = Vec::with_capacity(SEARCHES);
        while first < pending.len() && unreached.len() < SEARCHES {
            unreached.extend(Some(pending[first]).filter(|&node| !tree.is_reached(node)));
            first += 1;
        }
        if unreached.is_empty() {
            return Ok(attached);
        }
        let found = near.reached(rows, &unreached)?;
        for (node, mut candidates) in unreached.into_iter().zip(found) {
            if tree.is_reached(node) {
                continue;
            }
            progress.check()?;
            // Under inner product, a search for a node of few and small products ends at the nodes
            // of the largest, which lead all searches: their edges are not given away.
            if space.metric() == Metric::InnerProduct {
                candidates.extend(&recent);
            }
            // Earlier nodes of this round may have filled the nodes found, so a new search follows.
            // Its results may have edges of the tree alone, as many equal rows have. Nodes attached
            // just before are leaves with room, or all reached nodes are tried: one has room.
            for attempt in 0..4 {
                match attempt {
                    0 => {}
                    1 => candidates = near.reached(rows, &[node])?.concat(),
                    2 => candidates = recent.iter().copied().collect(),
                    _ => candidates = (0..nodes).filter(|&id| tree.is_reached(id)).collect(),
                }
                if let Some(parent) = attach(space, rows, tree, node, &candidates)? {
                    near.changed(rows, parent)?;
                    tree.reach(rows, node, parent);
                    break;
                }
            }
            attached += 1;
            if recent.len() == SEARCHES {
                recent.pop_front();
            }
            recent.push_back(node);
        }
    }
}

/// Searches for the reached nodes nearest to unreached ones.
struct Near<'a> {
    cpu: NodeSearches<'a>,
    /// The graph on the device of a base outside host memory.
    on_device: Option<&'a mut NodeSearch>,
    progress: &'a Progress,
}

impl Near<'_> {
    /// The nodes found for each of `nodes`, nearest first.
    fn reached(&mut self, rows: &GraphRows, nodes: &[u32]) -> Result<Vec<Vec<u32>>> {
        if let Some(search) = &mut self.on_device {
            let beam = NEAREST.beam;
            let (keys, _) = search.nearest(self.cpu.space, nodes, beam, &self.progress.unwatched())?;
            let found =
                |keys: &[Key]| keys.iter().filter(|&&key| key != key::NONE).map(|&key| key as u32).collect();
            return Ok(keys.chunks_exact(beam).map(found).collect());
        }
        Ok(self.cpu.nearest(rows, nodes))
    }

    /// Follows a change of the row of `node`.
    fn changed(&mut self, rows: &GraphRows, node: u32) -> Result<()> {
        self.on_device.as_mut().map_or(Ok(()), |search| search.set_row(node, rows.padded_row(node)))
    }
}

/// Searches on the CPU for the nodes nearest to others.
pub(crate) struct NodeSearches<'a> {
    space: &'a Space<'a>,
    start: Start<'a>,
    limits: BeamLimits,
    /// Searches are reused, since each has a bit per node.
    free: Mutex<Vec<BeamSearch>>,
}

impl<'a> NodeSearches<'a> {
    /// Searches from `start`, by the list distances of `space`.
    pub(crate) fn new(space: &'a Space<'a>, start: Start<'a>) -> Self {
        Self { space, start, limits: NEAREST, free: Mutex::default() }
    }

    /// These searches with a beam of `width`, if that is wider.
    pub(crate) fn width(self, width: usize) -> Self {
        Self { limits: BeamLimits::all_of(width.max(NEAREST.beam)), ..self }
    }

    /// The nodes of `graph` found for each of `nodes`, nearest first.
    pub(crate) fn nearest(&self, graph: &impl Graph, nodes: &[u32]) -> Vec<Vec<u32>> {
        map(nodes, |&node| self.search(graph, node, self.start, self.limits))
    }

    /// The `width` nodes of `graph` found for `node` from `entries`, nearest first.
    pub(crate) fn nearest_from(
        &self,
        graph: &impl Graph,
        node: u32,
        entries: &[u32],
        width: usize,
    ) -> Vec<u32> {
        self.search(graph, node, Start::at(entries), BeamLimits::all_of(width))
    }

    fn search(&self, graph: &impl Graph, node: u32, start: Start<'_>, limits: BeamLimits) -> Vec<u32> {
        let free = || locked(&self.free);
        let taken = free().pop();
        let mut search = taken.unwrap_or_else(|| BeamSearch::new(self.space.len()));
        let task = BeamTask { query: self.space.query(node), start, limits, among: None };
        search.run(self.space, graph, task, |_| ());
        let found = search.found().map(|key| key as u32).collect();
        free().push(search);
        found
    }
}

/// Gives each of the `lone` nodes, far from all others, that a search from `start` does not find an
/// edge from the nearest node that it finds: few edges lead to it. Returns the number of edges. All
/// nodes reached from `first` stay reached. Rows that are on a device alone are left as they are.
pub(crate) fn find_lone(
    space: &Space<'_>,
    rows: &mut GraphRows,
    lone: &[u32],
    start: Start<'_>,
    first: &[u32],
    progress: &Progress,
) -> Result<usize> {
    if lone.is_empty() || !space.vectors().is_readable() {
        return Ok(0);
    }
    let near = NodeSearches::new(space, start);
    // Most searches find their node, and then no tree is needed.
    let mut tree = None;
    // An edge to a lone node is long: another would replace it.
    let (mut added, mut used) = (0, HashSet::new());
    for nodes in lone.chunks(SEARCHES) {
        progress.check()?;
        for (&node, found) in nodes.iter().zip(near.nearest(rows, nodes)) {
            if found[..found.len().min(FOUND)].contains(&node) {
                continue;
            }
            let tree = tree.get_or_insert_with(|| Tree::from_entries(rows, first));
            let candidates: Vec<u32> = found
                .into_iter()
                .filter(|&id| id != node && !used.contains(&id) && tree.is_reached(id))
                .collect();
            if let Some(parent) = attach(space, rows, tree, node, &candidates)? {
                used.insert(parent);
                added += 1;
            }
        }
    }
    Ok(added)
}

/// Whether each node has an incoming edge.
fn listed(rows: &GraphRows) -> Vec<AtomicBool> {
    let nodes = rows.len() as u32;
    let listed = map(0..nodes, |_| AtomicBool::new(false));
    for_each(at_least(MIN_PARALLEL_NODES, 0..nodes), |node| {
        for &id in rows.row(node) {
            let id = &listed[id as usize];
            // Most nodes have many incoming edges: reading is cheaper.
            if !is_set(id) {
                id.store(true, Ordering::Relaxed);
            }
        }
    });
    listed
}

fn is_set(flag: &AtomicBool) -> bool {
    flag.load(Ordering::Relaxed)
}

/// Adds an edge to `node` from the nearest of `reached` that can take one, and returns that node.
fn attach(
    space: &Space<'_>,
    rows: &mut GraphRows,
    tree: &Tree,
    node: u32,
    reached: &[u32],
) -> Result<Option<u32>> {
    let mut distances = Vec::new();
    space.fetched_rule_distances(node, reached, &mut distances)?;
    let mut keys: Vec<u64> = reached.iter().zip(&distances).map(|(&id, &d)| key::pack(d, id)).collect();
    keys.sort_unstable();
    for parent in keys.into_iter().map(|key| key as u32) {
        if rows.push(parent, node) || replace_longest(space, rows, tree, parent, node)? {
            return Ok(Some(parent));
        }
    }
    Ok(None)
}

/// Replaces the longest edge of `parent` outside the tree by one to `node`; false if there is none.
fn replace_longest(
    space: &Space<'_>,
    rows: &mut GraphRows,
    tree: &Tree,
    parent: u32,
    node: u32,
) -> Result<bool> {
    let neighbors = rows.row(parent).to_vec();
    let mut distances = Vec::new();
    space.fetched_rule_distances(parent, &neighbors, &mut distances)?;
    let free = (0..neighbors.len()).filter(|&slot| tree.parent(neighbors[slot]) != parent);
    let longest = free.max_by_key(|&slot| key::pack(distances[slot], neighbors[slot]));
    Ok(longest.is_some_and(|slot| {
        rows.replace(parent, slot, node);
        true
    }))
}

#[cfg(test)]
mod tests {
    use tagore_device::key::NO_ID;
    use tagore_device::random::{Draws, Stage};

    use super::*;
    use crate::vectors::{Metric, Vectors};

    fn reachable(rows: &GraphRows, entries: &[u32]) -> usize {
        rows.len() - Tree::from_entries(rows, entries).unreached().len()
    }

    /// [`connect`] on the CPU.
    fn connected(space: &Space<'_>, rows: &mut GraphRows, entries: &[u32]) -> usize {
        let tree = Tree::from_entries(rows, entries);
        connect(space, rows, entries, &tree, None, &Progress::silent()).unwrap()
    }

    /// `n` points on a line, each with the given edges.
    fn check(n: usize, degree: usize, entries: &[u32], edges: impl Fn(u32) -> Vec<u32>) {
        let base = Vectors::from_f32((0..n).map(|i| i as f32).collect(), 1).unwrap();
        let space = Space::new(&base, Metric::L2, &Progress::silent()).unwrap();
        let mut rows = GraphRows::new(n, degree);
        for node in 0..n as u32 {
            edges(node).into_iter().for_each(|id| assert!(rows.push(node, id)));
        }
        let missing = n - reachable(&rows, entries);
        let attached = connected(&space, &mut rows, entries);
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
        // Pairs with edges to each other alone: every row is full at degree 1.
        check(40, 1, &[0], |node| vec![node ^ 1]);
        check(41, 2, &[0, 7], |node| if node == 40 { vec![] } else { vec![node ^ 1] });
        // All nodes of a ring are reachable.
        check(30, 1, &[3], |node| vec![(node + 1) % 30]);
    }

    #[test]
    fn short_rows_without_incoming_edges_stay_unreachable_under_inner_product() {
        let base = Vectors::from_f32((0..40).map(|i| i as f32).collect(), 1).unwrap();
        for metric in [Metric::InnerProduct, Metric::L2] {
            let space = Space::new(&base, metric, &Progress::silent()).unwrap();
            let mut rows = GraphRows::new(40, 4);
            // Entry 0 leads to 1; 2 and 3 lead to each other; no edge leads to the others.
            for (from, to) in [(0, 1), (2, 3), (3, 2)] {
                assert!(rows.push(from, to));
            }
            connected(&space, &mut rows, &[0]);
            // Rows 35 to 39 are long: 35² is 0.81 of 39².
            let expected = if metric == Metric::L2 { 40 } else { 4 + 5 };
            assert_eq!(reachable(&rows, &[0]), expected, "{metric:?}");
        }
    }

    #[test]
    fn the_tree_does_not_depend_on_the_threads() {
        // Levels of more than [`MIN_PARALLEL_NODES`] nodes; half of the nodes have no incoming
        // edges.
        let n = 6000;
        let draws = Draws::new(1, Stage::Test, 4, 0);
        let base = Vectors::from_f32((0..n).map(|i| draws.unit(i) as f32).collect(), 1).unwrap();
        let space = Space::new(&base, Metric::L2, &Progress::silent()).unwrap();
        let ids: Vec<u32> =
            (0..5 * n).map(|i| (draws.below(n + i, n) / 10 * 10) as u32 + i as u32 % 5).collect();
        let on = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| {
                let mut rows = GraphRows::from_padded(ids.clone(), 5).unwrap();
                let tree = Tree::from_entries(&rows, &[7, 3]);
                let parents: Vec<u32> = (0..n as u32).map(|node| tree.parent(node)).collect();
                let attached = connected(&space, &mut rows, &[7, 3]);
                assert_eq!(reachable(&rows, &[7, 3]), n as usize);
                (parents, attached, rows.into_parts())
            })
        };
        let alone = on(1);
        assert!(alone.1 > SEARCHES);
        for threads in [2, 5] {
            assert!(on(threads) == alone, "{threads} threads");
        }
        // The definition, level by level.
        let mut parents = vec![NO_ID; n as usize];
        let mut level = vec![3u32, 7];
        level.iter().for_each(|&entry| parents[entry as usize] = entry);
        while !level.is_empty() {
            let mut next = Vec::new();
            for &node in &level {
                for &id in &ids[5 * node as usize..][..5] {
                    if parents[id as usize] == NO_ID {
                        parents[id as usize] = node;
                        next.push(id);
                    }
                }
            }
            next.sort_unstable();
            level = next;
        }
        assert_eq!(alone.0, parents);
    }
}
