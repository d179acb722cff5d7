//! First commands: what a newcomer types works, or is answered by the command that works.

use std::fs::{self, File};
use std::process::Stdio;

use tagore::{Index, Synth, Vectors};

use super::Session;

#[test]
fn a_data_set_alone_is_enough() {
    let s = Session::new();
    s.succeeds("convert base.fbin base.npy");
    let said = s.run("build base.npy --device cpu");
    let said = String::from_utf8(said.stderr).unwrap();
    assert!(said.contains("nssg, the default: --kind chooses another"), "{said}");
    assert!(said.contains("base.tagore: nssg of 500 x 8"), "{said}");
    assert_eq!(Index::open(s.path("base.tagore")).unwrap().kind(), "nssg");
    assert!(s.path("base.tagore.report.json").exists());
    // By position, by name, and by the short name: the same data set.
    s.succeeds("build -i base.fbin --kind vamana --no-report --device cpu");
    assert_eq!(Index::open(s.path("base.tagore")).unwrap().kind(), "vamana");
    // The default where memory does not hold a build.
    s.succeeds("build --base base.fbin --knn 20 --cluster-size 200 --no-report --device cpu");
    assert_eq!(Index::open(s.path("base.tagore")).unwrap().kind(), "vamana");
    for command in [
        "plan base.fbin",
        "knn base.fbin --knn 20",
        "groundtruth base.fbin --queries query.fbin -o truth.bin",
        "search base.fbin --queries query.fbin -o found.bin",
        "eval base.fbin --queries query.fbin",
        "search base.fbin --index index.tagore --queries query.fbin -o found.ibin",
        "eval base.fbin --index index.tagore --queries query.fbin --groundtruth gt.bin",
        "inspect base.fbin",
        "bench search base.fbin --index index.tagore --queries query.fbin --groundtruth gt.bin",
    ] {
        s.succeeds(command);
    }
    // Exact search finds what it is compared with, of the rows that the index holds.
    let exactly = s.succeeds("eval base.fbin --queries query.fbin --beams 100")[0].clone();
    let given = "eval base.fbin --queries query.fbin --beams 100 --groundtruth truth.bin";
    assert_eq!(exactly["recall"], s.succeeds(given)[0]["recall"]);
    for command in ["search", "eval"] {
        let said = ["query.tagore: found no file, expected an index: `tagore build query.fbin` makes it"];
        s.fails(1, &format!("{command} query.fbin --queries query.fbin"), &said);
        let said = ["base.tagore: found an index, expected vectors", "BASE --index base.tagore"];
        s.fails(1, &format!("{command} base.tagore --queries query.fbin"), &said);
    }
    // What is read is not written over, and a pipe has no name.
    fs::copy(s.path("base.fbin"), s.path("x.tagore")).unwrap();
    s.fails(1, "build x.tagore --format fbin", &["x.tagore: found the input", "a file that is not read"]);
    let mut piped = s.command("build - --format fbin");
    let piped = piped.stdin(File::open(s.path("base.fbin")).unwrap()).output().unwrap();
    let said = String::from_utf8(piped.stderr).unwrap();
    assert_eq!((piped.status.code(), said.lines().count()), (Some(2), 1), "{said}");
    assert!(said.starts_with("error: --output: found none, expected a file"), "{said}");
}

#[test]
fn numbers_have_units_and_names_any_case() {
    let s = Session::new();
    let synth = &s.succeeds("synth -o x.fbin --n 1k --dim 8 --seed 1_000 --kind Uniform")[0];
    assert_eq!((synth["n"].as_u64(), synth["seed"].as_u64()), (Some(1000), Some(1000)));
    let build = "build x.fbin --kind NSSG --metric L2 --device CPU --knn 2e1 --host-memory 4G --format FBIN";
    assert_eq!(s.succeeds(build)[0]["knn"], 20);
    assert_eq!(
        s.succeeds("plan --n 1M --dim 96 --type U8 --kind Vamana --gpu-memory 24GB")[0]["n"],
        1_000_000
    );
    let limits =
        &s.succeeds("plan --n 1M --dim 96 --kind nsg --gpu-memory 24G --host-memory 1.5GiB")[0]["limits"];
    assert_eq!(
        (limits["gpu_memory"].as_u64(), limits["host_memory"].as_u64()),
        (Some(24 << 30), Some(3 << 29))
    );
    let beams = "search base.fbin --index index.tagore --queries query.fbin -k 1e1 --beam 0.1k -o x.bin";
    assert_eq!(s.succeeds(beams)[0]["beam"], 100);
}

#[test]
fn defaults_fit_small_data_without_a_warning() {
    for rows in [1, 2, 5, 11] {
        let s = Session { folder: tempfile::tempdir().unwrap() };
        let synth = Synth::new(rows, 4, 1).unwrap();
        synth.base().save(s.path("base.fbin")).unwrap();
        synth.queries(3).save(s.path("query.fbin")).unwrap();
        for command in [
            "groundtruth base.fbin --queries query.fbin -o gt.bin",
            "knn base.fbin -o graph.bin",
            "knn base.fbin --verify 10",
            "build base.fbin",
            "build base.fbin --kind vamana -o vamana.tagore",
            "search base.fbin --index base.tagore --queries query.fbin -o found.bin",
            "eval base.fbin --index base.tagore --queries query.fbin --groundtruth gt.bin",
            "bench search base.fbin --index base.tagore --queries query.fbin --groundtruth gt.bin",
            "bench prune base.fbin --kinds nssg --queries query.fbin --groundtruth gt.bin",
            "plan base.fbin --kind nssg",
            "inspect base.tagore --base base.fbin",
            "convert base.tagore base.hnswlib --base base.fbin",
        ] {
            let output = s.run(command);
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(0), "{rows} rows, {command}: {said}");
            assert!(!said.contains("warning: -"), "{rows} rows, {command}: {said}");
        }
    }
}

#[test]
fn short_help_is_a_screen_that_begins_with_examples() {
    let s = Session { folder: tempfile::tempdir().unwrap() };
    let help = |arguments: &str, columns: &str| {
        let output = s.command(arguments).env("COLUMNS", columns).output().unwrap();
        assert_eq!((output.status.code(), output.stderr.len()), (Some(0), 0), "{arguments}");
        String::from_utf8(output.stdout).unwrap()
    };
    for name in [
        "",
        "build ",
        "update ",
        "merge ",
        "knn ",
        "search ",
        "eval ",
        "groundtruth ",
        "synth ",
        "convert ",
        "inspect ",
        "plan ",
    ] {
        let short = help(&format!("{name}-h"), "100");
        assert!(short.lines().count() <= 36, "{} lines: {short}", short.lines().count());
        let (examples, usage) = (short.find("Examples:\n  tagore "), short.find("Usage:"));
        assert!(examples.is_some() && examples < usage, "{short}");
        let long = help(&format!("{name}--help"), "100");
        assert!(long.lines().count() > short.lines().count(), "{name}");
        let narrow = help(&format!("{name}--help"), "70");
        let wide = |line: &&str| line.chars().count() > 70 && !line.starts_with("Usage:");
        assert_eq!(narrow.lines().find(wide), None, "{name}");
    }
}

/// Every example of `-h` is a command line that the parser takes.
#[test]
fn examples_of_help_are_right() {
    let s = Session { folder: tempfile::tempdir().unwrap() };
    for name in [
        "build",
        "update",
        "merge",
        "knn",
        "search",
        "eval",
        "groundtruth",
        "synth",
        "convert",
        "inspect",
        "plan",
        "bench",
    ] {
        let help = String::from_utf8(s.run(&format!("{name} -h")).stdout).unwrap();
        let examples = help.lines().skip_while(|line| *line != "Examples:").skip(1);
        for example in examples.take_while(|line| !line.is_empty()) {
            let words =
                example.split("tagore ").nth(1).map(|_| example.split_once("tagore ").unwrap().1).unwrap();
            let output = s.command(words).stdin(Stdio::piped()).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert_ne!(output.status.code(), Some(2), "{example}: {said}");
        }
    }
}

#[test]
fn text_that_cannot_be_printed_is_an_error() {
    let s = Session { folder: tempfile::tempdir().unwrap() };
    for arguments in ["--help", "-h", "--version", "build --help", "completions bash"] {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let output = s.command(arguments).stdout(full).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), said.lines().count()), (Some(1), 1), "{arguments}: {said}");
        assert!(said.contains("standard output: no storage space"), "{arguments}: {said}");
    }
}

#[test]
fn a_foreign_index_is_answered_by_the_command_that_takes_it() {
    let s = Session::new();
    s.succeeds("convert index.tagore x.hnswlib --base base.fbin");
    s.fails(2, "inspect x.hnswlib", &["--base: found none", "x.hnswlib", "is checked against it"]);
    s.succeeds("inspect x.hnswlib --base base.fbin");
    let remedy = "convert x.hnswlib x.hnswlib.tagore --base BASE";
    let search = "search base.fbin --queries query.fbin -o found.bin --index";
    s.fails(1, &format!("{search} x.hnswlib"), &["x.hnswlib: found hnswlib", "a tagore index", remedy]);
    s.succeeds(&remedy.replace("BASE", "base.fbin"));
    s.succeeds(&format!("{search} x.hnswlib.tagore"));
    s.fails(1, &format!("{search} base.fbin"), &["base.fbin: found vectors", "`tagore build base.fbin`"]);
}

#[test]
fn an_index_does_not_keep_the_report_of_an_older_one() {
    let s = Session::new();
    let report = s.path("index.tagore.report.json");
    assert!(report.exists());
    s.succeeds("build base.fbin -o index.tagore --kind vamana --knn 20 --report other.json");
    assert!(!report.exists() && s.path("other.json").exists());
    s.succeeds("build base.fbin -o index.tagore --kind vamana --knn 20");
    s.succeeds("convert index.tagore x.nsg");
    s.fails(1, "convert x.nsg index.tagore --base query.fbin", &["x.nsg"]);
    assert!(report.exists(), "an index that stays has lost its report");
    s.succeeds("convert x.nsg index.tagore --base base.fbin");
    assert!(!report.exists());
}

#[cfg(target_os = "linux")]
#[test]
fn folders_without_room_are_named() {
    let s = Session::new();
    let search = "search base.fbin --index index.tagore --queries query.fbin -o";
    s.fails(
        1,
        &format!("{search} /proc/r.csv"),
        &["/proc/r.csv: found the folder /proc, which takes no new files"],
    );
    fs::create_dir(s.path("copies")).unwrap();
    // A limit of the size of files stands for a full disk: both end a write.
    let shell = format!("ulimit -f 8; exec {} inspect - --format fbin", env!("CARGO_BIN_EXE_tagore"));
    let mut sh = std::process::Command::new("sh");
    sh.args(["-c", &shell]).current_dir(s.folder.path()).env("TMPDIR", s.path("copies"));
    let output = sh.stdin(File::open(s.path("base.fbin")).unwrap()).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), said.lines().count()), (Some(1), 1), "{said}");
    for words in ["standard input: found no room for a copy in ", "copies", "another folder by TMPDIR"] {
        assert!(said.contains(words), "'{words}' is not in: {said}");
    }
    assert!(super::names(&s.path("copies")).is_empty());
    assert_eq!(Vectors::open(s.path("base.fbin")).unwrap().len(), 500);
}
