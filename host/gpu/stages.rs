//! The stages of a piece of work, in the order in which they run: the buffers that each has, and
//! the kernels that it launches.

use serde::ser::{Serialize, SerializeStruct, Serializer};

use super::{Gpu, MemoryPlan};
use crate::{Error, Remedy, Result};

/// A stage of a build.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedStage {
    /// The name of the stage.
    pub name: &'static str,
    /// Buffers of the stage itself, and buffers that live through it.
    pub buffers: MemoryPlan,
    /// Kernels that it launches on a GPU; none on the host.
    pub kernels: Vec<&'static str>,
}

/// Its name, the bytes of all its buffers together, and those of each.
impl Serialize for PlannedStage {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut stage = serializer.serialize_struct("PlannedStage", 3)?;
        stage.serialize_field("name", self.name)?;
        stage.serialize_field("bytes", &self.buffers.bytes())?;
        stage.serialize_field("buffers", &self.buffers)?;
        stage.end()
    }
}

impl PlannedStage {
    /// A stage on the host.
    pub(crate) fn on_host(name: &'static str, buffers: MemoryPlan) -> Self {
        Self { name, buffers, kernels: Vec::new() }
    }

    /// The error of a stage that needs more than the `free` bytes of a device.
    pub(crate) fn does_not_fit(&self, gpu: &Gpu, free: u64, remedies: Vec<Remedy>) -> Error {
        Error::DeviceMemory {
            device: gpu.name().to_owned(),
            stage: self.name,
            required: self.buffers.bytes(),
            largest: self.buffers.largest(),
            free,
            remedies,
        }
    }

    /// The stage with the most memory.
    pub(crate) fn largest(stages: &[Self]) -> Option<&Self> {
        stages.iter().max_by_key(|stage| stage.buffers.bytes())
    }

    /// Maximum bytes over all stages.
    pub(crate) fn peak(stages: &[Self]) -> u64 {
        Self::largest(stages).map_or(0, |stage| stage.buffers.bytes())
    }
}

/// Stages, added in the order in which they run. Each has its own buffers, and all buffers that are
/// held when it is added.
#[derive(Default)]
pub(crate) struct Stages {
    held: MemoryPlan,
    stages: Vec<PlannedStage>,
}

impl Stages {
    /// No stage yet, over buffers that are there before the first.
    pub(crate) fn over(held: MemoryPlan) -> Self {
        Self { held, stages: Vec::new() }
    }

    /// Holds further buffers, for the stages that follow.
    pub(crate) fn hold(&mut self, buffers: &MemoryPlan) {
        self.held = std::mem::take(&mut self.held).and(buffers);
    }

    /// Holds the buffers with these names no longer.
    pub(crate) fn free(&mut self, names: &[&str]) {
        self.held = self.held.without(names);
    }

    /// The next stage, with buffers that it alone has, and its kernels.
    pub(crate) fn add(
        &mut self,
        name: &'static str,
        own: &MemoryPlan,
        kernels: impl IntoIterator<Item = &'static str>,
    ) {
        let buffers = self.held.clone().and(own);
        self.stages.push(PlannedStage { name, buffers, kernels: kernels.into_iter().collect() });
    }

    /// The next stage, with the buffers `all`. Those with the names `kept` are held afterwards.
    pub(crate) fn add_and_keep(
        &mut self,
        name: &'static str,
        all: &MemoryPlan,
        kept: &[&str],
        kernels: impl IntoIterator<Item = &'static str>,
    ) {
        self.add(name, all, kernels);
        self.hold(&all.only(kept));
    }

    /// All stages.
    pub(crate) fn into_vec(self) -> Vec<PlannedStage> {
        self.stages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_have_their_own_buffers_and_those_that_are_held() {
        let plan = |name| MemoryPlan::new().with::<u8>(name, 1);
        let mut stages = Stages::over(plan("rows"));
        stages.add("first", &plan("spare"), ["copy"]);
        stages.add_and_keep("second", &plan("lists").and(&plan("keys")), &["lists"], ["sort", "merge"]);
        stages.free(&["rows"]);
        stages.hold(&plan("edges"));
        stages.add("third", &MemoryPlan::new(), []);
        let stages = stages.into_vec();
        let names = |stage: &PlannedStage| stage.buffers.buffers().map(|buffer| buffer.0).collect::<Vec<_>>();
        let found: Vec<_> = stages.iter().map(names).collect();
        assert_eq!(found, [vec!["rows", "spare"], vec!["rows", "lists", "keys"], vec!["lists", "edges"]]);
        assert_eq!(stages[1].kernels, ["sort", "merge"]);
        assert_eq!(
            (PlannedStage::largest(&stages).unwrap().name, PlannedStage::peak(&stages)),
            ("second", 3)
        );
    }
}
