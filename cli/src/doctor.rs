//! `tagore doctor`

use serde_json::json;
use tagore::gpu::{self, Survey};

use crate::error::Result;
use crate::output::Output;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Compile all kernels for each GPU, and keep them for later commands
    #[arg(long)]
    all: bool,
}

impl Args {
    pub(crate) fn run(self, output: &Output) -> Result<()> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let memory = tagore::host_memory_bytes();
        let gib = memory
            .map_or("unknown".to_owned(), |bytes| format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30)));
        output.result(format_args!("tagore    {}", env!("CARGO_PKG_VERSION")));
        output.result(format_args!("system    {} {}", std::env::consts::OS, std::env::consts::ARCH));
        output.result(format_args!(
            "cpu       {cores} cores, {} threads, {}",
            rayon::current_num_threads(),
            tagore::instruction_set()
        ));
        output.result(format_args!("memory    {gib}"));
        let cuda = match gpu::survey(self.all) {
            Ok(survey) => say_survey(&survey, self.all, output),
            Err(problem) => {
                output.result(format_args!("cuda      {problem}"));
                json!({ "problem": problem })
            }
        };
        let kernels = gpu::kernels();
        output.result(format_args!("kernels   {kernels}"));
        output.event(&json!({
            "event": "doctor", "version": env!("CARGO_PKG_VERSION"), "os": std::env::consts::OS,
            "arch": std::env::consts::ARCH, "cores": cores, "threads": rayon::current_num_threads(),
            "instruction_set": tagore::instruction_set(), "memory_bytes": memory, "kernels": kernels,
            "cuda": cuda,
        }));
        Ok(())
    }
}

/// Prints the driver and its checked devices, and returns them as JSON.
fn say_survey(survey: &Survey, all: bool, output: &Output) -> serde_json::Value {
    let (major, minor) = survey.driver;
    output
        .result(format_args!("cuda      driver for CUDA {major}.{minor}, {} devices", survey.devices.len()));
    let sound = if all { "passes its check, kernels compiled" } else { "passes its check" };
    let mut devices = Vec::new();
    for (ordinal, device) in survey.devices.iter().enumerate() {
        let (major, minor) = device.compute_capability;
        output.result(format_args!(
            "cuda:{ordinal}    {}, compute capability {major}.{minor}, {} MiB, {}",
            device.name,
            device.memory >> 20,
            device.problem.as_deref().unwrap_or(sound)
        ));
        devices.push(json!({
            "name": device.name, "compute_capability": format!("{major}.{minor}"),
            "memory_bytes": device.memory, "multiprocessors": device.multiprocessors,
            "problem": device.problem,
        }));
    }
    json!({ "version": format!("{major}.{minor}"), "devices": devices })
}
