//! Element types of vectors, and the arithmetic of kernels on them.
//!
//! [`Element`] computes exact distances, four lanes to a distance: the sums of the CPU backend, bit
//! for bit. Tensor cores compute on the types of [`super::sums`].

use cuda_std::float16::f16x2;
use cuda_std::memory::{Global, Plain, Quad};
use cuda_std::shared::Shared;
use cuda_std::warp::{WarpShuffleValue, shuffle_xor};
use cuda_std::{bytes, f16, float16, keep_rolled, unroll};

use super::exact::Metric;

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
    /// rows are under way at once: `LOADS` of each row, 2 to 8, and 2 if the type is a byte.
    ///
    /// Rows and query begin at multiples of 16 bytes. Zeros follow the last component: of a row up
    /// to a multiple of 16 bytes, of the query up to a multiple of [`PIECE`](Self::PIECE).
    fn sums_of_group<const N: usize, const LOADS: usize>(
        metric: Metric,
        query: Shared<Self::Query>,
        norm: Self::Wide,
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
            fn sums_of_group<const N: usize, const LOADS: usize>(
                metric: Metric,
                query: Shared<f32>,
                _: f32,
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
                const STEP: u32 = GROUP * <$type as Element>::PIECE;
                let mut i = part * Self::PIECE;
                // The rest of a row takes two loads at a time.
                while LOADS > 2 && i + (LOADS as u32 - 1) * STEP < dim {
                    keep_rolled();
                    let mut loaded = [[[0.0; 4]; N]; LOADS];
                    unroll!(8, A => {
                        if A < LOADS {
                            loaded[A] = rows.map(|row| $four(row, i + A as u32 * STEP));
                        }
                    });
                    unroll!(8, A => {
                        if A < LOADS {
                            let of_query = query.get_quad((i + A as u32 * STEP) as usize);
                            for n in 0..N {
                                add(&mut sums[n], loaded[A][n], of_query);
                            }
                        }
                    });
                    i += LOADS as u32 * STEP;
                }
                while i < dim {
                    keep_rolled();
                    // Two loads per row are under way before the first is used.
                    let next = i + STEP;
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
                    i = next + STEP;
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
            fn sums_of_group<const N: usize, const LOADS: usize>(
                metric: Metric,
                query: Shared<$type>,
                norm: i32,
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

    /// The sum as a distance, or as part of a key; i32 is rounded.
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
