//! `tagore task`: processes that share a folder end in the bytes of one machine.

use std::time::Duration;

use super::Session;

const BUILD: &str = "--kind vamana --knn 24 --device cpu --cluster-size 600 --host-memory 1GiB";

#[test]
fn killed_and_concurrent_processes_end_in_the_bytes_of_one_machine() {
    let s = Session { folder: tempfile::tempdir().unwrap() };
    s.succeeds("synth -o base.fbin --n 4000 --dim 16 --seed 3");
    s.succeeds(&format!("build -i base.fbin -o one.tagore {BUILD} --no-report"));
    let plan = &s
        .succeeds(&format!("task plan -i base.fbin -o many.tagore --dir tasks {BUILD} --range-rows 1024"))[0];
    assert_eq!((plan["event"].as_str(), plan["ranges"].as_u64()), (Some("tasks"), Some(4)));
    // The report of an older index is gone when the new one is complete.
    std::fs::write(s.path("many.tagore.report.json"), "{}").unwrap();
    assert_eq!(plan["stages"].as_array().unwrap().len(), 7);
    let status = || s.succeeds("task status --dir tasks").remove(0);
    let made = |status: &serde_json::Value| {
        let stages = status["stages"].as_array().unwrap();
        stages.iter().map(|stage| stage["made"].as_u64().unwrap()).sum::<u64>()
    };
    assert_eq!((made(&status()), status()["complete"].as_bool()), (0, Some(false)));
    let run = |arguments: &str| s.command(&format!("task run --dir tasks {arguments} --threads 1"));
    assert!(run("assign-0 assign-1 --json").output().unwrap().status.success());
    assert!(run("--next").output().unwrap().status.success());
    assert_eq!(made(&status()), 3);
    let start = || run("--all").stderr(std::process::Stdio::null()).spawn().unwrap();
    for milliseconds in [5, 30, 80, 150] {
        let mut both = [start(), start()];
        std::thread::sleep(Duration::from_millis(milliseconds));
        both.iter_mut().for_each(|process| process.kill().unwrap());
        both.iter_mut().for_each(|process| assert!(process.wait().is_ok()));
    }
    for mut process in [start(), start(), start()] {
        assert!(process.wait().unwrap().success());
    }
    assert!(std::fs::read(s.path("many.tagore")).unwrap() == std::fs::read(s.path("one.tagore")).unwrap());
    assert_eq!(status()["complete"], true);
    // All is there: nothing runs again.
    let again = s.succeeds("task run --dir tasks --all");
    assert_eq!((again.len(), again[0]["event"].as_str()), (1, Some("index")));
    assert_eq!(s.names(), ["base.fbin", "many.tagore", "one.tagore", "tasks"]);
}
