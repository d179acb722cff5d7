//! Layers above an index: graphs over ever fewer of its nodes, in which searches begin.

use crate::search::beam::Graph;
use crate::{Error, Index, Result};

/// The widest beam of a layer.
pub const MAX_LAYER_BEAM: usize = 64;

/// A graph over some of the nodes of an index, in which searches begin.
///
/// A k-NN graph has no edges between clusters that lie apart, however well it is pruned. A layer
/// has them: it is built over about one node in twenty, among them one of every part of the index
/// that no mutual edge leaves. Among so few nodes the neighbours of a node lie in other clusters. A
/// search walks the highest layer first, and begins in the layer below with what it found, and so
/// on down to the index (Malkov and Yashunin, HNSW).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layer {
    nodes: Vec<u32>,
    degree: usize,
    /// `degree` ids to a node, `u32::MAX` behind the last.
    neighbors: Vec<u32>,
    beam: usize,
}

impl Layer {
    /// The layer of `nodes`, in ascending order, with rows of `degree` ids padded with `u32::MAX`.
    pub(crate) fn new(nodes: Vec<u32>, degree: usize, neighbors: Vec<u32>, beam: usize) -> Self {
        debug_assert_eq!(neighbors.len(), nodes.len() * degree);
        Self { nodes, degree, neighbors, beam }
    }

    /// The layer that `index` is over these `nodes` of another, in ascending order.
    pub(crate) fn over(index: &Index, nodes: &[u32], beam: usize) -> Result<Self> {
        let places = (0..nodes.len() as u32).collect();
        let neighbors = index.padded_rows()?.to_vec();
        Ok(Self::new(places, index.max_degree(), neighbors, beam).renamed(nodes))
    }

    /// The nodes, as ids of the index, in ascending order.
    pub fn nodes(&self) -> &[u32] {
        &self.nodes
    }

    /// The largest degree that a node has here.
    pub fn max_degree(&self) -> usize {
        self.degree
    }

    /// How many nodes a search keeps here, and brings to the layer below.
    pub fn beam(&self) -> usize {
        self.beam
    }

    /// Searches keep so many nodes here from now on.
    pub(crate) fn set_beam(&mut self, beam: usize) {
        self.beam = beam;
    }

    /// The neighbours of the node at `place` among [`nodes`](Self::nodes), as ids of the index.
    ///
    /// # Panics
    /// If `place` is not below the number of nodes.
    pub fn neighbors(&self, place: usize) -> &[u32] {
        let row = &self.neighbors[place * self.degree..][..self.degree];
        &row[..row.iter().position(|&id| id == u32::MAX).unwrap_or(self.degree)]
    }

    /// The place of `node` among the nodes.
    pub(crate) fn place(&self, node: u32) -> Option<usize> {
        self.nodes.binary_search(&node).ok()
    }

    /// All rows, padded, in the order of the nodes.
    pub(crate) fn padded_rows(&self) -> &[u32] {
        &self.neighbors
    }

    /// The layer with its nodes renamed to `names[node]`, which ascend as the nodes do.
    pub(crate) fn renamed(self, names: &[u32]) -> Self {
        let name = |id: u32| if id == u32::MAX { id } else { names[id as usize] };
        let nodes = self.nodes.into_iter().map(name).collect();
        Self { nodes, neighbors: self.neighbors.into_iter().map(name).collect(), ..self }
    }

    /// The words of the layers' section of a file (`docs/formats.md`); none if there are no layers.
    pub(super) fn words(layers: &[Self]) -> Vec<u32> {
        let mut words = Vec::new();
        for layer in layers {
            words.extend([layer.nodes.len() as u32, layer.degree as u32, layer.beam as u32]);
            words.extend_from_slice(&layer.nodes);
            words.extend_from_slice(&layer.neighbors);
        }
        words
    }

    /// Reads what [`words`](Self::words) wrote; an error says what is wrong.
    pub(super) fn read(mut words: &[u32]) -> Result<Vec<Self>, &'static str> {
        let mut layers = Vec::new();
        while let [nodes, degree, beam, rest @ ..] = words {
            let (nodes, degree) = (*nodes as usize, *degree as usize);
            let length = nodes.checked_mul(degree).and_then(|ids| ids.checked_add(nodes));
            let (mine, rest) = length
                .and_then(|length| rest.split_at_checked(length))
                .ok_or("a layer that is longer than its section")?;
            let (nodes, neighbors) = mine.split_at(nodes);
            layers.push(Self::new(nodes.to_vec(), degree, neighbors.to_vec(), *beam as usize));
            words = rest;
        }
        if words.is_empty() { Ok(layers) } else { Err("words behind the last layer") }
    }

    /// Checks the layers of an index of `nodes` nodes: that each layer's nodes are in the one
    /// below, that edges stay in their layer, and that the `entries` are nodes of the highest.
    pub(super) fn check(layers: &[Self], nodes: usize, entries: &[u32], name: &str) -> Result<()> {
        let refuse = |height: usize, found: &str, expected: &str| {
            Err(Error::mismatch(name, format_args!("{found} in layer {height}"), expected))
        };
        for (below, layer) in layers.iter().enumerate() {
            let height = below + 1;
            if layer.nodes.is_empty() || !(1..=MAX_LAYER_BEAM).contains(&layer.beam) {
                let expected = format!("nodes, and a beam of 1 to {MAX_LAYER_BEAM}");
                return refuse(height, "no nodes or a wrong beam", &expected);
            }
            if layer.nodes.windows(2).any(|pair| pair[0] >= pair[1]) {
                return refuse(height, "nodes that do not ascend", "ascending ids");
            }
            let is_below = |&node: &u32| match below.checked_sub(1) {
                Some(below) => layers[below].place(node).is_some(),
                None => (node as usize) < nodes,
            };
            if !layer.nodes.iter().all(is_below) {
                return refuse(height, "an unknown id", "nodes of the layer below");
            }
            let rows = layer.neighbors.chunks_exact(layer.degree.max(1));
            let is_sound = |row: &[u32]| {
                let len = row.iter().take_while(|&&id| id != u32::MAX).count();
                row[len..].iter().all(|&id| id == u32::MAX)
                    && row[..len].iter().all(|&id| layer.place(id).is_some())
            };
            if layer.degree > 0 && !rows.into_iter().all(is_sound) {
                return refuse(height, "a wrong row", "ids of nodes of the layer, as many as there are");
            }
        }
        match layers.last() {
            Some(top) if !entries.iter().all(|&entry| top.place(entry).is_some()) => refuse(
                layers.len(),
                "no entry point",
                "the entry points among the nodes of the highest layer",
            ),
            _ => Ok(()),
        }
    }
}

impl Graph for Layer {
    fn neighbors(&self, node: u32) -> &[u32] {
        self.place(node).map_or(&[], |place| Self::neighbors(self, place))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layers() -> Vec<Layer> {
        let none = u32::MAX;
        vec![
            Layer::new(vec![1, 4, 6, 9], 2, vec![4, 6, 1, none, 9, 4, 6, 1], 8),
            Layer::new(vec![4, 9], 1, vec![9, 4], 4),
        ]
    }

    #[test]
    fn layers_are_read_as_they_are_written() {
        assert_eq!(Layer::read(&Layer::words(&layers())).unwrap(), layers());
        assert_eq!(Layer::read(&[]).unwrap(), []);
        let words = Layer::words(&layers());
        for len in 1..words.len() {
            // The first layer alone is whole.
            let is_whole = len == 15;
            assert_eq!(Layer::read(&words[..len]).is_ok(), is_whole, "{len} words");
        }
        assert!(Layer::read(&[u32::MAX, u32::MAX, 1]).is_err());
    }

    #[test]
    fn what_no_search_could_follow_is_refused() {
        let check = |layers: &[Layer], entries: &[u32]| Layer::check(layers, 10, entries, "x");
        check(&layers(), &[4, 9]).unwrap();
        let wrong = |change: &dyn Fn(&mut Vec<Layer>), expected: &str| {
            let mut layers = layers();
            change(&mut layers);
            let error = check(&layers, &[4]).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        };
        wrong(&|layers| layers[0].nodes[3] = 10, "an unknown id in layer 1");
        wrong(&|layers| layers[1].nodes[1] = 8, "an unknown id in layer 2");
        wrong(&|layers| layers[0].nodes[1] = 6, "do not ascend in layer 1");
        wrong(&|layers| layers[0].neighbors[0] = 5, "a wrong row in layer 1");
        wrong(&|layers| layers[0].neighbors[0] = u32::MAX, "a wrong row in layer 1");
        wrong(&|layers| layers[1].beam = 0, "a wrong beam in layer 2");
        wrong(&|layers| layers[0].beam = 65, "a wrong beam in layer 1");
        wrong(
            &|layers| {
                layers[1].nodes[0] = 1;
                layers[1].neighbors[1] = 1;
            },
            "no entry point in layer 2",
        );
    }
}
