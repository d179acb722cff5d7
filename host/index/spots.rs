//! Dense spots: rows that lie far nearer to each other than to all other rows.

use tagore_device::key::NO_ID;

use super::{Index, Layer};

/// The dense spots of an index.
///
/// The graph has one part of the rows outside the spots and of one row of each spot, its
/// representative, and one part of each spot. No edge leads from one part to another. A search
/// walks the part outside. If it expands a representative, it goes on inside the spot, in the same
/// beam. So a search for another row meets one row of a spot, not all of them. Spots that are
/// *walked always* have a beam of their own in every search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Spots {
    /// The representatives, each with the nodes where a search of its spot begins, among them the
    /// representative itself if the spot is walked always. The beam is 0, which tells these rows
    /// from layers in a file.
    entries: Layer,
    /// The representatives of the spots that are walked always.
    always: Vec<u32>,
}

/// A dense spot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Spot {
    /// The rows, ascending.
    pub rows: Vec<u32>,
    /// The index in `rows` of the row that represents the spot.
    pub representative: usize,
}

impl Spot {
    /// A spot of these rows, ascending, represented by the first.
    pub(crate) fn new(rows: Vec<u32>) -> Self {
        Self { rows, representative: 0 }
    }
}

/// The index over the rows of a dense spot.
pub(crate) struct SpotIndex {
    pub spot: Spot,
    /// Whether the products of a query with its rows differ much from the one with that row.
    pub is_wide: bool,
    pub index: Index,
}

impl Spots {
    /// The spots with these representatives, ascending, each with the first nodes of its spot; none
    /// without spots.
    pub(crate) fn new(spots: &[(u32, Vec<u32>)]) -> Option<Self> {
        let degree = spots.iter().map(|(_, first)| first.len()).max()?;
        let mut ids = vec![NO_ID; spots.len() * degree];
        for (row, (_, first)) in ids.chunks_exact_mut(degree).zip(spots) {
            row[..first.len()].copy_from_slice(first);
        }
        let nodes = spots.iter().map(|&(node, _)| node).collect();
        Some(Self::from_layer(Layer::new(nodes, degree, ids, 0)))
    }

    fn from_layer(entries: Layer) -> Self {
        let nodes = entries.nodes().iter().enumerate();
        let always = nodes.filter(|&(place, node)| entries.neighbors(place).contains(node));
        let always = always.map(|(_, &node)| node).collect();
        Self { entries, always }
    }

    /// The spots of parts of an index, each with the names of its nodes, ascending; none without
    /// spots.
    pub(crate) fn of_parts<'a>(parts: impl Iterator<Item = (&'a Self, &'a [u32])>) -> Option<Self> {
        let renamed = |(spots, names): (&'a Self, &'a [u32])| {
            spots.all().map(|(node, entries)| {
                let entries = entries.iter().map(|&entry| names[entry as usize]).collect();
                (names[node as usize], entries)
            })
        };
        let mut all: Vec<(u32, Vec<u32>)> = parts.flat_map(renamed).collect();
        all.sort_unstable();
        Self::new(&all)
    }

    /// Takes the spots off the layers of a file, if they are there.
    pub(super) fn split_off(layers: &mut Vec<Layer>) -> Option<Self> {
        layers.pop_if(|layer| layer.beam() == 0).map(Self::from_layer)
    }

    /// The spots as the last layer of a file.
    pub(super) fn layer(&self) -> &Layer {
        &self.entries
    }

    /// The nodes where a search of the spot of `node` begins; none unless it represents a spot.
    pub(crate) fn entries_of(&self, node: u32) -> &[u32] {
        self.entries.place(node).map_or(&[], |place| self.entries.neighbors(place))
    }

    /// Whether the spot of `node` is walked always; not unless it represents a spot.
    pub(crate) fn is_walked_always(&self, node: u32) -> bool {
        self.always.contains(&node)
    }

    /// The representatives of the spots that are walked always.
    pub(crate) fn walked_always(&self) -> &[u32] {
        &self.always
    }

    /// Whether a search that expanded these nodes outside the spots goes on in a spot.
    pub(crate) fn are_met_by(&self, mut nodes: impl Iterator<Item = u32>) -> bool {
        !self.always.is_empty() || nodes.any(|node| !self.entries_of(node).is_empty())
    }

    /// All representatives, each with the nodes where a search of its spot begins.
    pub(crate) fn all(&self) -> impl Iterator<Item = (u32, &[u32])> {
        let nodes = self.entries.nodes().iter().copied().enumerate();
        nodes.map(|(place, node)| (node, self.entries.neighbors(place)))
    }

    /// The nodes where searches of all spots begin.
    pub(crate) fn all_entries(&self) -> impl Iterator<Item = u32> + '_ {
        self.all().flat_map(|(_, entries)| entries.iter().copied())
    }

    /// Renames each node to `names[node]`; names must ascend.
    pub(super) fn renamed(self, names: &[u32]) -> Self {
        Self::from_layer(self.entries.renamed(names))
    }

    /// Whether representatives ascend, and all ids are those of nodes.
    pub(super) fn is_sound(&self, mut is_node: impl FnMut(u32) -> bool) -> bool {
        let nodes = self.entries.nodes();
        nodes.windows(2).all(|pair| pair[0] < pair[1])
            && nodes.iter().all(|&node| is_node(node))
            && self.all().all(|(_, entries)| entries.iter().all(|&node| is_node(node)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spots_are_the_last_layer_of_a_file() {
        assert_eq!(Spots::new(&[]), None);
        let spots = Spots::new(&[(3, vec![4, 9]), (7, vec![8])]).unwrap();
        assert_eq!([3, 4, 7].map(|node| spots.entries_of(node).to_vec()), [vec![4, 9], vec![], vec![8]]);
        assert_eq!(spots.all_entries().collect::<Vec<_>>(), [4, 9, 8]);
        let mut layers = Layer::read(&Layer::words(&[spots.layer().clone()])).unwrap();
        assert_eq!(Spots::split_off(&mut layers), Some(spots.clone()));
        assert!(layers.is_empty() && Spots::split_off(&mut layers).is_none());
        let names: Vec<u32> = (0..10).map(|node| 2 * node).collect();
        assert_eq!(spots.clone().renamed(&names).entries_of(6), [8, 18]);
        assert!(spots.is_sound(|node| node < 10) && !spots.is_sound(|node| node < 9));
        assert!(!Spots::new(&[(3, vec![4]), (3, vec![5])]).unwrap().is_sound(|_| true));
    }
}
