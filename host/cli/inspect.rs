//! `tagore inspect`

use serde_json::json;
use tagore::{GroundTruth, Index, Result, Vectors};

use super::content::{Content, Input};
use super::output::Output;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    input: Input,
}

impl Args {
    pub(crate) fn run(self, output: &Output) -> Result<()> {
        match self.input.read()? {
            Content::Index(index) => self.index(&index, output),
            Content::Vectors(vectors) => self.vectors(&vectors, output),
            Content::Ids(ids) => self.ids(&ids, output),
        }
    }

    fn index(&self, index: &Index, output: &Output) -> Result<()> {
        index.verify()?;
        let (statistics, base) = (index.statistics(), index.fingerprint());
        let description = index.description();
        output.say(format_args!("{}: {} index, sound", self.input.file.display(), index.kind()));
        output.say(format_args!(
            "base        {} x {} {}, {}",
            base.rows,
            base.dim,
            base.element,
            index.metric()
        ));
        let parameters: Vec<String> =
            description.parameters.iter().map(|(k, v)| format!("{k} {v}")).collect();
        output.say(format_args!("parameters  {}, seed {}", parameters.join(", "), description.seed));
        output.say(format_args!(
            "degree      {:.2} on average, {} to {} of at most {}",
            index.mean_degree(),
            statistics.min_degree,
            statistics.max_degree,
            index.max_degree()
        ));
        output.say(format_args!(
            "edges       {}, {} to the node itself, {} twice in a row",
            statistics.edges, statistics.self_edges, statistics.duplicate_edges
        ));
        output.say(format_args!(
            "reach       {} of {} nodes from {} entry points",
            index.len() as u64 - statistics.unreachable,
            index.len(),
            index.entries().len()
        ));
        output.event(&json!({
            "event": "inspect", "file": self.input.file, "content": "index", "index": index.kind(), "n": base.rows,
            "dim": base.dim, "type": base.element.name(), "metric": index.metric().name(),
            "seed": description.seed, "parameters": description.parameters, "entries": index.entries(),
            "max_degree": index.max_degree(), "mean_degree": index.mean_degree(), "degrees": statistics.degrees,
            "self_edges": statistics.self_edges, "duplicate_edges": statistics.duplicate_edges,
            "unreachable": statistics.unreachable,
        }));
        Ok(())
    }

    fn vectors(&self, vectors: &Vectors, output: &Output) -> Result<()> {
        vectors.validate()?;
        let (n, dim, element) = (vectors.len(), vectors.dim(), vectors.element_type());
        output.say(format_args!(
            "{}: {n} vectors of dimension {dim}, {element}, all finite",
            self.input.file.display()
        ));
        output.event(&json!({
            "event": "inspect", "file": self.input.file, "content": "vectors", "n": n, "dim": dim, "type": element.name(),
        }));
        Ok(())
    }

    fn ids(&self, ids: &GroundTruth, output: &Output) -> Result<()> {
        let distances = ids.has_distances();
        let with = if distances { "ids and distances" } else { "ids" };
        output.say(format_args!("{}: {} x {} {with}", self.input.file.display(), ids.len(), ids.k()));
        output.event(&json!({
            "event": "inspect", "file": self.input.file, "content": "ids", "rows": ids.len(), "k": ids.k(), "distances": distances,
        }));
        Ok(())
    }
}
