//! `tagore convert`.

use std::fs;

use tagore::{Ids, Vectors};

use super::Session;

#[test]
fn an_index_and_a_ground_truth_are_exported_as_ibin() {
    let s = Session::new();
    s.succeeds("convert index.tagore x.ibin");
    s.succeeds("convert gt.bin gt.ibin");
    let u32s = |name: &str| -> Vec<u32> {
        let bytes = fs::read(s.path(name)).unwrap();
        bytes.chunks_exact(4).map(|b| u32::from_le_bytes(b.try_into().unwrap())).collect()
    };
    let index = tagore::Index::open(s.path("index.tagore")).unwrap();
    let (graph, entries, truth) = (u32s("x.ibin"), u32s("x.entries.ibin"), u32s("gt.ibin"));
    assert_eq!((graph[0], graph[1], graph.len()), (500, 50, 2 + 500 * 50));
    for node in 0..500 {
        let row = &graph[2 + node * 50..][..50];
        let neighbors = index.neighbors(node);
        assert_eq!(&row[..neighbors.len()], neighbors);
        assert!(row[neighbors.len()..].iter().all(|&id| id == u32::MAX));
    }
    assert_eq!(entries, [&[index.entries().len() as u32, 1], index.entries()].concat());
    assert_eq!((truth[0], truth[1], truth.len()), (20, 10, 2 + 200));
    // Ids without distances are a ground truth too.
    s.succeeds(
        "eval --index index.tagore --base base.fbin --queries query.fbin --groundtruth gt.ibin --beams 20",
    );
}

#[test]
fn an_index_goes_to_other_systems_and_comes_back() {
    let s = Session::new();
    let index = tagore::Index::open(s.path("index.tagore")).unwrap();
    for format in ["nsg", "nssg", "kgraph", "hnswlib", "faiss-nsg", "faiss-hnsw", "ibin", "csr"] {
        let converted = &s.succeeds(&format!("convert index.tagore x.{format} --base base.fbin"))[0];
        let told = (converted["format"].as_str(), converted["rows"].as_u64(), converted["cols"].as_u64());
        assert_eq!(told, (Some(format), Some(500), Some(50)));
        s.succeeds(&format!("convert x.{format} back.tagore --base base.fbin"));
        let inspected = &s.succeeds(&format!("inspect x.{format} --base base.fbin"))[0];
        let told = (inspected["index"].as_str(), inspected["parameters"]["from"].as_str());
        assert_eq!(told, (Some(format), Some(format)));
        let back = tagore::Index::open(s.path("back.tagore")).unwrap();
        assert!((0..500).all(|node| back.neighbors(node) == index.neighbors(node)), "{format}");
    }
    // First under another name; then from one other system to another.
    fs::rename(s.path("x.nsg"), s.path("x.graph")).unwrap();
    s.succeeds("inspect x.graph --from nsg --base base.fbin");
    s.succeeds("convert x.csr y.hnswlib --base base.fbin --layers");
    s.succeeds("convert y.hnswlib z.nsg --base base.fbin");

    s.fails(2, "convert index.tagore a.hnswlib", &["--base", "none", "hnswlib holds vectors"]);
    s.fails(2, "convert index.tagore a.nsg --layers", &["--layers", "nsg", "only hnswlib and faiss-hnsw"]);
    s.fails(2, "convert base.fbin a.fvecs --layers", &["--layers", "vectors", "base.fbin"]);
    s.fails(
        2,
        "convert z.nsg a.tagore",
        &["--base: found none", "z.nsg", "an index of nsg is checked against it"],
    );
    s.fails(2, "inspect z.nsg --from fvecs --base base.fbin", &["--from", "fvecs"]);
    s.fails(2, "inspect z.nsg --from hnsw", &["--from: found hnsw, expected hnswlib"]);
    s.fails(2, "inspect z.nsg --from hnsx", &["--from", "hnswlib", "fbin"]);
    s.fails(2, "inspect index.tagore --metric ip", &["--metric", "ip", "l2", "index.tagore"]);
    s.fails(1, "convert z.nsg a.tagore --base query.fbin", &["z.nsg", "500 nodes", "20 as in query.fbin"]);
    s.fails(1, "convert index.tagore a.hnswlib --base query.fbin", &["query.fbin", "20 x 8", "index.tagore"]);
    s.fails(1, "convert index.tagore a.npy", &["a.npy", "neighbours of node 0", "CAGRA"]);
    s.fails(1, "convert base.fbin a.nsg", &["a.nsg", "base.fbin", "fvecs, bvecs"]);
    s.fails(1, "inspect base.fbin --from tagore", &["base.fbin", "a tagore index"]);
}

#[test]
fn every_format_converts_to_every_other_and_back() {
    let s = Session::new();
    let whole: Vec<u8> = (0..30 * 7).map(|i| (i * 37 % 120) as u8).collect();
    Vectors::from_u8(whole, 7).unwrap().save(s.path("start.u8bin")).unwrap();
    let formats = ["fvecs", "bvecs", "fbin", "f16bin", "bf16bin", "i8bin", "npy", "u8bin"];
    let mut last = "start.u8bin".to_owned();
    for format in formats {
        let next = format!("step.{format}");
        s.succeeds(&format!("convert {last} {next}"));
        last = next;
    }
    assert_eq!(fs::read(s.path("start.u8bin")).unwrap(), fs::read(s.path("step.u8bin")).unwrap());
}

#[test]
fn ids_of_another_system_are_written() {
    let s = Session::new();
    s.succeeds("convert index.tagore plain.hnswlib --base base.fbin");
    let needs = "--ids-output: found no ids of its own in plain.hnswlib";
    s.fails(2, "convert plain.hnswlib x.tagore --base base.fbin --ids-output ids.npy", &[needs]);
    let mut bytes = fs::read(s.path("plain.hnswlib")).unwrap();
    let word = |place: usize| u64::from_le_bytes(bytes[8 * place..][..8].try_into().unwrap()) as usize;
    let (size, label) = (word(3), word(4));
    for row in 0..500 {
        bytes[96 + row * size + label..][..8].copy_from_slice(&((1u64 << 40) + row as u64).to_le_bytes());
    }
    fs::write(s.path("own.hnswlib"), bytes).unwrap();
    let convert = "convert own.hnswlib own.tagore --base base.fbin";
    let warned = String::from_utf8(s.run(convert).stderr).unwrap();
    assert!(
        warned.contains("found ids that are not 0 to 499") && warned.contains("--ids-output"),
        "{warned}"
    );
    let quiet = s.run(&format!("{convert} --ids-output ids.npy"));
    assert!(quiet.status.success() && !String::from_utf8(quiet.stderr).unwrap().contains("warning"));
    let ids = Ids::open(s.path("ids.npy")).unwrap();
    assert!(ids.as_slice().iter().copied().eq((0..500).map(|row| (1 << 40) + row)));
}
