//! What both backends of the k-NN graph stage share.

pub mod key;
