//! How the command ends when it is used wrongly or given bad files.

use tagore::{Synth, Vectors};

use super::Session;

#[test]
fn wrong_usage_ends_with_2_and_names_the_flag() {
    let s = Session::new();
    s.fails(
        2,
        "build -i base.fbin -o x.tagore --index hnsw",
        &["--index", "hnsw", "cagra, nsg, nssg, vamana, dpg, tau-mng or alpha-cng"],
    );
    s.fails(2, "build -i base.fbin -o x.tagore", &["--index"]);
    s.fails(2, "build -i base.fbin -o x.tagore --index nsg --nonsense 3", &["--nonsense"]);
    s.fails(
        2,
        "build -i base.fbin -o x.tagore --index nsg --knn 500",
        &["--knn", "500", "less than the 500 rows", "base.fbin"],
    );
    s.fails(2, "build -i base.fbin -o x.tagore --index nsg --knn ten", &["--knn", "ten"]);
    s.fails(2, "build -i base.fbin -o x.tagore --index nsg --degree 0", &["--degree", "0", "1 to 512"]);
    s.fails(
        2,
        "build -i base.fbin -o x.tagore --index nsg --angle 50",
        &["--angle", "the angle filter, not dist"],
    );
    s.fails(
        2,
        "build -i base.fbin -o x.tagore --index nssg --alpha 1.5",
        &["--alpha", "the dist or alpha-cng filter, not angle"],
    );
    s.fails(
        2,
        "build -i base.fbin -o x.tagore --index nsg --alpha 1.5 --threshold 1",
        &["--alpha", "the alpha-cng filter, not dist"],
    );
    s.fails(
        2,
        "build -i base.fbin -o x.tagore --index tau-mng --threshold=-1",
        &["--threshold", "a tau from 0"],
    );
    s.fails(2, "build -i base.fbin -o x.tagore --index alpha-cng --alpha 0", &["--alpha", "0.01 to 100"]);
    s.fails(2, "build -i base.fbin -o x.tagore --index dpg --threshold 5", &["--threshold", "no threshold"]);
    s.fails(
        2,
        "build -i base.fbin -o x.tagore --index nsg --metric hamming",
        &["--metric", "hamming", "l2, ip or cosine"],
    );
    s.fails(
        2,
        "build -i base.fbin -o x.tagore --index nsg --device gpu",
        &["--device", "gpu", "auto, cpu, cuda"],
    );
    s.fails(2, "knn -i base.fbin --start cells --device cpu", &["--start", "cells", "auto or random"]);
    s.fails(2, "build -i base.fbin -o x.tagore --index nsg --iterations 5", &["--iterations", "5", "A,B"]);
    s.fails(2, "build -i base.fbin -o x.tagore --index nsg --collect 3-hop", &["--collect", "3-hop"]);
    s.fails(2, "build -i base.fbin -o x.tagore --index nsg --filter best", &["--filter", "best"]);
    s.fails(2, "build -i base.fbin -o x.tagore --index nsg --threads 0", &["--threads", "0"]);
    s.fails(2, "knn -i base.fbin --knn 0", &["--knn", "0", "1 to 1024"]);
    s.fails(
        2,
        "groundtruth --base base.fbin --queries query.fbin -k 501 -o x.bin",
        &["-k", "501", "500 rows"],
    );
    s.fails(
        2,
        "search --index index.tagore --base base.fbin --queries query.fbin --beam 5 -o x.bin",
        &["--beam", "5", "at least k = 10"],
    );
    s.fails(
        2,
        "eval --index index.tagore --base base.fbin --queries query.fbin --groundtruth gt.bin -k 11",
        &["-k", "11", "10 of the ground truth"],
    );
    s.fails(2, "synth -o x.fbin --n 0 --dim 8", &["--n", "0"]);
    s.fails(2, "synth -o x.fbin --n 10 --dim 5000", &["--dim", "5000", "1 to 4096"]);
    s.fails(2, "convert base.fbin x.bin --to xyz", &["--to", "xyz"]);
    let bench = |flags: &str| format!("bench descent -i base.fbin {flags} -o x.jsonl --device cpu");
    s.fails(2, &bench("--iterations 6"), &["--iterations", "found 6", "A,B"]);
    s.fails(2, &bench("--iterations 6,6;x"), &["--iterations", "found x", "A,B"]);
    s.fails(2, &bench("--starts random,here"), &["--starts", "here", "auto, random or cells"]);
    s.fails(2, &bench("--starts cells"), &["--start", "cells", "on the CPU"]);
    s.fails(2, &bench("--split --iterations 6,6"), &["--split", "--iterations"]);
    s.fails(2, &bench("--repeat 0"), &["--repeat", "0"]);
    s.fails(2, &bench("--knn 500"), &["--knn", "500", "500 rows"]);
    s.fails(2, "bench outofcore", &["--input"]);
    s.fails(2, "bench dispatch", &["--input"]);
    s.fails(1, "bench dispatch -i missing.fbin", &["missing.fbin", "No such file"]);
    let bench = |flags: &str| format!("bench dispatch -i base.fbin -o x.jsonl --device cpu {flags}");
    s.fails(2, &bench("--clusters 501"), &["--clusters", "501", "2 to the 500 rows"]);
    s.fails(2, &bench("--clusters 1"), &["--clusters", "found 1"]);
    s.fails(2, &bench("--cache 4,0"), &["--cache", "0"]);
    s.fails(2, &bench("--clusters 9 --window 0"), &["--window", "0", "at least 1"]);
    s.fails(
        2,
        &bench("--orders cluster,best"),
        &["--order", "best", "sequential, random, gorder or cluster"],
    );
    s.fails(2, &bench("--simulate 1000 --dim 8"), &["--input", "--simulate"]);
    s.fails(2, &bench("--dim 8"), &["--dim"]);
    s.fails(2, "bench dispatch --simulate 1000", &["--dim"]);
    s.fails(2, "bench dispatch --simulate 0 --dim 8", &["--simulate", "0"]);
    s.fails(2, "bench dispatch --simulate 1000 --dim 0", &["--dim", "0", "1 to 4096"]);
    s.fails(2, "bench dispatch --simulate 300 --dim 8", &["--clusters", "400", "300 rows"]);
    s.fails(2, "plan -i base.fbin --knn 500", &["--knn", "500", "500 rows"]);
    s.fails(2, "plan -i base.fbin --memberships 33", &["--memberships", "33", "1 to 32"]);
    s.fails(2, "plan -i base.fbin --clusterings 0", &["--clusterings", "0", "1 to 16"]);
    s.fails(2, "plan -i base.fbin --degree 9", &["--index"]);
    s.fails(2, "plan --n 9 --index nsg", &["--dim"]);
    s.fails(2, "plan --n 9 --dim 0 --index nsg", &["--dim: found 0, expected 1 to 4096"]);
    s.fails(2, "plan -i base.fbin --index nsg --degree 0", &["--degree", "0"]);
    s.fails(1, "plan -i missing.fbin", &["missing.fbin", "No such file"]);
    s.fails(
        1,
        "bench descent -i base.fbin -o nowhere/x.jsonl",
        &["nowhere/x.jsonl", "no such folder nowhere"],
    );
    let help = s.run("--help");
    assert_eq!(help.status.code(), Some(0));
    assert!(String::from_utf8(help.stdout).unwrap().contains("groundtruth"));
    assert_eq!(s.run("").status.code(), Some(2));
}

#[test]
fn bad_files_end_with_1_and_are_named() {
    let s = Session::new();
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

    for command in ["build -o x.tagore --index nsg -i", "knn -o x -i", "inspect", "convert --to fvecs x.out"]
    {
        // `convert IN OUT`: the file under test comes first.
        let with = |file: &str| match command.strip_prefix("convert ") {
            Some(_) => format!("convert {file} x.out --to fvecs"),
            None => format!("{command} {file}"),
        };
        s.fails(1, &with("missing.fbin"), &["missing.fbin", "No such file"]);
        s.fails(1, &with("cut.fbin"), &["cut.fbin", "16007 bytes", "16008"]);
        s.fails(1, &with("long.fbin"), &["long.fbin", "16009 bytes", "16008"]);
        s.fails(1, &with("huge.fbin"), &["huge.fbin", "72 bytes", "4294967295 x 4000"]);
        s.fails(1, &with("dim0.fbin"), &["dim0.fbin", "0 values per row", "1 to 4096"]);
        s.fails(1, &with("empty.fbin"), &["empty.fbin", "an empty file"]);
        s.fails(1, &with("nan.fbin"), &["nan.fbin", "row 3", "dimension 2", "NaN", "finite"]);
        s.fails(1, &with("what.xyz"), &["what.xyz", "extension .xyz", "fbin"]);
        s.fails(1, &with("folder"), &["folder"]);
    }
    s.fails(1, "build -i none.fbin -o x.tagore --index nsg", &["none.fbin", "0 rows", "at least 1"]);
    s.fails(1, "build -i base.fbin -o nowhere/x.tagore --index nsg", &["nowhere/x.tagore", "no such folder"]);
    s.fails(1, "build -i base.fbin -o folder --index nsg", &["folder", "a folder", "a file"]);
    s.fails(1, "build -i base.fbin -o x.tagore --index nsg --graph missing", &["missing: No such file"]);
    s.fails(1, "convert base.fbin x.u8bin", &["base.fbin", "row 0", "dimension 0", "u8"]);
    s.fails(1, "convert index.tagore x.fbin", &["x.fbin", "index.tagore", "ibin"]);

    let searched = |index: &str, base: &str, queries: &str, truth: &str| {
        format!("eval --index {index} --base {base} --queries {queries} --groundtruth {truth} --plot x.svg")
    };
    s.fails(
        1,
        &searched("index.tagore", "base.fbin", "dim9.fbin", "gt.bin"),
        &["dim9.fbin", "dimension 9", "8"],
    );
    s.fails(
        1,
        &searched("index.tagore", "other.fbin", "query.fbin", "gt.bin"),
        &["other.fbin", "index.tagore"],
    );
    s.fails(
        1,
        &searched("index.tagore", "query.fbin", "query.fbin", "gt.bin"),
        &["query.fbin", "20 x 8", "500 x 8"],
    );
    s.fails(
        1,
        &searched("index.tagore", "base.fbin", "base.fbin", "gt.bin"),
        &["ground truth", "20 rows", "500"],
    );
    s.fails(1, &searched("base.fbin", "base.fbin", "query.fbin", "gt.bin"), &["base.fbin", "a tagore index"]);
    s.fails(1, &searched("cut.tagore", "base.fbin", "query.fbin", "gt.bin"), &["cut.tagore", "bytes"]);
    s.fails(1, &searched("header.tagore", "base.fbin", "query.fbin", "gt.bin"), &["header.tagore", "header"]);
    s.fails(1, &searched("index.tagore", "base.fbin", "query.fbin", "missing.bin"), &["missing.bin"]);
    s.fails(1, "inspect flipped.tagore", &["flipped.tagore", "expected"]);
}
