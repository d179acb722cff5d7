//! `tagore doctor`

use serde_json::json;
use tagore::Result;

use super::output::Output;

#[derive(clap::Args)]
pub(crate) struct Args {}

impl Args {
    pub(crate) fn run(self, output: &Output) -> Result<()> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let memory = memory_bytes();
        let gib = memory
            .map_or("unknown".to_owned(), |bytes| format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30)));
        output.say(format_args!("tagore    {}", env!("CARGO_PKG_VERSION")));
        output.say(format_args!("system    {} {}", std::env::consts::OS, std::env::consts::ARCH));
        output.say(format_args!(
            "cpu       {cores} cores, {} threads, {}",
            rayon::current_num_threads(),
            tagore::instruction_set()
        ));
        output.say(format_args!("memory    {gib}"));
        output.say("cuda      not in this version: everything runs on the CPU");
        output.event(&json!({
            "event": "doctor", "version": env!("CARGO_PKG_VERSION"), "os": std::env::consts::OS,
            "arch": std::env::consts::ARCH, "cores": cores, "threads": rayon::current_num_threads(),
            "instruction_set": tagore::instruction_set(), "memory_bytes": memory, "cuda": null,
        }));
        Ok(())
    }
}

/// The memory of this machine, where the system says.
fn memory_bytes() -> Option<u64> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = info.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}
