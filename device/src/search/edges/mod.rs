//! Codes of edges: a bit per dimension for each edge of a graph, stored beside the edges, from
//! which a search estimates how far the neighbours of a node are without reading their vectors.
//!
//! An edge from `p` to `o` holds the signs of the rotated difference `u = R(o - p)` (RaBitQ: Gao
//! and Long 2024; beside the edges: SymphonyQG, Gou et al. 2025). Of all vectors with these signs
//! the direction of `u` is estimated by the signs themselves, so for any `v`
//!
//! ```text
//! <o - p, v>   ~   factor <signs, Rv>,   factor = |u|^2 / sum of |u_i|
//! ```
//!
//! which is exact for `v = o - p` and else errs by about `0.75 |v| |u| / sqrt(dim)`. A search at
//! `p` knows the distance of `p` from the query `q`, and takes `v = q - p`:
//!
//! ```text
//! |q - o|^2  =  |q - p|^2 + |o - p|^2 - 2 <o - p, q - p>
//!            ~  |q - p|^2 + offset - 2 factor <signs, R(q - c)>
//! offset     =  |u|^2 + 2 factor <signs, R(p - c)>
//! ```
//!
//! with a center `c` of the rows, so that both products are small. Under cosine all is half of
//! that, for unit vectors. Inner products take `v = q - c`, since nodes may be longer than queries:
//!
//! ```text
//! -<q, o>    ~  -<q, p> + offset - factor <signs, R(q - c)>,   offset = -<o - p, c>
//! ```
//!
//! A query's code has [`PLANES`] bits per dimension, bit by bit, and a product is a count of ones:
//! an integer, the same on every processor.
//!
//! | of each | words of 32 bits |
//! | --- | --- |
//! | node | [`row_words`]: bits, [`slots`] of edges for each word; factors, offsets of edges |
//! | query | [`query_words`]: words of bits × [`PLANES`], then step and sum of the code |

use crate::block::exact::Metric;

pub mod code;
pub mod query;

/// Bits of a component of a query's code, the highest of weight `-2^7`.
pub const PLANES: u32 = 8;

/// Words of the bits of an edge.
pub const fn words(dim: u32) -> u32 {
    dim.div_ceil(32)
}

/// Slots of a node's edges: processors take 16 at a time.
pub const fn slots(degree: u32) -> u32 {
    degree.next_multiple_of(16)
}

/// Words of the codes of a node's edges.
pub const fn row_words(dim: u32, degree: u32) -> u32 {
    (words(dim) + 2) * slots(degree)
}

/// Words of a query's code.
pub const fn query_words(dim: u32) -> u32 {
    words(dim) * PLANES + 2
}

/// The weight of the ones of a plane of a query's code, in a sum over planes.
#[inline(always)]
pub const fn weighed(ones: u32, plane: u32) -> i32 {
    let sum = (ones << plane) as i32;
    if plane == PLANES - 1 { -sum } else { sum }
}

/// The product of an edge's signs with a query's code: `ones` is the weighed sum of the ones that
/// both have, `sum` that of the code's components.
#[inline(always)]
pub const fn product(ones: i32, sum: i32) -> i32 {
    2 * ones - sum
}

/// The estimated list distance of a query to the node that an edge leads to. `from` is that of the
/// node where the edge begins, `step` a level of the query's code.
#[inline(always)]
pub fn estimate(from: f32, offset: f32, factor: f32, product: i32, step: f32) -> f32 {
    from + (offset - factor * (step * product as f32))
}

/// Sums over the components of an edge's rotated difference `u`.
#[derive(Clone, Copy, Default)]
pub struct Sums {
    /// Of the squares.
    pub square: f32,
    /// Of the magnitudes.
    pub magnitude: f32,
    /// Of the components of the edge's first node less the center, with the signs of `u`.
    pub signed: f32,
    /// Of the products of the center and the difference, before the rotation.
    pub product: f32,
}

impl Sums {
    /// Factor and offset of the edge in [`estimate`].
    #[inline(always)]
    pub fn terms(self, metric: Metric) -> (f32, f32) {
        let Self { square, magnitude, signed, product } = self;
        // Equal rows have no direction.
        let factor = if magnitude > 0.0 { square / magnitude } else { 0.0 };
        match metric {
            Metric::L2 => (2.0 * factor, square + 2.0 * (factor * signed)),
            Metric::Cosine => (factor, 0.5 * square + factor * signed),
            Metric::InnerProduct => (factor, -product),
        }
    }
}
