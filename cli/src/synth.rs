//! `tagore synth`

use std::path::PathBuf;

use serde_json::json;
use tagore::{Format, Result, Synth, path_text};

use super::files::Files;
use super::output::Output;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Where the vectors go: fbin, f16bin, fvecs or npy
    #[arg(short, long, value_name = "OUT")]
    output: PathBuf,
    /// Rows of the data set
    #[arg(long)]
    n: usize,
    /// Components per row
    #[arg(long)]
    dim: usize,
    /// Another seed gives other data
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Write Q queries of this data set (the rows after the first N) instead of the data set
    #[arg(long, value_name = "Q")]
    queries: Option<usize>,
    /// The format [default: by the extension]
    #[arg(long, value_name = "FORMAT")]
    format: Option<Format>,
}

impl Args {
    pub(crate) fn run(self, output: &Output) -> Result<()> {
        Files::default().write([&self.output]).check()?;
        let synth = Synth::new(self.n, self.dim, self.seed)?;
        let format = self.format.map_or_else(|| Format::of(&self.output), Ok)?;
        let first = if self.queries.is_some() { self.n as u64 } else { 0 };
        let count = self.queries.unwrap_or(self.n);
        synth.write(first..first.saturating_add(count as u64), &self.output, format, output.progress())?;
        output.say(format_args!("{count} x {} -> {}", self.dim, self.output.display()));
        output.event(&json!({
            "event": "synth", "n": count, "dim": self.dim, "seed": self.seed, "output": path_text(&self.output),
        }));
        Ok(())
    }
}
