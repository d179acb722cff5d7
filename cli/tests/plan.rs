//! `tagore plan`.

use serde_json::Value;

use super::Session;

#[test]
fn a_plan_needs_no_device() {
    let s = Session::new();
    let plan = &s.succeeds("plan -i base.fbin --knn-graph --knn 20 --start random")[0];
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
        "limits",
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
    // Lists before and after the stage.
    assert_eq!(stages[5]["buffers"]["nearest"], 500 * 20 * 8);
}

#[test]
fn the_index_that_a_build_makes_is_planned() {
    let s = Session::new();
    let kind =
        |flags: &str| s.succeeds(&format!("plan --n 100k --dim 64 --device cpu {flags}"))[0]["index"].clone();
    assert_eq!(kind(""), "nssg");
    assert_eq!(kind("--kind cagra"), "cagra");
    // Out of core, as of `build`.
    assert_eq!(kind("--vectors full --host-memory 30MiB"), "vamana");
}

#[test]
fn a_kind_of_gpu_is_planned_for() {
    let s = Session::new();
    let plan = |n: usize, kind: &str| {
        let command =
            format!("plan --n {n} --dim 128 --kind cagra --host-memory 4096GiB --device-kind {kind}");
        let line = s.succeeds(&command)[0].clone();
        assert_eq!(line["device_kind"]["name"], kind, "{line}");
        line
    };
    // Too much for 24 GB, and little for 141 GB.
    let (small, large) = (plan(20_000_000, "rtx4090"), plan(20_000_000, "h200"));
    assert!(!small["out_of_core"].is_null() && large["out_of_core"].is_null(), "{small} {large}");
    assert_eq!(small["device_kind"]["shared_memory"], 101_376);
    assert_eq!(large["device_kind"]["shared_memory"], 232_448);
    assert_eq!(small["device_kind"]["compute_capability"], "8.9");
    assert_eq!(small["stages"], large["stages"]);
    for kind in ["rtx3090", "rtx5090", "a10", "l4", "l40s", "a100", "h100", "h100-nvl", "b200"] {
        assert!(plan(1000, kind)["out_of_core"].is_null());
    }
    let several = |gpus: u32, limit: &str| {
        let command = format!(
            "plan --n 20000000 --dim 96 --kind vamana --device-kind h200 --gpus {gpus} --host-memory 4096GiB {limit}"
        );
        s.succeeds(&command)[0].clone()
    };
    let seconds = |plan: &Value| plan["seconds"].to_string();
    for limit in ["", "--gpu-memory 8GiB"] {
        let (one, two) = (several(1, limit), several(2, limit));
        assert_eq!(two["device_kind"]["gpus"], 2);
        assert_ne!(seconds(&one), seconds(&two), "{limit}");
        assert_eq!(one["out_of_core"].is_null(), limit.is_empty());
    }
    let wrong = "plan --n 1000 --dim 8 --kind cagra --device-kind";
    s.fails(2, &format!("{wrong} l4 --gpus 0"), &["--gpus", "1..=1024"]);
    s.fails(2, "plan --n 1000 --dim 8 --kind cagra --gpus 2", &["--device-kind"]);
    let kinds = "rtx3090, rtx4090, rtx5090, a10, l4, l40s, a100, h100, h100-nvl, h200, b200";
    s.fails(2, &format!("{wrong} tpu"), &[&format!("found tpu, expected one of {kinds}")]);
    s.fails(2, &format!("{wrong} l4 --device cpu"), &["cannot be used with"]);
}

#[test]
fn an_index_is_planned_on_both_backends() {
    let s = Session::new();
    let plan = &s.succeeds("plan -i base.fbin --knn 20 --kind nsg --degree 40")[0];
    assert_eq!(
        (&plan["start"], &plan["index"], &plan["degree"]),
        (&"all-pairs".into(), &"nsg".into(), &40.into())
    );
    let names = |stages: &Value| -> Vec<String> {
        let stages = stages.as_array().unwrap().iter();
        stages.map(|stage| stage["name"].as_str().unwrap().to_owned()).collect()
    };
    let pruning = ["medoid", "collect and filter", "reverse edges", "store"];
    assert_eq!(names(&plan["stages"]), [&["exact search"][..], &pruning].concat());
    assert_eq!(names(&plan["host_stages"]), ["exact search", "reach", "index"]);
    let on_cpu = ["all pairs", "lists", "graph", "filter", "store", "reach", "index"];
    assert_eq!(names(&plan["cpu"]["host_stages"]), on_cpu);
    assert_eq!(plan["stages"][2]["buffers"]["forward edges"], 500 * 40 * 8);
    let sum =
        |buffers: &Value| buffers.as_object().unwrap().values().map(|b| b.as_u64().unwrap()).sum::<u64>();
    assert_eq!(plan["host_bytes"], sum(&plan["host"]));
    let of_device = ["peak_gpu_bytes", "context_bytes", "pool_bytes"].map(|key| plan[key].as_u64().unwrap());
    assert_eq!(plan["device_bytes"], of_device.iter().sum::<u64>());
    assert_eq!(plan["disk_bytes"], sum(&plan["disk"]));
    s.succeeds("build -i base.fbin -o index --knn 20 --kind nsg --degree 40");
    assert_eq!(plan["disk_bytes"], std::fs::metadata(s.path("index")).unwrap().len());
    for seconds in [&plan["seconds"], &plan["cpu"]["seconds"]] {
        let seconds = seconds.as_object().unwrap().values().map(|seconds| seconds.as_f64().unwrap());
        assert!(seconds.clone().all(|seconds| seconds > 0.0) && seconds.count() > 4);
    }
    // The same plan for a data set without a file.
    let shape = "plan --n 500 --dim 8 --knn 20 --kind nsg --degree 40";
    let again = &s.succeeds(shape)[0];
    assert_eq!((&again["stages"], &again["cpu"]), (&plan["stages"], &plan["cpu"]));
    let bytes = &s.succeeds(&format!("{shape} --type u8"))[0];
    assert!(bytes["peak_gpu_bytes"].as_u64() < plan["peak_gpu_bytes"].as_u64());
    // Out of core on a GPU: a limit that the context alone exceeds, and a sufficient one.
    let large = "plan --n 1000000000 --dim 96 --kind vamana --device cuda";
    s.fails(2, &format!("{large} --gpu-memory 64MiB"), &["--gpu-memory: found 67108864, expected at least"]);
    let clusters = &s.succeeds(&format!("{large} --gpu-memory 24GiB --host-memory 48GiB"))[0]["out_of_core"];
    let bytes = |key: &str| clusters[key].as_u64().unwrap();
    assert!(bytes("device_bytes") <= 24 << 30 && bytes("device_bytes") > 23 << 30);
    assert!(bytes("host_bytes") <= 48 << 30 && sum(&clusters["disk"]) == bytes("disk_bytes"));
    let wide = "plan --n 3000000000 --dim 96 --kind vamana";
    s.fails(1, wide, &["3000000000 rows", "at most 2147483648"]);
}

#[test]
fn a_build_in_tasks_is_planned_for_numbers_of_workers() {
    let s = Session { folder: tempfile::tempdir().unwrap() };
    let plan = |n: u64, flags: &str| {
        s.succeeds(&format!(
            "plan --n {n} --dim 96 --type u8 --kind vamana --device-kind h200 --host-memory 64GiB \
             --cluster-size 4000000 --workers 1,4,64 --range-rows 1048576 {flags}"
        ))[0]["tasks"]
            .clone()
    };
    let seconds = |tasks: &Value| -> Vec<f64> {
        tasks["runs"].as_array().unwrap().iter().map(|run| run["seconds"].as_f64().unwrap()).collect()
    };
    for n in [100_000_000, 1_000_000_000, 2_000_000_000] {
        let tasks = plan(n, "");
        let stages = tasks["stages"].as_array().unwrap();
        assert_eq!(stages.len(), 7, "{tasks}");
        // The base, its ranges and 104 bytes for each of two members.
        assert_eq!(stages[2]["base_bytes"], 96 * n);
        assert_eq!(stages[2]["tasks"], n.div_ceil(1 << 20));
        let written = stages[2]["written_bytes"].as_u64().unwrap();
        assert!((208 * n..210 * n).contains(&written), "{tasks}");
        let times = seconds(&tasks);
        assert!(times[0] > 2.0 * times[1] && times[1] > times[2], "{times:?}");
        assert!(tasks["limit"]["workers"].as_u64().unwrap() >= 4, "{tasks}");
        let bounds = tasks["runs"][2]["stages"].as_array().unwrap();
        assert!(bounds.iter().any(|stage| stage["bound"] == "tasks"), "{tasks}");
    }
    let usual = seconds(&plan(1_000_000_000, ""));
    for slow in ["--network 1Gbit", "--store 300MB/s", "--latency 100ms", "--build-rate 10000"] {
        let times = seconds(&plan(1_000_000_000, slow));
        assert!(times.iter().zip(&usual).all(|(slow, usual)| slow > usual), "{slow}: {times:?}");
    }
    let fails = |flags: &str, words: &[&str]| {
        s.fails(2, &format!("plan --n 5000 --dim 8 --device cpu {flags}"), words);
    };
    fails("--workers 2", &["--kind"]);
    fails("--kind vamana --network 1Gbit", &["--workers"]);
    fails("--kind vamana --workers 0", &["--workers", "0"]);
    fails("--kind vamana --workers 2", &["--workers: the build fits", "lower --cluster-size"]);
    let small = "--kind vamana --cluster-size 1000 --workers 2";
    fails(&format!("{small} --network 10"), &["--network", "found 10, expected a rate"]);
    fails(&format!("{small} --latency 10"), &["--latency", "found 10, expected a time"]);
    fails(&format!("{small} --range-rows 1000"), &["--range-rows", "found 1000", "a multiple of 1024"]);
    fails(&format!("{small} --build-rate 0"), &["--build-rate", "found 0"]);
    // No build takes as many: ids have 32 bits, and keys of neighbours keep one of them.
    let large = |n: u64| format!("plan --n {n} --dim 96 --kind vamana --device cpu --workers 4");
    s.fails(1, &large(4_000_000_000), &["found 4000000000 rows", "at most 2147483648"]);
    s.fails(2, &large(5_000_000_000), &["--n: found 5000000000, expected 1 to 4294967294"]);
}
