//! The search for repeated rows before the partition.

use crate::outofcore::plan::ClusterPlan;
use crate::vectors::repeated::{KEPT_BYTES, PEAK_BYTES};
use crate::{Builder, Progress, Repeated, Result, Vectors};

/// Finds the repeated rows of `base`; none if the search is off, or would not pay.
///
/// # Errors
/// If the work is cancelled.
pub(crate) fn find_repeated(
    builder: &Builder,
    base: &Vectors,
    plan: &ClusterPlan,
    progress: &Progress,
) -> Result<Repeated> {
    if !builder.dedupe {
        return Ok(Repeated::default());
    }
    if !plan.groups {
        let needed = (PEAK_BYTES * base.len()).max(8 * KEPT_BYTES * base.len());
        tracing::warn!(needed, "too little host memory to group equal rows; indexing all rows");
        return Ok(Repeated::default());
    }
    let repeated = Repeated::of_base(base, builder.descent.metric, progress)?;
    if !repeated.is_worth_grouping(base.len()) {
        return Ok(Repeated::default());
    }
    let (rows, repeated_rows) = (base.len() - repeated.len(), repeated.len());
    tracing::info!(rows, repeated = repeated_rows, "equal rows are one node of the graph");
    Ok(repeated)
}
