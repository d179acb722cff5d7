//! Clusters: k-means on a sample, the nearest centres of every vector, and orders of vectors by
//! cluster.
//!
//! ```text
//! sample, and a first centre from each of as many stretches of it
//! for each round of k-means:
//!     assign the sample to its nearest centres      // cluster_assign_*
//!     sort the sample by centre                     // cluster_keys, crate::sort
//!     centres = means                               // cluster_mean_*
//! assign all vectors to their nearest `probes` centres
//! sort members by centre            // cluster_member_keys, crate::sort, cluster_members
//! ```
//!
//! Each sum has an order that depends on the data alone, so results do not depend on that of
//! threads.
//!
//! With many centres, vectors are sorted by their guide, one of few coarser centres, and compared
//! with the guide's list of centres: [`cluster_pairs_f16()`] and its siblings compare guides with
//! centres, [`cluster_lists()`] chooses.

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

/// Low bits of a key that hold a vector, or its place in the sample. The centre is above.
pub const ID_BITS: u32 = 32;
