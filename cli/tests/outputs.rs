//! Outputs of the command: none overwrites an input or another output, and wrong ones are refused
//! before any work.

use std::fs;
use std::process::Stdio;

use super::Session;

/// Runs commands with an output over an input. Each must fail and leave every file unchanged.
fn refuses(s: &Session, commands: &[&str], word: &str) {
    let content = || -> Vec<Vec<u8>> {
        s.names().iter().map(|name| fs::read(s.path(name)).unwrap_or_default()).collect()
    };
    let before = content();
    for command in commands {
        s.fails(1, command, &[word]);
        assert!(content() == before, "{command}: a file was changed");
    }
}

#[test]
fn no_output_is_written_over_an_input() {
    let s = Session::new();
    let search = "search --index index.tagore --base base.fbin --queries query.fbin";
    let eval = "eval --index index.tagore --base base.fbin --queries query.fbin";
    let truth = "groundtruth --base base.fbin --queries query.fbin";
    let bench = "bench search -i base.fbin --queries query.fbin --groundtruth gt.bin --index index.tagore";
    s.succeeds("knn -i base.fbin -o graph.bin --knn 20");
    let commands = [
        "build -i base.fbin -o base.fbin --kind nsg".to_owned(),
        "build -i base.fbin -o ./../{here}/base.fbin --kind nsg".to_owned(),
        "build -i base.fbin -o x.tagore --kind nsg --html base.fbin".to_owned(),
        "build -i base.fbin -o x.tagore --kind nsg --report base.fbin".to_owned(),
        "build -i base.fbin -o graph.bin --kind nsg --graph graph.bin".to_owned(),
        "knn -i base.fbin -o base.fbin".to_owned(),
        format!("{search} -o query.fbin"),
        format!("{search} -o index.tagore"),
        format!("{search} -o base.fbin"),
        format!("{eval} --groundtruth gt.svg --plot gt.svg"),
        format!("{truth} -o base.fbin"),
        format!("{truth} -o query.fbin"),
        "convert base.fbin base.fbin".to_owned(),
        "convert index.tagore index.tagore".to_owned(),
        "inspect index.tagore --base base.fbin --html base.fbin".to_owned(),
        "inspect index.tagore --base base.fbin --report index.tagore".to_owned(),
        format!("{bench} -o gt.bin"),
        "bench prune -i base.fbin --queries q.svg --groundtruth gt.bin --plot q.svg".to_owned(),
        "bench descent -i base.fbin -o base.fbin".to_owned(),
        "bench outofcore -i b.svg --format fbin --kind nsg --cluster-size 100 --plot b.svg".to_owned(),
    ];
    let here = s.folder.path().file_name().unwrap().to_str().unwrap();
    let commands: Vec<String> = commands.iter().map(|command| command.replace("{here}", here)).collect();
    refuses(&s, &commands.iter().map(String::as_str).collect::<Vec<_>>(), "found the input");
    let work = "build -i base.fbin -o x.tagore --kind nsg --work-dir base.fbin";
    refuses(&s, &[work], "base.fbin in the work folder");
}

#[test]
fn names_derived_from_an_output_are_not_written_over_an_input() {
    let s = Session::new();
    for name in
        ["x.tagore.report.json", "y.entries.ibin", "z.indptr.npy", "w.data", "v_disk.index", "u.crc32"]
    {
        fs::copy(s.path("base.fbin"), s.path(name)).unwrap();
    }
    fs::create_dir(s.path("work")).unwrap();
    let base = "--format fbin --kind nsg";
    refuses(
        &s,
        &[
            &format!("build -i x.tagore.report.json -o x.tagore {base}"),
            "convert y.entries.ibin y.ibin --from fbin",
            "convert index.tagore y.ibin --base y.entries.ibin",
            "convert z.indptr.npy z.csr --from fbin",
            "convert w.data w --from fbin --to diskann",
            "convert v_disk.index v --from fbin --to diskann-disk",
            "convert u.crc32 u --from fbin --to pair",
            "build -i base.fbin -o work/x.tagore --work-dir work --kind nsg",
            "build -i base.fbin -o x.tagore --html work/x.html --work-dir work --kind nsg",
            "build -i base.fbin -o x.tagore --work-dir . --kind nsg",
        ],
        "expected a f",
    );
    // A temporary file of an earlier run is removed, unless it is the input.
    fs::copy(s.path("base.fbin"), s.path(".t.bin.tagore-tmp")).unwrap();
    refuses(&s, &["knn -i .t.bin.tagore-tmp -o t.bin --format fbin"], "its temporary file");
}

#[cfg(unix)]
#[test]
fn links_to_an_input_are_refused_and_other_links_followed() {
    use std::os::unix::fs::symlink;
    let s = Session::new();
    symlink("base.fbin", s.path("soft.bin")).unwrap();
    symlink("missing", s.path("dangling.bin")).unwrap();
    fs::hard_link(s.path("query.fbin"), s.path("hard.bin")).unwrap();
    let search = "search --index index.tagore --base base.fbin --queries query.fbin";
    refuses(&s, &[&format!("{search} -o hard.bin"), &format!("{search} -o soft.bin")], "the input");
    s.fails(1, &format!("{search} -o dangling.bin"), &["dangling.bin", "a dangling symbolic link"]);
    fs::create_dir(s.path("far")).unwrap();
    fs::write(s.path("far/found.bin"), "old").unwrap();
    symlink("far/found.bin", s.path("link.bin")).unwrap();
    s.succeeds(&format!("{search} -o link.bin"));
    assert!(fs::symlink_metadata(s.path("link.bin")).unwrap().is_symlink(), "the link was replaced");
    assert_eq!(s.succeeds("inspect far/found.bin --format ibin")[0]["rows"], 20);
}

#[test]
fn two_outputs_of_a_command_are_two_files() {
    let s = Session::new();
    refuses(
        &s,
        &[
            "build -i base.fbin -o x --kind nsg --html x",
            "build -i base.fbin -o x --kind nsg --report y --html ./y",
            "build -i base.fbin -o x --kind nsg --html x.report.json",
            "bench prune -i base.fbin --queries query.fbin --groundtruth gt.bin --plot x.svg -o x.svg",
        ],
        "a file of its own",
    );
}

#[test]
fn outputs_are_checked_before_inputs_are_read() {
    let s = Session::new();
    // If the base were read first, the error would name it.
    fs::write(s.path("bad.fbin"), "no header").unwrap();
    let build = "build -i bad.fbin --kind nsg";
    s.fails(1, &format!("{build} -o missing/x.tagore"), &["missing/x.tagore: found no such folder missing"]);
    s.fails(
        1,
        &format!("{build} -o x.tagore --html missing/x.html"),
        &["missing/x.html: found no such folder"],
    );
    if cfg!(target_os = "linux") {
        s.fails(
            1,
            &format!("{build} -o /proc/x"),
            &["/proc/x: found the folder /proc, which takes no new files"],
        );
        s.fails(1, &format!("{build} -o /dev/null"), &["/dev/null: found a device or a pipe"]);
        s.fails(1, &format!("{build} -o x.tagore --report /dev/full"), &["/dev/full: found a device"]);
    }
    let index = tagore::Index::open(s.path("index.tagore")).unwrap();
    let error = index.save(s.path("missing/x.tagore")).unwrap_err().to_string();
    assert!(error.contains("found no such folder") && error.contains("missing, expected"), "{error}");
}

#[test]
fn a_graph_is_one_file_and_a_pair_only_by_conversion() {
    let s = Session::new();
    s.succeeds("knn -i base.fbin -o graph.bin --knn 20");
    assert!(s.names().iter().all(|name| !name.starts_with("graph") || name == "graph.bin"));
    s.fails(1, "knn -i base.fbin -o graph.npy", &["graph.npy", "ids alone", ".bin"]);
    assert_eq!(s.succeeds("convert graph.bin g --to pair")[0]["rows"], 500);
    assert_eq!(s.succeeds("convert g again.bin --from pair --to ibin")[0]["cols"], 20);
    for name in ["g.neighbors.ibin", "g.distances.fbin", "g.crc32"] {
        assert!(s.path(name).exists(), "{name}");
    }
    // Files of two pairs do not mix.
    s.succeeds("knn -i base.fbin -o other.bin --knn 20 --metric ip");
    s.succeeds("convert other.bin o --to pair");
    fs::copy(s.path("o.distances.fbin"), s.path("g.distances.fbin")).unwrap();
    s.fails(1, "convert g x.ibin --from pair", &["g.distances.fbin", "g.crc32 records"]);
    s.succeeds("convert index.tagore one.ibin");
    s.succeeds("build -i base.fbin -o index2.tagore --kind cagra --graph graph.bin --degree 16");
    s.succeeds("convert index2.tagore two.ibin");
    fs::copy(s.path("two.entries.ibin"), s.path("one.entries.ibin")).unwrap();
    s.fails(1, "inspect one.ibin --base base.fbin", &["one.entries.ibin", "one.crc32 records"]);
    s.fails(1, "convert base.fbin x --to pair", &["pair for vectors"]);
    s.fails(2, "convert gt.bin x --to pair --layers", &["--layers"]);
}

#[cfg(target_os = "linux")]
#[test]
fn json_that_cannot_be_printed_is_a_failure() {
    let s = Session::new();
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let output = s.command("inspect base.fbin --json").stdout(Stdio::from(full)).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("error: standard output: "), "{stderr}");
}

#[cfg(unix)]
#[test]
fn paths_outside_utf8_are_escaped() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let s = Session::new();
    let name = OsStr::from_bytes(b"a\xff\n\x1b[31mb.fbin");
    let shown = "a\\xff\\n\\u{1b}[31mb.fbin";
    let run = |arguments: &[&OsStr]| {
        let output = s.command("--json").args(arguments).output().unwrap();
        (
            output.status.code(),
            String::from_utf8(output.stdout).unwrap(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    let words = |text: &'static str| text.split(' ').map(OsStr::new).collect::<Vec<_>>();
    let commands = [
        [words("synth --n 50 --dim 4 -o"), vec![name]].concat(),
        [words("inspect"), vec![name]].concat(),
        [words("convert"), vec![name], words("x.fvecs")].concat(),
        [words("convert base.fbin"), vec![name]].concat(),
    ];
    for command in &commands {
        let (code, stdout, stderr) = run(command);
        assert_eq!(code, Some(0), "{command:?}: {stderr}");
        assert!(stdout.contains(&shown.replace('\\', "\\\\")), "{stdout}");
        assert!(!stderr.contains('\u{1b}') && !stdout.contains('\u{1b}'), "{stderr}");
    }
    let (code, _, stderr) =
        run(&[words("build --kind nsg -o x -i"), vec![OsStr::from_bytes(b"no\xff\n.fbin")]].concat());
    assert_eq!(
        (code, stderr.as_str()),
        (Some(1), "error: no\\xff\\n.fbin: No such file or directory (os error 2)\n")
    );
    // clap echoes a wrong argument.
    let long = "\u{1b}[2J\n".repeat(1000);
    let (code, _, stderr) = run(&[OsStr::new("build"), OsStr::new("--knn"), OsStr::new(&long)]);
    assert_eq!(code, Some(2));
    assert!(stderr.len() <= 1000 && stderr.lines().count() == 1 && !stderr.contains('\u{1b}'), "{stderr}");
}
