//! The command itself: what it prints, what it leaves behind, how it ends.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tagore::{Synth, Vectors};
use tempfile::TempDir;

/// A folder with data in it, in which the command runs.
struct Session {
    folder: TempDir,
}

impl Session {
    /// base.fbin (500 × 8), query.fbin (20 rows), gt.bin (10 neighbours), index.tagore (nsg).
    fn new() -> Self {
        let session = Self { folder: tempfile::tempdir().unwrap() };
        let synth = Synth::new(500, 8, 1).unwrap();
        synth.base().save(session.path("base.fbin")).unwrap();
        synth.queries(20).save(session.path("query.fbin")).unwrap();
        session.succeeds("groundtruth --base base.fbin --queries query.fbin -k 10 -o gt.bin");
        session.succeeds("build -i base.fbin -o index.tagore --index nsg --knn 30");
        session
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, arguments: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tagore"));
        command.args(arguments.split_whitespace()).current_dir(self.folder.path()).stdin(Stdio::null());
        command
    }

    fn run(&self, arguments: &str) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Runs the command, which must succeed, and returns its JSON lines.
    fn succeeds(&self, arguments: &str) -> Vec<Value> {
        let output = self.run(&format!("{arguments} --json"));
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{arguments}: {stderr}");
        let stdout = String::from_utf8(output.stdout).unwrap();
        stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Runs the command, which must end with `code`, one line that holds all of `words`, nothing on
    /// standard output, and no file that was not there before.
    fn fails(&self, code: i32, arguments: &str, words: &[&str]) {
        let before = self.names();
        let output = self.run(&format!("{arguments} --json"));
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments}: {stderr}");
        let errors: Vec<&str> = stderr.lines().filter(|line| line.starts_with("error: ")).collect();
        assert_eq!(errors.len(), 1, "{arguments}: {stderr}");
        assert!(stderr.trim_end().ends_with(errors[0]), "{arguments}: more than one line of error: {stderr}");
        for word in words {
            assert!(errors[0].contains(word), "{arguments}: '{word}' is not in: {}", errors[0]);
        }
        assert!(output.stdout.is_empty(), "{arguments}");
        assert_eq!(self.names(), before, "{arguments}: files were left behind");
    }

    fn names(&self) -> Vec<String> {
        names(self.folder.path())
    }
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        folder.read_dir().unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_session_from_data_to_judgement() {
    let s = Session { folder: tempfile::tempdir().unwrap() };
    s.succeeds("synth -o base.fbin --n 2000 --dim 24 --seed 3");
    s.succeeds("synth -o query.fbin --n 2000 --dim 24 --seed 3 --queries 50");
    s.succeeds("groundtruth --base base.fbin --queries query.fbin -k 20 -o gt.bin");
    let knn = &s.succeeds("knn -i base.fbin -o graph --knn 32 --verify 200")[0];
    assert_eq!((knn["event"].as_str(), knn["knn"].as_u64()), (Some("knn"), Some(32)));
    assert!(knn["recall"]["32"].as_f64().unwrap() > 0.99 && knn["recall"]["10"].as_f64().unwrap() > 0.99);
    for kind in ["cagra", "nsg", "nssg", "vamana", "dpg", "tau-mng", "alpha-cng"] {
        let build =
            &s.succeeds(&format!("build -i base.fbin -o {kind}.tagore --index {kind} --graph graph"))[0];
        for key in [
            "event",
            "index",
            "n",
            "dim",
            "device",
            "seconds",
            "peak_gpu_bytes",
            "peak_host_bytes",
            "mean_degree",
        ] {
            assert!(
                !build[key].is_null() || (key == "peak_host_bytes" && !cfg!(target_os = "linux")),
                "no {key}: {build}"
            );
        }
        for key in ["read", "copy", "jit", "descent", "prune", "write", "total"] {
            assert!(build["seconds"][key].is_number(), "no seconds.{key}: {build}");
        }
        assert_eq!(
            (build["index"].as_str(), build["n"].as_u64(), build["dim"].as_u64()),
            (Some(kind), Some(2000), Some(24))
        );

        let evals = s.succeeds(&format!(
            "eval --index {kind}.tagore --base base.fbin --queries query.fbin --groundtruth gt.bin --beams 20,100 --plot {kind}.svg"
        ));
        assert_eq!(evals.len(), 2);
        for (eval, beam) in evals.iter().zip([20, 100]) {
            assert_eq!(
                (eval["event"].as_str(), eval["beam"].as_u64(), eval["k"].as_u64()),
                (Some("eval"), Some(beam), Some(10))
            );
            assert!(eval["qps"].is_number() && eval["distances"].is_number());
        }
        assert!(evals[1]["recall"].as_f64().unwrap() > 0.97, "{kind}: {evals:?}");
        assert!(std::fs::read_to_string(s.path(&format!("{kind}.svg"))).unwrap().contains("</svg>"));

        let inspect = &s.succeeds(&format!("inspect {kind}.tagore"))[0];
        assert_eq!((inspect["self_edges"].as_u64(), inspect["duplicate_edges"].as_u64()), (Some(0), Some(0)));
        assert!(kind == "cagra" || kind == "dpg" || inspect["unreachable"] == 0);
    }
    s.succeeds("search --index nsg.tagore --base base.fbin --queries query.fbin -k 5 --beam 50 -o found.bin");
    let inspect = &s.succeeds("inspect found.bin")[0];
    assert_eq!((inspect["rows"].as_u64(), inspect["k"].as_u64()), (Some(50), Some(5)));
    assert_eq!(inspect["distances"], true);
    let inspect = &s.succeeds("inspect base.fbin")[0];
    assert_eq!(
        (inspect["n"].as_u64(), inspect["dim"].as_u64(), inspect["type"].as_str()),
        (Some(2000), Some(24), Some("f32"))
    );
    assert_eq!(s.succeeds("doctor")[0]["event"], "doctor");
    assert!(!s.names().iter().any(|name| name.starts_with(".tagore")));
}

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
    // Cells need a GPU.
    let lines = s.succeeds("bench descent -i base.fbin --knn 5 --repeat 1 --device cpu");
    assert_eq!(lines.len(), 1);
}

#[test]
fn orders_of_dispatch_are_compared() {
    let s = Session::new();
    let lines =
        s.succeeds("bench dispatch -i base.fbin --clusters 20 --cache 4,20 --device cpu -o bench.jsonl");
    let runs: Vec<(&str, u64)> =
        lines.iter().map(|line| (line["order"].as_str().unwrap(), line["cache"].as_u64().unwrap())).collect();
    let orders = ["sequential", "random", "gorder", "cluster"];
    assert_eq!(runs, [4, 20].map(|cache| orders.map(|order| (order, cache))).concat());
    for line in &lines {
        assert_eq!((&line["event"], &line["device"]), (&"bench dispatch".into(), &"cpu".into()));
        assert_eq!(
            (&line["n"], &line["clusters"], &line["second_visits"]),
            (&500.into(), &20.into(), &500.into())
        );
        let number = |key: &str| line[key].as_f64().unwrap_or_else(|| panic!("no {key}: {line}"));
        assert_eq!(number("hit_ratio"), number("hits") / 500.0);
        // 32 neighbours of 8 bytes each.
        assert_eq!(number("spilled_bytes"), (500.0 - number("hits")) * 256.0);
        assert!(number("order_seconds") >= 0.0 && number("cluster_seconds") > 0.0 && number("edges") > 20.0);
        assert_eq!(line["window"].is_number(), line["order"] == "gorder");
        assert_eq!((&line["seed"], &line["simulated"]), (&0.into(), &false.into()));
    }
    let hits = |line: usize| lines[line]["hits"].as_u64().unwrap();
    assert!(hits(3) > hits(0) && hits(3) > hits(1) && (4..8).all(|line| hits(line) == 500));
    let written = std::fs::read_to_string(s.path("bench.jsonl")).unwrap();
    let written: Vec<Value> = written.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(written, lines);

    // A billion vectors, from a sample of a few.
    let lines = s.succeeds(
        "bench dispatch --simulate 1000000000 --dim 8 --sample 50 --clusters 60 --cache 6 --orders cluster,gorder --window 2 --degree 10",
    );
    assert_eq!((lines.len(), &lines[0]["order"], &lines[1]["window"]), (2, &"cluster".into(), &2.into()));
    for line in &lines {
        assert_eq!(
            (&line["simulated"], &line["dim"], &line["list_bytes"]),
            (&true.into(), &8.into(), &80.into())
        );
        let visits = line["second_visits"].as_u64().unwrap();
        assert!(visits.abs_diff(1_000_000_000) < 1000 && line["hits"].as_u64().unwrap() < visits);
    }
}

#[test]
fn searches_on_a_device_find_what_the_cpu_finds() {
    let s = Session::new();
    let search = |device: &str| {
        let found = &s.succeeds(&format!(
            "search --index index.tagore --base base.fbin --queries query.fbin --beam 20 --device {device} -o {device}.bin"
        ))[0];
        assert_eq!(found["device"], device);
        assert_eq!(found["device_seconds"].is_number(), device != "cpu");
        std::fs::read(s.path(&format!("{device}.bin"))).unwrap()
    };
    assert!(search("emulated") == search("cpu"));
    let asked = "--queries query.fbin --groundtruth gt.bin --beams 12 --device emulated";
    let eval = &s.succeeds(&format!("eval --index index.tagore --base base.fbin {asked}"))[0];
    assert!(eval["device_qps"].as_f64().unwrap() >= eval["qps"].as_f64().unwrap());
    let lines = s.succeeds(&format!(
        "bench search -i base.fbin --index index.tagore {asked} --widths 1,4 --batches 7 -o bench.jsonl"
    ));
    for (line, width) in lines.iter().zip([1, 4]) {
        assert_eq!((line["width"].as_u64(), line["batch"].as_u64()), (Some(width), Some(7)));
        for key in ["index", "recall", "distances", "qps", "device_qps", "device_bytes_per_second"] {
            assert!(!line[key].is_null(), "no {key}: {line}");
        }
    }
    assert_eq!((lines.len(), &lines[0]["recall"]), (2, &eval["recall"]));
    let written = std::fs::read_to_string(s.path("bench.jsonl")).unwrap();
    assert_eq!(written.lines().count(), 2);
    s.fails(
        2,
        "search --index index.tagore --base base.fbin --queries query.fbin --width 9 -o x",
        &["--width", "1 to 8"],
    );
}

#[test]
fn a_plan_needs_no_device() {
    let s = Session::new();
    let plan = &s.succeeds("plan -i base.fbin --knn 20 --start random")[0];
    for key in [
        "n",
        "dim",
        "type",
        "device_type",
        "metric",
        "knn",
        "start",
        "stages",
        "peak_gpu_bytes",
        "peak_stage",
        "bytes_per_vector",
        "host",
        "host_bytes",
    ] {
        assert!(!plan[key].is_null(), "no {key}: {plan}");
    }
    assert_eq!(
        (&plan["event"], &plan["start"], &plan["knn"]),
        (&"plan".into(), &"random".into(), &20.into())
    );
    let stages = plan["stages"].as_array().unwrap();
    let names: Vec<&str> = stages.iter().map(|stage| stage["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["prepare", "cluster", "order", "join", "refine", "finish", "complete"]);
    for stage in stages {
        let buffers = stage["buffers"].as_object().unwrap().values().map(|bytes| bytes.as_u64().unwrap());
        assert_eq!(stage["bytes"].as_u64().unwrap(), buffers.sum::<u64>(), "{stage}");
    }
    let most = stages.iter().map(|stage| stage["bytes"].as_u64().unwrap()).max();
    assert_eq!(plan["peak_gpu_bytes"].as_u64(), most);
    // Lists before and after.
    assert_eq!(stages[5]["buffers"]["nearest"], 500 * 20 * 8);
}

#[test]
fn an_index_is_planned_on_both_backends() {
    let s = Session::new();
    let plan = &s.succeeds("plan -i base.fbin --knn 20 --index nsg --degree 40")[0];
    assert_eq!(
        (&plan["start"], &plan["index"], &plan["degree"]),
        (&"all pairs".into(), &"nsg".into(), &40.into())
    );
    let names = |stages: &Value| -> Vec<String> {
        let stages = stages.as_array().unwrap().iter();
        stages.map(|stage| stage["name"].as_str().unwrap().to_owned()).collect()
    };
    let pruning = ["medoid", "collect and filter", "reverse edges", "store"];
    assert_eq!(names(&plan["stages"]), [&["exact search"][..], &pruning].concat());
    assert_eq!(names(&plan["host_stages"]), ["exact search", "reach", "index"]);
    let on_cpu = ["all pairs", "graph", "filter", "reverse edges", "store", "reach", "index"];
    assert_eq!(names(&plan["cpu"]["host_stages"]), on_cpu);
    assert_eq!(plan["stages"][2]["buffers"]["forward edges"], 500 * 40 * 8);
    let sum =
        |buffers: &Value| buffers.as_object().unwrap().values().map(|b| b.as_u64().unwrap()).sum::<u64>();
    assert_eq!(plan["host_bytes"], sum(&plan["host"]));
    assert_eq!(plan["disk_bytes"], sum(&plan["disk"]));
    s.succeeds("build -i base.fbin -o index --knn 20 --index nsg --degree 40");
    assert_eq!(plan["disk_bytes"], std::fs::metadata(s.path("index")).unwrap().len());
    for seconds in [&plan["seconds"], &plan["cpu"]["seconds"]] {
        let seconds = seconds.as_object().unwrap().values().map(|seconds| seconds.as_f64().unwrap());
        assert!(seconds.clone().all(|seconds| seconds > 0.0) && seconds.count() > 4);
    }
    // The same of a data set that is not there.
    let shape = "plan --n 500 --dim 8 --knn 20 --index nsg --degree 40";
    let again = &s.succeeds(shape)[0];
    assert_eq!((&again["stages"], &again["cpu"]), (&plan["stages"], &plan["cpu"]));
    let bytes = &s.succeeds(&format!("{shape} --type u8"))[0];
    assert!(bytes["peak_gpu_bytes"].as_u64() < plan["peak_gpu_bytes"].as_u64());
    // Out of core on a GPU, with a ceiling that has no room for anything but the context, and with one that has.
    let large = "plan --n 1000000000 --dim 96 --index vamana --device cuda";
    s.fails(2, &format!("{large} --gpu-memory 64MiB"), &["--gpu-memory: found 67108864, expected at least"]);
    let clusters = &s.succeeds(&format!("{large} --gpu-memory 24GiB --host-memory 48GiB"))[0]["out_of_core"];
    let bytes = |key: &str| clusters[key].as_u64().unwrap();
    assert!(bytes("device_bytes") <= 24 << 30 && bytes("device_bytes") > 23 << 30);
    assert!(bytes("host_bytes") <= 48 << 30 && sum(&clusters["disk"]) == bytes("disk_bytes"));
    let wide = "plan --n 3000000000 --dim 96 --index vamana";
    s.fails(1, wide, &["3000000000 rows", "at most 2147483648 in memory"]);
}

#[test]
fn a_build_out_of_core_is_planned_and_done() {
    let session = Session::new();
    let planned = session.succeeds("plan -i base.fbin --index vamana --knn 20 --cluster-size 200");
    let clusters = &planned[0]["out_of_core"];
    assert_eq!(clusters["cluster_size"], 200);
    let built = session.succeeds("build -i base.fbin -o large --index vamana --knn 20 --cluster-size 200");
    // After those of its tasks.
    let built = built.last().unwrap();
    assert_eq!(&built["out_of_core"], clusters);
    assert_eq!((&built["n"], &built["hit_ratio"]), (&500.into(), &1.0.into()));
    let inspected = session.succeeds("inspect large");
    assert_eq!(inspected[0]["parameters"]["cluster-size"], "200");
    let small = session.succeeds("plan -i base.fbin --index vamana --host-memory 1GiB");
    assert!(small[0]["out_of_core"].is_null());

    let build = "build -i base.fbin -o other --index vamana --knn 20 --cluster-size";
    session.fails(2, &format!("{build} 3"), &["--cluster-size: found 3, expected at least 16"]);
    session.fails(2, &format!("{build} 200 --verify 10"), &["--verify: found a build out of core"]);
    session.fails(2, &format!("{build} 200 --host-memory 4GB"), &["4GB", "96MiB"]);
    std::fs::create_dir(session.path("work")).unwrap();
    std::fs::write(session.path("work/mine"), "").unwrap();
    session.fails(1, &format!("{build} 200 --work-dir work"), &["work: found mine"]);
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
fn the_same_seed_gives_the_same_file_on_one_thread_and_on_two() {
    let s = Session::new();
    for (threads, name) in [(1, "one.tagore"), (2, "two.tagore")] {
        s.succeeds(&format!(
            "build -i base.fbin -o {name} --index vamana --knn 20 --start random --seed 4 --threads {threads}"
        ));
    }
    assert_eq!(std::fs::read(s.path("one.tagore")).unwrap(), std::fs::read(s.path("two.tagore")).unwrap());
}

#[test]
fn an_index_and_a_ground_truth_are_exported_as_ibin() {
    let s = Session::new();
    s.succeeds("convert index.tagore x.ibin");
    s.succeeds("convert gt.bin gt.ibin");
    let u32s = |name: &str| -> Vec<u32> {
        let bytes = std::fs::read(s.path(name)).unwrap();
        bytes.chunks_exact(4).map(|b| u32::from_le_bytes(b.try_into().unwrap())).collect()
    };
    let index = tagore::Index::open(s.path("index.tagore")).unwrap();
    let (graph, entries, truth) = (u32s("x.ibin"), u32s("x.entries.ibin"), u32s("gt.ibin"));
    assert_eq!((graph[0], graph[1], graph.len()), (500, 50, 2 + 500 * 50));
    for node in 0..500 {
        let row = &graph[2 + node * 50..][..50];
        let neighbors = index.neighbors(node);
        assert_eq!(&row[..neighbors.len()], neighbors);
        assert!(row[neighbors.len()..].iter().all(|&id| id == u32::MAX));
    }
    assert_eq!(entries, [&[index.entries().len() as u32, 1], index.entries()].concat());
    assert_eq!((truth[0], truth[1], truth.len()), (20, 10, 2 + 200));
    // Ids without distances judge as well.
    s.succeeds(
        "eval --index index.tagore --base base.fbin --queries query.fbin --groundtruth gt.ibin --beams 20",
    );
}

#[test]
fn wrong_usage_ends_with_2_and_names_the_flag() {
    let s = Session::new();
    s.fails(
        2,
        "build -i base.fbin -o x.tagore --index hnsw",
        &["--index", "hnsw", "cagra, nsg, nssg, vamana, dpg, tau-mng or alpha-cng"],
    );
    s.fails(2, "build -i base.fbin -o x.tagore", &["--index"]);
    s.fails(2, "build -i base.fbin -o x.tagore --index nsg --nonsense 3", &["--nonsense"]);
    s.fails(
        2,
        "build -i base.fbin -o x.tagore --index nsg --knn 500",
        &["--knn", "500", "less than the 500 rows", "base.fbin"],
    );
    s.fails(2, "build -i base.fbin -o x.tagore --index nsg --knn ten", &["--knn", "ten"]);
    s.fails(2, "build -i base.fbin -o x.tagore --index nsg --degree 0", &["--degree", "0", "1 to 512"]);
    s.fails(
        2,
        "build -i base.fbin -o x.tagore --index nsg --angle 50",
        &["--angle", "the angle filter, not dist"],
    );
    s.fails(
        2,
        "build -i base.fbin -o x.tagore --index nssg --alpha 1.5",
        &["--alpha", "the dist or alpha-cng filter, not angle"],
    );
    s.fails(
        2,
        "build -i base.fbin -o x.tagore --index nsg --alpha 1.5 --threshold 1",
        &["--alpha", "the alpha-cng filter, not dist"],
    );
    s.fails(
        2,
        "build -i base.fbin -o x.tagore --index tau-mng --threshold=-1",
        &["--threshold", "a tau from 0"],
    );
    s.fails(2, "build -i base.fbin -o x.tagore --index alpha-cng --alpha 0", &["--alpha", "0.01 to 100"]);
    s.fails(2, "build -i base.fbin -o x.tagore --index dpg --threshold 5", &["--threshold", "no threshold"]);
    s.fails(
        2,
        "build -i base.fbin -o x.tagore --index nsg --metric hamming",
        &["--metric", "hamming", "l2, ip or cosine"],
    );
    s.fails(
        2,
        "build -i base.fbin -o x.tagore --index nsg --device gpu",
        &["--device", "gpu", "auto, cpu, cuda"],
    );
    s.fails(2, "knn -i base.fbin --start cells --device cpu", &["--start", "cells", "auto or random"]);
    s.fails(2, "build -i base.fbin -o x.tagore --index nsg --iterations 5", &["--iterations", "5", "A,B"]);
    s.fails(2, "build -i base.fbin -o x.tagore --index nsg --collect 3-hop", &["--collect", "3-hop"]);
    s.fails(2, "build -i base.fbin -o x.tagore --index nsg --filter best", &["--filter", "best"]);
    s.fails(2, "build -i base.fbin -o x.tagore --index nsg --threads 0", &["--threads", "0"]);
    s.fails(2, "knn -i base.fbin --knn 0", &["--knn", "0", "1 to 1024"]);
    s.fails(
        2,
        "groundtruth --base base.fbin --queries query.fbin -k 501 -o x.bin",
        &["-k", "501", "500 rows"],
    );
    s.fails(
        2,
        "search --index index.tagore --base base.fbin --queries query.fbin --beam 5 -o x.bin",
        &["--beam", "5", "at least k = 10"],
    );
    s.fails(
        2,
        "eval --index index.tagore --base base.fbin --queries query.fbin --groundtruth gt.bin -k 11",
        &["-k", "11", "10 of the ground truth"],
    );
    s.fails(2, "synth -o x.fbin --n 0 --dim 8", &["--n", "0"]);
    s.fails(2, "synth -o x.fbin --n 10 --dim 5000", &["--dim", "5000", "1 to 4096"]);
    s.fails(2, "convert base.fbin x.bin --to xyz", &["--to", "xyz"]);
    let bench = |flags: &str| format!("bench descent -i base.fbin {flags} -o x.jsonl --device cpu");
    s.fails(2, &bench("--iterations 6"), &["--iterations", "found 6", "A,B"]);
    s.fails(2, &bench("--iterations 6,6;x"), &["--iterations", "found x", "A,B"]);
    s.fails(2, &bench("--starts random,here"), &["--starts", "here", "auto, random or cells"]);
    s.fails(2, &bench("--starts cells"), &["--start", "cells", "on the CPU"]);
    s.fails(2, &bench("--split --iterations 6,6"), &["--split", "--iterations"]);
    s.fails(2, &bench("--repeat 0"), &["--repeat", "0"]);
    s.fails(2, &bench("--knn 500"), &["--knn", "500", "500 rows"]);
    s.fails(2, "bench outofcore", &["--input"]);
    s.fails(2, "bench dispatch", &["--input"]);
    s.fails(1, "bench dispatch -i missing.fbin", &["missing.fbin", "No such file"]);
    let bench = |flags: &str| format!("bench dispatch -i base.fbin -o x.jsonl --device cpu {flags}");
    s.fails(2, &bench("--clusters 501"), &["--clusters", "501", "2 to the 500 rows"]);
    s.fails(2, &bench("--clusters 1"), &["--clusters", "found 1"]);
    s.fails(2, &bench("--cache 4,0"), &["--cache", "0"]);
    s.fails(2, &bench("--clusters 9 --window 0"), &["--window", "0", "at least 1"]);
    s.fails(
        2,
        &bench("--orders cluster,best"),
        &["--order", "best", "sequential, random, gorder or cluster"],
    );
    s.fails(2, &bench("--simulate 1000 --dim 8"), &["--input", "--simulate"]);
    s.fails(2, &bench("--dim 8"), &["--dim"]);
    s.fails(2, "bench dispatch --simulate 1000", &["--dim"]);
    s.fails(2, "bench dispatch --simulate 0 --dim 8", &["--simulate", "0"]);
    s.fails(2, "bench dispatch --simulate 1000 --dim 0", &["--dim", "0", "1 to 4096"]);
    s.fails(2, "bench dispatch --simulate 300 --dim 8", &["--clusters", "400", "300 rows"]);
    s.fails(2, "plan -i base.fbin --knn 500", &["--knn", "500", "500 rows"]);
    s.fails(2, "plan -i base.fbin --memberships 9", &["--memberships", "9", "1 to 8"]);
    s.fails(2, "plan -i base.fbin --degree 9", &["--index"]);
    s.fails(2, "plan --n 9 --index nsg", &["--dim"]);
    s.fails(2, "plan --n 9 --dim 0 --index nsg", &["--dim: found 0, expected 1 to 4096"]);
    s.fails(2, "plan -i base.fbin --index nsg --degree 0", &["--degree", "0"]);
    s.fails(1, "plan -i missing.fbin", &["missing.fbin", "No such file"]);
    s.fails(1, "bench descent -i base.fbin -o nowhere/x.jsonl", &["nowhere/x.jsonl", "no such folder"]);
    let help = s.run("--help");
    assert_eq!(help.status.code(), Some(0));
    assert!(String::from_utf8(help.stdout).unwrap().contains("groundtruth"));
    assert_eq!(s.run("").status.code(), Some(2));
}

#[test]
fn bad_files_end_with_1_and_are_named() {
    let s = Session::new();
    let base = std::fs::read(s.path("base.fbin")).unwrap();
    let write = |name: &str, bytes: &[u8]| std::fs::write(s.path(name), bytes).unwrap();
    write("cut.fbin", &base[..base.len() - 1]);
    write("long.fbin", &[base.as_slice(), &[0]].concat());
    write("huge.fbin", &[&u32::MAX.to_le_bytes()[..], &4000u32.to_le_bytes(), &[0; 64]].concat());
    write("dim0.fbin", &[&5u32.to_le_bytes()[..], &0u32.to_le_bytes()].concat());
    write("empty.fbin", &[]);
    write("none.fbin", &[&0u32.to_le_bytes()[..], &8u32.to_le_bytes()].concat());
    let mut nan = base.clone();
    nan[8 + 4 * (8 * 3 + 2)..][..4].copy_from_slice(&f32::NAN.to_le_bytes());
    write("nan.fbin", &nan);
    write("what.xyz", &base);
    Synth::new(500, 9, 1).unwrap().queries(20).save(s.path("dim9.fbin")).unwrap();
    let mut other: Vec<f32> = Vectors::open(s.path("base.fbin")).unwrap().row(0).to_vec();
    other.resize(500 * 8, 1.0);
    Vectors::from_f32(other, 8).unwrap().save(s.path("other.fbin")).unwrap();
    let index = std::fs::read(s.path("index.tagore")).unwrap();
    write("cut.tagore", &index[..index.len() - 5000]);
    let mut flipped = index.clone();
    *flipped.last_mut().unwrap() ^= 1;
    write("flipped.tagore", &flipped);
    let mut header = index;
    header[20] ^= 1;
    write("header.tagore", &header);
    std::fs::create_dir(s.path("folder")).unwrap();

    for command in ["build -o x.tagore --index nsg -i", "knn -o x -i", "inspect", "convert --to fvecs x.out"]
    {
        // `convert IN OUT`: the file under test comes first.
        let with = |file: &str| match command.strip_prefix("convert ") {
            Some(_) => format!("convert {file} x.out --to fvecs"),
            None => format!("{command} {file}"),
        };
        s.fails(1, &with("missing.fbin"), &["missing.fbin", "No such file"]);
        s.fails(1, &with("cut.fbin"), &["cut.fbin", "16007 bytes", "16008"]);
        s.fails(1, &with("long.fbin"), &["long.fbin", "16009 bytes", "16008"]);
        s.fails(1, &with("huge.fbin"), &["huge.fbin", "72 bytes", "4294967295 x 4000"]);
        s.fails(1, &with("dim0.fbin"), &["dim0.fbin", "0 values to a row", "1 to 4096"]);
        s.fails(1, &with("empty.fbin"), &["empty.fbin", "an empty file"]);
        s.fails(1, &with("nan.fbin"), &["nan.fbin", "row 3", "dimension 2", "NaN", "finite"]);
        s.fails(1, &with("what.xyz"), &["what.xyz", "extension .xyz", "fbin"]);
        s.fails(1, &with("folder"), &["folder"]);
    }
    s.fails(1, "build -i none.fbin -o x.tagore --index nsg", &["none.fbin", "0 rows", "at least 1"]);
    s.fails(1, "build -i base.fbin -o nowhere/x.tagore --index nsg", &["nowhere/x.tagore", "no such folder"]);
    s.fails(1, "build -i base.fbin -o folder --index nsg", &["folder", "a folder", "a file"]);
    s.fails(1, "build -i base.fbin -o x.tagore --index nsg --graph missing", &["missing.ibin"]);
    s.fails(1, "convert base.fbin x.u8bin", &["base.fbin", "row 0", "dimension 0", "u8"]);
    s.fails(1, "convert index.tagore x.fbin", &["x.fbin", "index.tagore", "ibin"]);

    let searched = |index: &str, base: &str, queries: &str, truth: &str| {
        format!("eval --index {index} --base {base} --queries {queries} --groundtruth {truth} --plot x.svg")
    };
    s.fails(
        1,
        &searched("index.tagore", "base.fbin", "dim9.fbin", "gt.bin"),
        &["dim9.fbin", "dimension 9", "8"],
    );
    s.fails(
        1,
        &searched("index.tagore", "other.fbin", "query.fbin", "gt.bin"),
        &["other.fbin", "index.tagore"],
    );
    s.fails(
        1,
        &searched("index.tagore", "query.fbin", "query.fbin", "gt.bin"),
        &["query.fbin", "20 x 8", "500 x 8"],
    );
    s.fails(
        1,
        &searched("index.tagore", "base.fbin", "base.fbin", "gt.bin"),
        &["ground truth", "20 rows", "500"],
    );
    s.fails(1, &searched("base.fbin", "base.fbin", "query.fbin", "gt.bin"), &["base.fbin", "a tagore index"]);
    s.fails(1, &searched("cut.tagore", "base.fbin", "query.fbin", "gt.bin"), &["cut.tagore", "bytes"]);
    s.fails(1, &searched("header.tagore", "base.fbin", "query.fbin", "gt.bin"), &["header.tagore", "header"]);
    s.fails(1, &searched("index.tagore", "base.fbin", "query.fbin", "missing.bin"), &["missing.bin"]);
    s.fails(1, "inspect flipped.tagore", &["flipped.tagore", "expected"]);
}

#[test]
fn a_default_k_that_is_too_large_is_clamped_with_a_warning() {
    let s = Session::new();
    Synth::new(40, 4, 1).unwrap().base().save(s.path("small.fbin")).unwrap();
    let output = s.run("build -i small.fbin -o small.tagore --index cagra");
    assert_eq!(output.status.code(), Some(0));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("warning: --knn 96") && stderr.contains("39"), "{stderr}");
}

#[test]
fn every_format_converts_to_every_other_and_back() {
    let s = Session::new();
    let whole: Vec<u8> = (0..30 * 7).map(|i| (i * 37 % 120) as u8).collect();
    Vectors::from_u8(whole, 7).unwrap().save(s.path("start.u8bin")).unwrap();
    let formats = ["fvecs", "bvecs", "fbin", "f16bin", "i8bin", "npy", "u8bin"];
    let mut last = "start.u8bin".to_owned();
    for format in formats {
        let next = format!("step.{format}");
        s.succeeds(&format!("convert {last} {next}"));
        last = next;
    }
    assert_eq!(std::fs::read(s.path("start.u8bin")).unwrap(), std::fs::read(s.path("step.u8bin")).unwrap());
}

#[cfg(unix)]
#[test]
fn a_full_disk_leaves_nothing_behind() {
    let s = Session::new();
    let before = s.names();
    // A limit on the size of files: the write fails as it does when the disk is full.
    let script = format!(
        "trap '' XFSZ; ulimit -f 16; exec {} build -i base.fbin -o x.tagore --index nsg",
        env!("CARGO_BIN_EXE_tagore")
    );
    let output = Command::new("sh").args(["-c", &script]).current_dir(s.folder.path()).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    let error = stderr.lines().last().unwrap();
    assert!(error.starts_with("error: x.tagore: ") && !error.contains(".tagore-"), "{stderr}");
    assert_eq!(s.names(), before);
}

#[cfg(unix)]
#[test]
fn ctrl_c_stops_a_build_and_leaves_nothing_behind() {
    let s = Session::new();
    Synth::new(20_000, 64, 1).unwrap().base().save(s.path("large.fbin")).unwrap();
    let before = s.names();
    // Far more iterations than there is time for.
    let mut command = s.command("build -i large.fbin -o x.tagore --index nsg --iterations 900,900");
    let child = command.stderr(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(1500));
    let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("error: interrupted"), "{stderr}");
    assert_eq!(s.names(), before);
}
