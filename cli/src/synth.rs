//! `tagore synth`

use std::path::{Path, PathBuf};

use serde_json::json;
use tagore::{ElementType, Fault, Format, QueryKind, Synth, SynthKind};
use tagore_text::path_text;

use crate::error::{Error, Result};
use crate::files::{Files, Kind};
use crate::number;
use crate::options::with_flag;
use crate::output::{Output, grouped, name};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// File of the vectors: fbin, f16bin, bf16bin, u8bin, i8bin, b1bin, fvecs, bvecs or npy; - for
    /// standard output
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
    /// repeated (uniform rows, several times each), lognormal (norms) or dirty (a mixture in which
    /// some rows have a fault)
    #[arg(long, default_value = "mixture")]
    kind: SynthKind,
    /// Gaussians of kind clusters, 1 to N [default: 100, or N if less]
    #[arg(long, value_name = "C")]
    clusters: Option<usize>,
    /// Rows per distinct row of kind repeated, 1 to N [default: 10, or N if less]
    #[arg(long, value_name = "R")]
    copies: Option<usize>,
    /// Fault of kind dirty: zero, equal, signed-zero, multiples, near, ball, lone, sentinel, tails,
    /// offset or grid, such as near:1e-6 [default: zero]
    #[arg(long, value_name = "FAULT[:VALUE]")]
    fault: Option<Fault>,
    /// Share of rows with the fault, of kind dirty [default: 0.01]
    #[arg(long, value_name = "X", value_parser = number::real::<f64>)]
    share: Option<f64>,
    /// Write Q queries of this data set (the rows after the first N) instead of the data set
    #[arg(long, value_name = "Q")]
    queries: Option<usize>,
    /// Queries: rows (of the same distribution, without faults), sums (of two rows of the data set,
    /// plus noise), dirty (rows of the data set with the fault), tower (of a second tower beside a
    /// mixture, as of texts beside images) or shifted (rows off the range of the data set)
    #[arg(long, default_value = "rows", requires = "queries", value_name = "KIND")]
    query_kind: QueryKind,
    /// Format of OUT [default: by its extension]
    #[arg(long, value_name = "FORMAT")]
    format: Option<Format>,
}

impl Args {
    pub(crate) fn run(self, output: &Output) -> Result<()> {
        Files::default().write(Kind::Binary, [&self.output]).check(output)?;
        let kind = self.kind()?;
        let format = self.format.map_or_else(|| Format::from_path(&self.output), Ok).map_err(with_flag)?;
        let element = self.element.or(format.element()).unwrap_or(ElementType::F32);
        let synth = Synth::of_kind(kind, self.n, self.dim, self.seed)?;
        let synth = synth.query_kind(self.query_kind).element_type(element);
        let first = if self.queries.is_some() { self.n as u64 } else { 0 };
        let count = self.queries.unwrap_or(self.n);
        let rows = first..first.saturating_add(count as u64);
        let write = |path: &Path| Ok(synth.write(rows, path, format, output.progress())?);
        output.save(&self.output, write)?;
        output.say(format_args!("{} x {} -> {}", grouped(count), self.dim, name(&self.output)));
        let (clusters, copies, fault) = match kind {
            SynthKind::Clusters { clusters } => (Some(clusters), None, None),
            SynthKind::Repeated { copies } => (None, Some(copies), None),
            SynthKind::Dirty { fault, share } => (None, None, Some((fault.to_string(), share))),
            _ => (None, None, None),
        };
        let (fault, share) = fault.unzip();
        output.event(&json!({
            "event": "synth", "n": count, "dim": self.dim, "type": element.name(), "seed": self.seed, "kind": kind.name(),
            "clusters": clusters, "copies": copies, "fault": fault, "share": share,
            "query_kind": self.queries.map(|_| self.query_kind.name()),
            "output": path_text(&self.output),
        }));
        Ok(())
    }

    /// The kind with its parameters. A default number of clusters or copies shrinks to the rows.
    fn kind(&self) -> Result<SynthKind> {
        let Self { n, clusters, copies, fault, share, .. } = *self;
        let of_kind = |kind: QueryKind| (self.query_kind == kind).then(|| kind.to_string());
        let options = [
            ("--clusters", clusters.map(|x| x.to_string()), "clusters"),
            ("--copies", copies.map(|x| x.to_string()), "repeated"),
            ("--fault", fault.map(|x| x.to_string()), "dirty"),
            ("--share", share.map(|x| x.to_string()), "dirty"),
            ("--query-kind", of_kind(QueryKind::Dirty), "dirty"),
            ("--query-kind", of_kind(QueryKind::Tower), "mixture"),
        ];
        for (flag, value, only) in options {
            if let Some(value) = value.filter(|_| self.kind.name() != only) {
                let found = format!("{value} with --kind {}", self.kind);
                return Err(Error::usage(format!("{flag}: found {found}, expected --kind {only}")));
            }
        }
        Ok(match self.kind {
            SynthKind::Clusters { clusters: most } => {
                SynthKind::Clusters { clusters: clusters.unwrap_or(most.min(n)) }
            }
            SynthKind::Repeated { copies: most } => {
                SynthKind::Repeated { copies: copies.unwrap_or(most.min(n)) }
            }
            SynthKind::Dirty { fault: default, share: usual } => {
                SynthKind::Dirty { fault: fault.unwrap_or(default), share: share.unwrap_or(usual) }
            }
            kind => kind,
        })
    }
}
