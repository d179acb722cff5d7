//! Tests of the command: what it prints, which files it leaves behind, and its exit codes.
#![expect(clippy::unwrap_used, reason = "a test stops at the first error")]

mod bench;
mod bits;
mod build;
mod convert;
mod errors;
mod first;
mod formats;
#[cfg(target_os = "linux")]
mod limits;
mod live;
mod merge;
mod outputs;
#[cfg(unix)]
mod pipes;
mod plan;
mod ranges;
mod report;
mod search;
#[cfg(unix)]
mod shell;
#[cfg(target_os = "linux")]
mod signals;
#[cfg(target_os = "linux")]
mod sparse;
mod streams;
mod synth;
mod task;
mod truth;
mod update;
mod wrong;

use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tagore::Synth;
use tempfile::TempDir;

/// A folder with data, the working directory of the command.
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
        session.succeeds("build -i base.fbin -o index.tagore --kind nsg --knn 30");
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

    /// Runs the command and returns its JSON lines. It must succeed.
    fn succeeds(&self, arguments: &str) -> Vec<Value> {
        let output = self.run(&format!("{arguments} --json"));
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{arguments}: {stderr}");
        let stdout = String::from_utf8(output.stdout).unwrap();
        stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Runs the command. It must end with `code`, one line of error with all of `words`, nothing on
    /// standard output, and no new file.
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
            &s.succeeds(&format!("build -i base.fbin -o {kind}.tagore --kind {kind} --graph graph"))[0];
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
    assert!(!s.names().iter().any(|name| name.starts_with('.')), "{:?}", s.names());
}
