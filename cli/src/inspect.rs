//! `tagore inspect`

use serde_json::{Value, json};
use tagore::{Device, GroundTruth, Index, KnnSample, Report, Vectors};
use tagore_text::path_text;

use crate::content::{Content, Input};
use crate::error::{Error, Result};
use crate::output::{Output, grouped};
use crate::read::{Wanted, file_of};
use crate::report::{ReportOptions, name_files};

/// Limit in bytes of a file that is read completely without `--all`.
const WHOLE: u64 = 1 << 30;

/// The checks of a larger file.
const SPOTS: &str = "header and 1,024 spread rows checked (--all reads the rest)";

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    input: Input,
    /// Check a file of more than 1 GiB completely, not only its header and 1,024 rows
    #[arg(long)]
    all: bool,
    /// Device of recall measurements: auto, cpu, cuda or cuda:N
    #[arg(long, default_value = "auto", requires = "base")]
    device: Device,
    #[command(flatten)]
    report: ReportOptions,
}

impl Args {
    pub(crate) fn run(self, output: &Output) -> Result<()> {
        self.report.check()?;
        self.report.add_to(self.input.files(), None).check(output)?;
        if self.input.base.is_none() {
            self.report.refuse_min_recall("needs --base")?;
        }
        let content = self.input.read(Wanted::Any, output.progress())?;
        if self.report.needs_index() && !matches!(content, Content::Index(_)) {
            let file = self.input.file.display();
            return Err(Error::usage(format!(
                "--report, --html and --min-recall need an index, but {file} is none"
            )));
        }
        let is_measured = self.input.base.is_some() || self.report.needs_index();
        match content {
            Content::Index(index) if !is_measured && !self.reads_all()? => self.large_index(&index, output),
            Content::Index(index) => self.index(&index, output),
            Content::Vectors(vectors) => self.vectors(&vectors, output),
            Content::Ids(ids) => self.ids(&ids, output),
        }
    }

    /// Whether the file is read completely.
    fn reads_all(&self) -> Result<bool> {
        let metadata = std::fs::metadata(file_of(&self.input.file));
        let bytes =
            metadata.map_err(|source| tagore::Error::Io { path: self.input.file.clone(), source })?.len();
        Ok(self.all || bytes <= WHOLE)
    }

    fn index(&self, index: &Index, output: &Output) -> Result<()> {
        index.verify(output.progress())?;
        self.say_index(index, "sound", output);
        let base = self.input.open_base()?;
        let measure = self.report.measure(self.device, index.description().seed, output);
        let mut report = Report::measure(index, base.as_ref(), &KnnSample::default(), &measure)?;
        name_files(&mut report, &self.input.file);
        self.report.write(&report, self.report.hold(None)?, output, |line| output.result(line))?;
        let mut event = json!({ "event": "inspect", "file": path_text(&self.input.file), "content": "index", "checked": "all" });
        if let (Some(event), Value::Object(report)) = (event.as_object_mut(), json!(report)) {
            event.extend(report);
        }
        output.event(&event);
        self.report.judge(&report, &self.input.file)
    }

    /// Checks a sample of an index that is too large to be read completely.
    fn large_index(&self, index: &Index, output: &Output) -> Result<()> {
        index.spot_check()?;
        self.say_index(index, SPOTS, output);
        let (base, description) = (index.fingerprint(), index.description());
        output.event(&json!({
            "event": "inspect", "file": path_text(&self.input.file), "content": "index", "checked": "sample", "index": index.kind(),
            "n": base.rows, "dim": base.dim, "type": base.element.name(), "metric": index.metric().name_for(base.element),
            "seed": description.seed, "parameters": description.parameters, "entries": index.entries(),
            "max_degree": index.max_degree(),
        }));
        Ok(())
    }

    fn say_index(&self, index: &Index, checked: &str, output: &Output) {
        let (base, description) = (index.fingerprint(), index.description());
        let parameters: Vec<String> =
            description.parameters.iter().map(|(name, value)| format!("{name} {value}")).collect();
        output.result(format_args!("{}: {} index, {checked}", self.input.file.display(), index.kind()));
        let rows = grouped(base.rows);
        let metric = index.metric().name_for(base.element);
        output.result(format_args!("base      {rows} x {} {}, {metric}", base.dim, base.element));
        output.result(format_args!("made by   {}, seed {}", parameters.join(", "), description.seed));
    }

    fn vectors(&self, vectors: &Vectors, output: &Output) -> Result<()> {
        let (n, dim, element) = (vectors.len(), vectors.dim(), vectors.element_type());
        let all = self.reads_all()?;
        if all {
            vectors.validate(output.progress())?
        } else {
            vectors.spot_check()?
        };
        let (checked, said) = if all { ("all", "all finite") } else { ("sample", SPOTS) };
        output.result(format_args!(
            "{}: {} x {dim} {element}, {said}",
            self.input.file.display(),
            grouped(n)
        ));
        output.event(&json!({
            "event": "inspect", "file": path_text(&self.input.file), "content": "vectors", "n": n, "dim": dim, "type": element.name(),
            "checked": checked,
        }));
        Ok(())
    }

    fn ids(&self, ids: &GroundTruth, output: &Output) -> Result<()> {
        let distances = ids.has_distances();
        let with = if distances { "ids and distances" } else { "ids" };
        output.result(format_args!(
            "{}: {} x {} {with}",
            self.input.file.display(),
            grouped(ids.len()),
            ids.k()
        ));
        output.event(&json!({
            "event": "inspect", "file": path_text(&self.input.file), "content": "ids", "rows": ids.len(), "k": ids.k(), "distances": distances,
        }));
        Ok(())
    }
}
