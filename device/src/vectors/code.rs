//! Codes of vectors: one byte or two per component, bit for bit as the CPU backend.
//!
//! # Algorithm
//!
//! ```text
//! for each row, one block:
//!     values = the row, widened to f32, in shared memory
//!     for each transform of the rotation:
//!         its components *= their factors, then their Hadamard transform
//!     scale = that of all rows, or the largest code over the largest magnitude of this row
//!     code of a component = (value - mean) * scale, rounded; zeros fill the gap to the next row
//!     rest of a component = (value - mean) * scale - code, in the steps of a rest
//! ```
//!
//! A byte loses what lies between two levels, and beyond the last one. Its rest, a second byte,
//! tells both: in 256ths of a level, or in steps of [`CUT_STEP`] levels after a code that is cut.
//! Code and rest together hold about 15 bits of nearly all values.
//!
//! # Buffers
//!
//! | buffer | shape |
//! | --- | --- |
//! | `rows` | see [`Strided`] |
//! | `rotation` | `transforms` × `width` factors |
//! | `mean` | a value per component |
//! | `codes`, `rests` | `count` × `stride` |
//! | shared memory | one row in f32, and a word |
//!
//! # Speed
//!
//! A transform of `w` components takes log2 `w` passes over shared memory. Rows usually come from
//! the host, and the bus takes longer: 960 components of f32 in 70 ns.

use cuda_std::prelude::*;
use cuda_std::thread::{block_idx_x, sync_threads, thread_idx_x};
use cuda_std::{float16, keep_rolled, shared};

use super::Strided;
use crate::block::copied;
use crate::block::element::{Element, Wide};

/// Threads per block, one row per block.
pub const CODE_THREADS: u32 = 128;

/// Dynamic shared memory in bytes.
pub const fn code_shared_bytes(dim: u32) -> u32 {
    dim * 4 + 4
}

/// A type of codes.
pub trait Code: Plain + Default {
    /// The code of the largest magnitude that is held.
    const LARGEST: f32;

    /// The nearest code.
    fn of(x: f32) -> Self;

    /// What this code of `x` lacks; nothing for a type without rests.
    fn rest(self, _x: f32) -> Self {
        Self::default()
    }
}

/// Levels per step of the rest of a byte that is cut. So rests reach five times as far as codes.
pub const CUT_STEP: f32 = 4.0;

/// Levels per step of the rest of a code in bytes.
#[inline(always)]
fn step(code: i8) -> f32 {
    if code == 127 || code == -127 { CUT_STEP } else { 1.0 / 256.0 }
}

/// The value of a code in bytes and of its rest, exactly.
#[inline(always)]
pub fn whole(code: i8, rest: i8) -> f32 {
    f32::from(code) + f32::from(rest) * step(code)
}

impl Code for f16 {
    // Queries may be sixteen times as large before they are cut.
    const LARGEST: f32 = 4096.0;

    #[inline(always)]
    fn of(x: f32) -> Self {
        float16::from_f32(x.clamp(-65504.0, 65504.0))
    }
}

impl Code for i8 {
    const LARGEST: f32 = 127.0;

    #[inline(always)]
    fn of(x: f32) -> Self {
        // So large that its neighbours are whole numbers: the sum rounds to the nearest, ties to
        // even.
        const WHOLE: f32 = 12_582_912.0;
        (x.clamp(-127.0, 127.0) + WHOLE - WHOLE) as Self
    }

    #[inline(always)]
    fn rest(self, x: f32) -> Self {
        Self::of((x - f32::from(self)) / step(self))
    }
}

/// The first component of transform `number` of a rotation: where the dimension is no power of two,
/// transforms take the middle, the first, the last and the middle components again.
#[inline(always)]
pub const fn first_of_transform(number: u32, dim: u32, width: u32) -> u32 {
    match number % 3 {
        0 => (dim - width) / 2,
        1 => 0,
        _ => dim - width,
    }
}

/// Arguments of the kernels `vectors_code_*`.
#[repr(C)]
pub struct Coding<T, C> {
    /// In: the rows.
    pub rows: Strided<T>,
    /// In: the rotation.
    pub rotation: Rotation,
    /// In: what is taken off each component.
    pub mean: Global<f32>,
    /// Out: the codes, `stride` values apart.
    pub codes: GlobalMut<C>,
    /// Out with `has_rests`: their rests, as far apart.
    pub rests: GlobalMut<C>,
    /// Values from one code to the next, at least the dimension.
    pub stride: u64,
    /// The factor of all rows; 0 if each row has its own.
    pub scale: f32,
    /// 1 to write rests, else 0.
    pub has_rests: u32,
}

copied! {
    Coding<T, C>;
}

/// A rotation of vectors: Hadamard transforms with random signs.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Rotation {
    /// In: for each transform the factors of its components.
    pub factors: Global<f32>,
    /// Number of transforms.
    pub transforms: u32,
    /// Components of a transform: a power of two, at most the dimension.
    pub width: u32,
}

impl Rotation {
    /// Rotates `dim` values. A block of [`CODE_THREADS`] calls this after a barrier; a barrier also
    /// ends it.
    #[inline(always)]
    pub fn apply(&self, values: Shared<f32>, dim: u32) {
        let mut number = 0;
        while number < self.transforms {
            keep_rolled();
            let part = values.offset(first_of_transform(number, dim, self.width) as usize);
            let factors = self.factors.offset(number as usize * self.width as usize);
            let mut i = thread_idx_x();
            while i < self.width {
                keep_rolled();
                part.set(i as usize, part.get(i as usize) * factors.get(i as usize));
                i += CODE_THREADS;
            }
            transform(part, self.width);
            sync_threads();
            number += 1;
        }
    }
}

/// The Hadamard transform of `width` values, times the square root of `width`.
#[inline(always)]
fn transform(values: Shared<f32>, width: u32) {
    let mut half = 1;
    while half < width {
        keep_rolled();
        sync_threads();
        let mut pair = thread_idx_x();
        while pair < width / 2 {
            keep_rolled();
            let low = (2 * pair - (pair & (half - 1))) as usize;
            let high = low + half as usize;
            let (a, b) = (values.get(low), values.get(high));
            values.set(low, a + b);
            values.set(high, a - b);
            pair += CODE_THREADS;
        }
        half *= 2;
    }
}

#[inline(always)]
fn code<T: Element, C: Code>(p: &Coding<T, C>) {
    let (thread, row, dim) = (thread_idx_x(), block_idx_x(), p.rows.dim);
    let values: Shared<f32> = shared::dynamic(0);
    let largest: Shared<u32> = shared::dynamic(dim as usize * 4);
    let from = p.rows.row(row);
    let mut i = thread;
    while i < dim {
        keep_rolled();
        values.set(i as usize, from.get(i as usize).wide().to_f32());
        i += CODE_THREADS;
    }
    if thread == 0 {
        largest.set(0, 0);
    }
    sync_threads();

    p.rotation.apply(values, dim);

    let mut scale = p.scale;
    if scale == 0.0 {
        // Magnitudes are in the order of their bits.
        let (mut magnitude, mut i) = (0, thread);
        while i < dim {
            keep_rolled();
            let bits = values.get(i as usize).to_bits() & 0x7fff_ffff;
            magnitude = if bits > magnitude { bits } else { magnitude };
            i += CODE_THREADS;
        }
        largest.fetch_max(0, magnitude);
        sync_threads();
        let most = f32::from_bits(largest.get(0));
        scale = if most > 0.0 { C::LARGEST / most } else { 0.0 };
    }

    let to = row as usize * p.stride as usize;
    let mut i = thread;
    while i < p.stride as u32 {
        keep_rolled();
        let (mut code, mut rest) = (C::default(), C::default());
        if i < dim {
            let value = (values.get(i as usize) - p.mean.get(i as usize)) * scale;
            code = C::of(value);
            rest = code.rest(value);
        }
        p.codes.set(to + i as usize, code);
        if p.has_rests == 1 {
            p.rests.set(to + i as usize, rest);
        }
        i += CODE_THREADS;
    }
}

macro_rules! code_kernels {
    ($($name:ident $from:ty, $to:ty;)*) => {$(
        /// Codes rows (see [`Coding`] and the module).
        ///
        /// Launch: a block of [`CODE_THREADS`] per row; [`code_shared_bytes`].
        ///
        /// # Safety
        /// - The views match the fields of [`Coding`].
        #[kernel(unsafe, block = CODE_THREADS, shared = code_shared_bytes(p.rows.dim))]
        pub unsafe fn $name(p: Coding<$from, $to>) {
            code(&p);
        }
    )*};
}

code_kernels! {
    vectors_code_f32_f16 f32, f16;
    vectors_code_f32_i8 f32, i8;
    vectors_code_f16_i8 f16, i8;
}
