//! The work of each task: bytes, requests, seconds.

use super::bytes::{ASSIGN_PIECES, Sizes};
use crate::build::estimate;
use crate::outofcore::tasks::TaskStage;
use crate::{Builder, DataShape, Target};

/// Rates of the work beside comparisons and builds, per core of an Intel Xeon with two cores
/// (benches/results/tasks.md).
mod rates {
    /// Bytes of rows per second that `assign` checks and sums.
    pub const CHECK: f64 = 1.1e9;

    /// Pairs of clusters per second that `place` counts.
    pub const PAIRS: f64 = 1e7;

    /// Bytes of records per second that `write` gathers.
    pub const GATHER: f64 = 4e9;

    /// Bytes of records per second that `build` and `merge` take apart.
    pub const MEMBERS: f64 = 1e9;

    /// Seconds of merging the two lists of a node: a constant, and a part by components. Lists of
    /// 32 and of 64 neighbours took the same, as few fill up.
    pub const MERGE: f64 = 3.1e-6;
    pub const MERGE_COMPONENT: f64 = 9e-9;

    /// Bytes of finished rows per second that `assemble` and `finish` put in order.
    pub const ROWS: f64 = 2e9;
}

/// Rows that `finish` reads to test the index for layers, at most, and bytes of a page.
const LAYER_ROWS: u64 = 1_000_000;
const PAGE: u64 = 4096;

/// A task on paper.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    /// Bytes read of the data set.
    pub base: u64,
    /// Bytes read of objects.
    pub read: u64,
    /// Bytes written.
    pub written: u64,
    pub requests: u64,
    /// Seconds without reading and writing.
    pub seconds: f64,
}

impl Work {
    /// Bytes moved.
    pub(super) fn bytes(&self) -> u64 {
        self.base + self.read + self.written
    }
}

/// The tasks of a stage.
pub(super) fn of_stage(stage: TaskStage, sizes: &Sizes, builder: &Builder, target: Target) -> Vec<Work> {
    let rows = || (0..sizes.ranges).map(|range| sizes.rows(range));
    let clusters = || sizes.clusters().into_iter();
    let tasks = Tasks { sizes, builder, target, threads: target.threads as f64 };
    match stage {
        TaskStage::Assign => rows().map(|rows| tasks.assign(rows)).collect(),
        TaskStage::Place => vec![tasks.place()],
        TaskStage::Write => rows().map(|rows| tasks.write(rows)).collect(),
        TaskStage::Build => clusters().map(|(members, _)| tasks.build(members)).collect(),
        TaskStage::Merge => clusters().map(|(members, merged)| tasks.merge(members, merged)).collect(),
        TaskStage::Assemble => rows().map(|rows| tasks.assemble(rows)).collect(),
        TaskStage::Finish => vec![tasks.finish()],
    }
}

/// The tasks of a build on paper.
struct Tasks<'a> {
    sizes: &'a Sizes,
    builder: &'a Builder,
    target: Target,
    threads: f64,
}

impl Tasks<'_> {
    /// A task that reads the object of the plan and writes an object.
    fn task(&self) -> Work {
        // The beginning and the rest of the object of the plan, and the new object.
        Work { base: 0, read: self.sizes.plan(), written: 0, requests: 3, seconds: 0.0 }
    }

    fn part(&self, rows: f64) -> DataShape {
        self.sizes.data.part(rows as usize)
    }

    fn assign(&self, rows: u64) -> Work {
        let Self { sizes, target, threads, .. } = *self;
        let base = rows * sizes.row;
        let checking = base as f64 / rates::CHECK / threads;
        let task = self.task();
        Work {
            base,
            written: sizes.assign(rows),
            requests: task.requests + 1,
            seconds: checking + estimate::comparing(&self.part(rows as f64), sizes.clusters, target),
            ..task
        }
    }

    fn place(&self) -> Work {
        let Self { sizes, .. } = *self;
        let (ranges, task) = (sizes.ranges as u64, self.task());
        let assigned: u64 = (0..sizes.ranges).map(|range| sizes.assign(sizes.rows(range))).sum();
        let pieces = assigned - ranges * sizes.head(ASSIGN_PIECES);
        Work {
            read: task.read + assigned,
            written: sizes.place(),
            requests: task.requests + 2 * ranges,
            // A pair has 12 bytes, and so have about two rows.
            seconds: pieces as f64 / 12.0 / rates::PAIRS,
            ..task
        }
    }

    fn write(&self, rows: u64) -> Work {
        let Self { sizes, .. } = *self;
        let (base, task, records) = (rows * sizes.row, self.task(), 2 * rows * sizes.record());
        Work {
            base,
            read: task.read + sizes.assign(rows) + sizes.place_head(),
            written: sizes.write_head() + records,
            // The range of the base; two reads of `assign`, and two of `place`.
            requests: task.requests + 5,
            seconds: records as f64 / rates::GATHER,
        }
    }

    /// Reading the members of a cluster: bytes and requests.
    fn members(&self, members: f64) -> (u64, u64) {
        let Self { sizes, .. } = *self;
        let ranges = sizes.ranges as u64;
        let records = (members * sizes.record() as f64) as u64;
        (sizes.place() + ranges * sizes.write_head() + records, 2 + 2 * ranges)
    }

    fn build(&self, members: f64) -> Work {
        let Self { sizes, builder, target, .. } = *self;
        let (task, (read, requests)) = (self.task(), self.members(members));
        let lists = (members * sizes.list() as f64) as u64;
        let parsing = members * sizes.record() as f64 / rates::MEMBERS;
        Work {
            read: task.read + read,
            written: sizes.build_head() + lists,
            requests: task.requests + requests,
            seconds: parsing + estimate::cluster(builder, &sizes.data, members as usize, target),
            ..task
        }
    }

    /// Merges the lists of some of the members.
    fn merge(&self, members: f64, merged: f64) -> Work {
        let Self { sizes, threads, .. } = *self;
        let task = self.task();
        let others = (sizes.neighbours * merged / members) as u64;
        let (read, requests) = self.members(members);
        let own = sizes.build_head() + (members * sizes.list() as f64) as u64;
        let waiting = others * sizes.build_head() + (merged * sizes.list() as f64) as u64;
        let parsing = members * sizes.record() as f64 / rates::MEMBERS;
        let each = rates::MERGE + rates::MERGE_COMPONENT * sizes.data.dim as f64;
        Work {
            read: task.read + read + own + waiting,
            written: sizes.merge_head() + (merged * sizes.finished_row() as f64) as u64,
            requests: task.requests + requests + 2 + 2 * others,
            seconds: parsing + merged * each / threads,
            ..task
        }
    }

    fn assemble(&self, rows: u64) -> Work {
        let Self { sizes, .. } = *self;
        let (task, clusters, finished) = (self.task(), sizes.clusters as u64, rows * sizes.finished_row());
        Work {
            read: task.read + clusters * sizes.merge_head() + finished,
            written: sizes.assemble(rows),
            requests: task.requests + 2 * clusters,
            seconds: finished as f64 / rates::ROWS,
            ..task
        }
    }

    fn finish(&self) -> Work {
        let Self { sizes, target, .. } = *self;
        let (task, data) = (self.task(), &sizes.data);
        let (clusters, ranges) = (sizes.clusters as u64, sizes.ranges as u64);
        let rows: u64 = (0..sizes.ranges).map(|range| sizes.assemble(sizes.rows(range))).sum();
        Work {
            base: (LAYER_ROWS * sizes.row.max(PAGE)).min(data.rows as u64 * sizes.row),
            read: task.read + sizes.place_head() + clusters * sizes.build_head() + rows,
            written: sizes.index() + sizes.head(0),
            requests: task.requests + 1 + clusters + 2 * ranges + 1,
            seconds: rows as f64 / rates::ROWS + estimate::reaching(data, target),
        }
    }
}
