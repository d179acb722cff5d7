//! Sums of products on tensor cores, and the bounds of their rounding.
//!
//! Why a filter on rounded vectors loses nothing ([`TileSum::bound`]): rounding moves a query by
//! `error` and a row by `row_error` or less, both measured. By the triangle inequality a row at
//! distance d is within `b = sqrt(d) + error + row_error` as the tile sees it, plus the loss of f32
//! sums, which is a share of the norms of both ([`drift`]). Where rounding moves a row further, by
//! x more, it is within `b + x`, and for any t > 0
//!
//! ```text
//! (b + x)² <= b² (1 + t) + x² (1 + 1 / t)
//! ```
//!
//! So the bound of the query takes the first term, and the bias of the row the second, with its
//! share of the loss: one far row among many costs the others nothing.
//!
//! Of inner products, queries are scaled to one norm before rounding, which changes no order of
//! their rows. Then what rounding changes depends on the row alone ([`product_loss`]), and the bias
//! takes all of it.

use cuda_std::float16::f16x2;
use cuda_std::memory::Quad;
use cuda_std::{bytes, f16, float, float16, tensor, unroll};

use super::element::Wide;
use super::exact::Metric;
use crate::key;

/// Element types whose products have sums of type `S`.
pub trait Products<S> {
    /// `sum` plus the products of the components in 16 bytes.
    fn add_products(sum: S, a: Quad, b: Quad) -> S;
}

/// Element types of tensor-core tiles.
pub trait TileElement: tensor::Element<Sum: TileSum> + Products<<Self as tensor::Element>::Sum> {}

impl TileElement for f16 {}

impl Products<f32> for f16 {
    #[inline(always)]
    fn add_products(sum: f32, a: Quad, b: Quad) -> f32 {
        let mut sum = sum;
        unroll!(4, W => {
            let (a, b) = (f16x2(a.0[W]), f16x2(b.0[W]));
            sum = float::mul_add(float16::to_f32(a.low()), float16::to_f32(b.low()), sum);
            sum = float::mul_add(float16::to_f32(a.high()), float16::to_f32(b.high()), sum);
        });
        sum
    }
}

macro_rules! byte_products {
    ($($type:ty: $dot:path;)*) => {$(
        impl TileElement for $type {}

        impl Products<i32> for $type {
            #[inline(always)]
            fn add_products(sum: i32, a: Quad, b: Quad) -> i32 {
                let mut sum = sum;
                unroll!(4, W => sum = $dot(a.0[W], b.0[W], sum));
                sum
            }
        }
    )*};
}

byte_products! {
    u8: bytes::dot_u8;
    i8: bytes::dot_i8;
}

/// Packed bits, 128 in 16 bytes: the zeros and ones of bytes in an eighth of the memory.
#[derive(Clone, Copy, Debug)]
pub struct Bits;

impl Products<i32> for Bits {
    #[inline(always)]
    fn add_products(sum: i32, a: Quad, b: Quad) -> i32 {
        let mut sum = sum;
        unroll!(4, W => sum += (a.0[W] & b.0[W]).count_ones() as i32);
        sum
    }
}

/// Sums of a tile: f32 for f16, i32 for bytes.
///
/// The *value* of a row for a query is `bias + weight * product`: the distance less the part that
/// depends on the query alone. *Nearness* is minus half of a squared distance.
pub trait TileSum: Wide + Default + PartialOrd {
    /// Whether sums of products are exact, so that they may begin at any number.
    const EXACT: bool;
    /// The bias of a row that no query finds.
    const NEVER: Self;
    /// The bound above all rows but those of bias [`NEVER`](Self::NEVER).
    const UNBOUNDED: Self;
    /// The bound below all rows.
    const CLOSED: Self;

    /// `bias + weight * product`.
    fn value(bias: Self, weight: Self, product: Self) -> Self;

    /// The part of a query in the margin of a pair: `bound / |weight|`, with a weight of -2 or -1.
    ///
    /// The *margin* is the product of a pair plus this part and that [of the
    /// row](Self::margin_of_row). If the [value](Self::value) of the row is below the bound, it is
    /// not negative; if it is above the bound, it is negative; if it is the bound, either.
    fn margin_of_query(bound: Self, weight: Self) -> Self;

    /// The part of a row in the margin of a pair: `-bias / |weight|`.
    fn margin_of_row(bias: Self, weight: Self) -> Self;

    /// `bits` shifted left by one, with the sign of `a - b` as the lowest bit.
    fn push_below(bits: u32, a: Self, b: Self) -> u32;

    /// The smaller of two values.
    fn smaller(a: Self, b: Self) -> Self;

    /// The term of a squared norm in nearness: minus half of it; of integers, the norm itself.
    fn term(norm: Self) -> Self;

    /// The part of a vector with this term in the initial nearness of a pair: minus half of its
    /// norm; of integers, rounded up. The sum of products added, it is minus half of the squared
    /// distance.
    fn half(term: Self) -> Self;

    /// Of exact sums, `a - b - 1`: negative unless `a` is above `b`.
    fn excess(a: Self, b: Self) -> Self;

    /// The `a` of an [`excess`](Self::excess) over `b`.
    fn from_excess(excess: Self, b: Self) -> Self;

    /// The value of the vector of term `other` for that of term `term`, at this nearness. The bits
    /// do not depend on which of the two was the row.
    fn from_nearness(nearness: Self, term: Self, other: Self) -> Self;

    /// The threshold of nearness of a vector with this squared norm: every vector whose
    /// [value](Self::from_nearness) for it is below `bound` is above the threshold. Of integers, a
    /// value of `bound` or `bound + 1` may be as well.
    fn nearness(bound: Self, norm: Self) -> Self;

    /// Whether `a` is above `b`.
    fn above(a: Self, b: Self) -> bool;

    /// An integer with the order of values, not 0.
    fn ordered(self) -> u32;

    /// The inverse of [`ordered`](Self::ordered).
    fn from_ordered(bits: u32) -> Self;

    /// The bound for the value of a key. The largest values give [`UNBOUNDED`](Self::UNBOUNDED).
    fn from_f32(value: f32) -> Self;

    /// The bound of a query whose k-th distance so far is `farthest`: every row whose exact
    /// distance is below `farthest` has a [`value`](Self::value) below the bound.
    fn bound(farthest: f32, query: &QueryBound<Self>) -> Self;
}

/// Inputs of a query's bound.
#[derive(Clone, Copy, Debug)]
pub struct QueryBound<S> {
    /// The metric.
    pub metric: Metric,
    /// Components per vector.
    pub dim: u32,
    /// The squared norm of the query as the tile sees it; of inner products in f16, the factor that
    /// made its norm [`UNIT`].
    pub norm: S,
    /// The norm of the difference between the query and its rounded vector, scaled.
    pub error: f32,
    /// The `error_limit` of the rows.
    pub row_error: f32,
    /// The factor of rows before rounding.
    pub scale: f32,
}

/// The t of rows that rounding moves by more than the limit.
const SPREAD: f32 = 1.0 / 1024.0;

/// The bias of a row of squared norm `norm`, of `dim` components, that rounding moved by `error`.
#[inline(always)]
pub fn biased(norm: f32, dim: u32, error: f32, row_error: f32) -> f32 {
    let excess = (error - row_error).max(0.0);
    norm - drift(dim) * norm - (1.0 + 1.0 / SPREAD) * excess * excess
}

/// The norm of queries of inner products before rounding.
pub const UNIT: f32 = 1024.0;

/// A bound on what rounding changes in the inner product of a query of norm [`UNIT`] with a row of
/// norm `norm`, of `dim` components, that rounding moved by `error`.
///
/// The query is moved by at most half a unit in the last place of each component. `drift` bounds
/// the loss of the sums, here and in the exact product.
#[inline(always)]
pub fn product_loss(norm: f32, dim: u32, error: f32) -> f32 {
    let query_error = UNIT * (1.0 / 2048.0 + 1.0 / (1u32 << 20) as f32);
    let loss = UNIT * error + (query_error + 2.0 * drift(dim) * UNIT) * (norm + error);
    loss * (1.0 + 1.0 / 256.0)
}

/// A bound of the relative error of a sum of `dim` products, with a margin. Tensor cores lose up to
/// 8 units of 2^-23 of the largest addend per 16 products.
#[inline(always)]
pub fn drift(dim: u32) -> f32 {
    (dim / 4 + 16) as f32 * (1.0 / (1u32 << 22) as f32)
}

impl TileSum for f32 {
    const EXACT: bool = false;
    const NEVER: Self = f32::INFINITY;
    const UNBOUNDED: Self = f32::INFINITY;
    const CLOSED: Self = f32::NEG_INFINITY;

    #[inline(always)]
    fn value(bias: Self, weight: Self, product: Self) -> Self {
        float::mul_add(weight, product, bias)
    }

    // Infinite bounds and biases become numbers, so that no margin is the difference of infinities.
    // A row that no query finds, or a closed query, outweighs the others.
    #[inline(always)]
    fn margin_of_query(bound: Self, weight: Self) -> Self {
        (bound * if weight == -2.0 { 0.5 } else { 1.0 }).clamp(-3e38, 1e38)
    }

    #[inline(always)]
    fn margin_of_row(bias: Self, weight: Self) -> Self {
        Self::margin_of_query(-bias, weight)
    }

    #[inline(always)]
    fn push_below(bits: u32, a: Self, b: Self) -> u32 {
        bits << 1 | (a - b).to_bits() >> 31
    }

    #[inline(always)]
    fn smaller(a: Self, b: Self) -> Self {
        a.min(b)
    }

    #[inline(always)]
    fn term(norm: Self) -> Self {
        -0.5 * norm
    }

    #[inline(always)]
    fn half(term: Self) -> Self {
        term
    }

    #[inline(always)]
    fn excess(a: Self, b: Self) -> Self {
        a - b
    }

    #[inline(always)]
    fn from_excess(excess: Self, b: Self) -> Self {
        excess + b
    }

    #[inline(always)]
    fn from_nearness(nearness: Self, term: Self, _: Self) -> Self {
        float::mul_add(-2.0, nearness, 2.0 * term)
    }

    #[inline(always)]
    fn nearness(bound: Self, norm: Self) -> Self {
        -0.5 * (bound + norm)
    }

    #[inline(always)]
    fn above(a: Self, b: Self) -> bool {
        a > b
    }

    #[inline(always)]
    fn ordered(self) -> u32 {
        key::ordered(self)
    }

    #[inline(always)]
    fn from_ordered(bits: u32) -> Self {
        key::from_ordered(bits)
    }

    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        value
    }

    // By the triangle inequality the distance of two rounded vectors differs from that of the
    // originals by at most the two errors. `drift` bounds the loss of the sums. Those of a pair at
    // the bound begin at minus its product, so what they hold is no longer than products alone.
    #[inline(always)]
    fn bound(farthest: f32, query: &QueryBound<Self>) -> Self {
        let QueryBound { metric, dim, norm, error, row_error, scale } = *query;
        let drift = drift(dim);
        let bound = match metric {
            Metric::L2 | Metric::Cosine => {
                let squared = if metric == Metric::Cosine { 2.0 * farthest } else { farthest };
                let moved = float::sqrt(squared * (1.0 + drift)) * scale + error + row_error;
                moved * moved * (1.0 + SPREAD) * (1.0 + drift) + drift * norm - norm
            }
            Metric::InnerProduct => {
                let scaled = farthest * norm * scale;
                scaled + scaled.abs() * drift
            }
        };
        // A few huge values may overflow the scale, and a tiny query has none. A bound of minus
        // infinity or NaN then opens the query to all rows.
        if bound > Self::CLOSED { bound } else { Self::UNBOUNDED }
    }
}

impl TileSum for i32 {
    const EXACT: bool = true;
    const NEVER: Self = 0x4000_0000;
    const UNBOUNDED: Self = 0x3fff_ffff;
    const CLOSED: Self = i32::MIN;

    #[inline(always)]
    fn value(bias: Self, weight: Self, product: Self) -> Self {
        bias + weight * product
    }

    // Rounded up. A pair below the bound has a margin of at least 1 before 1 is subtracted. The
    // bound of a closed query becomes the least that no bias makes overflow.
    #[inline(always)]
    fn margin_of_query(bound: Self, weight: Self) -> Self {
        let bound = bound.max(1 - Self::NEVER);
        (if weight == -2 { (bound + 1) >> 1 } else { bound }) - 1
    }

    #[inline(always)]
    fn margin_of_row(bias: Self, weight: Self) -> Self {
        -(if weight == -2 { bias >> 1 } else { bias })
    }

    #[inline(always)]
    fn push_below(bits: u32, a: Self, b: Self) -> u32 {
        bits << 1 | (a - b) as u32 >> 31
    }

    #[inline(always)]
    fn smaller(a: Self, b: Self) -> Self {
        a.min(b)
    }

    #[inline(always)]
    fn term(norm: Self) -> Self {
        norm
    }

    #[inline(always)]
    fn half(term: Self) -> Self {
        -(term >> 1)
    }

    #[inline(always)]
    fn excess(a: Self, b: Self) -> Self {
        a - b - 1
    }

    #[inline(always)]
    fn from_excess(excess: Self, b: Self) -> Self {
        excess + b + 1
    }

    // Adds the bits that halving cut off.
    #[inline(always)]
    fn from_nearness(nearness: Self, term: Self, other: Self) -> Self {
        (other & 1) - (term & !1) - 2 * nearness
    }

    #[inline(always)]
    fn nearness(bound: Self, norm: Self) -> Self {
        -((bound + norm + 1) >> 1)
    }

    #[inline(always)]
    fn above(a: Self, b: Self) -> bool {
        a > b
    }

    // `i32::MIN` is not a value, so no value maps to 0.
    #[inline(always)]
    fn ordered(self) -> u32 {
        self as u32 ^ 0x8000_0000
    }

    #[inline(always)]
    fn from_ordered(bits: u32) -> Self {
        (bits ^ 0x8000_0000) as i32
    }

    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        (value as i32).min(Self::UNBOUNDED)
    }

    // Products are exact. Only the distance as f32 is rounded.
    #[inline(always)]
    fn bound(farthest: f32, query: &QueryBound<Self>) -> Self {
        let farthest = if query.metric == Metric::Cosine { 2.0 * farthest } else { farthest };
        let rounded = if farthest < 0.0 { -farthest } else { farthest } * (1.0 / (1u32 << 23) as f32);
        let farthest = farthest as i32 + rounded as i32 + 2;
        match query.metric {
            Metric::L2 | Metric::Cosine => farthest - query.norm,
            Metric::InnerProduct => farthest,
        }
    }
}
