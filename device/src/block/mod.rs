//! Building blocks of kernels: code that the threads of a block, or the lanes of a warp, run
//! together.
//!
//! | module | what it computes |
//! | --- | --- |
//! | `element`, `exact`, `rows` | exact distances, in the CPU's order of sums |
//! | `sums`, `tile`, `tile_walk` | products of 128 x 128 vectors on tensor cores |
//! | `sort`, `select`, `scan` | sorting, merging, selection and prefix sums |
//! | `peers` | lanes of a warp that hold the same number |
//! | `table` | a hash table of ids |
//! | `threads` | the threads that share a piece of work |

pub mod element;
pub mod exact;
pub mod peers;
pub mod rows;
pub mod scan;
pub mod select;
pub mod sort;
pub mod sums;
pub mod table;
pub mod threads;
pub mod tile;
pub mod tile_walk;

/// Implements `Clone` and `Copy` for structs of arguments whose type parameters are `Copy`.
macro_rules! copied {
    ($($name:ident<$($parameter:ident),*>;)*) => {$(
        impl<$($parameter: Copy),*> Clone for $name<$($parameter),*> {
            #[inline(always)]
            fn clone(&self) -> Self {
                *self
            }
        }

        impl<$($parameter: Copy),*> Copy for $name<$($parameter),*> {}
    )*};
}

pub(crate) use copied;
