//! Attaches the nodes of a merged graph that searches do not find.
//!
//! The merge keeps the nearest neighbours of both lists of a node. So a row far from all others, or
//! of a large norm, may have edges from rows like itself alone, or none. Such a node gets an edge
//! from the nearest node that a search for it finds. The changed rows are kept beside the written
//! ones, which are read where they are.

use std::collections::BTreeMap;

use rayon::prelude::*;
use tagore_device::key;

use crate::index::{Graph, Reach, Start, WrittenRows, edges_to};
use crate::loops::gather;
use crate::prune::reach::{FOUND, NodeSearches, SEARCHES};
use crate::vectors::TypedRows;
use crate::vectors::distance::{SquaredL2, one_to_many};
use crate::vectors::embedding::Embedding;
use crate::vectors::space::Space;
use crate::{Metric, Progress, Repeated, Result, Vectors};

/// Maximum share of nodes that are searched for: one in this many. If more are unreached, the fault
/// is not that of a few rows.
const ONE_IN: usize = 100;

/// The least limit on the nodes that are searched for, however small the graph.
const MIN_SEARCHES: usize = 1024;

/// The least limit on the lone nodes that are searched for; they get half of all searches at most.
const MIN_LONE: usize = 4096;

/// Further lone nodes are searched for as long as one in this many was missed.
const MISSED_ONE_IN: usize = 16;

/// Passes over unreached nodes: an edge that was replaced may have been the only way to its target.
const ROUNDS: usize = 4;

/// Maximum share of edges that a row gives up: one in this many.
const GIVEN_ONE_IN: usize = 4;

/// Unreached nodes whose norms are read at a time.
const AT_A_TIME: usize = 1 << 16;

/// Changed rows of a written graph.
#[derive(Default)]
pub(crate) struct Changes(BTreeMap<u32, Changed>);

/// A row with edges to attached nodes, which come last.
struct Changed {
    row: Vec<u32>,
    /// Edges that were added.
    added: usize,
    /// Edges that were removed.
    replaced: usize,
}

impl Changes {
    /// The changed rows, those of repeated rows included: they have the neighbours of the first row
    /// of their group.
    pub(crate) fn rows<'a>(&'a self, repeated: &'a Repeated) -> impl Iterator<Item = (u32, &'a [u32])> {
        with_copies(self.0.iter().map(|(&node, changed)| (node, &changed.row[..])), repeated)
    }

    /// Whether no row changed.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Changed rows of nodes, and of the rows that repeat these.
pub(super) fn with_copies<'a>(
    rows: impl Iterator<Item = (u32, &'a [u32])>,
    repeated: &'a Repeated,
) -> impl Iterator<Item = (u32, &'a [u32])> {
    rows.flat_map(|(node, row)| {
        std::iter::once(node).chain(repeated.copies_of(node)).map(move |node| (node, row))
    })
}

/// A written graph with its changed rows.
struct ChangedGraph<'a> {
    written: &'a WrittenRows,
    changes: Changes,
}

impl ChangedGraph<'_> {
    /// The changed row of `node`.
    fn change(&mut self, node: u32) -> &mut Changed {
        let unchanged = || Changed { row: self.written.neighbors(node).to_vec(), added: 0, replaced: 0 };
        self.changes.0.entry(node).or_insert_with(unchanged)
    }
}

impl Changed {
    fn add(&mut self, node: u32) {
        self.row.push(node);
        self.added += 1;
    }
}

impl Graph for ChangedGraph<'_> {
    fn neighbors(&self, node: u32) -> &[u32] {
        self.changes.0.get(&node).map_or_else(|| self.written.neighbors(node), |changed| &changed.row)
    }
}

/// A written graph, whose nodes are the rows of `base` that are not `repeated`.
#[derive(Clone, Copy)]
pub(super) struct MergedGraph<'a> {
    pub base: &'a Vectors,
    pub written: &'a WrittenRows,
    pub degree: usize,
    pub repeated: &'a Repeated,
    pub embedding: &'a Embedding,
    pub progress: &'a Progress,
}

/// Attaches nodes of a merged graph.
struct Attaching<'a> {
    merged: MergedGraph<'a>,
    graph: ChangedGraph<'a>,
    near: NodeSearches<'a>,
    /// A lower bound of the edges to each node, once it was needed.
    edges_to: Option<Vec<u8>>,
    /// Searches that are left.
    left: usize,
    /// Whether an edge was replaced since reach was computed.
    has_replaced: bool,
}

impl<'a> MergedGraph<'a> {
    /// Attaches the nodes that no path from the `first` nodes reaches, and those of the `lone`
    /// nodes that a search from `start` does not find. Returns the changed rows, and the number of
    /// rows that stay unreached.
    ///
    /// Under inner product, short rows without incoming edges stay unreached, as in memory.
    pub(super) fn attach(self, start: Start<'a>, first: &[u32], lone: &[u32]) -> Result<(Changes, u64)> {
        let Self { base, written, repeated, progress, .. } = self;
        let nodes = base.len();
        let reach = |graph: &ChangedGraph<'_>| Reach { graph, nodes, first }.reached(repeated, progress);
        let graph = ChangedGraph { written, changes: Changes::default() };
        let mut reached = reach(&graph)?;
        let space = Space::unprepared(base, self.embedding.metric());
        let near = NodeSearches::new(&space, start);
        let left = (nodes / ONE_IN).max(MIN_SEARCHES);
        let mut attaching =
            Attaching { merged: self, graph, near, edges_to: None, left, has_replaced: false };
        attaching.find(lone, &mut reached)?;
        for _ in 0..ROUNDS {
            if std::mem::take(&mut attaching.has_replaced) {
                reached = reach(&attaching.graph)?;
            }
            let unreached = attaching.unreached(&reached)?;
            attaching.attach_all(&unreached, &mut reached)?;
            if !attaching.has_replaced {
                break;
            }
        }
        if attaching.has_replaced {
            reached = reach(&attaching.graph)?;
        }
        let count = nodes as u64 - reached.iter().map(|word| u64::from(word.count_ones())).sum::<u64>();
        Ok((attaching.graph.changes, count))
    }

    /// Under inner product, the lift of `node`, smaller for longer rows.
    fn lift(self, node: u32) -> f32 {
        let mut row = vec![0.0; self.embedding.dim(self.base.dim())];
        self.embedding.embed(self.base, node as usize, &mut row);
        row.last().copied().unwrap_or(0.0)
    }

    /// Under inner product, whether the squared norm of `node` is below 0.8 of the largest.
    fn is_short(self, node: u32) -> bool {
        self.embedding.metric() == Metric::InnerProduct
            && f64::from(self.lift(node)).powi(2) > 0.2 * self.embedding.largest_square()
    }

    /// Orders `nodes` by their rule distances from `node`.
    fn sort_by_rule(self, node: u32, nodes: &mut [u32]) {
        let row = |place: usize| place.checked_sub(1).map_or(node, |place| nodes[place]) as usize;
        let rows = self.embedding.rows(self.base, nodes.len() + 1, row);
        let mut distances = vec![0.0; nodes.len()];
        if let TypedRows::F32(rows) = rows.rows() {
            let places: Vec<u32> = (1..=nodes.len() as u32).collect();
            one_to_many::<SquaredL2, f32>(rows.row(0), rows, &places, &mut distances);
        }
        let mut keys: Vec<_> = distances.iter().zip(&*nodes).map(|(&d, &id)| key::pack(d, id)).collect();
        keys.sort_unstable();
        nodes.iter_mut().zip(keys).for_each(|(node, key)| *node = key as u32);
    }
}

impl Attaching<'_> {
    /// Gives an edge to each of the `lone` nodes that a search for it does not find. Searches end
    /// after [`MIN_LONE`] nodes where they find nearly all.
    fn find(&mut self, lone: &[u32], reached: &mut [u64]) -> Result<()> {
        let (mut searched, mut missed) = (0, 0);
        for nodes in lone[..lone.len().min(self.left / 2)].chunks(SEARCHES) {
            if searched >= MIN_LONE && missed * MISSED_ONE_IN < searched {
                break;
            }
            searched += nodes.len();
            self.left -= nodes.len();
            for (&node, found) in nodes.iter().zip(self.near.nearest(&self.graph, nodes)) {
                self.merged.progress.check()?;
                if !found[..found.len().min(FOUND)].contains(&node) {
                    missed += 1;
                    if self.give_edge(node, found)? {
                        self.reach(node, reached);
                    }
                }
            }
        }
        Ok(())
    }

    /// Attaches `unreached` nodes, as long as searches are left.
    fn attach_all(&mut self, unreached: &[u32], reached: &mut [u64]) -> Result<()> {
        let mut next = unreached.iter().copied();
        loop {
            // Attaching one node may reach others.
            let nodes = next.by_ref().filter(|&node| !is_set(reached, node));
            let nodes: Vec<u32> = nodes.take(SEARCHES.min(self.left)).collect();
            if nodes.is_empty() {
                return Ok(());
            }
            self.left -= nodes.len();
            for (&node, found) in nodes.iter().zip(self.near.nearest(&self.graph, &nodes)) {
                self.merged.progress.check()?;
                if !is_set(reached, node) && self.give_edge(node, found)? {
                    self.reach(node, reached);
                }
            }
        }
    }

    /// The nodes to attach, as many as searches are left: the first ones, under inner product those
    /// of the largest norms.
    fn unreached(&mut self, reached: &[u64]) -> Result<Vec<u32>> {
        let (merged, left) = (self.merged, self.left);
        if left == 0 {
            return Ok(Vec::new());
        }
        let MergedGraph { base, repeated, embedding, progress, .. } = merged;
        let nodes = (0..base.len() as u32).filter(|&node| !is_set(reached, node) && !repeated.contains(node));
        if embedding.metric() != Metric::InnerProduct {
            return Ok(nodes.take(left).collect());
        }
        let mut nodes = nodes.peekable();
        let mut found: Vec<(f32, u32)> = Vec::new();
        while nodes.peek().is_some() {
            progress.check()?;
            let edges_to = self.edges_to()?;
            let part: Vec<u32> = nodes.by_ref().take(AT_A_TIME).collect();
            let may_attach = |node: u32| edges_to[node as usize] > 0 || !merged.is_short(node);
            found.extend(gather(&part[..], |&node, pending| {
                pending.extend(may_attach(node).then(|| (merged.lift(node), node)));
            }));
            found.par_sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
            found.truncate(left);
        }
        Ok(found.into_iter().map(|(_, node)| node).collect())
    }

    /// Edges to each node of the graph, at least.
    fn edges_to(&mut self) -> Result<&mut Vec<u8>> {
        let MergedGraph { base, repeated, progress, .. } = self.merged;
        let counted = match self.edges_to.take() {
            Some(counted) => counted,
            None => edges_to(&self.graph, base.len(), repeated, progress)?,
        };
        Ok(self.edges_to.insert(counted))
    }

    /// Gives `node` an edge from the nearest of the nodes `found`: from one with a free slot, else
    /// in place of another edge. Returns whether it has one.
    ///
    /// Under inner product, searches for rows of small products end at the rows that lead all
    /// searches: their edges are not given away.
    fn give_edge(&mut self, node: u32, mut found: Vec<u32>) -> Result<bool> {
        found.retain(|&id| id != node && !self.graph.neighbors(id).contains(&node));
        if self.merged.embedding.metric() == Metric::InnerProduct {
            self.merged.sort_by_rule(node, &mut found);
        }
        let degree = self.merged.degree;
        if let Some(&parent) = found.iter().find(|&&id| self.graph.neighbors(id).len() < degree) {
            self.graph.change(parent).add(node);
            return Ok(true);
        }
        if self.merged.embedding.metric() == Metric::InnerProduct {
            return Ok(false);
        }
        for parent in found {
            if self.replace(parent, node)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Replaces the last edge of the second half of the row of `parent` whose target keeps another
    /// incoming edge by one to `node`. Returns false if there is none.
    fn replace(&mut self, parent: u32, node: u32) -> Result<bool> {
        let row = self.graph.neighbors(parent);
        let changed = self.graph.changes.0.get(&parent);
        let (added, replaced) = changed.map_or((0, 0), |changed| (changed.added, changed.replaced));
        if replaced * GIVEN_ONE_IN >= row.len() {
            return Ok(false);
        }
        let row = row[..row.len() - added].to_vec();
        let edges_to = self.edges_to()?;
        let places = row.len() / 2..row.len();
        let Some(place) = places.rev().find(|&place| edges_to[row[place] as usize] > 1) else {
            return Ok(false);
        };
        edges_to[row[place] as usize] -= 1;
        let changed = self.graph.change(parent);
        changed.row.remove(place);
        changed.replaced += 1;
        changed.add(node);
        self.has_replaced = true;
        Ok(true)
    }

    /// Marks `node` and all nodes that it leads to as `reached`.
    fn reach(&self, node: u32, reached: &mut [u64]) {
        let mut nodes = vec![node];
        while let Some(node) = nodes.pop() {
            if !is_set(reached, node) {
                set(reached, node);
                self.merged.repeated.copies_of(node).for_each(|copy| set(reached, copy));
                nodes.extend(self.graph.neighbors(node).iter().filter(|&&id| !is_set(reached, id)));
            }
        }
    }
}

fn is_set(bits: &[u64], node: u32) -> bool {
    bits[node as usize / 64] >> (node % 64) & 1 != 0
}

fn set(bits: &mut [u64], node: u32) {
    bits[node as usize / 64] |= 1 << (node % 64);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::atomic_file::AtomicFile;
    use crate::index::IndexFile;
    use crate::outofcore::run::append_rows;
    use crate::{Description, Fingerprint, Index};
    use tagore_device::key::NO_ID;

    const NODES: usize = 40_000;

    /// Points on a line, each with edges to the next 8; to some of them no edge leads.
    fn check(degree: usize, is_without: impl Fn(u32) -> bool, left: u64) {
        let mut values: Vec<f32> = (0..NODES).map(|i| i as f32).collect();
        (values[NODES - 1], values[NODES - 2]) = (499.0, 501.0);
        let base = Vectors::from_f32(values, 1).unwrap();
        let repeated = Repeated::read(&[NODES as u32 - 2, 501, NODES as u32 - 1, 499], NODES).unwrap();
        let near = |node: u32| {
            let node = repeated.first_of(node);
            let ids = (1..40u32).flat_map(move |step| [node.wrapping_sub(step), node + step]);
            ids.filter(|&id| (id as usize) < NODES - 2 && !is_without(id)).take(8)
        };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("index");
        let description =
            Description { kind: "nsg".to_owned(), metric: Metric::L2, seed: 0, parameters: [].into() };
        let fingerprint = Fingerprint::compute(&base).unwrap();
        let file = AtomicFile::create(&path).unwrap();
        let mut file = IndexFile::begin(file, &description, fingerprint, degree, 1024).unwrap();
        let rows = (0..NODES as u32).flat_map(|node| near(node).chain([NO_ID; 8]).take(degree));
        append_rows(&mut file, &rows.collect::<Vec<u32>>(), degree).unwrap();
        let written = file.rows().unwrap();
        let (embedding, progress) = (&Embedding::from_parts(Metric::L2, 0.0, vec![]), &Progress::silent());
        let (base, repeated) = (&base, &repeated);
        let merged = MergedGraph { base, written: &written, degree, repeated, embedding, progress };
        let (changes, unreached) = merged.attach(Start::at(&[20_000]), &[20_000], &[]).unwrap();
        assert_eq!(unreached, left);
        file.replace_rows(written, changes.rows(repeated)).unwrap();
        file.commit(Start::at(&[20_000]), repeated.words(), &[]).unwrap();
        let index = Index::open(&path).unwrap();
        // Checksums and rows.
        index.verify(progress).unwrap();
        assert_eq!(index.statistics(progress).unwrap().unreachable, left);
        for (row, first) in repeated.pairs() {
            assert_eq!(index.neighbors(row as usize), index.neighbors(first as usize));
        }
        let changed =
            (0..NODES as u32).filter(|&node| !near(node).eq(index.neighbors(node as usize).iter().copied()));
        assert!(changed.count() > 30);
    }

    #[test]
    fn nodes_without_edges_are_attached_in_free_slots_or_by_replacing() {
        for degree in [8, 10] {
            check(degree, |node| node % 1000 == 500, 0);
        }
    }

    #[test]
    fn very_many_nodes_are_attached_in_part() {
        // Of 4,000 nodes without edges, 1,024 are attached.
        check(12, |node| node % 10 == 5, 4_000 - 1024);
    }
}
