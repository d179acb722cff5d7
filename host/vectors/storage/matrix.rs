//! The rows of a data set as matrices of their type.

use std::ops::Range;

use half::{bf16, f16};

use crate::vectors::{Bits, Element};

/// Rows of one type: row `i` is `data[place * stride..][..dim]`, where `place` is `picked[i]`, or
/// `i` of all rows, and `dim` counts values: the dimension, or bytes of bits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matrix<'a, T> {
    pub data: &'a [T],
    pub stride: usize,
    pub dim: usize,
    picked: Option<&'a [u32]>,
}

impl<'a, T: Element> Matrix<'a, T> {
    pub(crate) fn new(data: &'a [T], stride: usize, dim: usize) -> Self {
        Self { data, stride, dim, picked: None }
    }

    /// The rows with these numbers alone.
    pub(in crate::vectors) fn picking(self, picked: Option<&'a [u32]>) -> Self {
        Self { picked, ..self }
    }

    /// The number of row `index` in `data`.
    #[inline(always)]
    pub(crate) fn place(&self, index: usize) -> usize {
        self.picked.map_or(index, |picked| picked[index] as usize)
    }

    #[inline(always)]
    pub(crate) fn row(&self, index: usize) -> &'a [T] {
        let start = self.place(index) * self.stride;
        &self.data[start..start + self.dim]
    }

    /// The values of some rows, if no others lie between them.
    pub(in crate::vectors) fn successive(&self, rows: Range<usize>) -> Option<&'a [T]> {
        let is_dense = self.picked.is_none() && self.stride == self.dim;
        is_dense.then(|| &self.data[rows.start * self.stride..rows.end * self.stride])
    }

    /// The components of a row, widened to f32; see [`Element::components`].
    #[inline(always)]
    pub(crate) fn components(&self, index: usize) -> impl Iterator<Item = f32> + use<'a, T> {
        T::components(self.row(index))
    }
}

/// Rows of any element type.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TypedRows<'a> {
    F32(Matrix<'a, f32>),
    F16(Matrix<'a, f16>),
    Bf16(Matrix<'a, bf16>),
    U8(Matrix<'a, u8>),
    I8(Matrix<'a, i8>),
    B1(Matrix<'a, Bits>),
}

/// Evaluates `$body` with `$matrix` bound to the matrix of the rows' type.
macro_rules! with_matrix {
    ($rows:expr, $matrix:ident => $body:expr) => {
        match $rows {
            $crate::vectors::TypedRows::F32($matrix) => $body,
            $crate::vectors::TypedRows::F16($matrix) => $body,
            $crate::vectors::TypedRows::Bf16($matrix) => $body,
            $crate::vectors::TypedRows::U8($matrix) => $body,
            $crate::vectors::TypedRows::I8($matrix) => $body,
            $crate::vectors::TypedRows::B1($matrix) => $body,
        }
    };
}
pub(crate) use with_matrix;
