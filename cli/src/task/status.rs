//! `tagore task status`

use serde_json::json;

use super::{Shared, stage_event};
use crate::error::Result;
use crate::output::{Output, grouped};

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    shared: Shared,
}

impl Args {
    pub(super) fn run(self, output: &Output) -> Result<()> {
        let folder = self.shared.open()?;
        let status = folder.status()?;
        for stage in &status {
            let (made, tasks) = (grouped(stage.made), grouped(stage.tasks));
            let count = stage.tasks - stage.made;
            let names: Vec<String> = stage.missing.iter().map(ToString::to_string).collect();
            let more = if count > names.len() { ", .." } else { "" };
            let left = if count == 0 { String::new() } else { format!("; left: {}{more}", names.join(", ")) };
            output.result(format_args!("{:<9} {made} of {tasks}{left}", stage.stage.name()));
        }
        let stages: Vec<_> = status.iter().map(|stage| stage_event(&folder, stage)).collect();
        let complete = folder.finished()?.is_some();
        output.event(&json!({
            "event": "status", "dir": folder.path(), "output": folder.output(), "complete": complete,
            "stages": stages,
        }));
        Ok(())
    }
}
