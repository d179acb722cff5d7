//! The order of work in cells: jobs of the intra-cell join, query tiles and passes of the
//! cross-cell join, and the device memory of both.

use std::cmp::Reverse;
use std::ops::Range;

use tagore_device::block::tile;
use tagore_device::descent::cells::{JOB_WORDS, Job, PROPOSALS, QUERY_TILE_WORDS, known_bits};
use tagore_device::descent::merge::COUNTERS;
use tagore_device::key::Key;

use crate::gpu::{Communicator, MemoryPlan};

/// Maximum number of members that an intra-cell join compares with a query between two merges:
/// twice those of an average cell.
pub(crate) const ROUND: usize = 1024;

/// Bounds on the room for the distances of a slab, in keys of two distances. The cross-cell join
/// uses the same memory for proposals.
const SLAB_KEYS: (usize, usize) = (1 << 25, 1 << 27);

/// Keys of the distances of a line.
const LINE_KEYS: usize = ROUND / 2;

/// Ends of the ranks of each pass. The nearest cells come first and alone, so that bounds are tight
/// when many vectors follow, and few proposals to a node are pending at once.
const PASSES: [usize; 10] = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32];

/// As [`PASSES`], from the second clustering on: most near neighbours are known by then and are not
/// proposed again. There is no intra-cell join, so the first pass includes rank 0.
const LATER_PASSES: [usize; 4] = [0, 2, 8, 32];

/// Maximum number of members compared per rank, in multiples of the average cell. It prevents
/// quadratic work in bad clusters, such as those of equal vectors.
const MAX_MEMBERS: usize = 8;

/// A cell is large from this multiple of the average number of probing vectors on. Large cells
/// start first, so that their query tiles do not run alone at the end.
const LARGE: usize = 4;

/// Sizes of the joins of one clustering.
#[derive(Clone, Copy)]
pub(in crate::descent::gpu) struct JoinSizes {
    pub nodes: usize,
    pub cells: usize,
    /// Nearest cells that each node probes.
    pub probes: usize,
    /// Nearest of these cells, to which the node is assigned.
    pub assignments: usize,
    /// Length of the lists.
    pub k: usize,
}

impl JoinSizes {
    /// Maximum number of members compared per rank of a cell.
    pub(super) fn most_members(self) -> usize {
        MAX_MEMBERS * (self.nodes / self.cells.max(1)).max(tile::SIDE as usize)
    }

    /// Maximum number of tiles of `members` members: the last tile of each cell may hold a single
    /// one.
    fn most_tiles(self, members: usize) -> usize {
        let side = tile::SIDE as usize;
        (members + (side - 1) * self.cells) / side
    }

    /// Tiles of a slab, whose distances are merged together.
    pub(super) fn slab_tiles(self) -> usize {
        let keys = (PROPOSALS as usize * self.nodes).clamp(SLAB_KEYS.0, SLAB_KEYS.1);
        keys / (LINE_KEYS * tile::SIDE as usize)
    }

    /// Query lines of a slab.
    fn slab_lines(self) -> usize {
        self.most_tiles(self.nodes).min(self.slab_tiles()) * tile::SIDE as usize
    }

    /// Device memory that stays from one clustering to the next.
    pub(in crate::descent::gpu) fn kept_plan(self) -> MemoryPlan {
        MemoryPlan::new().with::<f32>("list bounds", self.nodes).with::<u32>("changes", COUNTERS as usize)
    }

    /// Device memory of one clustering.
    pub(in crate::descent::gpu) fn plan(self) -> MemoryPlan {
        let tiles = self.most_tiles(self.nodes);
        let rounds = self.most_members().div_ceil(ROUND);
        let query_tiles = self.most_tiles(self.assignments * self.nodes);
        let keys = (self.slab_lines() * LINE_KEYS).max(self.nodes * PROPOSALS as usize);
        MemoryPlan::new()
            .with::<Key>("proposals", keys)
            .with::<u32>("known sets", self.nodes << known_bits(self.k as u32))
            .with::<u32>("jobs", tiles * rounds * JOB_WORDS)
            .with::<u32>("query tiles", query_tiles * QUERY_TILE_WORDS)
            .with::<u32>("cell starts", self.cells * self.probes + 1)
    }
}

/// Ranges of the members of cells; see [`Cells::starts`](crate::cluster::Cells::starts).
#[derive(Clone, Copy)]
pub(in crate::descent::gpu) struct Ranks<'a> {
    pub starts: &'a [usize],
    pub probes: usize,
}

impl Ranks<'_> {
    /// The number of cells.
    pub(in crate::descent::gpu) fn cells(self) -> usize {
        (self.starts.len() - 1) / self.probes
    }

    /// The members of `cell` at `ranks`.
    pub(in crate::descent::gpu) fn members(self, cell: usize, ranks: Range<usize>) -> Range<usize> {
        let first = cell * self.probes;
        self.starts[first + ranks.start]..self.starts[first + ranks.end]
    }

    /// Offsets of each cell's rank 0 among all vectors sorted by cell, and the end of the last.
    pub(super) fn cell_offsets(self) -> Vec<u32> {
        let mut end = 0;
        let ends = (0..self.cells()).map(|cell| {
            end += self.members(cell, 0..1).len() as u32;
            end
        });
        std::iter::once(0).chain(ends).collect()
    }

    /// The jobs of the intra-cell join of `cells`, in slabs of at most `tiles` tiles, in order. At
    /// most `most` members of a cell are compared with each.
    pub(super) fn slabs(self, cells: Range<usize>, tiles: usize, most: usize) -> Vec<Vec<Job>> {
        let side = tile::SIDE as usize;
        // A tile of members, and the members compared with it.
        let mut pairs: Vec<(Range<usize>, Range<usize>)> = Vec::new();
        for cell in cells {
            let Range { start, end } = self.members(cell, 0..1);
            let rows = start..end.min(start + most);
            let queries = (start..end).step_by(side).map(|query| query..end.min(query + side));
            pairs.extend(queries.map(|queries| (queries, rows.clone())));
        }
        let mut slabs = Vec::new();
        for pairs in pairs.chunks_mut(tiles) {
            pairs.sort_by_key(|(_, rows)| Reverse(rows.len()));
            for round in 0.. {
                let mut jobs: Vec<Job> = pairs
                    .iter()
                    .map_while(|(queries, rows)| {
                        let compared = round_of(rows.len(), round)?;
                        Some(Job {
                            first_query: queries.start as u32,
                            query_count: queries.len() as u32,
                            first_row: (rows.start + compared.start) as u32,
                            row_count: compared.len() as u32,
                        })
                    })
                    .collect();
                if jobs.is_empty() {
                    break;
                }
                // The longest first, so that the last ones are short.
                jobs.sort_by_key(|job| Reverse(job.row_count));
                slabs.push(jobs);
            }
        }
        slabs
    }

    /// The words of the query tiles of this one of `devices`, which take turns: of the first
    /// `assignments` ranks, cell by cell, as near cells share probing vectors. Large cells, by
    /// `most` members of a rank, come first.
    pub(super) fn query_tiles(self, assignments: usize, most: usize, devices: Communicator<'_>) -> Vec<u32> {
        let side = tile::SIDE as usize;
        let probing = |cell: usize| self.members(cell, 1..self.probes).len().min(most * (self.probes - 1));
        let average = (0..self.cells()).map(probing).sum::<usize>() / self.cells();
        let mut cells: Vec<usize> = (0..self.cells()).collect();
        cells.sort_by_cached_key(|&cell| Reverse(probing(cell) / (LARGE * average).max(1)));
        let tiles = cells.into_iter().flat_map(|cell| {
            let Range { start, end } = self.members(cell, 0..assignments);
            let tile = move |first| [cell, first, side.min(end - first)].map(|word| word as u32);
            (start..end).step_by(side).map(tile)
        });
        tiles.skip(devices.rank()).step_by(devices.count()).flatten().collect()
    }
}

/// Members compared in `round` of a cell of `rows` members; none if no members are left.
fn round_of(rows: usize, round: usize) -> Option<Range<usize>> {
    let begin = round * ROUND;
    (begin < rows).then_some(begin..rows.min(begin + ROUND))
}

/// The ranks of each pass of the cross-cell join, where a node probes `probes` cells.
pub(super) fn passes(probes: usize, is_first_clustering: bool) -> Vec<Range<usize>> {
    let ends: &[usize] = if is_first_clustering { &PASSES } else { &LATER_PASSES };
    let passes = ends.windows(2).filter(|ranks| ranks[0] < probes);
    passes.map(|ranks| ranks[0]..ranks[1].min(probes)).collect()
}

#[cfg(test)]
mod tests {
    use tagore_device::descent::cells::QueryTile;

    use super::*;
    use crate::gpu::Gpu;

    /// Offsets of cells from their numbers of members at ranks 0 and 1.
    fn starts(sizes: &[(usize, usize)]) -> Vec<usize> {
        let mut starts = vec![0];
        for &(own, second) in sizes {
            let first = starts[starts.len() - 1];
            starts.extend([first + own, first + own + second]);
        }
        starts
    }

    #[test]
    fn every_member_is_compared_with_its_cell_once() {
        let sizes = [(0, 40), (1, 0), (128, 7), (3000, 9), (129, 1), (2049, 0), (5, 5)];
        let starts = starts(&sizes);
        let most = 2500;
        let slabs = Ranks { starts: &starts, probes: 2 }.slabs(0..sizes.len(), 10, most);
        // Rows compared with the tile of each member.
        let mut compared = vec![0; starts[starts.len() - 1]];
        for slab in &slabs {
            assert!(!slab.is_empty() && slab.len() <= 10);
            assert!(slab.is_sorted_by_key(|job| Reverse(job.row_count)));
            for job in slab {
                assert!(job.query_count as usize <= tile::SIDE as usize && job.row_count as usize <= ROUND);
                let cell = starts.iter().rposition(|&start| start <= job.first_query as usize).unwrap();
                for member in job.first_query..job.first_query + job.query_count {
                    let compared = &mut compared[member as usize];
                    assert_eq!(job.first_row as usize, starts[cell] + *compared, "rows in order");
                    *compared += job.row_count as usize;
                }
            }
        }
        for (cell, (own, _)) in sizes.into_iter().enumerate() {
            let (first, end) = (starts[2 * cell], starts[2 * cell + 1]);
            assert!(compared[first..end].iter().all(|&rows| rows == own.min(most)), "cell {cell}");
            assert!(compared[end..starts[2 * cell + 2]].iter().all(|&rows| rows == 0), "cell {cell}");
        }
    }

    #[test]
    fn every_assigned_vector_is_in_one_query_tile() {
        let sizes = [(0, 40), (1, 0), (128, 7), (300, 900), (129, 1)];
        let starts = starts(&sizes);
        for assignments in [1, 2] {
            let gpu = Gpu::emulated(0);
            let alone = Communicator::alone(&gpu);
            let words = Ranks { starts: &starts, probes: 2 }.query_tiles(assignments, 1000, alone);
            let tile = |words: &[u32]| QueryTile { cell: words[0], first: words[1], count: words[2] };
            let tiles: Vec<QueryTile> = words.chunks_exact(QUERY_TILE_WORDS).map(tile).collect();
            let sizes_of = JoinSizes { nodes: starts[10], cells: sizes.len(), probes: 2, assignments, k: 10 };
            assert!(tiles.len() <= sizes_of.most_tiles(starts[10]));
            let of = |tile: &QueryTile| tile.first as usize..(tile.first + tile.count) as usize;
            let mut all: Vec<usize> = tiles.iter().flat_map(of).collect();
            all.sort_unstable();
            let assigned = |cell: usize| starts[2 * cell]..starts[2 * cell + assignments];
            let expected: Vec<usize> = (0..sizes.len()).flat_map(assigned).collect();
            assert_eq!(all, expected);
            for tile in &tiles {
                let members = assigned(tile.cell as usize);
                assert!((1..=tile::SIDE).contains(&tile.count));
                assert!(members.contains(&of(tile).start) && of(tile).end <= members.end);
            }
            // A cell that many vectors probe comes first.
            assert_eq!(tiles[0].cell, 3);
        }
    }
}
