//! Bytes and rates of the stages of a build out of core.

use serde_json::{Value, json};
use tagore::outofcore::{OutOfCoreStats, TaskKind};

use crate::output::{Output, sized};

/// The bytes that a stage moves from and to the disk.
struct Stage {
    name: &'static str,
    seconds: f64,
    read: u64,
    written: u64,
}

impl Stage {
    /// Bytes per second.
    fn rate(&self) -> f64 {
        (self.read + self.written) as f64 / self.seconds
    }
}

/// The stages of a build that moves bytes.
pub(super) struct Stages(Vec<Stage>);

impl Stages {
    /// Stages of the build of a base of `base` bytes to an index of `index` bytes.
    pub(super) fn new(stats: &OutOfCoreStats, base: u64, index: u64) -> Self {
        let bytes = |kind| stats.seconds(kind).1;
        let (rows, lists) = (bytes(TaskKind::Write), stats.spilled_bytes);
        // Clusters that read their vectors from the base read ids alone from the disk.
        let members = bytes(TaskKind::Read).min(stats.cluster_bytes);
        let stage = |name, seconds, read, written| Stage { name, seconds, read, written };
        Self(vec![
            stage("partition", stats.partition, base, stats.cluster_bytes),
            stage("build", stats.build, members + lists, lists + rows),
            stage("write", stats.write, rows, index),
        ])
    }

    pub(super) fn say(&self, output: &Output) {
        for stage in &self.0 {
            let Stage { name, seconds, read, written } = stage;
            output.result(format_args!(
                "    {name:<10} {seconds:>9.2} s {:>8.2} GB/s, {} read, {} written",
                stage.rate() / 1e9,
                sized(*read),
                sized(*written)
            ));
        }
    }

    pub(super) fn event(&self) -> Value {
        let stage = |stage: &Stage| {
            json!({
                "stage": stage.name, "seconds": stage.seconds, "read_bytes": stage.read,
                "written_bytes": stage.written, "bytes_per_second": stage.rate(),
            })
        };
        self.0.iter().map(stage).collect()
    }
}
