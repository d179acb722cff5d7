//! Filter by a pruning rule, as a wavefront (paper section 5.2).
//!
//! # Algorithm
//!
//! ```text
//! for each node, one block:
//!     deal the candidates to the warps: candidate i to warp i mod warps
//!     until the row is full or no candidate is left:
//!         a = the next candidate of the block: the minimum of the warps' next ones
//!         append a to the row; load a's vector to shared memory
//!         for each candidate c left to the warp:          (32 at once, a lane each)
//!             d_ac = distance(a, c)
//!             `keep`:  drop c unless rule.keep(d_pc, d_pa, d_ac)
//!             `score`: score(c) += rule.score(d_pc, d_pa, d_ac)
//!         the warp's next = its nearest candidate left     (`keep`)
//!                         = its smallest score left        (`score`)
//!     `keep`: append the nearest dropped candidates until the row has `filled(most)` keys
//! ```
//!
//! The rule's form chooses `keep` or `score` once, in `wavefront`. Both share `Wave`.
//!
//! Where a node lies outside of the data around it, its neighbours are nearer to each other than to
//! it, and a rule drops all of them but one or two. So few edges lead to such nodes that searches
//! miss them; the nearest dropped candidates restore the others (`keepPrunedConnections` of HNSW,
//! Malkov and Yashunin 2018, Algorithm 4).
//!
//! # Buffers
//!
//! | buffer | shape |
//! | --- | --- |
//! | `rows` | base vectors, see [`Rows`] |
//! | `nodes` | one row per node, a node per block |
//! | `candidates` | nodes × `stride` keys, ascending, [`NONE`] after the last |
//! | `forward` | rows × `most` keys in order of acceptance, then those filled up, then [`NONE`] |
//! | shared memory | one vector; a key per warp; `stride` keys; with scores another `stride` keys |
//!
//! # Optimisations
//!
//! 1. One accepted neighbour is compared with all candidates that are left. A candidate still meets
//!    the accepted neighbours in the order of acceptance, so the result is that of the serial rule.
//!    The distances computed are the same too: a candidate meets neighbours until one drops it.
//! 2. Each warp closes the gaps of its own list without the others. Warps only have to agree on the
//!    nearest next candidate: two barriers per accepted neighbour.
//! 3. A lane decides on one candidate and four lanes compute its distance, so loads of a row are
//!    coalesced.
//! 4. Lists lie in shared memory, vectors do not. The candidates left to the nodes of a
//!    multiprocessor stay in its L1 cache, and shared memory would take from that. A node gets one
//!    warp, or two if its vectors are long: more would wait for each other.
//!
//! # Speed
//!
//! Floor: each candidate's vector is read once, `stride` × dim bytes per node (25.6 KB, or 6 ms per
//! million nodes with 200 candidates of 128 bytes at 4.3 TB/s).

use cuda_std::prelude::*;
use cuda_std::thread::{block_dim_x, block_idx_x, sync_threads, thread_idx_x};
use cuda_std::{keep_rolled, shared};

use super::rule::{Form, Rule, survives};
use crate::block::copied;
use crate::block::element::Element;
use crate::block::exact::query_bytes;
use crate::block::rows::Rows;
use crate::block::threads::Threads;
use crate::key::{self, Key, NONE};

/// Maximum number of threads per block: any number of warps up to this, one node per block.
pub const FILTER_THREADS: u32 = 256;

/// Maximum number of warps per block.
const WARPS: u32 = FILTER_THREADS / 32;

/// Maximum number of edges to which rows are filled up.
const FILLED: u32 = 16;

/// Edges to which a row of at most `most` is filled up, if the rule accepts fewer: half of the row
/// at most, so that reverse edges have room.
pub const fn filled(most: u32) -> u32 {
    if most / 2 < FILLED { most / 2 } else { FILLED }
}

/// Arguments of the kernels of rules.
#[repr(C)]
pub struct PruneFilter<T> {
    /// In: the base.
    pub rows: Rows<T>,
    /// In: one row per node.
    pub nodes: Global<u32>,
    /// In: `stride` keys per node: ascending (order distance, row), then [`NONE`].
    pub candidates: Global<Key>,
    /// Out: `most` keys per row, written for the nodes' rows: in order of acceptance, then those
    /// filled up, nearest first, then [`NONE`].
    pub forward: GlobalMut<Key>,
    /// Candidates per node, at least 1.
    pub stride: u32,
    /// Maximum number of candidates that are accepted, at least 1.
    pub most: u32,
    /// The threshold, as [`Rule::prepare`] gives it.
    pub threshold: f32,
    /// Whether nodes with at most `most` candidates keep all of them.
    pub pass_short: u32,
}

copied! {
    PruneFilter<T>;
}

/// Dynamic shared memory in bytes of the kernels of a rule of this form.
pub const fn filter_shared_bytes(stride: u32, dim: u32, form: Form) -> u32 {
    // The accepted vector, each warp's next key, candidates, and scores.
    let lists = match form {
        Form::Keep => 1,
        Form::Score => 2,
    };
    query_bytes(dim) + WARPS * 8 + lists * stride * 8
}

/// The node of a block.
#[derive(Clone, Copy)]
pub(super) struct Node {
    pub candidates: Global<Key>,
    /// Its slots in `forward`.
    pub out: GlobalMut<Key>,
    pub lift: f32,
}

impl<T: Element> PruneFilter<T> {
    /// The node of the block.
    #[inline(always)]
    pub(super) fn node(&self) -> Node {
        let row = self.nodes.get(block_idx_x() as usize);
        let candidates = self.candidates.offset(block_idx_x() as usize * self.stride as usize);
        let out = self.forward.offset(row as usize * self.most as usize);
        Node { candidates, out, lift: self.rows.lift(row) }
    }

    /// Whether the node keeps all of its candidates.
    #[inline(always)]
    pub(super) fn keeps_all(&self, node: Node) -> bool {
        self.pass_short != 0 && (self.stride <= self.most || node.candidates.get(self.most as usize) == NONE)
    }

    /// Fills a row up whose first `accepted` slots hold ascending keys that the first thread wrote.
    /// Returns the number of slots written. The whole block calls this.
    #[inline(always)]
    pub(super) fn fill(&self, Node { candidates, out, .. }: Node, accepted: u32) -> u32 {
        let filled = filled(self.most);
        if accepted >= filled {
            return accepted;
        }
        if thread_idx_x() == 0 {
            let (mut place, mut passed, mut next) = (0, 0, accepted);
            while next < filled {
                keep_rolled();
                let key = if place < self.stride { candidates.get(place as usize) } else { NONE };
                place += 1;
                if key != NONE && passed < accepted && out.get(passed as usize) == key {
                    passed += 1;
                } else {
                    out.set(next as usize, key);
                    next += 1;
                }
            }
        }
        filled
    }

    /// Writes [`NONE`] after the first `written` slots of a node. The whole block calls this.
    #[inline(always)]
    pub(super) fn end(&self, Node { out, .. }: Node, written: u32) {
        let mut i = written + thread_idx_x();
        while i < self.most {
            out.set(i as usize, NONE);
            i += block_dim_x();
        }
    }
}

/// The candidates of a block's node in shared memory, as one warp sees them.
struct Wave<'a, T: Element> {
    p: &'a PruneFilter<T>,
    node: Node,
    /// The accepted neighbour's vector.
    values: Shared<T::Query>,
    /// The next key of each warp.
    nexts: Shared<Key>,
    /// Candidates that are left.
    keys: Shared<Key>,
    warp: u32,
    warps: u32,
    /// Number of this warp's candidates.
    left: u32,
    /// Number of accepted neighbours.
    accepted: u32,
}

impl<'a, T: Element> Wave<'a, T> {
    /// The shared memory of the block, with no candidates.
    #[inline(always)]
    fn new(p: &'a PruneFilter<T>, node: Node) -> Self {
        let values: Shared<T::Query> = shared::dynamic(0);
        let nexts: Shared<Key> = shared::dynamic(query_bytes(p.rows.dim) as usize);
        let keys = nexts.offset(WARPS as usize);
        let (warp, warps) = (thread_idx_x() / 32, block_dim_x() / 32);
        Self { p, node, values, nexts, keys, warp, warps, left: 0, accepted: 0 }
    }

    /// The slot of this warp's candidate `i`.
    #[inline(always)]
    fn slot(&self, i: u32) -> usize {
        (i * self.warps + self.warp) as usize
    }

    /// Deals the candidates to the warps, and calls `put` with the slot of each: its place in the
    /// node's candidates. The whole warp calls this.
    #[inline(always)]
    fn deal(&mut self, put: impl Fn(usize)) {
        let stride = self.p.stride as usize;
        let mut first = 0;
        while self.slot(first) < stride {
            let at = self.slot(first + warp::lane_id());
            let key = if at < stride { self.node.candidates.get(at) } else { NONE };
            if key != NONE {
                self.keys.set(at, key);
                put(at);
            }
            self.left += warp::ballot(key != NONE).count_ones();
            first += 32;
        }
        warp::sync();
    }

    /// The first key of one of this warp's lists, or [`NONE`].
    #[inline(always)]
    fn first(&self, list: Shared<Key>) -> Key {
        if self.left > 0 { list.get(self.slot(0)) } else { NONE }
    }

    /// The least `next` of all warps; none if all are [`NONE`]. The whole block calls this.
    #[inline(always)]
    fn least(&self, mut next: Key) -> Option<Key> {
        if warp::lane_id() == 0 {
            self.nexts.set(self.warp as usize, next);
        }
        sync_threads();
        let mut i = 0;
        while i < self.warps {
            keep_rolled();
            let other = self.nexts.get(i as usize);
            next = if other < next { other } else { next };
            i += 1;
        }
        if next == NONE { None } else { Some(next) }
    }

    /// Appends `neighbour` to the row and loads its vector; false if it fills the row. The whole
    /// block calls this.
    #[inline(always)]
    fn accept(&mut self, neighbour: Key) -> bool {
        if thread_idx_x() == 0 {
            self.node.out.set(self.accepted as usize, neighbour);
        }
        self.accepted += 1;
        if self.accepted == self.p.most {
            return false;
        }
        self.p.rows.load(self.values, key::id(neighbour), Threads::new(thread_idx_x(), block_dim_x()));
        sync_threads();
        true
    }

    /// Tests the warp's candidates against `neighbour`, which [`accept`](Self::accept) took last.
    /// The whole warp calls this.
    ///
    /// `judge(slot, d_pc, d_pa, d_ac, value)` is called for each. It returns whether it stays, and
    /// sets what `put` stores at its new slot.
    #[inline(always)]
    fn test<V: Default>(
        &mut self,
        neighbour: Key,
        mut judge: impl FnMut(usize, f32, f32, f32, &mut V) -> bool,
        put: impl Fn(usize, V),
    ) {
        let (p, lift) = (self.p, self.node.lift);
        let lane = warp::lane_id();
        let point = p.rows.point(self.values, key::id(neighbour));
        let d_pa = p.rows.rule_distance(lift, neighbour);
        let (mut stay, mut first) = (0, 0);
        while first < self.left {
            keep_rolled();
            let i = first + lane;
            let candidate = || if i < self.left { self.keys.get(self.slot(i)) } else { NONE };
            let count = if self.left - first < 32 { self.left - first } else { 32 };
            let d_ac = p.rows.distances(&point, key::id(candidate()), count);
            // Read again: kept meanwhile, it would take registers from the loads of rows.
            let candidate = candidate();
            let is_other = candidate != NONE && candidate != neighbour;
            let d_pc = if candidate == NONE { 0.0 } else { p.rows.rule_distance(lift, candidate) };
            let mut value = V::default();
            let stays = is_other && judge(self.slot(i), d_pc, d_pa, d_ac, &mut value);
            // All lanes have read before one writes.
            let staying = warp::ballot(stays);
            warp::sync();
            if stays {
                let to = self.slot(stay + warp::lanes_before(staying));
                self.keys.set(to, candidate);
                put(to, value);
            }
            stay += staying.count_ones();
            first += 32;
        }
        self.left = stay;
        warp::sync();
    }
}

/// The least key of the warp's lanes. The whole warp calls this.
#[inline(always)]
pub(super) fn least_of_warp(mut key: Key) -> Key {
    let mut lanes = 1;
    while lanes < 32 {
        let other = warp::shuffle_xor(key, lanes);
        key = if other < key { other } else { key };
        lanes *= 2;
    }
    key
}

/// Accepts candidates, nearest first, and drops those that the rule rejects because of one accepted
/// before. Returns the number of slots written. The whole block calls this.
#[inline(always)]
fn keep<T: Element, R: Rule>(mut wave: Wave<'_, T>, rule: &R) -> u32 {
    let (p, node) = (wave.p, wave.node);
    wave.deal(|_| ());
    let mut next = wave.first(wave.keys);
    while let Some(neighbour) = wave.least(next)
        && wave.accept(neighbour)
    {
        let judge = |_, d_pc, d_pa, d_ac, _: &mut ()| survives(rule, d_pc, d_pa, d_ac, p.threshold);
        wave.test(neighbour, judge, |_, ()| ());
        next = wave.first(wave.keys);
    }
    p.fill(node, wave.accepted)
}

/// Accepts the candidates of the least scores, which each of them adds to. Drops none. Returns the
/// number of slots written. The whole block calls this.
#[inline(always)]
fn score<T: Element, R: Rule>(mut wave: Wave<'_, T>, rule: &R) -> u32 {
    let (p, node) = (wave.p, wave.node);
    // At the slots of `keys`: (score, place in the node's candidates).
    let scores = wave.keys.offset(p.stride as usize);
    wave.deal(|slot| scores.set(slot, key::pack(0.0, slot as u32)));
    let mut next = wave.first(scores);
    while let Some(scored) = wave.least(next) {
        let neighbour = node.candidates.get(key::id(scored) as usize);
        if !wave.accept(neighbour) {
            break;
        }
        next = NONE;
        let judge = |slot, d_pc, d_pa, d_ac, scored: &mut Key| {
            let before = scores.get(slot);
            let score = key::distance(before) + rule.score(d_pc, d_pa, d_ac, p.threshold);
            *scored = key::pack(score, key::id(before));
            next = if *scored < next { *scored } else { next };
            true
        };
        wave.test(neighbour, judge, |slot, scored| scores.set(slot, scored));
        next = least_of_warp(next);
    }
    wave.accepted
}

/// The body of the kernels that [`rule_kernels!`](crate::rule_kernels) makes.
#[inline(always)]
pub fn wavefront<T: Element, R: Rule>(p: &PruneFilter<T>, rule: &R) {
    let (thread, threads) = (thread_idx_x(), block_dim_x());
    let node = p.node();
    if p.keeps_all(node) {
        let mut i = thread;
        while i < p.most {
            node.out.set(i as usize, if i < p.stride { node.candidates.get(i as usize) } else { NONE });
            i += threads;
        }
        return;
    }
    let wave = Wave::new(p, node);
    let written = match rule.form() {
        Form::Keep => keep(wave, rule),
        Form::Score => score(wave, rule),
    };
    p.end(node, written);
}
