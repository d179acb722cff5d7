//! Passes over vectors that lie in the memory of a device before a build or a search begins: the
//! array of another library, or a base already in the layout of the kernels.
//!
//! | module | what it computes |
//! | --- | --- |
//! | `check` | the largest magnitude, the first faulty row, and whether all values are bytes |
//! | `code` | codes of one byte or two per component |
//! | `copy` | rows, or chosen rows, in another layout |
//! | `norms` | squared norms in f64, and unit vectors |
//! | `hash` | a hash of each row |
//! | `split` | keys as ids and distances |

pub mod check;
pub mod code;
pub mod copy;
pub mod hash;
pub mod norms;
pub mod settle;
pub mod split;

use cuda_std::memory::{Global, Plain};

/// Threads per block of these kernels, one warp per row where a row is one warp's.
pub const VECTOR_THREADS: u32 = 256;

/// Rows per block of kernels with a warp per row.
pub const VECTOR_ROWS: u32 = VECTOR_THREADS / 32;

/// Rows at any stride.
#[repr(C)]
pub struct Strided<T> {
    /// In: `count` rows of `dim` values, `stride` values apart.
    pub values: Global<T>,
    /// Values from one row to the next.
    pub stride: u64,
    /// Number of rows.
    pub count: u32,
    /// Values per row.
    pub dim: u32,
}

crate::block::copied! {
    Strided<T>;
}

impl<T: Plain> Strided<T> {
    /// Row `index`.
    #[inline(always)]
    pub fn row(&self, index: u32) -> Global<T> {
        self.values.offset(index as usize * self.stride as usize)
    }
}
