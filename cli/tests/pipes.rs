//! Vectors from pipes, and results as text.

use std::fs::{self, File};
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use tagore::GroundTruth;

use super::{Session, names};

impl Session {
    /// A command with a folder of its own for copies of pipes, and this standard input.
    fn piped(&self, arguments: &str, input: impl Into<Stdio>) -> Command {
        let mut command = self.command(arguments);
        fs::create_dir_all(self.path("copies")).unwrap();
        command.env("TMPDIR", self.path("copies")).stdin(input);
        command
    }

    /// Runs the command with a file as its standard input. It must succeed and leave no copy.
    fn with_input(&self, arguments: &str, file: &str) -> String {
        let output = self.piped(arguments, File::open(self.path(file)).unwrap()).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
        assert!(names(&self.path("copies")).is_empty());
        String::from_utf8(output.stdout).unwrap()
    }
}

#[test]
fn standard_input_is_a_file_of_vectors() {
    let s = Session::new();
    let build = "build -o piped.tagore --kind nsg --knn 30 -i";
    s.with_input(&format!("{build} - --format fbin"), "base.fbin");
    let bytes = |name: &str| fs::read(s.path(name)).unwrap();
    assert!(bytes("piped.tagore") == bytes("index.tagore"), "another index");
    s.with_input("convert - back.npy --from fbin", "base.fbin");
    s.succeeds("convert back.npy back.fbin");
    assert!(bytes("back.fbin") == bytes("base.fbin"), "other vectors");
    let inspected = s.with_input("inspect - --format fbin --json", "query.fbin");
    assert!(inspected.contains("\"file\":\"standard input\""), "{inspected}");
    let search = "search --index index.tagore --base base.fbin --queries - --query-format fbin -k 3 -o -";
    let lines = s.with_input(&format!("{search} --json"), "query.fbin");
    assert_eq!(lines.lines().count(), 21, "{lines}");
    s.with_input(
        "groundtruth --base base.fbin --queries - --query-format fbin -k 10 -o again.bin",
        "query.fbin",
    );
    assert!(bytes("again.bin") == bytes("gt.bin"), "another ground truth");
}

#[test]
fn errors_name_the_pipe_and_leave_no_copy() {
    let s = Session::new();
    let fails = |arguments: &str, input: Stdio, expected: &str| {
        let output = s.piped(arguments, input).output().unwrap();
        assert_eq!(String::from_utf8(output.stderr).unwrap().trim_end(), expected, "{arguments}");
        assert!(names(&s.path("copies")).is_empty(), "{arguments}");
    };
    let base = || File::open(s.path("base.fbin")).unwrap().into();
    fails(
        "inspect - --format u8bin",
        base(),
        "error: standard input: found 16008 bytes, expected 4008 (8 + 500 x 8 x 1, by its header)",
    );
    fails(
        "inspect - --format fbin",
        Stdio::null(),
        "error: standard input: found an empty file, expected a header or rows",
    );
    fails(
        "search --index index.tagore --base - --queries - -o x.bin",
        base(),
        "error: --queries: found - twice, expected it once: a pipe is read once",
    );
}

#[test]
fn a_named_pipe_is_read_and_a_signal_leaves_no_copy() {
    let s = Session::new();
    assert!(Command::new("mkfifo").arg(s.path("pipe")).status().unwrap().success());
    let inspect = || -> Child {
        let mut command = s.piped("inspect pipe --format fbin", Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let child = inspect();
    fs::write(s.path("pipe"), fs::read(s.path("base.fbin")).unwrap()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.starts_with("pipe: 500 x 8 f32"), "{said}");
    // The command has opened the pipe once the writer can, and waits for bytes.
    let child = inspect();
    let writer = File::options().write(true).open(s.path("pipe")).unwrap();
    assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    drop(writer);
    assert_eq!(output.status.code(), Some(130));
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "error: interrupted\n");
    assert!(names(&s.path("copies")).is_empty());
}

#[test]
fn results_as_text_are_those_of_the_binary_file() {
    let s = Session::new();
    let search = "search --index index.tagore --base base.fbin --queries query.fbin -k 4";
    for output in ["found.bin", "found.csv", "found.jsonl"] {
        s.succeeds(&format!("{search} -o {output}"));
    }
    let found = GroundTruth::open(s.path("found.bin"), &tagore::Progress::silent()).unwrap();
    let csv = fs::read_to_string(s.path("found.csv")).unwrap();
    let mut rows = csv.lines();
    assert_eq!(rows.next(), Some("query,rank,id,distance"));
    let ids: Vec<u32> = rows.map(|row| row.split(',').nth(2).unwrap().parse().unwrap()).collect();
    let expected: Vec<u32> = (0..20).flat_map(|query| found.ids(query).to_vec()).collect();
    assert_eq!(ids, expected);
    assert!(csv.lines().nth(2).unwrap().starts_with("0,2,"));
    for (query, line) in fs::read_to_string(s.path("found.jsonl")).unwrap().lines().enumerate() {
        let line: Value = serde_json::from_str(line).unwrap();
        let ids: Vec<u32> = serde_json::from_value(line["ids"].clone()).unwrap();
        assert_eq!((line["query"].as_u64(), ids.as_slice()), (Some(query as u64), found.ids(query)));
        assert_eq!(line["distances"].as_array().unwrap().len(), 4);
    }
    let printed = s.run(&format!("{search} -o -"));
    assert_eq!(String::from_utf8(printed.stdout).unwrap(), csv);
    // No nearest of many is cut by a beam that is narrower than k.
    let line =
        &s.succeeds("search --index index.tagore --base base.fbin --queries query.fbin -k 200 -o x.bin")[0];
    assert_eq!((line["k"].as_u64(), line["beam"].as_u64()), (Some(200), Some(400)));
}
