//! What kernels share: pieces that the threads of a block, or the lanes of a warp, do together.

pub mod element;
pub mod exact;
pub mod sort;
pub mod tile;
