//! What a build will take of memory, before it runs.

use std::fmt;

use super::Start;
use crate::gpu::Plan;

/// The buffers that are on a device at once in one stage of a build.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedStage {
    /// The stage, in the order in which they run.
    pub name: &'static str,
    /// Those that the stage works with, and those that stay for later ones.
    pub buffers: Plan,
}

/// What the k-NN graph of a data set will take of a GPU's memory, and of the host's.
///
/// Nodes whose lists descent leaves short are searched for exactly in the end, in pieces that fit what memory is
/// free then: that is not in the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DevicePlan {
    /// Where descent starts from; `Auto` stands for all pairs.
    pub start: Start,
    /// Neighbours per node.
    pub k: usize,
    /// Nodes.
    pub nodes: usize,
    /// The type of the vectors on the device, such as `u8` for f32 that are whole numbers from 0 to 255.
    pub element: &'static str,
    /// The stages, in their order.
    pub stages: Vec<PlannedStage>,
    /// What the library holds on the host in the end, beside the data set.
    pub host: Plan,
}

impl DevicePlan {
    /// The stage that takes most.
    pub fn largest_stage(&self) -> Option<&PlannedStage> {
        self.stages.iter().max_by_key(|stage| stage.buffers.bytes())
    }

    /// The most bytes of device memory that are taken at once.
    pub fn peak_bytes(&self) -> u64 {
        self.largest_stage().map_or(0, |stage| stage.buffers.bytes())
    }

    /// Bytes of device memory per vector, at the peak.
    pub fn bytes_per_vector(&self) -> f64 {
        self.peak_bytes() as f64 / self.nodes.max(1) as f64
    }

    /// Bytes of host memory.
    pub fn host_bytes(&self) -> u64 {
        self.host.bytes()
    }
}

impl fmt::Display for DevicePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for stage in &self.stages {
            writeln!(f, "{}", stage.name)?;
            for line in stage.buffers.to_string().lines() {
                writeln!(f, "  {line}")?;
            }
        }
        writeln!(f, "host")?;
        for line in self.host.to_string().lines() {
            writeln!(f, "  {line}")?;
        }
        let stage = self.largest_stage().map_or("nothing", |stage| stage.name);
        write!(f, "peak {} bytes of device memory, in {stage}", self.peak_bytes())?;
        write!(f, ": {:.0} per vector", self.bytes_per_vector())
    }
}
