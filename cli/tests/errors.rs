//! Exit codes and errors of wrong usage and of bad files.

use tagore::{Synth, Vectors};

use super::Session;

/// Wrong usage of `build`, with words of the error.
const BUILD: &[(&str, &[&str])] = &[
    (
        "build -i base.fbin -o x.tagore --index hnsw",
        &["--index", "hnsw", "cagra, nsg, nssg, vamana, dpg, tau-mng or alpha-cng"],
    ),
    ("build -i base.fbin -o x.tagore", &["--index"]),
    ("build -i base.fbin -o x.tagore --index nsg --nonsense 3", &["--nonsense"]),
    (
        "build -i base.fbin -o x.tagore --index nsg --knn 500",
        &["--knn", "500", "less than the 500 rows", "base.fbin"],
    ),
    ("build -i base.fbin -o x.tagore --index nsg --knn ten", &["--knn", "ten"]),
    ("build -i base.fbin -o x.tagore --index nsg --degree 0", &["--degree", "0", "1 to 512"]),
    ("build -i base.fbin -o x.tagore --index nsg --angle 50", &["--angle", "the angle filter, not dist"]),
    (
        "build -i base.fbin -o x.tagore --index nssg --alpha 1.5",
        &["--alpha", "the dist or alpha-cng filter, not angle"],
    ),
    (
        "build -i base.fbin -o x.tagore --index nsg --alpha 1.5 --threshold 1",
        &["--alpha", "the alpha-cng filter, not dist"],
    ),
    ("build -i base.fbin -o x.tagore --index tau-mng --threshold=-1", &["--threshold", "a tau from 0"]),
    ("build -i base.fbin -o x.tagore --index alpha-cng --alpha 0", &["--alpha", "0.01 to 100"]),
    ("build -i base.fbin -o x.tagore --index dpg --threshold 5", &["--threshold", "no threshold"]),
    (
        "build -i base.fbin -o x.tagore --index nsg --metric hamming",
        &["--metric", "hamming", "l2, ip or cosine"],
    ),
    ("build -i base.fbin -o x.tagore --index nsg --device gpu", &["--device", "gpu", "auto, cpu, cuda"]),
    ("build -i base.fbin -o x.tagore --index nsg --iterations 5", &["--iterations", "5", "A,B"]),
    ("build -i base.fbin -o x.tagore --index nsg --collect 3-hop", &["--collect", "3-hop"]),
    ("build -i base.fbin -o x.tagore --index nsg --filter best", &["--filter", "best"]),
    ("build -i base.fbin -o x.tagore --index nsg --threads 0", &["--threads", "0"]),
];

/// Wrong usage of `bench`.
const BENCH: &[(&str, &[&str])] = &[
    (
        "bench descent -i base.fbin --iterations 6 -o x.jsonl --device cpu",
        &["--iterations", "found 6", "A,B"],
    ),
    (
        "bench descent -i base.fbin --iterations 6,6;x -o x.jsonl --device cpu",
        &["--iterations", "found x", "A,B"],
    ),
    (
        "bench descent -i base.fbin --starts random,here -o x.jsonl --device cpu",
        &["--starts", "here", "auto, all-pairs, random or cells"],
    ),
    (
        "bench descent -i base.fbin --starts cells -o x.jsonl --device cpu",
        &["--start", "cells", "on the CPU"],
    ),
    (
        "bench descent -i base.fbin --split --iterations 6,6 -o x.jsonl --device cpu",
        &["--split", "--iterations"],
    ),
    ("bench descent -i base.fbin --repeat 0 -o x.jsonl --device cpu", &["--repeat", "0"]),
    ("bench descent -i base.fbin --knn 500 -o x.jsonl --device cpu", &["--knn", "500", "500 rows"]),
    ("bench outofcore", &["--input"]),
    ("bench dispatch", &["--input"]),
    (
        "bench dispatch -i base.fbin -o x.jsonl --device cpu --clusters 501",
        &["--clusters", "501", "2 to the 500 rows"],
    ),
    ("bench dispatch -i base.fbin -o x.jsonl --device cpu --clusters 1", &["--clusters", "found 1"]),
    ("bench dispatch -i base.fbin -o x.jsonl --device cpu --cache 4,0", &["--cache", "0"]),
    (
        "bench dispatch -i base.fbin -o x.jsonl --device cpu --clusters 9 --window 0",
        &["--window", "0", "at least 1"],
    ),
    (
        "bench dispatch -i base.fbin -o x.jsonl --device cpu --orders cluster,best",
        &["--order", "best", "sequential, random, gorder or cluster"],
    ),
    (
        "bench dispatch -i base.fbin -o x.jsonl --device cpu --simulate 1000 --dim 8",
        &["--input", "--simulate"],
    ),
    ("bench dispatch -i base.fbin -o x.jsonl --device cpu --dim 8", &["--dim"]),
    ("bench dispatch --simulate 1000", &["--dim"]),
    ("bench dispatch --simulate 0 --dim 8", &["--simulate", "0"]),
    ("bench dispatch --simulate 1000 --dim 0", &["--dim", "0", "1 to 4096"]),
    ("bench dispatch --simulate 300 --dim 8", &["--clusters", "400", "300 rows"]),
];

/// Wrong usage of other subcommands.
const OTHERS: &[(&str, &[&str])] = &[
    ("knn -i base.fbin --start cells --device cpu", &["--start", "cells", "auto or random"]),
    ("knn -i base.fbin --knn 0", &["--knn", "0", "1 to 1024"]),
    ("groundtruth --base base.fbin --queries query.fbin -k 501 -o x.bin", &["-k", "501", "500 rows"]),
    (
        "search --index index.tagore --base base.fbin --queries query.fbin --beam 5 -o x.bin",
        &["--beam", "5", "at least k = 10"],
    ),
    (
        "eval --index index.tagore --base base.fbin --queries query.fbin --groundtruth gt.bin -k 11",
        &["-k", "11", "10 of the ground truth"],
    ),
    (
        "eval --index index.tagore --base base.fbin --queries query.fbin --groundtruth gt.bin --plot x.png",
        &["--plot", "x.png", "extension .png", "x.svg"],
    ),
    ("demo -o plot", &["--output", "no extension", "plot.svg"]),
    ("synth -o x.fbin --n 0 --dim 8", &["--n", "0"]),
    ("synth -o x.fbin --n 10 --dim 5000", &["--dim", "5000", "1 to 4096"]),
    ("convert base.fbin x.bin --to xyz", &["--to", "xyz"]),
    ("plan -i base.fbin --knn 500", &["--knn", "500", "500 rows"]),
    ("plan -i base.fbin --probes 33", &["--probes", "33", "1 to 32"]),
    ("plan -i base.fbin --clusterings 0", &["--clusterings", "0", "1 to 16"]),
    ("plan -i base.fbin --degree 9", &["--index"]),
    ("plan --n 9 --index nsg", &["--dim"]),
    ("plan --n 9 --dim 0 --index nsg", &["--dim: found 0, expected 1 to 4096"]),
    ("plan -i base.fbin --index nsg --degree 0", &["--degree", "0"]),
];

#[test]
fn wrong_usage_ends_with_2_and_names_the_flag() {
    let s = Session::new();
    for (command, words) in [BUILD, BENCH, OTHERS].concat() {
        s.fails(2, command, words);
    }
    assert_eq!(s.run("").status.code(), Some(2));
}

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
    ("build -i none.fbin -o x.tagore --index nsg", &["none.fbin", "0 rows", "at least 1"]),
    ("build -i base.fbin -o nowhere/x.tagore --index nsg", &["nowhere/x.tagore", "no such folder"]),
    ("build -i base.fbin -o folder --index nsg", &["folder", "a folder", "a file"]),
    ("build -i base.fbin -o x.tagore --index nsg --graph missing", &["missing: No such file"]),
    ("convert base.fbin x.u8bin", &["base.fbin", "row 0", "dimension 0", "u8"]),
    ("convert index.tagore x.fbin", &["x.fbin", "index.tagore", "ibin"]),
    ("inspect flipped.tagore", &["flipped.tagore", "expected"]),
    ("bench dispatch -i missing.fbin", &["missing.fbin", "No such file"]),
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
}

#[test]
fn bad_files_end_with_1_and_are_named() {
    let s = Session::new();
    damage(&s);
    for command in [
        "build -o x.tagore --index nsg -i FILE",
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
