//! CAGRA's filter: edges with few detours stay (paper section 5.2).
//!
//! A detour of the edge from a node to candidate B is a candidate D of a lower place whose k-NN
//! list holds B; if detours are strict, at a rank below B's place. The candidates with the fewest
//! detours are accepted, nearer ones first among equals.
//!
//! # Algorithm
//!
//! ```text
//! for each node, one block:
//!     table = place of each candidate's id                  (super::places)
//!     for each candidate D but the last, for each id B of D's k-NN list:
//!         if table holds B after D's place (strict: and after B's rank): counts[B] += 1
//!     sort the candidates by (count, place)
//!     write the first `most` with a count of at most `limit`
//! ```
//!
//! # Buffers
//!
//! | buffer | shape |
//! | --- | --- |
//! | `candidates` | rows or nodes × `stride` keys, the first `count` of them read |
//! | `lists` | rows × `list_stride` ids, nearest first, `NO_ID` after the last |
//! | `nodes` | one row per node, a node per block |
//! | `forward` | rows × `most` keys, then [`NONE`] |
//! | shared memory | `count` counts; `count` ids and their table, later `count` keys twice |
//!
//! # Optimisations
//!
//! 1. A look-up in a table replaces the comparison with all candidates: at k = 96, 9,216 look-ups
//!    per node instead of 442,000 comparisons.
//! 2. All warps have the same work. A list costs the same whatever the place of its row, and
//!    threads take quads of all lists in turn. (Comparisons would become fewer with the place; the
//!    paper pairs places whose sum is that of the first and the last.)
//! 3. The next quad of ids is loaded while one is looked up.
//! 4. `strict` is a constant in each of two copies of the loop, so the other pays nothing for
//!    ranks.
//!
//! # Speed
//!
//! An id costs one load from shared memory and 25 instructions, the atomic that counts it included;
//! 48 warps fit a multiprocessor. For 1,000,000 nodes at k = 96 that is 1.0e10 instructions of
//! warps, 11 ms on an H200 (132 multiprocessors, 4 per cycle each, 1.7 GHz). Shared memory is busy
//! 9 ms of that, with 3.5 accesses to the fullest bank. The lists, 37 GB, come from L2 in 7 ms if
//! nodes are in an order in which near ones follow one another.

use cuda_std::prelude::*;
use cuda_std::thread::{block_idx_x, sync_threads, sync_threads_count, thread_idx_x};
use cuda_std::{keep_rolled, shared};

use super::places::{Places, table_words};
use crate::block::sort::sort_block;
use crate::block::threads::Threads;
use crate::key::{Key, NONE};

/// Threads per block, one node per block.
pub const DETOUR_THREADS: u32 = 128;

/// Arguments of [`prune_detours()`].
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Detours {
    /// In: `stride` ascending keys per row or node (see `by_row`), [`NONE`] after the last.
    pub candidates: Global<Key>,
    /// In: `list_stride` ids of the k-NN list per row, nearest first, `NO_ID` after the last.
    pub lists: Global<u32>,
    /// In: one row per block.
    pub nodes: Global<u32>,
    /// Out: `most` keys per row, written for the rows in `nodes`: accepted ones in order, then
    /// [`NONE`].
    pub forward: GlobalMut<Key>,
    /// Keys between the candidates of two nodes.
    pub stride: u32,
    /// Candidates read per node: at least 1, at most `stride` and
    /// [`MAX_PLACES`](super::places::MAX_PLACES).
    pub count: u32,
    /// Whether `candidates` has a line per row of the base, or else per block.
    pub by_row: u32,
    /// Ids per list: a multiple of 4, at least 4.
    pub list_stride: u32,
    /// Maximum number of candidates that are accepted.
    pub most: u32,
    /// Whether detours are strict.
    pub strict: u32,
    /// Maximum number of detours of an accepted candidate.
    pub limit: f32,
    /// Whether nodes with at most `most` candidates keep all of them.
    pub pass_short: u32,
}

/// Words to sort `count` candidates: keys, twice.
const fn sort_words(count: u32) -> u32 {
    4 * count
}

/// Dynamic shared memory in bytes of [`prune_detours()`].
pub const fn detour_shared_bytes(count: u32) -> u32 {
    // The counts; then the ids and their table, whose memory the sort takes over.
    let padded = count.next_multiple_of(4);
    let counting = padded + table_words(count);
    (padded + if counting > sort_words(count) { counting } else { sort_words(count) }) * 4
}

/// The candidates of a block's node.
#[derive(Clone, Copy)]
struct Candidates {
    ids: Shared<u32>,
    /// Detours per candidate.
    counts: Shared<u32>,
    len: u32,
}

/// Counts detours by a table of the candidates' places.
#[inline(always)]
fn count(p: &Detours, Candidates { ids, counts, len }: Candidates, strict: bool) {
    let thread = thread_idx_x();
    let places = Places::new(ids.offset(p.count.next_multiple_of(4) as usize), p.count);
    let threads = Threads::new(thread, DETOUR_THREADS);
    places.clear(threads);
    sync_threads();
    places.enter(ids, len, threads);
    sync_threads();

    let quads = p.list_stride / 4;
    if quads == 0 {
        return;
    }
    let load = |place: u32, quad: u32| {
        // The last candidate has no candidate after it.
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

/// Accepts the candidates with the fewest detours (see [`Detours`] and the module).
///
/// Launch: a block of [`DETOUR_THREADS`] per node; [`detour_shared_bytes`].
///
/// # Safety
/// - The views match the fields of [`Detours`].
#[kernel(unsafe, block = DETOUR_THREADS, shared = detour_shared_bytes(p.count))]
pub unsafe fn prune_detours(p: Detours) {
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
    let candidates = Candidates { ids: room, counts, len };
    if p.strict != 0 {
        count(&p, candidates, true);
    } else {
        count(&p, candidates, false);
    }
    sync_threads();

    // Keys (detours, place).
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
