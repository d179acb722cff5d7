//! Norms of rows in f64, and unit vectors, bit for bit as the CPU backend.
//!
//! # Algorithm
//!
//! ```text
//! vectors_squares: for each row, one thread: add the squares up in f64, component by component
//! host:            square roots
//! vectors_unit:    for each row, one warp: value / norm in f64, rounded to f32; zero vectors as
//!                  they are
//! ```
//!
//! # Buffers
//!
//! | buffer | shape |
//! | --- | --- |
//! | `rows` | see [`Strided`] |
//! | `squares`, `norms` | `count` |
//! | `to` | `count` × `to_stride` |
//!
//! # Speed
//!
//! Bound by memory. The thread of a row uses whole lines of the cache one after another.

use cuda_std::keep_rolled;
use cuda_std::prelude::*;
use cuda_std::thread::{block_idx_x, index_1d};

use super::{Strided, VECTOR_ROWS, VECTOR_THREADS};
use crate::block::copied;
use crate::block::element::{Element, Wide};

/// Arguments of the kernels `vectors_unit_*`.
#[repr(C)]
pub struct Unit<T> {
    /// In: the rows.
    pub rows: Strided<T>,
    /// In: the norm of each row.
    pub norms: Global<f64>,
    /// Out: the unit vectors, `to_stride` values apart.
    pub to: GlobalMut<f32>,
    /// Values from one unit vector to the next; zeros fill the gaps.
    pub to_stride: u64,
}

copied! {
    Unit<T>;
}

#[inline(always)]
fn component<T: Element>(value: T) -> f64 {
    value.wide().to_f32() as f64
}

#[inline(always)]
fn squares<T: Element>(rows: Strided<T>, squares: GlobalMut<f64>) {
    let row = index_1d();
    if row >= rows.count {
        return;
    }
    let values = rows.row(row);
    let (mut sum, mut i) = (0f64, 0);
    while i < rows.dim {
        keep_rolled();
        let value = component(values.get(i as usize));
        sum += value * value;
        i += 1;
    }
    squares.set(row as usize, sum);
}

#[inline(always)]
fn unit<T: Element>(p: &Unit<T>) {
    let row = block_idx_x() * VECTOR_ROWS + thread::warp_idx();
    if row >= p.rows.count {
        return;
    }
    let (from, norm) = (p.rows.row(row), p.norms.get(row as usize));
    let to = p.to.offset(row as usize * p.to_stride as usize);
    let mut i = warp::lane_id();
    while i < p.to_stride as u32 {
        keep_rolled();
        let mut value = 0.0;
        if i < p.rows.dim {
            let component = component(from.get(i as usize));
            value = if norm > 0.0 { (component / norm) as f32 } else { component as f32 };
        }
        to.set(i as usize, value);
        i += 32;
    }
}

macro_rules! norm_kernels {
    ($($squares:ident $unit:ident $type:ty;)*) => {$(
        /// Adds up the squares of each row, in order.
        ///
        /// Launch: a thread per row, in blocks of [`VECTOR_THREADS`]. `squares` holds a value per
        /// row.
        ///
        /// # Safety
        /// - `squares` has the shape above, and `rows` matches [`Strided`].
        #[kernel(unsafe, block = VECTOR_THREADS)]
        pub unsafe fn $squares(rows: Strided<$type>, squares: GlobalMut<f64>) {
            self::squares(rows, squares);
        }

        /// Divides each row by its norm (see [`Unit`]).
        ///
        /// Launch: a block of [`VECTOR_THREADS`] per [`VECTOR_ROWS`] rows.
        ///
        /// # Safety
        /// - The views match the fields of [`Unit`].
        #[kernel(unsafe, block = VECTOR_THREADS)]
        pub unsafe fn $unit(p: Unit<$type>) {
            unit(&p);
        }
    )*};
}

norm_kernels! {
    vectors_squares_f32 vectors_unit_f32 f32;
    vectors_squares_f16 vectors_unit_f16 f16;
    vectors_squares_u8 vectors_unit_u8 u8;
    vectors_squares_i8 vectors_unit_i8 i8;
}
