//! Layers above an index: ever smaller graphs over its nodes, where searches start.

use std::collections::BTreeMap;

use tagore_device::key::NO_ID;

use super::Graph;
use crate::{Error, Index, Result};

/// Maximum number of layers of an index: each usually has a tenth of the nodes of the one below, at
/// most.
pub(crate) const MAX_LAYERS: usize = 64;

/// The widest beam of a layer.
pub const MAX_LAYER_BEAM: usize = 64;

/// A graph over some of the nodes of an index, where searches start.
///
/// A k-NN graph has no edges between distant clusters of data, however it is pruned. A layer has:
/// it holds one node in ten to 200, including one of every component of the graph of mutual edges,
/// and among so few nodes the nearest ones lie in other clusters. A search walks the highest
/// layer first, starts in the next layer from the nodes it found, and so on down to the index
/// (Malkov and Yashunin, HNSW).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layer {
    nodes: Vec<u32>,
    degree: usize,
    /// Rows of `degree` ids, padded with `u32::MAX`.
    neighbors: Vec<u32>,
    beam: usize,
}

impl Layer {
    /// A layer over `nodes`, ascending, with rows of `degree` ids padded with `u32::MAX`.
    pub(crate) fn new(nodes: Vec<u32>, degree: usize, neighbors: Vec<u32>, beam: usize) -> Self {
        debug_assert_eq!(neighbors.len(), nodes.len() * degree);
        Self { nodes, degree, neighbors, beam }
    }

    /// The layer made of `index`, which was built over these `nodes` of a larger one, ascending.
    pub(crate) fn over(index: &Index, nodes: &[u32], beam: usize) -> Result<Self> {
        let places = (0..nodes.len() as u32).collect();
        let neighbors = index.padded_rows()?.to_vec();
        Ok(Self::new(places, index.max_degree(), neighbors, beam).renamed(nodes))
    }

    /// The nodes as ids of the index, ascending.
    pub fn nodes(&self) -> &[u32] {
        &self.nodes
    }

    /// The largest degree in this layer.
    pub fn max_degree(&self) -> usize {
        self.degree
    }

    /// The number of nodes that a search keeps in this layer and starts from in the next.
    pub fn beam(&self) -> usize {
        self.beam
    }

    /// Sets the beam.
    pub(crate) fn set_beam(&mut self, beam: usize) {
        self.beam = beam;
    }

    /// The neighbours of node number `place` of [`nodes`](Self::nodes), as ids of the index.
    ///
    /// # Panics
    /// If `place >= nodes().len()`.
    pub fn neighbors(&self, place: usize) -> &[u32] {
        let row = &self.neighbors[place * self.degree..][..self.degree];
        &row[..row.iter().position(|&id| id == NO_ID).unwrap_or(self.degree)]
    }

    /// The position of `node` in the layer.
    pub(crate) fn place(&self, node: u32) -> Option<usize> {
        self.nodes.binary_search(&node).ok()
    }

    /// All padded rows, in the order of the nodes.
    pub(crate) fn padded_rows(&self) -> &[u32] {
        &self.neighbors
    }

    /// Adds those of `nodes`, ascending, that are not in the layer, without edges: searches that
    /// start there keep them if they are near.
    pub(crate) fn add(&mut self, nodes: &[u32]) {
        for &node in nodes {
            if let Err(place) = self.nodes.binary_search(&node) {
                self.nodes.insert(place, node);
                let start = place * self.degree;
                self.neighbors.splice(start..start, std::iter::repeat_n(NO_ID, self.degree));
            }
        }
    }

    /// Renames each node to `names[node]`; names must ascend.
    pub(crate) fn renamed(self, names: &[u32]) -> Self {
        let name = |id: u32| if id == NO_ID { id } else { names[id as usize] };
        let nodes = self.nodes.into_iter().map(name).collect();
        Self { nodes, neighbors: self.neighbors.into_iter().map(name).collect(), ..self }
    }

    /// The layer of those nodes that have a name (not `u32::MAX`), which may be in any order.
    pub(crate) fn kept(&self, names: &[u32]) -> Self {
        let named = |id: u32| Some(names[id as usize]).filter(|&name| name != NO_ID);
        let rows = self.nodes.iter().enumerate().filter_map(|(place, &node)| Some((named(node)?, place)));
        let rows: BTreeMap<u32, usize> = rows.collect();
        let mut neighbors = Vec::with_capacity(rows.len() * self.degree);
        for (&node, &place) in &rows {
            let start = neighbors.len();
            for id in self.neighbors(place).iter().filter_map(|&id| named(id)) {
                if id != node && !neighbors[start..].contains(&id) {
                    neighbors.push(id);
                }
            }
            neighbors.resize(start + self.degree, NO_ID);
        }
        Self { nodes: rows.into_keys().collect(), neighbors, ..*self }
    }

    /// Serialises layers into the words of the file's section (`docs/formats.md`); empty without
    /// layers.
    pub(super) fn words(layers: &[Self]) -> Vec<u32> {
        let mut words = Vec::new();
        for layer in layers {
            words.extend([layer.nodes.len() as u32, layer.degree as u32, layer.beam as u32]);
            words.extend_from_slice(&layer.nodes);
            words.extend_from_slice(&layer.neighbors);
        }
        words
    }

    /// Parses the words of [`words`](Self::words); an error says what is wrong.
    pub(super) fn read(mut words: &[u32]) -> Result<Vec<Self>, &'static str> {
        let mut layers = Vec::new();
        while let [nodes, degree, beam, rest @ ..] = words {
            if layers.len() == MAX_LAYERS {
                return Err("more than 64 layers");
            }
            let (nodes, degree) = (*nodes as usize, *degree as usize);
            let length = nodes.checked_mul(degree).and_then(|ids| ids.checked_add(nodes));
            let (layer, rest) = length
                .and_then(|length| rest.split_at_checked(length))
                .ok_or("a layer longer than its section")?;
            let (nodes, neighbors) = layer.split_at(nodes);
            layers.push(Self::new(nodes.to_vec(), degree, neighbors.to_vec(), *beam as usize));
            words = rest;
        }
        if words.is_empty() { Ok(layers) } else { Err("words after the last layer") }
    }

    /// Checks the layers of an index of `nodes` nodes: each layer's nodes are in the layer below,
    /// edges stay in their layer, and the `entries` are nodes of the highest.
    pub(super) fn check(layers: &[Self], nodes: usize, entries: &[u32], name: &str) -> Result<()> {
        let refuse = |height: usize, found: &str, expected: &str| {
            Err(Error::mismatch(name, format_args!("{found} in layer {height}"), expected))
        };
        if layers.len() > MAX_LAYERS {
            let found = format_args!("{} layers", layers.len());
            return Err(Error::mismatch(name, found, format_args!("at most {MAX_LAYERS}")));
        }
        for (below, layer) in layers.iter().enumerate() {
            let height = below + 1;
            if layer.nodes.is_empty() || !(1..=MAX_LAYER_BEAM).contains(&layer.beam) {
                let expected = format!("nodes, and a beam of 1 to {MAX_LAYER_BEAM}");
                return refuse(height, "no nodes or a wrong beam", &expected);
            }
            if layer.nodes.windows(2).any(|pair| pair[0] >= pair[1]) {
                return refuse(height, "unsorted nodes", "ascending ids");
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
                let len = row.iter().take_while(|&&id| id != NO_ID).count();
                row[len..].iter().all(|&id| id == NO_ID)
                    && row[..len].iter().all(|&id| layer.place(id).is_some())
            };
            if layer.degree > 0 && !rows.into_iter().all(is_sound) {
                return refuse(height, "a wrong row", "ids of the layer's nodes, then padding");
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

    fn degree(&self) -> usize {
        self.degree
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layers() -> Vec<Layer> {
        vec![
            Layer::new(vec![1, 4, 6, 9], 2, vec![4, 6, 1, NO_ID, 9, 4, 6, 1], 8),
            Layer::new(vec![4, 9], 1, vec![9, 4], 4),
        ]
    }

    #[test]
    fn added_nodes_have_no_edges() {
        let mut layer = layers().remove(0);
        layer.add(&[0, 4, 5, 12]);
        let rows = [vec![NO_ID; 2], vec![4, 6, 1, NO_ID], vec![NO_ID; 2], vec![9, 4, 6, 1], vec![NO_ID; 2]];
        assert_eq!(layer, Layer::new(vec![0, 1, 4, 5, 6, 9, 12], 2, rows.concat(), 8));
    }

    #[test]
    fn layers_round_trip() {
        assert_eq!(Layer::read(&Layer::words(&layers())).unwrap(), layers());
        assert_eq!(Layer::read(&[]).unwrap(), []);
        let words = Layer::words(&layers());
        for len in 1..words.len() {
            // 15 words are the first layer alone.
            let is_whole = len == 15;
            assert_eq!(Layer::read(&words[..len]).is_ok(), is_whole, "{len} words");
        }
        assert!(Layer::read(&[NO_ID, NO_ID, 1]).is_err());
        let many = |count| vec![Layer::new(vec![1], 0, Vec::new(), 1); count];
        assert_eq!(Layer::read(&Layer::words(&many(MAX_LAYERS))).unwrap().len(), MAX_LAYERS);
        assert_eq!(Layer::read(&Layer::words(&many(MAX_LAYERS + 1))), Err("more than 64 layers"));
        let error = Layer::check(&many(20_000), 2, &[1], "x").unwrap_err().to_string();
        assert_eq!(error, "x: found 20000 layers, expected at most 64");
    }

    #[test]
    fn faulty_layers_are_refused() {
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
        wrong(&|layers| layers[0].nodes[1] = 6, "unsorted nodes in layer 1");
        wrong(&|layers| layers[0].neighbors[0] = 5, "a wrong row in layer 1");
        wrong(&|layers| layers[0].neighbors[0] = NO_ID, "a wrong row in layer 1");
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
