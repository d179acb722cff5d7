//! `tagore bench`.

use serde_json::Value;
use tagore::Synth;

use super::Session;

#[test]
fn descents_are_compared() {
    let s = Session::new();
    let lines = s.succeeds(
        "bench descent -i base.fbin --knn 12 --iterations 2,2;3,0 --iterations 0,2 --starts random --device cpu -o bench.jsonl",
    );
    let asked: Vec<&str> = lines.iter().map(|line| line["iterations_asked"].as_str().unwrap()).collect();
    assert_eq!(asked, ["2,2", "3,0", "0,2"]);
    for line in &lines {
        assert_eq!((&line["event"], &line["start"]), (&"bench descent".into(), &"random".into()));
        for key in [
            "n",
            "dim",
            "type",
            "metric",
            "knn",
            "seed",
            "repeat",
            "device",
            "iterations",
            "seconds",
            "recall",
            "recall_nodes",
            "distances",
            "join_distances",
            "refine_distances",
            "completed",
            "peak_gpu_bytes",
            "kernels",
        ] {
            assert!(!line[key].is_null(), "no {key}: {line}");
        }
        for key in ["copy", "jit", "descent"] {
            assert!(line["seconds"][key].is_number(), "no seconds.{key}: {line}");
        }
        assert!(line["recall"]["10"].as_f64().unwrap() > 0.8 && line["recall"]["12"].is_number());
        assert_eq!(line["recall_nodes"], 500);
    }
    assert_eq!((&lines[1]["refine_distances"], &lines[2]["join_distances"]), (&0.into(), &0.into()));
    let written = std::fs::read_to_string(s.path("bench.jsonl")).unwrap();
    let written: Vec<Value> = written.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(written, lines);
    let splits = s.succeeds("bench descent -i base.fbin --knn 5 --split --repeat 1 --device cpu");
    let run = |line: &Value| [0, 1].map(|phase| line["iterations"][phase].as_u64().unwrap());
    assert_eq!(splits.len(), 3 + 5 + 7);
    assert_eq!((run(&splits[0]), run(&splits[7]), run(&splits[14])), ([2, 6], [10, 2], [14, 2]));
    let lines = s.succeeds("bench descent -i base.fbin --knn 5 --repeat 1 --device cpu");
    assert!(lines.iter().map(|line| &line["start"]).eq(["random", "cells"]));
}

#[test]
fn kernels_are_reported() {
    let s = Session { folder: tempfile::tempdir().unwrap() };
    Synth::new(120, 8, 1).unwrap().base().save(s.path("tiny.fbin")).unwrap();
    let line = &s.succeeds(
        "bench descent -i tiny.fbin --knn 5 --iterations 1,1 --starts random --repeat 1 --device emulated",
    )[0];
    assert!(line["peak_gpu_bytes"].as_u64().unwrap() > 0 && line["device"] == "emulated");
    let join = &line["kernels"]["descent_join_f16"];
    for key in ["launches", "seconds", "bytes", "operations", "bytes_per_second", "operations_per_second"] {
        assert!(join[key].as_f64().unwrap() > 0.0, "no {key}: {join}");
    }
    // The emulator has no peak.
    assert!(join["bandwidth_share"].is_null() && join["operations_share"].is_null());
}

#[test]
fn indexes_are_compared_under_every_metric() {
    let s = Session::new();
    for metric in ["l2", "cosine", "ip"] {
        s.succeeds(&format!(
            "groundtruth --base base.fbin --queries query.fbin --metric {metric} -k 10 -o {metric}.bin"
        ));
        let lines = s.succeeds(&format!(
            "bench prune -i base.fbin --metric {metric} --kinds cagra,vamana --knn 32 --repeat 1 --cpu --queries query.fbin --groundtruth {metric}.bin --beams 20,100 --device cpu -o bench.jsonl"
        ));
        let kinds: Vec<&str> = lines.iter().map(|line| line["index"].as_str().unwrap()).collect();
        assert_eq!(kinds, ["cagra", "vamana"]);
        for line in &lines {
            assert_eq!((&line["event"], &line["metric"]), (&"bench prune".into(), &metric.into()));
            assert_eq!((&line["n"], &line["knn"]), (&500.into(), &32.into()));
            assert!(line["cpu_prune_seconds"].is_number(), "{line}");
            let quality = line["quality"].as_array().unwrap();
            assert_eq!((quality.len(), &quality[1]["beam"]), (2, &100.into()));
            assert!(quality[1]["recall"].as_f64().unwrap() > 0.95, "{line}");
            assert!(quality[0]["distances"].as_f64().unwrap() > 20.0, "{line}");
        }
        let written = std::fs::read_to_string(s.path("bench.jsonl")).unwrap();
        let written: Vec<Value> = written.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(written, lines);
    }
    s.fails(
        2,
        "bench prune -i base.fbin --metric hamming -o x.jsonl",
        &["--metric", "hamming", "l2, ip or cosine"],
    );
    // The truth of one metric does not judge indexes of another.
    s.fails(
        1,
        "bench prune -i base.fbin --metric ip --kinds cagra --knn 32 --repeat 1 --queries query.fbin --groundtruth l2.bin --device cpu -o x.jsonl",
        &["l2.bin", "by ip"],
    );
}

#[test]
fn impossible_numbers_are_refused() {
    let s = Session::new();
    s.fails(
        2,
        "bench outofcore -i base.fbin --kind vamana --degree 0 --cluster-size 100 --device cpu",
        &["--degree", "found 0", "1 to 512"],
    );
}

#[test]
fn stages_are_shown_beside_the_disk() {
    let s = Session::new();
    let run = |flags: &str| {
        let command = "bench outofcore -i base.fbin --kind vamana --cluster-size 200 --device cpu";
        s.succeeds(&format!("{command} {flags}")).pop().unwrap()
    };
    assert!(run("")["stages"].is_null());
    let line = run("--stages");
    let stages = line["stages"]["build"].as_array().unwrap();
    let bytes = |place: usize, key: &str| stages[place][key].as_u64().unwrap();
    let names: Vec<&str> = stages.iter().map(|stage| stage["stage"].as_str().unwrap()).collect();
    assert_eq!(names, ["partition", "build", "write"]);
    // The base is read once. It fits memory, so a member has an id and a cluster, and no vector.
    let row = 4 * line["dim"].as_u64().unwrap();
    assert_eq!(bytes(0, "read_bytes"), 500 * row);
    assert_eq!(bytes(0, "written_bytes"), 2 * 500 * 8);
    assert!(bytes(1, "read_bytes") >= bytes(0, "written_bytes") && bytes(2, "written_bytes") > 500 * 4);
    assert!(stages.iter().all(|stage| stage["bytes_per_second"].as_f64().unwrap() > 0.0), "{line}");
    for rate in ["write", "read", "both"] {
        assert!(line["stages"]["disk"][rate].as_f64().unwrap() > 0.0, "{line}");
    }
}
