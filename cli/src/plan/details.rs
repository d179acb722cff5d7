//! The details of a plan: every buffer of every stage.

use tagore::gpu::{MemoryPlan, PlannedStage};
use tagore::outofcore::ClusterPlan;
use tagore::{BuildPlan, DevicePlan, Remedy, Start};

use crate::error::remedy;
use crate::limits::cluster_lines;
use crate::output::{Output, sized};

/// Prints the changes with which a build in memory fits its device.
pub(super) fn say_remedies(on_gpu: &BuildPlan, free: u64, remedies: &[Remedy], output: &Output) {
    let changes: Vec<String> = remedies.iter().map(remedy).collect();
    output.warn(format_args!(
        "needs {} of device memory, free {}: {}",
        sized(on_gpu.peak_device_bytes()),
        sized(free),
        changes.join(", or ")
    ));
}

/// Prints the buffers of a k-NN graph on a GPU.
pub(super) fn say_graph(plan: &DevicePlan, rows: usize, output: &Output) {
    output.result("");
    output.result(format_args!("on a GPU: start {}, vectors as {}", start_name(plan.start), plan.element));
    say_stages("device", &plan.stages, output);
    say_plan("host, without the data set", &plan.host, output);
    say_peak(plan.largest_stage(), rows, output);
}

fn start_name(start: Start) -> String {
    if start == Start::AllPairs { "all pairs".to_owned() } else { start.to_string() }
}

/// Prints every buffer of a build, with its peaks and its time.
pub(super) fn say_build(what: &str, plan: &BuildPlan, rows: usize, output: &Output) {
    output.result("");
    output.result(format_args!("{what}: start {}, vectors as {}", start_name(plan.start), plan.element));
    say_stages("device", &plan.device, output);
    say_stages("host", &plan.host, output);
    say_plan("host, throughout", &plan.process, output);
    say_plan("disk", &plan.disk, output);
    if !plan.device.is_empty() {
        say_peak(plan.largest_on_device(), rows, output);
        output.result(format_args!(
            "plus {} of the context, {} of the driver's pool",
            sized(plan.context),
            sized(plan.pool)
        ));
    }
    let stage = plan.largest_on_host().map_or("no stage", |stage| stage.name);
    output.result(format_args!(
        "peak of host memory: {} without the data set, in {stage}",
        sized(plan.peak_host_bytes())
    ));
    let seconds: Vec<String> =
        plan.seconds.iter().map(|(stage, seconds)| format!("{stage} {seconds:.2}")).collect();
    output.result(format_args!(
        "about {:.1} s (estimated from measured rates): {}",
        plan.total_seconds(),
        seconds.join(", ")
    ));
}

/// Prints the memory of a build out of core.
pub(super) fn say_parts(plan: &ClusterPlan, output: &Output) {
    output.result("");
    cluster_lines(plan, false).into_iter().for_each(|line| output.result(line));
    say_plan("host", &plan.host(), output);
    say_plan("host, at the end", &plan.layers(), output);
    say_plan("disk", &plan.disk(), output);
}

/// Prints the buffers of stages.
pub(super) fn say_stages(at: &str, stages: &[PlannedStage], output: &Output) {
    for PlannedStage { name, buffers, .. } in stages {
        say_plan(&format!("{at}: {name}"), buffers, output);
    }
}

fn say_plan(name: &str, plan: &MemoryPlan, output: &Output) {
    output.result(format_args!("{name:<30} {:>12}", sized(plan.bytes())));
    for (name, bytes) in plan.buffers() {
        output.result(format_args!("    {name:<26} {:>12}", sized(bytes)));
    }
}

fn say_peak(stage: Option<&PlannedStage>, rows: usize, output: &Output) {
    let bytes = stage.map_or(0, |stage| stage.buffers.bytes());
    output.result(format_args!(
        "peak of device memory: {}, in {}; {:.0} bytes per vector",
        sized(bytes),
        stage.map_or("no stage", |stage| stage.name),
        bytes as f64 / rows as f64
    ));
}
