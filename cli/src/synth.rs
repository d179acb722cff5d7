//! `tagore synth`

use std::path::PathBuf;

use serde_json::json;
use tagore::{ElementType, Format, QueryKind, Synth, SynthKind, path_text};

use crate::error::{Error, Result};
use crate::files::{Files, Kind};
use crate::output::{Output, grouped};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// File of the vectors: fbin, f16bin, bf16bin, u8bin, i8bin, b1bin, fvecs, bvecs or npy
    #[arg(short, long, value_name = "OUT")]
    output: PathBuf,
    /// Rows of the data set
    #[arg(long)]
    n: usize,
    /// Components per row
    #[arg(long)]
    dim: usize,
    /// Type of the components: f32, f16, bf16, u8, i8 or b1. As u8 and i8 a standard deviation
    /// becomes 32; b1 takes the signs [default: that of the format, f32 of npy]
    #[arg(long = "type", value_name = "TYPE")]
    element: Option<ElementType>,
    /// Seed of the data
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Distribution: mixture (of correlated Gaussians), clusters (separate Gaussians), uniform,
    /// repeated (uniform rows, several times each) or lognormal (norms)
    #[arg(long, default_value = "mixture")]
    kind: SynthKind,
    /// Gaussians of kind clusters, 1 to N [default: 100, or N if less]
    #[arg(long, value_name = "C")]
    clusters: Option<usize>,
    /// Rows per distinct row of kind repeated, 1 to N [default: 10, or N if less]
    #[arg(long, value_name = "R")]
    copies: Option<usize>,
    /// Write Q queries of this data set (the rows after the first N) instead of the data set
    #[arg(long, value_name = "Q")]
    queries: Option<usize>,
    /// Queries: rows (of the same distribution) or sums (of two rows of the data set, plus noise)
    #[arg(long, default_value = "rows", requires = "queries", value_name = "KIND")]
    query_kind: QueryKind,
    /// Format of OUT [default: by its extension]
    #[arg(long, value_name = "FORMAT")]
    format: Option<Format>,
}

impl Args {
    pub(crate) fn run(self, output: &Output) -> Result<()> {
        Files::default().write(Kind::Any, [&self.output]).check()?;
        let kind = self.kind()?;
        let format = self.format.map_or_else(|| Format::of(&self.output), Ok)?;
        let element = self.element.or(format.element()).unwrap_or(ElementType::F32);
        let synth = Synth::of_kind(kind, self.n, self.dim, self.seed)?;
        let synth = synth.query_kind(self.query_kind).element_type(element);
        let first = if self.queries.is_some() { self.n as u64 } else { 0 };
        let count = self.queries.unwrap_or(self.n);
        synth.write(first..first.saturating_add(count as u64), &self.output, format, output.progress())?;
        output.say(format_args!("{} x {} -> {}", grouped(count), self.dim, self.output.display()));
        let (clusters, copies) = match kind {
            SynthKind::Clusters { clusters } => (Some(clusters), None),
            SynthKind::Repeated { copies } => (None, Some(copies)),
            _ => (None, None),
        };
        output.event(&json!({
            "event": "synth", "n": count, "dim": self.dim, "type": element.name(), "seed": self.seed, "kind": kind.name(),
            "clusters": clusters, "copies": copies, "query_kind": self.queries.map(|_| self.query_kind.name()),
            "output": path_text(&self.output),
        }));
        Ok(())
    }

    /// The kind with its number of clusters or copies. A default shrinks to the rows.
    fn kind(&self) -> Result<SynthKind> {
        let Self { n, clusters, copies, .. } = *self;
        let refuse = |flag: &str, value: Option<usize>, only: &str| match value {
            None => Ok(()),
            Some(value) => {
                let found = format!("{value} with --kind {}", self.kind);
                Err(Error::usage(format!("{flag}: found {found}, expected --kind {only}")))
            }
        };
        if !matches!(self.kind, SynthKind::Clusters { .. }) {
            refuse("--clusters", clusters, "clusters")?;
        }
        if !matches!(self.kind, SynthKind::Repeated { .. }) {
            refuse("--copies", copies, "repeated")?;
        }
        Ok(match self.kind {
            SynthKind::Clusters { clusters: most } => {
                SynthKind::Clusters { clusters: clusters.unwrap_or(most.min(n)) }
            }
            SynthKind::Repeated { copies: most } => {
                SynthKind::Repeated { copies: copies.unwrap_or(most.min(n)) }
            }
            kind => kind,
        })
    }
}
