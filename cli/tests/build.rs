//! `tagore build`: its files, its log and its output.

use std::process::Command;

use tagore::Synth;

use super::Session;

#[test]
fn codes_come_before_clusters() {
    let s = Session::new();
    s.succeeds("synth -o wide.fbin --n 200 --dim 64");
    let flags = "-i wide.fbin --kind vamana --knn 12 --degree 8 --device emulated";
    let bytes = |vectors: &str| {
        let plan = &s.succeeds(&format!("plan {flags} --vectors {vectors}"))[0];
        plan["peak_gpu_bytes"].as_u64().unwrap()
    };
    let (full, int8) = (bytes("full"), bytes("int8"));
    assert!(int8 < full, "{int8} of {full}");
    let limited = format!("{flags} --gpu-memory {}", full - 1);
    assert_eq!(s.succeeds(&format!("plan {limited}"))[0]["peak_gpu_bytes"], int8);
    let clusters = |flags: &str| s.succeeds(&format!("plan {limited} {flags}"))[0]["out_of_core"].clone();
    assert!(clusters("").is_null() && !clusters("--vectors full").is_null());
    // There is nothing to continue yet.
    s.succeeds(&format!("build {limited} -o on-codes --no-report --resume"));
    assert_eq!(s.succeeds("inspect on-codes")[0]["parameters"]["vectors"], "int8");
}

#[test]
fn an_index_is_fitted_to_a_sample_of_queries() {
    let s = Session::new();
    s.succeeds("synth -o wide.fbin --n 4000 --dim 64");
    s.succeeds("synth -o texts.fbin --n 4000 --dim 64 --queries 900 --query-kind tower");
    let build = "build -i wide.fbin --kind vamana --queries-sample texts.fbin";
    let built = s.succeeds(&format!("{build} -o fitted"));
    let fitted = &built.last().unwrap()["report"]["build"]["queries"];
    assert_eq!((&fitted["queries"], &fitted["held_out"]), (&900.into(), &225.into()));
    assert!(fitted["edges"].as_u64() > Some(0), "{fitted}");
    let recall = |name: &str| fitted[name][0].as_f64().unwrap();
    assert!(recall("recall") > recall("recall_before"), "{fitted}");
    let stages = built.last().unwrap()["report"]["build"]["stages"].as_array().unwrap();
    let stage = stages.iter().find(|stage| stage["stage"] == "queries").unwrap();
    assert_eq!(stage["seconds"], fitted["seconds"]);
    let planned = s.succeeds(
        "build -i wide.fbin -o clusters --kind vamana --cluster-size 800 --queries-sample texts.fbin",
    );
    assert!(planned.last().unwrap()["report"]["build"]["queries"]["queries"] == 900);
    let other = "build -i wide.fbin -o other --queries-sample base.fbin";
    s.fails(1, other, &["base.fbin: found dimension 8, expected 64 as in the base"]);
    s.fails(1, &format!("{build} -o texts.fbin"), &["texts.fbin: found the input texts.fbin"]);
    s.fails(2, "build -i wide.fbin -o other --query-format fbin", &["--queries-sample"]);
    let renamed = "--queries-format: the format of queries is now --query-format";
    s.fails(2, &format!("{other} --queries-format fbin"), &[renamed]);
}

#[test]
fn a_build_out_of_core_is_planned_and_done() {
    let session = Session::new();
    let limits = "--cluster-size 200 --host-memory 64MiB";
    let planned = session.succeeds(&format!("plan -i base.fbin --kind vamana --knn 20 {limits}"));
    assert_eq!(planned[0]["limits"]["host_memory"], 64 << 20);
    let clusters = &planned[0]["out_of_core"];
    assert_eq!(clusters["cluster_size"], 200);
    let built = session.succeeds(&format!("build -i base.fbin -o large --kind vamana --knn 20 {limits}"));
    let built = built.last().unwrap();
    // A plan is made for any machine, so it has the bytes with and without vectors in work files.
    let of_disk = ["disk", "disk_bytes", "reads_base"];
    let without_disk = |event: &serde_json::Value| {
        let mut event = event.clone();
        of_disk.iter().for_each(|key| drop(event.as_object_mut().unwrap().remove(*key).unwrap()));
        event
    };
    assert_eq!(without_disk(&built["out_of_core"]), without_disk(clusters));
    let disk = |event: &serde_json::Value| event["disk_bytes"].as_u64().unwrap();
    assert_eq!(built["out_of_core"]["reads_base"], true);
    assert!(disk(&built["out_of_core"]) < disk(clusters));
    assert_eq!(disk(&built["out_of_core"]), clusters["disk_bytes_reading_base"]);
    assert_eq!((&built["n"], &built["hit_ratio"]), (&500.into(), &1.0.into()));
    let inspected = session.succeeds("inspect large");
    assert_eq!(inspected[0]["parameters"]["cluster-size"], "200");
    let small = session.succeeds("plan -i base.fbin --kind vamana --host-memory 1GiB");
    assert!(small[0]["out_of_core"].is_null());

    let build = "build -i base.fbin -o other --kind vamana --knn 20 --cluster-size";
    session.fails(2, &format!("{build} 3"), &["--cluster-size: found 3, expected at least 16"]);
    let graph = "build -i base.fbin -o other --kind vamana --cluster-size 200 --graph graph";
    session.fails(2, graph, &["--graph needs a build in memory: raise --cluster-size, or drop it"]);
    session.fails(
        2,
        &format!("{build} 200 --metric cosine --min-recall 0.5"),
        &["--min-recall 0.5 cannot be measured out of core"],
    );
    session.fails(2, &format!("{build} 200 --host-memory 4XB"), &["4XB", "96MiB"]);
    std::fs::create_dir(session.path("work")).unwrap();
    std::fs::write(session.path("work/mine"), "").unwrap();
    session.fails(1, &format!("{build} 200 --work-dir work"), &["work: found mine"]);
}

#[test]
fn the_same_seed_gives_the_same_file_on_one_thread_and_on_two() {
    let s = Session::new();
    for (threads, name) in [(1, "one.tagore"), (2, "two.tagore")] {
        s.succeeds(&format!(
            "build -i base.fbin -o {name} --kind vamana --knn 20 --start random --seed 4 --threads {threads}"
        ));
    }
    assert_eq!(std::fs::read(s.path("one.tagore")).unwrap(), std::fs::read(s.path("two.tagore")).unwrap());
}

#[test]
fn stages_are_logged_under_log() {
    let s = Session::new();
    let build = "build -i base.fbin -o logged --kind nsg --knn 30";
    let said = |flags: &str| String::from_utf8(s.run(&format!("{build} {flags}")).stderr).unwrap();
    let (info, debug) = (said("--log info"), said("--log debug"));
    assert!(info.contains("INFO") && info.contains("graph pruned") && !info.contains("DEBUG"), "{info}");
    assert!(debug.contains("a stage ends") && debug.contains("stage=\"prune\""), "{debug}");
    assert!(!said("").contains("INFO"));
    s.fails(2, &format!("{build} --log loud"), &["--log", "loud"]);
}

#[test]
fn a_default_k_that_is_too_large_is_clamped_without_a_warning() {
    let s = Session::new();
    Synth::new(40, 4, 1).unwrap().base().save(s.path("small.fbin")).unwrap();
    let output = s.run("build -i small.fbin -o small.tagore --kind cagra");
    assert_eq!(output.status.code(), Some(0));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("recall@39") && !stderr.contains("warning"), "{stderr}");
}

#[cfg(unix)]
#[test]
fn a_full_disk_leaves_nothing_behind() {
    let s = Session::new();
    let before = s.names();
    // A write beyond the limit on file sizes fails as on a full disk.
    let script = format!(
        "trap '' XFSZ; ulimit -f 16; exec {} build -i base.fbin -o x.tagore --kind nsg",
        env!("CARGO_BIN_EXE_tagore")
    );
    let output = Command::new("sh").args(["-c", &script]).current_dir(s.folder.path()).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    let error = stderr.lines().last().unwrap();
    assert!(error.starts_with("error: x.tagore: ") && !error.contains(".tagore-"), "{stderr}");
    assert_eq!(s.names(), before);
}

#[test]
fn clusters_in_memory_leave_no_work_files_and_make_the_same_index() {
    let session = Session::new();
    let build = "build -i base.fbin --kind vamana --knn 20 --cluster-size 200 --no-report";
    session.succeeds(&format!("{build} --device cpu -o disk"));
    let built = session.succeeds(&format!("{build} --device cpu -o memory --no-work-files"));
    assert_eq!(built.last().unwrap()["in_memory"], true);
    let read = |name| std::fs::read(session.path(name)).unwrap();
    assert!(read("disk") == read("memory"));
    let wrong = format!("{build} --device cpu -o other --no-work-files --resume");
    session.fails(2, &wrong, &["'--no-work-files' cannot be used with", "--resume"]);
}

#[test]
fn a_build_in_memory_does_not_pass_the_work_files_of_another_one() {
    let session = Session::new();
    let build = "build -i base.fbin -o x --kind vamana --knn 20 --device cpu --no-report";
    let work = session.path("x.work");
    std::fs::create_dir(&work).unwrap();
    std::fs::write(work.join("manifest.json"), "{}").unwrap();
    session.fails(1, build, &["x.work: found an unfinished build", "--resume"]);
    session.fails(1, &format!("{build} --resume"), &["manifest.json: found damage", "delete the folder"]);
    session.succeeds(&format!("{build} --work-dir other"));
    assert!(work.exists());
}
