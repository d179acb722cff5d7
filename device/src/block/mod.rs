//! What kernels share: pieces that the threads of a block, or the lanes of a warp, do together.

pub mod element;
pub mod exact;
pub mod nearest;
pub mod rows;
pub mod scan;
pub mod sort;
pub mod table;
pub mod tile;
pub mod tile_walk;

/// Makes structs of arguments `Copy` wherever their parameters are; views are, whatever they are of.
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
