//! `tagore bench start`

use serde_json::json;
use tagore::{Device, start_seconds};

use crate::error::Result;
use crate::options::Input;
use crate::output::Output;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    input: Input,
    /// Device to open: cuda or cuda:N
    #[arg(long, default_value = "cuda")]
    device: Device,
}

impl Args {
    pub(crate) fn run(self, output: &Output) -> Result<()> {
        let base = self.input.open()?;
        let (open, copy) = start_seconds(self.device, &base)?;
        output.result(format_args!("open {open:.3} s, copy {copy:.3} s"));
        output.event(&json!({ "event": "bench start", "seconds": { "open": open, "copy": copy } }));
        Ok(())
    }
}
