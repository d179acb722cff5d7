//! A report as a self-contained HTML page.

use std::error::Error;
use std::fmt::Write;

use super::{BuildCost, Report, plots, timeline};

/// Width of the longest stage's bar, in pixels.
const BAR: f64 = 260.0;

const STYLE: &str = "
body { font: 15px/1.5 sans-serif; color: #3c3c3c; max-width: 1120px; margin: 2em auto; padding: 0 1em }
h1 { font-size: 1.5em } h2 { font-size: 1.15em; margin: 1.6em 0 .4em }
dl { display: flex; flex-wrap: wrap; gap: .6em 2.4em } dt { color: #777 } dd { margin: 0; font-size: 1.4em }
.small dd { font-size: 1em }
table { border-collapse: collapse } td, th { padding: .15em 1.2em .15em 0; text-align: left; font-weight: normal }
th { color: #777 } .n { text-align: right } .warning { color: #b00020; font-weight: bold } svg { max-width: 100%; height: auto }
.side { display: flex; flex-wrap: wrap; gap: 1em } footer { margin-top: 2em; color: #777 }";

/// Renders the page.
pub(super) fn page(report: &Report) -> Result<String, Box<dyn Error>> {
    let Report { index, n, dim, element, metric, .. } = report;
    let title = escaped(&format!("{index}, {n} x {dim} {element}, {metric}"));
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\"><title>{title}</title><style>{STYLE}\n</style></head>\n\
         <body>\n<h1>{title}</h1>\n"
    );
    for warning in report.warnings() {
        writeln!(page, "<p class=\"warning\">{}</p>", escaped(&warning))?;
    }
    figures(&mut page, report)?;
    page.push_str("<div class=\"side\">\n");
    if let Some(search) = &report.search {
        let plot = plots::recall(search)?;
        writeln!(page, "<section><h2>Recall of {} queries</h2>{plot}</section>", search.queries)?;
    }
    writeln!(page, "<section><h2>Degrees</h2>{}</section>\n</div>", plots::degrees(&report.degrees)?)?;
    if let Some(build) = &report.build {
        stages(&mut page, build)?;
    }
    let parameters = report.build.as_ref().map_or(&report.parameters, |build| &build.parameters);
    page.push_str("<h2>Parameters</h2>\n<dl class=\"small\">\n");
    let seed = report.seed.to_string();
    let others = parameters.iter().filter(|&(name, _)| name != "seed").map(|(name, value)| (&**name, value));
    for (name, value) in others.chain([("seed", &seed)]) {
        writeln!(page, "<div><dt>{}</dt><dd>{}</dd></div>", escaped(name), escaped(value))?;
    }
    page.push_str("</dl>\n");
    writeln!(
        page,
        "<footer>tagore {}, kernels {}; measured in {:.2} s</footer>\n</body>\n</html>",
        report.version,
        escaped(&report.kernels),
        report.seconds
    )?;
    Ok(page)
}

/// Writes the key figures.
fn figures(page: &mut String, report: &Report) -> std::fmt::Result {
    page.push_str("<dl>\n");
    let mut figure = |name: &str, value: String| writeln!(page, "<div><dt>{name}</dt><dd>{value}</dd></div>");
    if let Some(search) = &report.search {
        let name = format!("recall@{} at beam {}", search.k, search.beam);
        figure(&name, format!("{:.4}", search.recall))?;
    }
    if let Some(knn) = &report.knn {
        for (k, recall) in &knn.recall {
            figure(&format!("k-NN graph, recall@{k}"), format!("{recall:.4}"))?;
        }
    }
    if let Some(build) = &report.build {
        let seconds: f64 = build.stages.iter().map(|stage| stage.seconds).sum();
        figure("seconds", format!("{seconds:.2}"))?;
    }
    figure("mean degree", format!("{:.2} of {}", report.mean_degree, report.max_degree))?;
    figure("unreachable nodes", report.unreachable.to_string())?;
    figure("self edges", report.self_edges.to_string())?;
    figure("duplicate edges", report.duplicate_edges.to_string())?;
    page.push_str("</dl>\n");
    Ok(())
}

/// Writes the table of stages; out of core, also the time of each task.
fn stages(page: &mut String, build: &BuildCost) -> Result<(), Box<dyn Error>> {
    let device = match &build.device_name {
        Some(name) => format!("{} ({name})", build.device),
        None => build.device.clone(),
    };
    writeln!(page, "<h2>Build on {}, {} threads</h2>", escaped(&device), build.threads)?;
    page.push_str(
        "<table>\n<tr><th>stage</th><th class=\"n\">seconds</th><th></th><th class=\"n\">peak device MiB</th>\
         <th class=\"n\">peak host MiB so far</th></tr>\n",
    );
    let longest = build.stages.iter().map(|stage| stage.seconds).fold(1e-9, f64::max);
    let mebibytes =
        |bytes: Option<u64>| bytes.map_or(String::new(), |bytes| bytes.div_ceil(1 << 20).to_string());
    for stage in &build.stages {
        writeln!(
            page,
            "<tr><td>{}</td><td class=\"n\">{:.3}</td><td><svg width=\"{BAR}\" height=\"12\"><rect width=\"{:.1}\" \
             height=\"12\" fill=\"#0072b2\"/></svg></td><td class=\"n\">{}</td><td class=\"n\">{}</td></tr>",
            stage.stage,
            stage.seconds,
            BAR * stage.seconds / longest,
            mebibytes(stage.peak_gpu_bytes),
            mebibytes(stage.peak_host_bytes)
        )?;
    }
    page.push_str("</table>\n");
    if !build.tasks.is_empty() {
        let mut svg = String::new();
        let title = build.clusters.map_or(String::new(), |clusters| format!("{clusters} clusters"));
        timeline::draw(&mut svg, &title, &build.tasks)?;
        writeln!(page, "<h2>Tasks</h2>\n{svg}")?;
    }
    Ok(())
}

/// Escapes text for HTML.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
