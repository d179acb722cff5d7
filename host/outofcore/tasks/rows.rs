//! Rows of the data set that tasks read: for workers with a copy of these rows alone.

use std::ops::Range;

use super::assign::first_full;
use super::build::BuiltCluster;
use super::context::Outcome;
use super::folder::TaskFolder;
use super::id::{TaskId, TaskStage};
use crate::Result;
use crate::outofcore::store::or_lost;
use crate::prune::Entry;
use crate::vectors::spread_rows;

impl TaskFolder {
    /// The rows of the fingerprint, ascending: every worker reads them.
    pub fn fingerprint_rows(&self) -> impl Iterator<Item = u64> + use<> {
        spread_rows(self.plan.fingerprint.rows as usize).map(|row| row as u64)
    }

    /// The rows of the data set that a task reads, beside those of the fingerprint. Other rows of a
    /// copy may be holes.
    ///
    /// `assign` and `write` read a range. `place` reads none while all clusters have room, and may
    /// read all rows from the first range on in which one becomes full. `finish` may read all rows
    /// for layers; without layers, rows of entry points alone. Their rows follow from the objects
    /// that they read: `None` if one of these is missing or damaged, so that they cannot run.
    ///
    /// # Errors
    /// If an object cannot be read.
    pub fn base_rows(&self, task: TaskId) -> Result<Option<Vec<Range<u64>>>> {
        let all = self.rows();
        let range = || {
            let rows = self.plan.rows(task.number);
            rows.start as u64..rows.end as u64
        };
        let found = match task.stage {
            TaskStage::Assign | TaskStage::Write => Ok(vec![range()]),
            TaskStage::Place => first_full(&self.plan, &self.store)
                .map(|full| full.map(|range| self.plan.rows(range).start as u64..all).into_iter().collect()),
            TaskStage::Build | TaskStage::Merge | TaskStage::Assemble => Ok(Vec::new()),
            TaskStage::Finish => self.ending_rows(),
        };
        Ok(or_lost(found)?.ok())
    }

    /// The rows that `finish` reads.
    fn ending_rows(&self) -> Outcome<Vec<Range<u64>>> {
        let (builder, limits) = (self.plan.builder()?, &self.plan.limits);
        if builder.is_layered() && limits.layer_nodes >= 2 {
            return Ok(std::iter::once(0..self.rows()).collect());
        }
        if builder.strategy.entry == Entry::Random {
            return Ok(Vec::new());
        }
        let mut nodes = Vec::new();
        for id in self.tasks_of(TaskStage::Build) {
            let built = self.store.input::<BuiltCluster>(id)?.more;
            nodes.extend(built.entry.iter().chain([&built.central.node]).copied().map(u64::from));
        }
        nodes.retain(|&node| node < self.rows());
        nodes.sort_unstable();
        nodes.dedup();
        Ok(nodes.into_iter().map(|node| node..node + 1).collect())
    }
}
