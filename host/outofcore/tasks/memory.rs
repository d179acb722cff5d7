//! Host memory of tasks.

use std::collections::BTreeMap;

use super::id::TaskStage;
use crate::outofcore::partition::chunk_rows;
use crate::outofcore::plan::{ClusterPlan, RECORD_HEAD, list_bytes, row_bytes};
use crate::vectors::repeated::KEPT_BYTES;
use crate::{Builder, DataShape, Metric, Result, Target};

/// Bytes of a pair of clusters: entries of a hash table and of the graph.
const PAIR_BYTES: usize = 96;

/// Host memory of a task of each stage in bytes, without the mapped base: for this number of
/// clusters, rows of a range and repeated rows.
pub(super) fn task_memory(
    builder: &Builder,
    data: &DataShape,
    plan: &ClusterPlan,
    clusters: usize,
    range_rows: usize,
    repeated: usize,
) -> Result<BTreeMap<String, u64>> {
    let size = plan.cluster_size;
    let target = Target::open(builder.descent.device, size)?;
    let k = builder.check_for(data)?;
    let build = builder.of_clusters().plan_of(&data.part(size), k.min(size.saturating_sub(1)), target);
    let (row, degree) = (data.row_bytes(), builder.strategy.max_degree());
    let range = range_rows.min(data.rows);
    let embedded = 4 * (data.dim + 1);
    let chunk = chunk_rows(plan, data.dim + 1) * (embedded + 16);
    let record = RECORD_HEAD + row;
    let centres = 2 * clusters * embedded;
    let pairs = (clusters * clusters / 2).min(data.rows) * PAIR_BYTES;
    let copied = if builder.descent.metric == Metric::Cosine { embedded } else { embedded - 4 * data.dim };
    let members = size * (2 * record + copied);
    let lists = size * list_bytes(degree);
    let process = build.process.bytes() as usize + centres + 2 * KEPT_BYTES * repeated;
    let finished = row_bytes(degree);
    let bytes = |stage: TaskStage| match stage {
        TaskStage::Assign => chunk + range * 24 + PAIR_BYTES * (clusters * clusters / 2).min(range),
        // Ids, nearest clusters, those with room, and keys of their pairs.
        TaskStage::Place => pairs + range * (4 + 8 + 8 + 8) + chunk,
        TaskStage::Write => range * (2 * record + 24) + chunk,
        TaskStage::Build => build.peak_of_stages() as usize + members + 3 * lists + pairs,
        TaskStage::Merge => members + 3 * lists + 3 * size * finished + pairs,
        TaskStage::Assemble => range * (4 * degree + 1) + size.min(range) * finished,
        TaskStage::Finish => (range * (8 * degree + 4)).max(plan.layers().bytes() as usize),
    };
    Ok(TaskStage::ALL
        .into_iter()
        .map(|stage| (stage.name().to_owned(), (process + bytes(stage)) as u64))
        .collect())
}
