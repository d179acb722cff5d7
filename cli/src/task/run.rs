//! `tagore task run`

use std::path::PathBuf;
use std::time::Instant;

use serde_json::json;
use tagore::outofcore::{TaskFolder, TaskId, TaskStage, TaskWorker, Worked};
use tagore::{Device, Error as LibraryError, Format};
use tagore_text::path_text;

use super::Shared;
use crate::error::{Error, Result};
use crate::options::open;
use crate::output::{Output, grouped};
use crate::report::remove_beside;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    shared: Shared,
    #[command(flatten)]
    which: Which,
    /// Data set at another path than that of the plan
    #[arg(short = 'i', long = "base", value_name = "BASE")]
    input: Option<PathBuf>,
    /// Format of that data set [default: by its extension]
    #[arg(long, value_name = "FORMAT", requires = "input")]
    format: Option<Format>,
    /// Device: auto, cpu, cuda or cuda:N
    #[arg(long, default_value = "auto")]
    device: Device,
    /// Allow a device of another kind than the plan's: the bytes of the index are then others
    #[arg(long)]
    any_device: bool,
}

/// The tasks to run.
#[derive(clap::Args)]
#[group(required = true, multiple = false)]
struct Which {
    /// Tasks, such as place or build-17
    #[arg(value_name = "TASK")]
    tasks: Vec<TaskId>,
    /// Run one task that is ready
    #[arg(long)]
    next: bool,
    /// Run the tasks of a stage that have not run: assign, place, write, build, merge, assemble or
    /// finish
    #[arg(long, value_name = "STAGE")]
    stage: Option<TaskStage>,
    /// Run tasks until the index is complete
    #[arg(long)]
    all: bool,
}

impl Args {
    pub(super) fn run(self, output: &Output) -> Result<()> {
        let folder = self.shared.open()?;
        if let Some(&task) = self.which.tasks.iter().find(|&&task| !folder.has(task)) {
            let most = folder.count(task.stage);
            return Err(Error::usage(format!(
                "found {task}, expected one of the {most} tasks of {}",
                task.stage
            )));
        }
        let base = match &self.input {
            Some(path) => open(path, self.format)?,
            None => {
                let (path, format) = folder.base();
                open(path, Some(format))?
            }
        };
        let worker = folder.worker(base, self.device, self.any_device)?.progress(output.progress().clone());
        let mut events = Events { began: Instant::now(), is_finished: false, output };
        self.which.run(&worker, &mut events).map_err(with_flag)?;
        if events.is_finished {
            remove_beside(folder.output())?;
        }
        say_index(&folder, output)
    }
}

impl Which {
    fn run(&self, worker: &TaskWorker, events: &mut Events<'_>) -> Result<(), LibraryError> {
        if self.all {
            return worker.run_stages(&TaskStage::ALL, |task| events.end(task, Worked::Made));
        }
        if let Some(stage) = self.stage {
            return worker.run_stages(&[stage], |task| events.end(task, Worked::Made));
        }
        if self.next {
            match worker.run_next()? {
                Some(task) => events.end(task, Worked::Made),
                None => events.output.say("no task is ready: all have run, or run elsewhere"),
            }
        }
        for &task in &self.tasks {
            let worked = worker.run(task)?;
            events.end(task, worked);
        }
        Ok(())
    }
}

/// Prints a line for each task that ends.
struct Events<'a> {
    /// The end of the last task.
    began: Instant,
    /// Whether the index was completed.
    is_finished: bool,
    output: &'a Output,
}

impl Events<'_> {
    fn end(&mut self, task: TaskId, worked: Worked) {
        let seconds = self.began.elapsed().as_secs_f64();
        let made = worked == Worked::Made;
        self.is_finished |= made && task.stage == TaskStage::Finish;
        let what = if made { "has run" } else { "had run" };
        self.output.say(format_args!("{task} {what}, {seconds:.3} s"));
        self.output.event(
            &json!({ "event": "task_run", "task": task.to_string(), "made": made, "seconds": seconds }),
        );
        self.began = Instant::now();
    }
}

/// Prints the finished index, if it is complete.
fn say_index(folder: &TaskFolder, output: &Output) -> Result<()> {
    let Some(index) = folder.finished()? else { return Ok(()) };
    let (rows, unreachable) = (folder.rows(), index.unreachable);
    output.say(format_args!(
        "{}: complete, {} of {} nodes cannot be reached",
        path_text(folder.output()),
        grouped(unreachable),
        grouped(rows)
    ));
    if index.devices.len() > 1 {
        let kinds = index.devices.join(", ");
        output
            .warn(format_args!("built on devices of several kinds ({kinds}): another build has other bytes"));
    }
    output.event(&json!({
        "event": "index", "output": folder.output(), "n": rows, "bytes": index.bytes,
        "unreachable": unreachable, "repeated": index.repeated, "devices": index.devices,
    }));
    Ok(())
}

/// The error of a worker, with the flag that allows another kind of device.
fn with_flag(error: LibraryError) -> Error {
    match error {
        LibraryError::Argument { parameter, found, expected } => {
            let expected = expected.replace("any_device is set", "--any-device is given");
            LibraryError::Argument { parameter, found, expected }.into()
        }
        other => other.into(),
    }
}
