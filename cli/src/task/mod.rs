//! `tagore task`: a build out of core as tasks on a shared folder.

mod plan;
mod run;
mod status;

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tagore::outofcore::{StageStatus, TaskFolder, TaskStage};

use crate::error::Result;
use crate::output::Output;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    /// Plan the tasks of a build in a folder, and print them by stage
    Plan(Box<plan::Args>),
    /// Run tasks of a folder
    Run(run::Args),
    /// Print the tasks that have run, by stage
    Status(status::Args),
}

impl Args {
    pub(crate) fn run(self, output: &Output) -> Result<()> {
        match self.what {
            What::Plan(args) => args.run(output),
            What::Run(args) => args.run(output),
            What::Status(args) => args.run(output),
        }
    }
}

/// The folder of a plan, shared by all workers.
#[derive(clap::Args)]
struct Shared {
    /// Folder of the plan and of all objects, shared by all workers
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
}

impl Shared {
    fn path(&self) -> &Path {
        &self.dir
    }

    fn open(&self) -> Result<TaskFolder> {
        Ok(TaskFolder::open(&self.dir)?)
    }
}

/// The first and the last task of a stage: `build-0 to build-16`, or `place`.
fn names(folder: &TaskFolder, stage: TaskStage) -> String {
    let mut tasks = folder.tasks_of(stage);
    match (tasks.next(), tasks.last()) {
        (Some(first), Some(last)) => format!("{first} to {last}"),
        (Some(only), None) => only.to_string(),
        (None, _) => String::new(),
    }
}

/// A stage as JSON.
fn stage_event(folder: &TaskFolder, status: &StageStatus) -> Value {
    let StageStatus { stage, tasks, made, missing } = status;
    let missing: Vec<String> = missing.iter().map(ToString::to_string).collect();
    json!({
        "stage": stage.name(), "tasks": tasks, "made": made, "missing": missing,
        "host_bytes": folder.memory(*stage),
    })
}
