//! Search.

pub mod beam;
pub mod exact;
