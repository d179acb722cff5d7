//! The tasks of a build out of core, as JSON.

use serde_json::{Value, json};
use tagore::outofcore::Task;

/// A task as a JSON line.
pub(crate) fn task_event(Task { kind, thread, cluster, begin, end, bytes }: &Task) -> Value {
    json!({
        "event": "task", "task": kind.name(), "thread": thread, "cluster": cluster, "begin": begin, "end": end,
        "bytes": bytes,
    })
}
