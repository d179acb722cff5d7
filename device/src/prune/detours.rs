//! CAGRA's filter: edges with few detours stay (paper section 5.2).
//!
//! A detour of the edge from a node to the candidate B is a candidate D of a lower place whose k-NN list holds B; if
//! detours are strict, at a rank below B's place. Those with the fewest are accepted, nearer ones first among equals.

use cuda_std::prelude::*;
use cuda_std::thread::{block_idx_x, sync_threads, sync_threads_count, thread_idx_x, warp_idx};
use cuda_std::{keep_rolled, shared};

use super::places::{Places, table_words};
use crate::block::sort::sort_block;
use crate::key::{Key, NONE};

/// Threads of a block, which has one node.
pub const DETOUR_THREADS: u32 = 128;

/// The filter by detours.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Detours {
    /// In: ascending keys of candidates, `stride` for each node, [`NONE`] behind the last.
    pub candidates: Global<Key>,
    /// In: the ids of the k-NN list of each row, nearest first, `list_stride` apart, `u32::MAX` behind the last.
    pub lists: Global<u32>,
    /// In: the row that each node of the launch is.
    pub nodes: Global<u32>,
    /// Out: `most` keys for each row: those accepted, in their order, then [`NONE`]. Other rows stay as they are.
    pub forward: GlobalMut<Key>,
    /// Keys from the candidates of one node to those of the next.
    pub stride: u32,
    /// How many candidates are looked at, at most `stride` and
    /// [`MOST_PLACES`](super::places::MOST_PLACES), at least 1.
    pub count: u32,
    /// Whether candidates lie by rows: else by the nodes of the launch.
    pub by_row: u32,
    /// Ids from one list to the next, a multiple of 4, at least 4.
    pub list_stride: u32,
    /// How many candidates are accepted at most.
    pub most: u32,
    /// Whether detours are strict.
    pub strict: u32,
    /// The most detours of what is accepted.
    pub limit: f32,
    /// Whether nodes of at most `most` candidates keep them all.
    pub pass_short: u32,
}

/// Words that sorting `count` candidates takes: keys, and room for as many.
const fn sort_words(count: u32) -> u32 {
    4 * count
}

/// Bytes of dynamic shared memory of [`prune_detours()`].
pub const fn detour_shared_bytes(count: u32) -> u32 {
    // The counts; then the ids and their table, and after them what is sorted.
    let padded = count.next_multiple_of(4);
    let counting = padded + table_words(count);
    (padded + if counting > sort_words(count) { counting } else { sort_words(count) }) * 4
}

/// Bytes of dynamic shared memory of [`prune_detours_unbalanced()`].
pub const fn unbalanced_shared_bytes(count: u32) -> u32 {
    // As above, without the table.
    (count.next_multiple_of(4) + sort_words(count)) * 4
}

/// The candidates of a block's node.
#[derive(Clone, Copy)]
struct Candidates {
    /// Their ids.
    ids: Shared<u32>,
    /// How many detours each has.
    counts: Shared<u32>,
    /// How many there are.
    len: u32,
}

/// Counts detours by `count`, and accepts the candidates with the fewest.
#[inline(always)]
fn filter(p: &Detours, count: impl Fn(Candidates)) {
    let (thread, node) = (thread_idx_x(), block_idx_x());
    let row = p.nodes.get(node as usize) as usize;
    let place_of = if p.by_row != 0 { row } else { node as usize };
    let from = p.candidates.offset(place_of * p.stride as usize);
    let counts: Shared<u32> = shared::dynamic(0);
    let room = counts.offset(p.count.next_multiple_of(4) as usize);
    let (mut len, mut first) = (0, 0);
    while first < p.count {
        keep_rolled();
        let place = (first + thread) as usize;
        let key = if first + thread < p.count { from.get(place) } else { NONE };
        if key != NONE {
            room.set(place, key as u32);
            counts.set(place, 0);
        }
        len += sync_threads_count(u32::from(key != NONE));
        first += DETOUR_THREADS;
    }
    let out = p.forward.offset(row * p.most as usize);
    if p.pass_short != 0 && len <= p.most {
        let mut i = thread;
        while i < p.most {
            keep_rolled();
            out.set(i as usize, if i < len { from.get(i as usize) } else { NONE });
            i += DETOUR_THREADS;
        }
        return;
    }
    count(Candidates { ids: room, counts, len });
    sync_threads();

    // By their detours, then by their places.
    let keys: Shared<u64> = room.cast();
    let mut place = thread;
    while place < len {
        keep_rolled();
        keys.set(place as usize, u64::from(counts.get(place as usize)) << 32 | u64::from(place));
        place += DETOUR_THREADS;
    }
    sync_threads();
    let sorted = sort_block(keys, keys.offset(p.count as usize), len);
    let mut i = thread;
    while i < p.most {
        keep_rolled();
        let key = if i < len { sorted.get(i as usize) } else { NONE };
        let is_accepted = i < len && (key >> 32) as u32 as f32 <= p.limit;
        out.set(i as usize, if is_accepted { from.get(key as u32 as usize) } else { NONE });
        i += DETOUR_THREADS;
    }
}

/// Counts by a table of the candidates' places.
#[inline(always)]
fn count_by_table(p: &Detours, Candidates { ids, counts, len }: Candidates, strict: bool) {
    let thread = thread_idx_x();
    let places = Places::new(ids.offset(p.count.next_multiple_of(4) as usize), p.count);
    places.clear((thread, DETOUR_THREADS));
    sync_threads();
    places.enter(ids, len, (thread, DETOUR_THREADS));
    sync_threads();

    let quads = p.list_stride / 4;
    if quads == 0 {
        return;
    }
    let load = |place: u32, quad: u32| {
        // The last candidate is on no detour.
        if place + 1 >= len {
            return Quad::default();
        }
        let list = ids.get(place as usize) as usize * p.list_stride as usize;
        p.lists.get_quad(list + quad as usize * 4)
    };
    let (places_on, quads_on) = (DETOUR_THREADS / quads, DETOUR_THREADS % quads);
    let (mut place, mut quad) = (thread / quads, thread % quads);
    let mut four = load(place, quad);
    while place + 1 < len {
        keep_rolled();
        // The next four are under way while these are looked up.
        let (mut next_place, mut next_quad) = (place + places_on, quad + quads_on);
        if next_quad >= quads {
            next_quad -= quads;
            next_place += 1;
        }
        let next = load(next_place, next_quad);
        let mut least = [place + 1; 4];
        if strict {
            unroll!(4, C => {
                let behind_rank = quad * 4 + C as u32 + 1;
                least[C] = if behind_rank > least[C] { behind_rank } else { least[C] };
            });
        }
        places.find(four, least, |place| {
            counts.fetch_add(place as usize, 1);
        });
        (place, quad, four) = (next_place, next_quad, next);
    }
}

/// Accepts the candidates with the fewest detours (see [`Detours`]). All warps have the same to do: a list is looked
/// through once whatever the place of its row among the candidates, and threads take pieces of four ids of all lists
/// in turn. (Where each id is compared with the candidates behind the midpoint, as in
/// [`prune_detours_unbalanced()`], the work falls with the place; the paper pairs places whose sum is that of the
/// first and the last.)
///
/// An id costs a look-up in a table of the candidates' places, and an atomic if it is there.
///
/// Launch: a block of [`DETOUR_THREADS`] per node; [`detour_shared_bytes`].
///
/// # Safety
/// - The views hold what [`Detours`] says.
#[kernel(block = DETOUR_THREADS, shared = detour_shared_bytes(p.count))]
pub unsafe fn prune_detours(p: Detours) {
    // Twice, so that what asks for ranks is not in the loop of the other.
    filter(&p, |candidates| {
        if p.strict != 0 {
            count_by_table(&p, candidates, true);
        } else {
            count_by_table(&p, candidates, false);
        }
    });
}

/// As [`prune_detours()`], in the way of published code: each warp takes the list of one candidate after another, and
/// compares each of its ids with all candidates of higher places.
///
/// Launch: a block of [`DETOUR_THREADS`] per node; [`unbalanced_shared_bytes`].
///
/// # Safety
/// - The views hold what [`Detours`] says.
#[kernel(block = DETOUR_THREADS, shared = unbalanced_shared_bytes(p.count))]
pub unsafe fn prune_detours_unbalanced(p: Detours) {
    filter(&p, |Candidates { ids, counts, len }| {
        let mut place = warp_idx();
        while place + 1 < len {
            keep_rolled();
            let list = p.lists.offset(ids.get(place as usize) as usize * p.list_stride as usize);
            let mut rank = warp::lane_id();
            while rank < p.list_stride {
                keep_rolled();
                let id = list.get(rank as usize);
                let mut other = if p.strict != 0 && rank > place { rank } else { place } + 1;
                while other < len {
                    keep_rolled();
                    if ids.get(other as usize) == id {
                        counts.fetch_add(other as usize, 1);
                    }
                    other += 1;
                }
                rank += 32;
            }
            place += DETOUR_THREADS / 32;
        }
    });
}
