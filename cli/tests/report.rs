//! Reports of `tagore build` and `tagore inspect`.

use serde_json::Value;
use tagore::{Description, Index, Metric, Vectors};

use super::Session;

#[test]
fn inspect_repeats_the_report_of_a_build() {
    let s = Session::new();
    // All but the throughput, which differs from run to run.
    let untimed = |mut report: Value| {
        let search = &mut report["search"];
        search["qps"].take();
        search["beams"].as_array_mut().into_iter().flatten().for_each(|beam| drop(beam["qps"].take()));
        report
    };
    let json = |name: &str| untimed(serde_json::from_slice(&std::fs::read(s.path(name)).unwrap()).unwrap());
    let report = json("index.tagore.report.json");
    assert_eq!((&report["n"], &report["knn"]["nodes"]), (&500.into(), &500.into()));
    assert_eq!((&report["search"]["k"], &report["search"]["beam"]), (&10.into(), &100.into()));
    let stages: Vec<&str> =
        report["build"]["stages"].as_array().unwrap().iter().map(|s| s["stage"].as_str().unwrap()).collect();
    for stage in ["read", "descent", "prune", "connect", "write", "measure"] {
        assert!(stages.contains(&stage), "no {stage} in {stages:?}");
    }

    let inspected =
        s.succeeds("inspect index.tagore --base base.fbin --report again.json --html page.html").remove(0);
    assert!(inspected["search"]["qps"].as_f64() > Some(0.0));
    let inspected = untimed(inspected);
    let again = json("again.json");
    for key in ["degrees", "edges", "reachable", "search", "parameters", "entries", "seed", "version"] {
        assert!(!again[key].is_null() && again[key] == report[key] && inspected[key] == report[key], "{key}");
    }
    assert!(again["build"].is_null() && again["knn"].is_null());
    assert!(s.succeeds("inspect index.tagore")[0]["search"].is_null());
    assert!(std::fs::read_to_string(s.path("page.html")).unwrap().contains("recall@10 at beam 100"));

    s.succeeds("build -i base.fbin -o quiet --kind dpg --knn 30 --no-report");
    assert!(!s.path("quiet.report.json").exists());
    s.succeeds("build -i base.fbin -o named --kind dpg --knn 30 --report r.json --html r.html --verify 50");
    assert!(!s.path("named.report.json").exists() && s.path("r.html").exists());
    assert_eq!(json("r.json")["search"]["queries"], 50);

    let large = "build -i base.fbin -o large --kind vamana --knn 20 --cluster-size 200 --html large.html";
    let built = &s.succeeds(large).pop().unwrap()["report"];
    assert!(built["knn"].is_null() && built["search"]["recall"].as_f64() > Some(0.9));
    assert_eq!(built["build"]["parameters"]["cluster-size"], "200");
    assert!(std::fs::read_to_string(s.path("large.html")).unwrap().contains("reader 0"));
}

#[test]
fn less_recall_than_min_recall_fails() {
    let s = Session::new();
    let poor = "build -i base.fbin -o poor --kind cagra --knn 3 --degree 2";
    let failed = s.run(&format!("{poor} --min-recall 0.999"));
    let error = String::from_utf8(failed.stderr).unwrap();
    let last = error.lines().last().unwrap();
    assert!(
        last.starts_with("error: poor: found recall@10 0.") && last.contains("expected at least 0.999"),
        "{error}"
    );
    assert_eq!(failed.status.code(), Some(1));
    assert!(s.path("poor").exists() && s.path("poor.report.json").exists());
    s.succeeds(&format!("{poor} --min-recall 0.01"));
    let again = s.run("inspect poor --base base.fbin --min-recall 0.999");
    assert!(
        again.status.code() == Some(1)
            && String::from_utf8(again.stderr).unwrap().ends_with(&format!("{last}\n"))
    );

    s.fails(2, &format!("{poor} --min-recall 1.5"), &["--min-recall", "found 1.5, expected 0 to 1"]);
    s.fails(2, &format!("{poor} --min-recall 1 --verify 0"), &["--verify: found 0"]);
    s.fails(2, &format!("{poor} --min-recall 1 --no-report"), &["--no-report"]);
    s.fails(1, &format!("{poor} --html missing/x.html"), &["missing/x.html", "no such folder"]);
    s.fails(2, "inspect index.tagore --min-recall 0.5", &["--min-recall 0.5 needs --base"]);
    s.fails(2, "inspect base.fbin --base base.fbin", &["--base", "base.fbin", "an index"]);
    s.fails(1, "inspect index.tagore --base query.fbin", &["query.fbin", "20 x 8"]);
}

#[test]
fn an_index_that_finds_little_is_warned_of() {
    let s = Session::new();
    let base = Vectors::open(s.path("base.fbin")).unwrap();
    // A chain that ends in the middle.
    let rows: Vec<Vec<u32>> = (0..500).map(|node| if node < 250 { vec![node + 1] } else { vec![] }).collect();
    let description =
        Description { kind: "chain".into(), metric: Metric::L2, seed: 0, parameters: [].into() };
    Index::from_rows(description, &base, &rows, vec![0]).unwrap().save(s.path("bad")).unwrap();
    let told = s.run("inspect bad --base base.fbin --html bad.html");
    let (error, page) =
        (String::from_utf8(told.stderr).unwrap(), std::fs::read_to_string(s.path("bad.html")));
    let page = page.unwrap();
    assert!(told.status.success(), "{error}");
    for warning in ["249 of 500 nodes cannot be reached: ", "searches at beam 100 find "] {
        assert!(error.contains(&format!("warning: {warning}")), "{error}");
        assert!(page.contains(&format!("<p class=\"bad\">Warning: {warning}")));
    }
    let told = s.run("inspect index.tagore --base base.fbin");
    assert!(!String::from_utf8(told.stderr).unwrap().contains("warning"), "a good index");
}

#[test]
fn a_build_says_what_it_waited_for() {
    let s = Session::new();
    for device in ["cpu", "emulated"] {
        let build = format!("build -i base.fbin -o timed --kind cagra --knn 8 --degree 4 --device {device}");
        let built = s.succeeds(&format!("{build} --timeline timed.svg")).pop().unwrap();
        let laps = built["seconds"].as_object().unwrap();
        for stage in ["start", "read", "device", "plan", "prepare", "descent", "prune", "measure", "write"] {
            assert!(laps[stage].as_f64() >= Some(0.0), "{device}: {stage} in {laps:?}");
        }
        let svg = std::fs::read_to_string(s.path("timed.svg")).unwrap();
        // The index is written on a thread of its own while it is measured.
        for name in ["writer", "measure", "write", "cagra of 500 x "] {
            assert!(svg.contains(name), "{device}: no {name} in the timeline");
        }
        assert_eq!(svg.contains("open"), device == "emulated");
    }
    let said = String::from_utf8(s.run("build -i base.fbin -o quiet --kind dpg --knn 30").stderr).unwrap();
    assert!(said.lines().last().unwrap().starts_with("time      "), "{said}");
    // Both outputs would be one file.
    let refused = s.run("build -i base.fbin -o same.svg --kind dpg --knn 30 --timeline same.svg");
    assert!(!refused.status.success() && !s.path("same.svg").exists());
    let build = "build -i base.fbin -o big --kind dpg --knn 20 --cluster-size 200 --timeline drawn";
    let built = s.succeeds(build).pop().unwrap();
    let drawn = std::fs::read_to_string(s.path("drawn")).unwrap();
    assert!(drawn.contains("reader 0") && drawn.contains("open, partition: 0.000 to"), "{drawn}");
    let laps = built["seconds"].as_object().unwrap();
    for stage in ["plan", "partition", "build", "write", "layers", "remove", "reach", "measure"] {
        assert!(laps[stage].as_f64() >= Some(0.0), "{stage} in {laps:?}");
    }
    one_accounting(&built, "");
}

/// Checks that the line `time` and the report hold the stages of the JSON line, which add up to its
/// total.
fn one_accounting(built: &Value, line: &str) {
    let mut seconds = built["seconds"].as_object().unwrap().clone();
    let total = seconds.remove("total").unwrap().as_f64().unwrap();
    seconds.remove("jit");
    let stages = built["report"]["build"]["stages"].as_array().unwrap();
    let reported: serde_json::Map<String, Value> = (stages.iter())
        .map(|stage| (stage["stage"].as_str().unwrap().to_owned(), stage["seconds"].clone()))
        .collect();
    assert_eq!(reported, seconds);
    let until_written = seconds.iter().filter(|(stage, _)| *stage != "measure");
    let sum: f64 = until_written.filter_map(|(_, seconds)| seconds.as_f64()).sum();
    assert!((sum - total).abs() < 0.01, "{sum} of {total}");
    for (stage, seconds) in seconds.iter().filter(|_| !line.is_empty()) {
        let told = format!("{stage} {:.3}", seconds.as_f64().unwrap());
        assert!(line.contains(&told) || told.ends_with(" 0.000"), "{told} is not in {line}");
    }
}

#[test]
fn line_json_and_page_have_one_accounting() {
    let s = Session::new();
    for flags in ["--kind nsg --knn 30", "--kind vamana --knn 20 --cluster-size 200"] {
        let build = format!("build -i base.fbin -o one.tagore {flags} --html page.html --device cpu --json");
        let output = s.run(&build);
        let said = String::from_utf8(output.stderr).unwrap();
        let line = said.lines().last().unwrap();
        assert!(line.starts_with("time  "), "{said}");
        let last = String::from_utf8(output.stdout).unwrap().lines().last().unwrap().to_owned();
        let built: Value = serde_json::from_str(&last).unwrap();
        one_accounting(&built, line);
        let page = std::fs::read_to_string(s.path("page.html")).unwrap();
        for stage in built["report"]["build"]["stages"].as_array().unwrap() {
            let seconds = format!("{:.3}", stage["seconds"].as_f64().unwrap());
            let row = format!("<td>{}</td><td class=\"n\">{seconds}</td>", stage["stage"].as_str().unwrap());
            assert_eq!(page.contains(&row), seconds != "0.000", "{row}");
            assert!(stage["peak_host_bytes"].is_null(), "the peak of one stage is not known: {stage}");
        }
        if let Some(prune) = said.lines().find_map(|line| line.strip_prefix("prune     ")) {
            let seconds = format!("{:.3} s on cpu", built["seconds"]["prune"].as_f64().unwrap());
            assert!(prune.starts_with(&seconds), "{prune}: {seconds}");
        }
        let peak = built["report"]["build"]["peak_host_bytes"].as_u64();
        assert_eq!(peak.is_some(), cfg!(target_os = "linux"));
    }
}

#[test]
fn a_page_names_index_data_date_and_machine() {
    let s = Session::new();
    let named = |page: &str| {
        let page = std::fs::read_to_string(s.path(page)).unwrap();
        for (name, value) in
            [("index", "index.tagore"), ("data", "base.fbin"), ("date", "20"), ("machine", "")]
        {
            let row = format!("<dt>{name}</dt><dd>{value}");
            assert!(page.contains(&row), "{row}");
        }
        assert!(page.contains(" UTC</dd>") && page.contains(" core"));
    };
    s.succeeds("build -i base.fbin -o index.tagore --kind nsg --knn 30 --html built.html");
    named("built.html");
    let report = s.succeeds("inspect index.tagore --base base.fbin --html again.html").remove(0);
    named("again.html");
    assert_eq!((&report["file"], &report["base"]), (&"index.tagore".into(), &"base.fbin".into()));
    assert!(report["date"].is_string() && report["machine"].is_string());
    // The copy of a pipe has another name.
    let build = "build -i - --format fbin -o piped.tagore --kind nsg --knn 30 --html piped.html --report -";
    let mut command = s.command(build);
    command.stdin(std::fs::File::open(s.path("base.fbin")).unwrap());
    let output = command.output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["base"], "standard input");
    let page = std::fs::read_to_string(s.path("piped.html")).unwrap();
    assert!(page.contains("<dt>data</dt><dd>standard input</dd>"));
}

#[test]
fn a_single_row_has_no_recall_to_draw() {
    let s = Session { folder: tempfile::tempdir().unwrap() };
    s.succeeds("synth -o one.fbin --n 1 --dim 4");
    let build = "build -i one.fbin -o one.tagore --kind nsg --device cpu --html one.html";
    let said = String::from_utf8(s.run(build).stderr).unwrap();
    let page = std::fs::read_to_string(s.path("one.html")).unwrap();
    for text in [&said, &page] {
        for nonsense in ["recall@0", "NaN", "inf", "QPS", "queries per second"] {
            assert!(!text.contains(nonsense), "{nonsense}: {text}");
        }
    }
    // No fraction of a node, and no degree below 0.
    assert!(!page.contains(">0.2</text>") && !page.contains(">-0"), "{page}");
    let report = &s.succeeds(build).pop().unwrap()["report"];
    assert!(report["search"].is_null() && report["knn"].is_null(), "{report}");
}
