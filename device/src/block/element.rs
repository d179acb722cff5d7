//! Element types of vectors, and the arithmetic of kernels on them.
//!
//! [`Element`] computes exact distances, four lanes to a distance: the sums of the CPU backend, bit
//! for bit. [`TileElement`] and [`TileSum`] compute on tensor cores and bound their rounding.
//!
//! Why a filter on rounded vectors loses nothing ([`TileSum::bound`]): rounding moves a query by
//! `error`, and a row by at most `row_error`, both measured. By the triangle inequality a row at
//! distance d is within `sqrt(d) + error + row_error` as the tile sees it, plus the loss of f32
//! sums.

use cuda_std::compare::{mark_below_f32, mark_below_i32};
use cuda_std::float16::f16x2;
use cuda_std::memory::{Global, Plain, Quad};
use cuda_std::shared::Shared;
use cuda_std::warp::{WarpShuffleValue, shuffle_xor};
use cuda_std::{bytes, f16, float, float16, keep_rolled, tensor, unroll};

use super::exact::Metric;
use crate::key;

/// A component type of vectors.
pub trait Element: Plain + Default {
    /// The type of exact sums: f32, or i32 for bytes.
    type Wide: Wide;

    /// The component type of a query in shared memory.
    type Query: Plain;

    /// The exact value.
    fn wide(self) -> Self::Wide;

    /// The value as a component of a query.
    fn query(self) -> Self::Query;

    /// Components that a lane of a group of four takes at once.
    const PIECE: u32;

    /// The lane's part of a query's squared norm; 0 where distances do not use it.
    fn norm_of_part(query: Shared<Self::Query>, part: u32, dim: u32) -> Self::Wide;

    /// The metric's sums over `dim` components of a query and each of `N` rows, in every lane of
    /// each group of four. Lane `part` of a group passes its part of the query's norm. Loads of all
    /// rows are under way at once.
    ///
    /// Rows and query begin at multiples of 16 bytes. Zeros follow the last component: of a row up
    /// to a multiple of 16 bytes, of the query up to a multiple of [`PIECE`](Self::PIECE).
    fn sums_of_group<const N: usize>(
        metric: Metric,
        query: (Shared<Self::Query>, Self::Wide),
        rows: [Global<Self>; N],
        part: u32,
        dim: u32,
    ) -> [Self::Wide; N];
}

/// Lanes that compute an exact distance together.
pub const GROUP: u32 = 4;

macro_rules! float_elements {
    ($($type:ty: $wide:expr, $four:expr;)*) => {$(
        impl Element for $type {
            type Wide = f32;
            type Query = f32;

            const PIECE: u32 = 4;

            #[inline(always)]
            fn wide(self) -> f32 {
                ($wide)(self)
            }

            #[inline(always)]
            fn query(self) -> f32 {
                ($wide)(self)
            }

            #[inline(always)]
            fn norm_of_part(_: Shared<f32>, _: u32, _: u32) -> f32 {
                0.0
            }

            // The CPU's order: sixteen sums, four to a lane, of the components `i, i + 16, ...`,
            // added as a tree.
            #[inline(always)]
            fn sums_of_group<const N: usize>(
                metric: Metric,
                (query, _): (Shared<f32>, f32),
                rows: [Global<Self>; N],
                part: u32,
                dim: u32,
            ) -> [f32; N] {
                let add = |sums: &mut [f32; 4], x: [f32; 4], y: Quad| {
                    unroll!(4, C => {
                        let (x, y): (f32, f32) = (x[C], f32::from_bits(y.0[C]));
                        sums[C] = match metric {
                            Metric::InnerProduct => sums[C] + y * x,
                            Metric::L2 | Metric::Cosine => sums[C] + (y - x) * (y - x),
                        };
                    });
                };
                let mut sums = [[0f32; 4]; N];
                let mut i = part * Self::PIECE;
                while i < dim {
                    keep_rolled();
                    // Two loads per row are under way before the first is used.
                    let next = i + GROUP * Self::PIECE;
                    let first = rows.map(|row| $four(row, i));
                    let second = rows.map(|row| if next < dim { $four(row, next) } else { [0.0; 4] });
                    let of_query = query.get_quad(i as usize);
                    for n in 0..N {
                        add(&mut sums[n], first[n], of_query);
                    }
                    let of_query = if next < dim { query.get_quad(next as usize) } else { Quad::default() };
                    for n in 0..N {
                        add(&mut sums[n], second[n], of_query);
                    }
                    i = next + GROUP * Self::PIECE;
                }
                sums.map(|mut sums| {
                    unroll!(4, C => sums[C] += shuffle_xor(sums[C], 2));
                    unroll!(4, C => sums[C] += shuffle_xor(sums[C], 1));
                    (sums[0] + sums[2]) + (sums[1] + sums[3])
                })
            }
        }
    )*};
}

/// Components `i` to `i + 3`; `i` is a multiple of four.
#[inline(always)]
#[track_caller]
fn four_floats(row: Global<f32>, i: u32) -> [f32; 4] {
    let quad = row.get_quad(i as usize);
    let mut four = [0.0; 4];
    unroll!(4, C => four[C] = f32::from_bits(quad.0[C]));
    four
}

/// Components `i` to `i + 3`; `i` is a multiple of four.
#[inline(always)]
#[track_caller]
fn four_halves(row: Global<f16>, i: u32) -> [f32; 4] {
    let words = row.offset(i as usize).cast::<u64>().get(0);
    let (low, high) = (f16x2(words as u32), f16x2((words >> 32) as u32));
    [low.low(), low.high(), high.low(), high.high()].map(float16::to_f32)
}

float_elements! {
    f32: |x| x, four_floats;
    f16: float16::to_f32, four_halves;
}

macro_rules! byte_elements {
    ($($type:ty: $dot:path;)*) => {$(
        impl Element for $type {
            type Wide = i32;
            type Query = $type;

            const PIECE: u32 = 16;

            #[inline(always)]
            fn wide(self) -> i32 {
                self as i32
            }

            #[inline(always)]
            fn query(self) -> $type {
                self
            }

            #[inline(always)]
            fn norm_of_part(query: Shared<$type>, part: u32, dim: u32) -> i32 {
                let mut sum = 0;
                let mut i = part * Self::PIECE;
                while i < dim {
                    keep_rolled();
                    let y = query.get_quad(i as usize);
                    unroll!(4, W => sum = $dot(y.0[W], y.0[W], sum));
                    i += GROUP * Self::PIECE;
                }
                sum
            }

            // Sums of integers are exact in any order.
            #[inline(always)]
            fn sums_of_group<const N: usize>(
                metric: Metric,
                (query, norm): (Shared<$type>, i32),
                rows: [Global<$type>; N],
                part: u32,
                dim: u32,
            ) -> [i32; N] {
                let (mut norms, mut products) = ([norm; N], [0; N]);
                let mut i = part * Self::PIECE;
                while i < dim {
                    keep_rolled();
                    let next = i + GROUP * Self::PIECE;
                    let xs = rows.map(|row| row.get_quad(i as usize));
                    let xs_next = rows.map(|row| if next < dim { row.get_quad(next as usize) } else { Quad::default() });
                    let y = query.get_quad(i as usize);
                    let y_next = if next < dim { query.get_quad(next as usize) } else { Quad::default() };
                    for n in 0..N {
                        let (x, x_next) = (xs[n], xs_next[n]);
                        unroll!(4, W => {
                            products[n] = $dot(x.0[W], y.0[W], products[n]);
                            products[n] = $dot(x_next.0[W], y_next.0[W], products[n]);
                            norms[n] = $dot(x.0[W], x.0[W], norms[n]);
                            norms[n] = $dot(x_next.0[W], x_next.0[W], norms[n]);
                        });
                    }
                    i = next + GROUP * Self::PIECE;
                }
                let mut sums = products;
                for n in 0..N {
                    let sum = match metric {
                        Metric::InnerProduct => products[n],
                        // (y - x)^2 = y^2 + x^2 - 2 y x, exactly.
                        Metric::L2 | Metric::Cosine => norms[n] - 2 * products[n],
                    };
                    let sum = sum + shuffle_xor(sum, 2);
                    sums[n] = sum + shuffle_xor(sum, 1);
                }
                sums
            }
        }
    )*};
}

byte_elements! {
    u8: bytes::dot_u8;
    i8: bytes::dot_i8;
}

/// The type of exact sums. i32 sums of bytes are exact: 4096 * 255^2 < 2^31.
pub trait Wide: Plain + WarpShuffleValue {
    /// The empty sum.
    const ZERO: Self;

    /// `a + b`.
    fn plus(a: Self, b: Self) -> Self;

    /// `sum + a * b`, not fused.
    fn add_product(sum: Self, a: Self, b: Self) -> Self;

    /// The sum as a distance.
    fn to_f32(self) -> f32;
}

impl Wide for f32 {
    const ZERO: Self = 0.0;

    #[inline(always)]
    fn plus(a: Self, b: Self) -> Self {
        a + b
    }

    #[inline(always)]
    fn add_product(sum: Self, a: Self, b: Self) -> Self {
        sum + a * b
    }

    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }
}

impl Wide for i32 {
    const ZERO: Self = 0;

    #[inline(always)]
    fn plus(a: Self, b: Self) -> Self {
        a + b
    }

    #[inline(always)]
    fn add_product(sum: Self, a: Self, b: Self) -> Self {
        sum + a * b
    }

    #[inline(always)]
    fn to_f32(self) -> f32 {
        self as f32
    }
}

/// Element types of tensor-core tiles.
pub trait TileElement: tensor::Element<Sum: TileSum> {
    /// `sum` plus the products of the components in 16 bytes.
    fn add_products(sum: Self::Sum, a: Quad, b: Quad) -> Self::Sum;
}

impl TileElement for f16 {
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
        impl TileElement for $type {
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

/// Sums of a tile: f32 for f16, i32 for bytes.
///
/// The *value* of a row for a query is `bias + weight * product`: the distance less the part that
/// depends on the query alone. *Nearness* is minus half of a squared distance.
pub trait TileSum: WarpShuffleValue + Default + PartialOrd {
    /// The bias of a row that no query finds.
    const NEVER: Self;
    /// The bound above all rows but those of bias [`NEVER`](Self::NEVER).
    const UNBOUNDED: Self;
    /// The bound below all rows.
    const CLOSED: Self;

    /// `a + b`.
    fn plus(a: Self, b: Self) -> Self;

    /// `bias + weight * product`.
    fn value(bias: Self, weight: Self, product: Self) -> Self;

    /// `bits`, with `mask` set if `pair.0` is below `pair.1`.
    fn mark_below(bits: u32, mask: u32, pair: (Self, Self)) -> u32;

    /// `bits` shifted left by one, with the sign of `a - b` as the lowest bit.
    fn push_below(bits: u32, a: Self, b: Self) -> u32;

    /// The smaller of two values.
    fn smaller(a: Self, b: Self) -> Self;

    /// The term of a squared norm in nearness: minus half of it; of integers, the norm itself.
    fn term(norm: Self) -> Self;

    /// The initial nearness of two vectors with these terms: minus half of both norms; of integers,
    /// each rounded up. The sum of products added, it is minus half of the squared distance.
    fn begin_nearness(term: Self, other: Self) -> Self;

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

    /// The value as part of a key; i32 is rounded.
    fn to_f32(self) -> f32;

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
    /// The squared norm of the query as the tile sees it.
    pub norm: S,
    /// The norm of the difference between the query and its rounded vector, scaled.
    pub error: f32,
    /// The largest such norm of the rows with finite bias.
    pub row_error: f32,
    /// The largest squared norm of a row as the tile sees it.
    pub largest: f32,
    /// The factor of vectors before rounding; for inner products, the product of both sides'
    /// factors.
    pub scale: f32,
}

/// A bound of the relative error of a sum of `dim` products, with a margin. Tensor cores lose up to
/// 8 units of 2^-23 of the largest addend per 16 products.
#[inline(always)]
fn drift(dim: u32) -> f32 {
    (dim / 4 + 16) as f32 * (1.0 / (1u32 << 22) as f32)
}

impl TileSum for f32 {
    const NEVER: Self = f32::INFINITY;
    const UNBOUNDED: Self = f32::INFINITY;
    const CLOSED: Self = f32::NEG_INFINITY;

    #[inline(always)]
    fn plus(a: Self, b: Self) -> Self {
        a + b
    }

    #[inline(always)]
    fn value(bias: Self, weight: Self, product: Self) -> Self {
        float::mul_add(weight, product, bias)
    }

    #[inline(always)]
    fn mark_below(bits: u32, mask: u32, pair: (Self, Self)) -> u32 {
        mark_below_f32(bits, mask, pair)
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
    fn begin_nearness(term: Self, other: Self) -> Self {
        term + other
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
    fn to_f32(self) -> f32 {
        self
    }

    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        value
    }

    // By the triangle inequality the distance of two rounded vectors differs from that of the
    // originals by at most the two errors. `drift` bounds the loss of the sums.
    #[inline(always)]
    fn bound(farthest: f32, query: &QueryBound<Self>) -> Self {
        let QueryBound { metric, dim, norm, error, row_error, largest, scale } = *query;
        let drift = drift(dim);
        let bound = match metric {
            Metric::L2 | Metric::Cosine => {
                let squared = if metric == Metric::Cosine { 2.0 * farthest } else { farthest };
                let moved = float::sqrt(squared * (1.0 + drift)) * scale + error + row_error;
                let slack = drift * (norm + largest);
                moved * moved * (1.0 + drift) + slack - norm
            }
            Metric::InnerProduct => {
                let length = float::sqrt(norm) + error;
                let longest = float::sqrt(largest) + row_error;
                let moved = length * row_error + error * longest;
                farthest * scale + (1.0 + drift) * moved + 2.0 * drift * length * longest
            }
        };
        // A few huge values may overflow the scale. A bound of minus infinity or NaN then opens the
        // query to all rows. The least positive number lets equal rows pass when all vectors are
        // zero.
        if bound > Self::CLOSED { bound + f32::MIN_POSITIVE } else { Self::UNBOUNDED }
    }
}

impl TileSum for i32 {
    const NEVER: Self = 0x4000_0000;
    const UNBOUNDED: Self = 0x3fff_ffff;
    const CLOSED: Self = i32::MIN;

    #[inline(always)]
    fn plus(a: Self, b: Self) -> Self {
        a + b
    }

    #[inline(always)]
    fn value(bias: Self, weight: Self, product: Self) -> Self {
        bias + weight * product
    }

    #[inline(always)]
    fn mark_below(bits: u32, mask: u32, pair: (Self, Self)) -> u32 {
        mark_below_i32(bits, mask, pair)
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
    fn begin_nearness(term: Self, other: Self) -> Self {
        -(term >> 1) - (other >> 1)
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
    fn to_f32(self) -> f32 {
        self as f32
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
