//! `tagore task plan`

use std::path::{Path, PathBuf};

use serde_json::json;
use tagore::Strategy;
use tagore::outofcore::{OutOfCore, TaskFiles, TaskFolder, TaskStage};
use tagore_text::path_text;

use super::{Shared, names};
use crate::build::PruneOptions;
use crate::error::{Error, Result};
use crate::files::{Files, Kind};
use crate::limits::{LimitOptions, clusters_event};
use crate::options::{DescentOptions, Input};
use crate::output::{Output, grouped, sized};
use crate::spool;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    input: Input,
    /// File of the index, at this path on the machine that runs the last task
    #[arg(short, long, value_name = "INDEX")]
    output: PathBuf,
    #[command(flatten)]
    shared: Shared,
    /// Kind of index: cagra, nsg, nssg, vamana, dpg, tau-mng or alpha-cng
    #[arg(long = "kind", value_name = "KIND", default_value = "vamana")]
    strategy: Strategy,
    #[command(flatten)]
    descent: DescentOptions,
    #[command(flatten)]
    prune: PruneOptions,
    #[command(flatten)]
    limits: LimitOptions,
    /// Rows of a task of assign, write and assemble: a multiple of 1024 [default: 262144, or as
    /// many as make 256 tasks]
    #[arg(long, value_name = "N", help_heading = "Out of core")]
    range_rows: Option<usize>,
}

impl Args {
    pub(super) fn run(self, output: &Output) -> Result<()> {
        let builder = self.prune.builder(&self.strategy)?;
        let input = self.input.path();
        if spool::is_copy(input) {
            return Err(Error::file(input, "a pipe or a device", "a regular file"));
        }
        Files::read([input]).write(Kind::Index, [&self.output]).check(output)?;
        let format = self.input.own_format()?;
        let base = self.input.open()?;
        let descent = self.descent.descent(base.element_type(), output)?;
        let builder = builder.descent(descent).devices(&self.descent.device.0);
        let Some(plan) = self.limits.plan(&builder, &base)? else {
            let expected =
                "a build out of core: lower --cluster-size or --host-memory, or use `tagore build`";
            return Err(Error::usage(format!("the build fits the memory limits, expected {expected}")));
        };
        let files = TaskFiles {
            base: absolute(input)?,
            format,
            output: absolute(&self.output)?,
            range_rows: self.range_rows.unwrap_or(TaskFolder::usual_range_rows(base.len())),
        };
        let build = OutOfCore::new(builder, plan);
        let folder = TaskFolder::create(self.shared.path(), &build, &base, &files)?;
        say(&folder, output);
        let stages: Vec<_> = (TaskStage::ALL.into_iter())
            .map(|stage| {
                json!({
                    "stage": stage.name(), "tasks": folder.count(stage), "host_bytes": folder.memory(stage),
                })
            })
            .collect();
        output.event(&json!({
            "event": "tasks", "dir": self.shared.path(), "n": base.len(), "dim": base.dim(),
            "device": folder.device(), "clusters": folder.clusters(), "ranges": folder.ranges(),
            "device_bytes": folder.device_memory(), "stages": stages, "out_of_core": clusters_event(&plan),
        }));
        Ok(())
    }
}

fn say(folder: &TaskFolder, output: &Output) {
    output.result(format_args!(
        "{}: {} clusters, {} ranges of rows, on {}",
        path_text(&folder.path().join("plan.json")),
        grouped(folder.clusters()),
        grouped(folder.ranges()),
        folder.device()
    ));
    for stage in TaskStage::ALL {
        let (name, memory) = (stage.name(), sized(folder.memory(stage)));
        output.result(format_args!("{name:<9} {:<28} {memory} of host memory each", names(folder, stage)));
    }
    if folder.device_memory() > 0 {
        output.result(format_args!("build takes {} of device memory too", sized(folder.device_memory())));
    }
}

/// The path from the root, since workers run in other folders.
fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).map_err(|source| tagore::Error::Io { path: path.to_owned(), source }.into())
}
