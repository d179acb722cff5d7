//! Exit codes and errors of bad files.

use tagore::{Synth, Vectors};

use super::Session;

#[test]
fn help_ends_with_0() {
    let s = Session { folder: tempfile::tempdir().unwrap() };
    let help = s.run("--help");
    assert_eq!(help.status.code(), Some(0));
    assert!(String::from_utf8(help.stdout).unwrap().contains("groundtruth"));
}

/// Files that are no vectors, with words of the error of any command that reads them.
const BAD_VECTORS: &[(&str, &[&str])] = &[
    ("missing.fbin", &["missing.fbin", "No such file"]),
    ("cut.fbin", &["cut.fbin", "16007 bytes", "16008"]),
    ("long.fbin", &["long.fbin", "16009 bytes", "16008"]),
    ("huge.fbin", &["huge.fbin", "72 bytes", "4294967295 x 4000"]),
    ("dim0.fbin", &["dim0.fbin", "0 values per row", "1 to 4096"]),
    ("empty.fbin", &["empty.fbin", "an empty file"]),
    ("nan.fbin", &["nan.fbin", "row 3", "dimension 2", "NaN", "finite"]),
    ("what.xyz", &["what.xyz", "extension .xyz", "fbin"]),
    ("folder", &["folder"]),
];

/// Commands on other bad files.
const BAD_FILES: &[(&str, &[&str])] = &[
    ("build -i none.fbin -o x.tagore --kind nsg", &["none.fbin", "0 rows", "at least 1"]),
    ("build -i base.fbin -o nowhere/x.tagore --kind nsg", &["nowhere/x.tagore", "no such folder"]),
    ("build -i base.fbin -o folder --kind nsg", &["folder", "a folder", "a file"]),
    ("build -i base.fbin -o x.tagore --kind nsg --graph missing", &["missing: No such file"]),
    ("convert base.fbin x.u8bin", &["base.fbin", "row 0", "dimension 0", "u8"]),
    ("convert index.tagore x.fbin", &["x.fbin", "index.tagore", "ibin"]),
    ("inspect flipped.tagore", &["flipped.tagore", "expected"]),
    ("plan -i missing.fbin", &["missing.fbin", "No such file"]),
    ("bench descent -i base.fbin -o nowhere/x.jsonl", &["nowhere/x.jsonl", "no such folder nowhere"]),
];

/// Bad index, base, queries and ground truth of `eval`.
const BAD_EVAL: &[([&str; 4], &[&str])] = &[
    (["index.tagore", "base.fbin", "dim9.fbin", "gt.bin"], &["dim9.fbin", "dimension 9", "8"]),
    (["index.tagore", "other.fbin", "query.fbin", "gt.bin"], &["other.fbin", "index.tagore"]),
    (["index.tagore", "query.fbin", "query.fbin", "gt.bin"], &["query.fbin", "20 x 8", "500 x 8"]),
    (["index.tagore", "base.fbin", "base.fbin", "gt.bin"], &["ground truth", "20 rows", "500"]),
    (["base.fbin", "base.fbin", "query.fbin", "gt.bin"], &["base.fbin", "a tagore index"]),
    (["cut.tagore", "base.fbin", "query.fbin", "gt.bin"], &["cut.tagore", "bytes"]),
    (["header.tagore", "base.fbin", "query.fbin", "gt.bin"], &["header.tagore", "header"]),
    (["index.tagore", "base.fbin", "query.fbin", "missing.bin"], &["missing.bin"]),
];

/// Adds damaged vectors, damaged indexes, and inputs of other data sets to the session.
fn damage(s: &Session) {
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
    let mut other: Vec<f32> = Vectors::open(s.path("base.fbin")).unwrap().row_to_f32(0).unwrap().to_vec();
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
}

#[test]
fn bad_files_end_with_1_and_are_named() {
    let s = Session::new();
    damage(&s);
    for command in [
        "build -o x.tagore --kind nsg -i FILE",
        "knn -o x -i FILE",
        "inspect FILE",
        "convert FILE x.out --to fvecs",
    ] {
        for (file, words) in BAD_VECTORS {
            s.fails(1, &command.replace("FILE", file), words);
        }
    }
    for (command, words) in BAD_FILES {
        s.fails(1, command, words);
    }
    for ([index, base, queries, truth], words) in BAD_EVAL {
        let eval = format!("eval --index {index} --base {base} --queries {queries} --groundtruth {truth}");
        s.fails(1, &format!("{eval} --plot x.svg"), words);
    }
}
