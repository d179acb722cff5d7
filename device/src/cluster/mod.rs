//! Clusters: k-means on a sample, the nearest centres of every vector, and the vectors in the order of their
//! clusters.
//!
//! A round of k-means is three steps: [`cluster_assign_f16()`] and its siblings find the nearest centre of
//! each vector of the sample, [`cluster_keys()`] and the sort of [`crate::sort`] put the sample in the order
//! of its centres, and [`cluster_mean_f16()`] and its siblings compute the new centres. All sums are in an
//! order that depends on the data alone.
//!
//! Where there are many centres, vectors are put in the order of their guides, which are few, and each is compared
//! with a list of centres that its guide has alone: [`cluster_pairs_f16()`] and its siblings compare guides with
//! centres, and [`cluster_lists()`] chooses.

mod assign;
mod guides;
mod keys;
mod mean;
mod members;
mod sample;

pub use assign::*;
pub use guides::*;
pub use keys::*;
pub use mean::*;
pub use members::*;
pub use sample::*;

/// Bits below the centre in the keys of [`crate::cluster`] that hold a vector, or its place in the sample.
pub const ID_BITS: u32 = 32;

/// No centre, where there are fewer than were asked for.
pub const NOWHERE: u32 = u32::MAX;
