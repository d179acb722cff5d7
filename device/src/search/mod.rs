//! Search.

pub mod exact;
