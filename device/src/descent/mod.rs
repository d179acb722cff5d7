//! The k-NN graph by GNN-Descent (paper section 4), with a start from cells.
//!
//! ```text
//! lists = cells (module `cells`), or random ids (descent_start)
//! repeat: sample; join; merge        // phase 1
//! repeat: gather; expand             // phase 2
//! finish: exact distances            // cells_finish_*
//! settle lists on codes              // vectors_settle
//! ```
//!
//! Until the end, lists hold distances as the tensor cores compute them, less the part that
//! depends on the list's own node alone: `bias + weight * product`.

pub mod cells;
pub mod expand;
pub mod join;
pub mod merge;
pub mod renumber;
pub mod sample;
pub mod slots;
