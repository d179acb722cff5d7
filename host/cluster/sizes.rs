//! A clustering request, and the sizes that follow from it.

use tagore_device::cluster::MAX_PROBES;

/// Vectors of the sample per centre.
pub(super) const SAMPLE_PER_CELL: usize = 48;

/// Rounds of Lloyd's algorithm; more move the centres, but hardly the neighbours found.
pub(crate) const ROUNDS: u32 = 5;

/// Guides per square root of the number of centres: a vector's guide then costs about as much to
/// find as its list to compare.
const GUIDES: f64 = 4.0;

/// A clustering request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clustering {
    /// Centres, each with its cell; at most the number of vectors.
    pub cells: usize,
    /// Nearest cells that each vector probes; it is assigned to the first of them.
    pub probes: usize,
    /// Maximum number of centres that are compared with every vector. Beyond, vectors are compared
    /// with lists of centres.
    pub most: usize,
    pub lists: ListLengths,
    /// Whether the vectors are ordered too.
    pub ordered: bool,
    /// Cells of an earlier clustering whose assignments are known, or 0.
    pub known: usize,
    /// Vectors of the sample per centre.
    pub sample_per_cell: usize,
    /// Rounds of Lloyd's algorithm.
    pub rounds: u32,
}

/// Lengths of lists of near centres.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ListLengths {
    /// Centres in the list of a guide.
    pub guide: usize,
    /// Centres in the list of a centre.
    pub centre: usize,
}

impl Clustering {
    /// A request with the list lengths measured best for many centres, and no order.
    pub(crate) fn new(cells: usize, probes: usize) -> Self {
        Self {
            cells,
            probes,
            most: 4096,
            lists: ListLengths { guide: 512, centre: 1024 },
            ordered: false,
            known: 0,
            sample_per_cell: SAMPLE_PER_CELL,
            rounds: ROUNDS,
        }
    }
}

/// Sizes of a clustering, after clamping to the data.
#[derive(Clone, Copy)]
pub(super) struct ClusteringSizes {
    pub n: usize,
    pub cells: usize,
    pub probes: usize,
    pub sample: usize,
    /// Cells of an earlier clustering whose assignments are known, or 0.
    pub known: usize,
    /// Guides, or 0 if vectors are compared with all centres.
    pub guides: usize,
    pub guide_sample: usize,
    pub rounds: u32,
    /// Centres in the list of a guide, and in that of a centre.
    pub guide_list: usize,
    pub centre_list: usize,
    /// Whether a vector's nearest centre is found among all, and its others in the list of that
    /// centre: a list that begins with the nearest has few keys to insert.
    pub own_lists: bool,
}

impl ClusteringSizes {
    pub(super) fn new(n: usize, request: Clustering) -> Self {
        let cells = request.cells.clamp(1, n.max(1));
        // No vector probes a cell twice.
        let probes = request.probes.clamp(1, cells.min(MAX_PROBES as usize));
        let sample = |centres: usize| (centres * request.sample_per_cell).min(n);
        let guides = if cells > request.most { (GUIDES * (cells as f64).sqrt()) as usize } else { 0 };
        let guides = guides.min(cells);
        // A list has at least the centres that a vector probes.
        let list = |length: usize| length.clamp(probes, cells);
        let centre_list = list(request.lists.centre);
        Self {
            n,
            cells,
            probes,
            sample: sample(cells),
            known: request.known,
            guides,
            guide_sample: sample(guides),
            rounds: request.rounds,
            guide_list: list(request.lists.guide),
            centre_list,
            own_lists: guides == 0 && request.known == 0 && probes > 1 && cells >= 2 * centre_list,
        }
    }

    /// Whether vectors, of the sample or all, are compared with lists of centres.
    pub(super) fn has_lists(&self) -> bool {
        self.guides > 0 || self.known > 0 || self.own_lists
    }

    /// Entries of the lists of guides, and of centres as guides: the most at a time.
    pub(super) fn list_entries(&self) -> usize {
        let all = if self.guides > 0 || self.own_lists { self.cells } else { 0 };
        (self.guides * self.guide_list).max(all.max(self.known) * self.centre_list)
    }

    /// Keys: one per vector and probe.
    pub(super) fn keys(&self) -> usize {
        self.n * self.probes
    }
}
