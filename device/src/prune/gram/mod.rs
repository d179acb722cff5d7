//! Filter of f32 rows by sums of scores, from products on tensor cores: the edges of
//! [`super::filter`].
//!
//! # Algorithm
//!
//! ```text
//! for each node, one block:
//!     for each chunk of components:                                         (products)
//!         differences of the candidates' rows from the node's, rounded
//!         products of all pairs of candidates += mma(differences)
//!     bounds of each pair's distance from its product
//!     bounds of each pair's term of a score                                    (score)
//!     until the row is full:
//!         append the candidate of the least sum of terms;
//!         if the bounds leave several: that of the least exact sum
//! ```
//!
//! Nodes of more than [`LINES`] candidates, and nodes that keep all, take the wavefront.
//!
//! # Why the edges are the same
//!
//! `Lines::bounds` holds the distance that the CPU computes. The score of [`Spread`] falls with
//! the distance of a pair, in f32 too, since roundings keep order. Sums of smaller terms are not
//! larger in f32 either, so an exact score lies between the sums of the bounds.
//!
//! # Optimisations
//!
//! 1. A candidate's row is read once per node, not once for each accepted neighbour.
//! 2. Neighbours lie near the node, so that differences are small and lose little when rounded.
//!    Scores add up the errors of many pairs, hence differences in two halves.
//!
//! # Speed
//!
//! Floor: the rows of M candidates, M × dim × 4 bytes per node. 48 candidates of 960 components are
//! 184 KB, 31 ms for a million nodes at the 6 TB/s of the L2 cache, where the candidates of nodes
//! in flight lie. Bound by latency instead: two blocks to a multiprocessor, and one warp that
//! accepts candidates.

mod products;
mod score;

use cuda_std::prelude::*;
use cuda_std::{float, shared};

use super::filter::{FILTER_THREADS, PruneFilter, filter_shared_bytes, wavefront};
use super::rule::{Form, Spread};
use crate::block::exact::query_bytes;
use crate::block::rows::RulePoint;
use crate::block::threads::Threads;
use crate::key::{self, Key, NONE};

/// Threads per block, one node per block.
pub const GRAM_THREADS: u32 = FILTER_THREADS;

/// Maximum number of candidates of a node whose products are computed.
pub const LINES: u32 = 48;

/// Candidates with products, of `stride` slots.
const fn lines_of(stride: u32) -> u32 {
    if stride < LINES { stride } else { LINES }
}

/// Products of all pairs of `lines` candidates, each with itself too.
const fn pairs(lines: u32) -> u32 {
    lines * (lines + 1) / 2
}

/// Dynamic shared memory in bytes.
pub const fn gram_shared_bytes(stride: u32, dim: u32) -> u32 {
    let lines = lines_of(stride);
    let (chunks, scores) = (products::chunk_bytes(lines), products_bytes(lines) + score::bytes(lines));
    let room = if chunks < scores { scores } else { chunks };
    let bytes = query_bytes(dim) + lines * LINE_BYTES + room + 16;
    let wavefront = filter_shared_bytes(stride, dim, Form::Score);
    if bytes < wavefront { wavefront } else { bytes }
}

/// Bytes of the products, a multiple of 16.
const fn products_bytes(lines: u32) -> u32 {
    (pairs(lines) * 4).next_multiple_of(16)
}

/// Bytes of a candidate in shared memory: its key, norm and error.
const LINE_BYTES: u32 = 8 + 4 + 4;

/// The candidates of a block's node, in shared memory.
struct Lines<'a> {
    p: &'a PruneFilter<f32>,
    /// A row, for exact distances.
    values: Shared<f32>,
    keys: Shared<Key>,
    /// Squared norms of the rounded differences, and bounds on what rounding moved, in the units of
    /// products.
    norms: Shared<f32>,
    errors: Shared<f32>,
    /// Chunks of differences; then products of pairs, and scores after them.
    room: Shared<u8>,
    count: u32,
    /// The relative loss of sums of products.
    drift: f32,
    /// Differences are multiplied by this power of two, and distances by the square of its inverse.
    scale: f32,
    unscale: f32,
}

/// Lower and upper bound of a distance that the CPU computes.
#[derive(Clone, Copy)]
struct Bounds {
    low: f32,
    high: f32,
}

impl<'a> Lines<'a> {
    /// Reads the candidates, at most [`LINES`]. The whole block calls this, and finds a
    /// barrier after it.
    #[inline(always)]
    fn read(p: &'a PruneFilter<f32>, candidates: Global<Key>) -> Self {
        let lines = lines_of(p.stride);
        let values: Shared<f32> = shared::dynamic(0);
        let keys: Shared<Key> = shared::dynamic(query_bytes(p.rows.dim) as usize);
        let norms: Shared<f32> = keys.offset(lines as usize).cast();
        let errors = norms.offset(lines as usize);
        let room = (query_bytes(p.rows.dim) + lines * LINE_BYTES).next_multiple_of(16);
        let i = thread::thread_idx_x();
        let key = if i < lines { candidates.get(i as usize) } else { NONE };
        if key != NONE {
            keys.set(i as usize, key);
        }
        let count = thread::sync_threads_count((key != NONE) as u32);
        let farthest = if count > 0 { key::distance(keys.get(count as usize - 1)) } else { 0.0 };
        let scale = scale_of(farthest);
        let drift = products::drift(p.rows.dim);
        Self {
            p,
            values,
            keys,
            norms,
            errors,
            room: shared::dynamic(room as usize),
            count,
            drift,
            scale,
            unscale: 1.0 / scale,
        }
    }

    /// The place of the product of candidates `a <= c`.
    #[inline(always)]
    fn place(a: u32, c: u32) -> usize {
        (c * (c + 1) / 2 + a) as usize
    }

    /// The room after the products.
    #[inline(always)]
    fn extra<T>(&self) -> Shared<T> {
        self.room.offset(products_bytes(self.count) as usize).cast()
    }

    /// The rule distance from the node to candidate `i`.
    #[inline(always)]
    fn distance(&self, i: u32) -> f32 {
        key::distance(self.keys.get(i as usize))
    }

    /// Bounds of the rule distance of candidates `a <= c`.
    ///
    /// Rounding moved each difference by at most its error, so the difference of both moved by at
    /// most both errors e: of length x after rounding, it had a squared length within `2 x e +
    /// e^2` of `x^2`. [`Self::drift`] bounds the loss of the sums, of tensor cores and of the CPU.
    /// Squares that are too small for f32 lose less than the least positive number. Where values
    /// beyond the range of f16 make the bounds infinite, any distance is possible.
    #[inline(always)]
    fn bounds(&self, a: u32, c: u32) -> Bounds {
        let product = self.room.cast::<f32>().get(Self::place(a, c));
        let norm = self.norms.get(a as usize) + self.norms.get(c as usize);
        let error = self.errors.get(a as usize) + self.errors.get(c as usize);
        // Norms lose as much as products.
        let (squared, slack) = (norm - 2.0 * product, 2.0 * self.drift * norm);
        let length = float::sqrt((squared + slack).max(0.0));
        let slack = slack + (2.0 * length + error) * error;
        let unscale = self.unscale * self.unscale;
        let low = (squared - slack) * unscale * (1.0 - self.drift) - f32::MIN_POSITIVE;
        let high = (squared + slack) * unscale * (1.0 + self.drift) + f32::MIN_POSITIVE;
        if high < f32::MAX { Bounds { low: low.max(0.0), high } } else { Bounds { low: 0.0, high: f32::MAX } }
    }

    /// The row of candidate `i`.
    #[inline(always)]
    fn id(&self, i: u32) -> u32 {
        key::id(self.keys.get(i as usize))
    }

    /// Candidate `i`, for exact distances from it. The whole warp calls this.
    #[inline(always)]
    fn point(&self, i: u32) -> RulePoint<f32> {
        warp::sync();
        self.p.rows.load(self.values, self.id(i), Threads::new(warp::lane_id(), 32));
        warp::sync();
        self.p.rows.point(self.values, self.id(i))
    }
}

/// The power of two by which differences of rows up to this squared distance from the node are
/// multiplied: components are then below 2^15, and squares of the factor and its inverse are in the
/// range of f32.
#[inline(always)]
fn scale_of(farthest: f32) -> f32 {
    let exponent = (farthest.to_bits() >> 23 & 255) as i32 - 127;
    let power = (14 - (exponent >> 1)).min(60);
    f32::from_bits(((power + 127) as u32) << 23)
}

/// Filters candidates by [`Spread`] (see the module).
///
/// Launch: a block of [`GRAM_THREADS`] per node; [`gram_shared_bytes`]. Not for inner products.
///
/// # Safety
/// - The views match the fields of [`PruneFilter`].
#[kernel(
    unsafe,
    block = GRAM_THREADS,
    shared = gram_shared_bytes(p.stride, p.rows.dim),
    blocks_per_multiprocessor = 2
)]
pub unsafe fn prune_gram_spread(p: PruneFilter<f32>, rule: Spread) {
    let node = p.node();
    let has_more = p.stride > LINES && node.candidates.get(LINES as usize) != NONE;
    if has_more || p.keeps_all(node) {
        return wavefront(&p, &rule);
    }
    let lines = Lines::read(&p, node.candidates);
    lines.multiply();
    score::select(&lines, &rule, node.out);
}
