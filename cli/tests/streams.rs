//! Results on standard output, everything else on standard error.

use std::fs;
use std::process::{Output, Stdio};

use super::Session;

/// Commands whose result is text, each with words of it.
const PRINTING: [(&str, &str); 17] = [
    ("plan -i base.fbin --knn 20 --kind nsg", "memory "),
    ("plan --n 1000 --dim 8 --details --device cpu", "memory "),
    ("plan --n 5000 --dim 8 --kind vamana --device cpu --cluster-size 1000 --workers 2", "2 workers"),
    ("inspect base.fbin", "500 x 8 f32"),
    ("inspect gt.bin", "ids and distances"),
    ("inspect index.tagore --base base.fbin", "recall@10"),
    ("doctor", "kernels "),
    ("bench descent -i base.fbin --knn 8 --repeat 1 --device cpu", "recall@8"),
    ("bench prune -i base.fbin --kinds nsg --knn 20 --repeat 1 --device cpu", "connect s"),
    ("bench outofcore -i base.fbin --kind vamana --cluster-size 200 --device cpu --stages", "the disk, "),
    (
        "bench search -i base.fbin --index index.tagore --queries query.fbin --groundtruth gt.bin --device cpu",
        "recall@10",
    ),
    ("update index.tagore --base base.fbin", "nsg of 500 x 8 in "),
    ("knn -i base.fbin --knn 8 --verify 20", "recall@8"),
    ("eval --index index.tagore --base base.fbin --queries query.fbin --groundtruth gt.bin", "recall@10"),
    ("search --index index.tagore --base base.fbin --queries query.fbin", "\n19 "),
    ("groundtruth --base base.fbin --queries query.fbin -k 3", "\n19 "),
    (
        "task plan -i base.fbin -o t.tagore --kind vamana --knn 20 --device cpu --cluster-size 200 --dir d",
        "place",
    ),
];

fn streams(output: Output) -> (String, String) {
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let (stdout, stderr) = (text(output.stdout), text(output.stderr));
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    (stdout, stderr)
}

#[test]
fn results_are_on_standard_output_and_nothing_else_is() {
    let s = Session::new();
    for (command, words) in PRINTING {
        let (stdout, stderr) = streams(s.run(&format!("{command} --quiet")));
        assert!(stdout.contains(words) && stdout.ends_with('\n'), "{command}: {words} is not in: {stdout}");
        assert_eq!(stderr, "", "{command}");
        if command.starts_with("task") {
            continue;
        }
        let (noted, stderr) = streams(s.run(command));
        assert_eq!(noted.lines().count(), stdout.lines().count(), "{command}");
        assert!(stdout.lines().all(|line| line.is_empty() || !stderr.contains(line)), "{command}: {stderr}");
        // JSON lines have standard output to themselves.
        assert!(!s.succeeds(command).is_empty(), "{command}");
    }
    // Where a file takes standard output, text goes elsewhere.
    let (report, said) = streams(s.run("inspect index.tagore --base base.fbin --report -"));
    assert!(
        serde_json::from_str::<serde_json::Value>(&report).is_ok() && said.contains("recall@10"),
        "{said}"
    );
    let (lines, said) = streams(s.run("bench descent -i base.fbin --knn 8 --repeat 1 --device cpu -o -"));
    assert!(lines.starts_with('{') && lines.lines().count() == 2 && said.contains("recall@8"), "{lines}");
    // The result of a build is its file.
    let (stdout, stderr) = streams(s.run("build -i base.fbin -o noted.tagore --kind nsg --knn 30"));
    assert!(
        stdout.is_empty() && stderr.contains("recall@10") && stderr.contains("time "),
        "{stdout}{stderr}"
    );
}

#[test]
fn quiet_commands_still_warn_and_fail_aloud() {
    let s = Session::new();
    s.succeeds("synth -o small.fbin --n 40 --dim 4");
    for flag in ["-q", "--quiet"] {
        let (stdout, stderr) = streams(s.run(&format!("build -i base.fbin -o x.tagore --kind nsg {flag}")));
        assert_eq!((stdout.as_str(), stderr.as_str()), ("", ""));
        let threads = s.run(&format!("inspect base.fbin --threads 1000 {flag}"));
        let (stdout, stderr) = streams(threads);
        assert!(stdout.starts_with("base.fbin") && stderr.starts_with("warning: 1000 threads"), "{stderr}");
        let failed = s.run(&format!("inspect missing.fbin {flag}"));
        assert!(failed.stderr.starts_with(b"error: missing.fbin: ") && failed.stdout.is_empty());
    }
}

#[test]
fn results_without_a_file_are_a_line_per_query() {
    let s = Session::new();
    let data = "--base base.fbin --queries query.fbin -k 3";
    let search = format!("search --index index.tagore {data}");
    let truth = format!("groundtruth {data}");
    for command in [&search, &truth] {
        let (csv, _) = streams(s.run(&format!("{command} -o -")));
        let (lines, _) = streams(s.run(command));
        let mut expected = String::new();
        for (place, row) in csv.lines().skip(1).enumerate() {
            let fields: Vec<&str> = row.split(',').collect();
            if place % 3 == 0 {
                expected += &format!("{}{}", if place > 0 { "\n" } else { "" }, fields[0]);
            }
            expected += &format!(" {}:{}", fields[2], fields[3]);
        }
        assert_eq!(lines, expected + "\n", "{command}");
        let results = s.succeeds(command);
        assert_eq!((results.len(), &results[19]["event"]), (21, &"result".into()), "{command}");
    }
}

#[test]
fn standard_output_takes_every_format() {
    let s = Session::new();
    let data = "--base base.fbin --queries query.fbin -k 3";
    let search = format!("search --index index.tagore {data}");
    let truth = format!("groundtruth {data}");
    let compare = |command: &str, extension: &str, file: &str| {
        s.succeeds(&format!("{command} -o {file}"));
        let flag = if command.starts_with("synth") { "--format" } else { "--to" };
        let printed = s.run(&format!("{command} -o - {flag} {extension}"));
        assert_eq!(printed.status.code(), Some(0), "{}", String::from_utf8_lossy(&printed.stderr));
        assert!(printed.stdout == fs::read(s.path(file)).unwrap(), "{command} as {extension}");
    };
    for extension in ["csv", "jsonl", "bin", "ivecs", "ibin", "npy"] {
        compare(&search, extension, &format!("found.{extension}"));
        compare(&truth, extension, &format!("truth.{extension}"));
    }
    for extension in ["fbin", "f16bin", "bf16bin", "u8bin", "i8bin", "b1bin", "fvecs", "bvecs", "npy"] {
        compare("synth --n 50 --dim 8", extension, &format!("rows.{extension}"));
    }
    s.fails(1, "synth --n 50 --dim 8 -o -", &["-: found standard output, which takes JSON lines"]);
    let unnamed = s.run("synth --n 50 --dim 8 -o -");
    let said = String::from_utf8(unnamed.stderr).unwrap();
    assert!(said.contains("found no extension") && said.contains("format as a flag"), "{said}");
    // JSON lines and other content would be mixed.
    for format in ["csv", "bin", "npy"] {
        s.fails(1, &format!("{truth} -o - --to {format}"), &["-: found standard output", "no --json"]);
        s.fails(1, &format!("{search} --to {format}"), &["-: found standard output", "no --json"]);
    }
    s.fails(2, &format!("{search} -o x.npy --to bin"), &["--to: found bin for x.npy, expected npy"]);
    s.fails(2, &format!("{search} --to xml"), &["--to: found xml, expected csv, jsonl, bin"]);
}

#[cfg(unix)]
#[test]
fn a_closed_pipe_ends_a_command_in_silence() {
    let s = Session::new();
    let closed = || Stdio::from(std::io::pipe().unwrap().1);
    for command in PRINTING.iter().map(|(command, _)| *command).chain([
        "--help",
        "build --help",
        "--version",
        "completions bash",
        "inspect index.tagore --base base.fbin --report -",
        "groundtruth --base base.fbin --queries query.fbin -k 3 -o -",
        "synth --n 100 --dim 8 -o - --format fbin",
    ]) {
        if command.starts_with("task") {
            continue;
        }
        let output = s.command(&format!("{command} --quiet")).stdout(closed()).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), stderr.as_str()), (Some(0), ""), "{command}");
        let output = s.command(command).stdout(closed()).stderr(closed()).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{command}");
    }
    // A file is written all the same.
    for flags in ["--json", "--log trace"] {
        let build = format!("build -i base.fbin -o closed.tagore --kind nsg --knn 30 {flags}");
        let output = s.command(&build).stdout(closed()).stderr(closed()).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{flags}");
        assert!(fs::read(s.path("closed.tagore")).unwrap() == fs::read(s.path("index.tagore")).unwrap());
        fs::remove_file(s.path("closed.tagore")).unwrap();
    }
}

/// No bar, and no line of progress, for work of less than two seconds.
#[test]
fn short_work_shows_no_progress_and_sizes_have_units() {
    let s = Session::new();
    let build = "build -i base.fbin -o large --kind vamana --knn 20 --cluster-size 200 --device cpu";
    let (_, said) = streams(s.run(build));
    assert!(!said.contains(" % after "), "{said}");
    let sizes = said.lines().find(|line| line.starts_with("host ")).unwrap();
    assert!(sizes.contains("iB without the mapped data set") && !sizes.contains("bytes"), "{sizes}");
    let time = said.lines().last().unwrap();
    assert!(time.starts_with("time  ") && !time.contains(" 0.000"), "{time}");
    let (details, _) = streams(s.run("plan --n 100000 --dim 96 --kind nsg --device cpu --details"));
    let peak = details.lines().find(|line| line.starts_with("peak of host memory: ")).unwrap();
    assert!(peak.contains("MiB without the data set"), "{peak}");
}
