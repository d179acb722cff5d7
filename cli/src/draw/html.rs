//! A report as a self-contained HTML page.

use std::collections::BTreeMap;

use tagore::{BeamQuality, BuildCost, Report, Result, SearchQuality, SelfRecall, StageCost};

use super::chart::{STYLE, Size, escaped};
use super::recall_qps::{self, Point, Series};
use super::{degrees, timeline};
use crate::laps::shown;
use crate::output::{grouped, sized};

const PAGE: &str = "\
:root { color-scheme: light dark; --paper: #fff; --ink: #3c3c3c; --quiet: #666; --rule: #ddd; --bad: #b00020 }
@media (prefers-color-scheme: dark) {
:root { --paper: #14171c; --ink: #e2e2e2; --quiet: #a0a4aa; --rule: #2c3138; --bad: #ff8a8a }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 1120px; margin: 1.5em auto; padding: 0 1em }
h1, h2, dd, p, footer { overflow-wrap: anywhere }
h1 { font-size: 1.5em; line-height: 1.25 } h2 { font-size: 1.15em; margin: 1.6em 0 .4em }
dl { display: flex; flex-wrap: wrap; gap: .6em 2.4em; margin: 1em 0 } dt, th, footer { color: var(--quiet) }
dd { margin: 0; font-size: 1.4em } .small dd { font-size: 1em }
.bad { color: var(--bad); font-weight: bold } dd .bad { font-size: .65em; margin-left: .5em }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr)); gap: 0 2em }
.plots .chart { width: 100%; max-width: 640px }
.wide { overflow-x: auto } .wide .chart { width: 100%; min-width: 640px; max-width: 960px }
table { border-collapse: collapse } td, th { padding: .2em 1.2em .2em 0; text-align: left; font-weight: normal }
td { border-top: 1px solid var(--rule) } .n { text-align: right; font-variant-numeric: tabular-nums }
.bar { width: 260px } .bar div { height: 12px; background: currentColor }
@media (max-width: 640px) { .bar { display: none } td, th { padding-right: .8em } }
footer { margin: 2em 0 }
";

/// Width of a plot and height of its plot area, in pixels.
const PLOT: Size = Size { width: 500.0, plot: 260.0 };

/// Renders a report as a self-contained page of HTML.
///
/// # Errors
/// If a figure of the report is not finite.
pub fn report_page(report: &Report) -> Result<String> {
    let Report { index, n, dim, element, metric, version, kernels, seconds, .. } = report;
    let title = escaped(&format!("{index}, {} x {dim} {element}, {metric}", grouped(*n)));
    let warnings: String = report
        .warnings()
        .iter()
        .map(|warning| format!("<p class=\"bad\">Warning: {}</p>\n", escaped(warning)))
        .collect();
    let search = report.search.as_ref().map_or(Ok(String::new()), |search| searches(search, index))?;
    let degrees = degrees::draw(&report.degrees, PLOT).inline();
    let build = report.build.as_ref().map_or(Ok(String::new()), stages)?;
    Ok(format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<style>\n{PAGE}{STYLE}\n</style>\n</head>\n<body>\n<h1>{title}</h1>\n{}{warnings}{}\
         <div class=\"plots\">\n{search}<section><h2>Degrees</h2>\n{degrees}\n</section>\n</div>\n{build}{}\
         <footer>tagore {version}, kernels {}; measured in {seconds:.2} s</footer>\n</body>\n</html>\n",
        origin(report),
        figures(report),
        parameters(report),
        escaped(kernels),
    ))
}

/// What was measured, when and where.
fn origin(report: &Report) -> String {
    let Report { file, base, date, machine, .. } = report;
    let gpu = report.build.as_ref().and_then(|build| build.device_name.as_ref());
    let machine = gpu.map_or_else(|| machine.clone(), |gpu| format!("{machine}, {gpu}"));
    let rows = [
        ("index", file.as_ref()),
        ("data", base.as_ref()),
        ("date", Some(date)),
        ("machine", Some(&machine)),
    ];
    let known = rows.into_iter().filter_map(|(name, text)| Some((name, text?)));
    let rows = known.map(|(name, text)| format!("<div><dt>{name}</dt><dd>{}</dd></div>\n", escaped(text)));
    format!("<dl class=\"small\">\n{}</dl>\n", rows.collect::<String>())
}

/// The key figures; those below a threshold say so, in red.
fn figures(report: &Report) -> String {
    let figure = |name: &str, value: &str, note: &str| {
        let note =
            if note.is_empty() { note.to_owned() } else { format!("<span class=\"bad\">{note}</span>") };
        format!("<div><dt>{name}</dt><dd>{value}{note}</dd></div>\n")
    };
    let recall_of = |name: &str, recall: f64, least: f64| {
        let note = if recall < least { format!("below {least}") } else { String::new() };
        figure(name, &format!("{recall:.4}"), &note)
    };
    let recall = |name: &str, found: f64| recall_of(name, found, Report::MIN_RECALL);
    let mut figures = String::new();
    if let Some(SearchQuality { k, beam, recall: found, qps, .. }) = &report.search {
        figures += &recall(&format!("recall@{k} at beam {beam}"), *found);
        figures += &figure(&format!("queries per second at beam {beam}"), &grouped(qps.round()), "");
    }
    if let Some(SelfRecall { recall: found, .. }) = &report.self_recall {
        figures += &recall_of("rows found by a search for the row itself", *found, Report::MIN_SELF_RECALL);
    }
    if let Some(knn) = &report.knn {
        for (k, found) in &knn.recall {
            figures += &recall(&format!("k-NN graph, recall@{k}"), *found);
        }
    }
    if let Some(build) = &report.build {
        let seconds: f64 = build.stages.iter().map(|stage| stage.seconds).sum();
        figures += &figure("seconds of all stages", &format!("{seconds:.2}"), "");
        if let Some(bytes) = build.peak_host_bytes {
            figures += &figure("peak of host memory", &sized(bytes), "");
        }
    }
    let degree = format!("{:.2} of {}", report.mean_degree, report.max_degree);
    figures += &figure("mean degree", &degree, "");
    let least = format!("reach below {}", Report::MIN_REACHABLE);
    let note = if report.reachable < Report::MIN_REACHABLE { &*least } else { "" };
    figures += &figure("unreachable nodes", &grouped(report.unreachable), note);
    figures += &figure("self edges", &grouped(report.self_edges), "");
    figures += &figure("duplicate edges", &grouped(report.duplicate_edges), "");
    format!("<dl>\n{figures}</dl>\n")
}

/// The plot and the table of searches.
fn searches(search: &SearchQuality, index: &str) -> Result<String> {
    let SearchQuality { queries, k, device, beams, .. } = search;
    let point = |&BeamQuality { beam, recall, qps, .. }: &BeamQuality| Point { beam, recall, qps };
    let series = Series { name: index.to_owned(), points: beams.iter().map(point).collect() };
    let plot = recall_qps::draw("Recall by throughput", *k, &[series], PLOT)?.inline();
    let rows = beams.iter().map(|BeamQuality { beam, recall, qps, distances }| {
        let (qps, distances) = (grouped(qps.round()), grouped(distances.round()));
        row([beam.to_string(), format!("{recall:.4}"), qps, distances].map(number))
    });
    let rows: String = rows.collect();
    let queries = grouped(*queries);
    let names = ["beam", &format!("recall@{k}"), "queries per second", "distances per query"];
    let head = row(names.map(|name| format!("<th class=\"n\">{name}</th>")));
    Ok(format!(
        "<section><h2>{queries} searches for rows left out, throughput on {}</h2>\n{plot}\n<div class=\"wide\"><table>\n{head}{rows}</table></div>\n\
         </section>\n",
        escaped(device)
    ))
}

/// The table of stages; out of core, also the time of each task.
fn stages(build: &BuildCost) -> Result<String> {
    let BuildCost { device, device_name, threads, stages, clusters, tasks, .. } = build;
    let name = device_name.as_ref().map_or(String::new(), |name| format!(" ({name})"));
    let longest = stages.iter().map(|stage| stage.seconds).fold(1e-9, f64::max);
    let mebibytes =
        |bytes: Option<u64>| bytes.map_or(String::new(), |bytes| grouped(bytes.div_ceil(1 << 20)));
    let has_gpu = build.peak_gpu_bytes > 0;
    let column = |cell: String| if has_gpu { cell } else { String::new() };
    let rows = shown(stages).map(|StageCost { stage, seconds, peak_gpu_bytes }| {
        let share = 100.0 * seconds / longest;
        row([
            format!("<td>{stage}</td>"),
            number(format!("{seconds:.3}")),
            format!("<td class=\"bar\"><div class=\"c0\" style=\"width:{share:.1}%\"></div></td>"),
            column(number(mebibytes(*peak_gpu_bytes))),
        ])
    });
    let rows: String = rows.collect();
    let memory = column("<th class=\"n\">device MiB, peak</th>".to_owned());
    let mut text = format!(
        "<h2>Build on {}, {threads} threads</h2>\n<div class=\"wide\"><table>\n<tr><th>stage</th>\
         <th class=\"n\">seconds</th><th class=\"bar\"></th>{memory}</tr>\n{rows}</table></div>\n",
        escaped(&format!("{device}{name}"))
    );
    if !tasks.is_empty() {
        let clusters =
            clusters.map_or(String::new(), |clusters| format!(" of {} clusters", grouped(clusters)));
        let title = format!("Tasks{clusters}");
        let plot = timeline::draw(&title, tasks)?.inline();
        // Wider than a telephone: it scrolls, by keys too.
        text += &format!(
            "<h2>{title}</h2>\n<div class=\"wide\" role=\"region\" aria-label=\"{title}\" tabindex=\"0\">\n{plot}\n</div>\n"
        );
    }
    Ok(text)
}

/// All parameters, the seed last.
fn parameters(report: &Report) -> String {
    let seed = report.seed.to_string();
    let parameters: &BTreeMap<String, String> =
        report.build.as_ref().map_or(&report.parameters, |build| &build.parameters);
    let others = parameters.iter().filter(|&(name, _)| name != "seed").map(|(name, value)| (&**name, value));
    let all = others
        .chain([("seed", &seed)])
        .map(|(name, value)| format!("<div><dt>{}</dt><dd>{}</dd></div>\n", escaped(name), escaped(value)));
    format!("<h2>Parameters</h2>\n<dl class=\"small\">\n{}</dl>\n", all.collect::<String>())
}

fn row<const N: usize>(cells: [String; N]) -> String {
    format!("<tr>{}</tr>\n", cells.concat())
}

fn number(text: String) -> String {
    format!("<td class=\"n\">{text}</td>")
}

#[cfg(test)]
mod tests {
    use tagore::{Builder, Device, Measure, Strategy, Synth};

    use super::*;

    #[test]
    fn the_page_is_self_contained_and_complete() {
        let base = Synth::new(300, 4, 0).unwrap().base();
        let builder = Builder::new(Strategy::vamana()).device(Device::Cpu).knn(20).sample(100);
        let (index, stats) = builder.build_with_stats(&base, None).unwrap();
        let measure = Measure::default().on(Device::Cpu);
        let mut report = Report::measure(&index, Some(&base), &stats.sample, &measure).unwrap();
        report.parameters.insert("filter".to_owned(), "<dist> & \"more\"".to_owned());
        let page = |report: &Report| report_page(report).unwrap();
        let text = page(&report);
        assert!(text.contains("&lt;dist&gt; &amp; &quot;more&quot;") && !text.contains("<dist>"));
        assert!(text.contains(&format!("{:.4}", report.search.as_ref().unwrap().recall)));
        report.build = Some(BuildCost::in_memory(&builder, &stats));
        let text = page(&report);
        assert!(text.contains("<td>descent</td>") && text.ends_with("</html>\n"));
        for other in ["<script", "<link", "src=", "href="] {
            assert!(!text.contains(other), "{other}");
        }
        assert_eq!((text.matches("<svg").count(), text.matches("role=\"img\"").count()), (2, 2));
        assert!(text.contains("name=\"viewport\"") && text.contains("prefers-color-scheme: dark"));
        assert!(!text.contains("class=\"bad\""), "red without a fault");
        report.reachable = 0.9989;
        report.n = 1_000_000;
        assert!(page(&report).contains("<span class=\"bad\">reach below 0.999</span>"));
        assert!(page(&report).contains("<h1>vamana, 1,000,000 x 4 f32, l2</h1>"));
        report.reachable = 1.0;
        if let Some(search) = &mut report.search {
            search.recall = 0.8999;
        }
        assert!(page(&report).contains("0.8999<span class=\"bad\">below 0.9</span>"));
    }
}
