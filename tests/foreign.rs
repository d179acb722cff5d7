//! Indexes in the formats of other systems: bytes written, bytes read, and what is refused.

use std::fs;
use std::path::{Path, PathBuf};

use tagore::{Builder, Description, Index, IndexFormat, Metric, Progress, Strategy, Vectors};
use tempfile::TempDir;

use crate::reference::uniform;

/// The formats of other systems.
fn foreign() -> impl Iterator<Item = IndexFormat> {
    IndexFormat::ALL.into_iter().filter(|&format| format != IndexFormat::Tagore)
}

fn description(metric: Metric) -> Description {
    Description { kind: "chain".into(), metric, seed: 7, parameters: [].into() }
}

fn base() -> Vectors {
    Vectors::from_u8(vec![0, 0, 1, 0, 2, 0, 3, 0, 200, 7], 2).unwrap()
}

/// The graph of the golden files: five nodes in a chain, entered at two; for arrays without padding, in a ring.
fn tiny(format: IndexFormat) -> Index {
    let rows = match format {
        IndexFormat::Npy => vec![vec![1, 4], vec![0, 2], vec![1, 3], vec![2, 4], vec![3, 0]],
        _ => vec![vec![1], vec![0, 2], vec![1, 3, 4], vec![2], vec![]],
    };
    Index::from_rows(description(Metric::L2), &base(), &rows, vec![2, 0]).unwrap()
}

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

/// The golden files: the format, whether with layers, the name to read, and the files there are.
fn goldens() -> Vec<(IndexFormat, bool, &'static str, Vec<&'static str>)> {
    vec![
        (IndexFormat::Nsg, false, "chain.nsg", vec!["chain.nsg"]),
        (IndexFormat::Nssg, false, "chain.nssg", vec!["chain.nssg"]),
        (IndexFormat::Kgraph, false, "chain.kgraph", vec!["chain.kgraph"]),
        (IndexFormat::Hnswlib, false, "chain.hnswlib", vec!["chain.hnswlib"]),
        (IndexFormat::Hnswlib, true, "layers.hnswlib", vec!["layers.hnswlib"]),
        (IndexFormat::FaissNsg, false, "chain.faiss-nsg", vec!["chain.faiss-nsg"]),
        (IndexFormat::FaissHnsw, false, "chain.faiss-hnsw", vec!["chain.faiss-hnsw"]),
        (IndexFormat::FaissHnsw, true, "layers.faiss-hnsw", vec!["layers.faiss-hnsw"]),
        (IndexFormat::Ibin, false, "chain.ibin", vec!["chain.ibin", "chain.entries.ibin", "chain.crc32"]),
        (IndexFormat::Npy, false, "ring.npy", vec!["ring.npy"]),
        (IndexFormat::Csr, false, "chain.csr", vec!["chain.indptr.npy", "chain.indices.npy"]),
    ]
}

fn assert_same_rows(found: &Index, expected: &Index, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for node in 0..expected.len() {
        assert_eq!(found.neighbors(node), expected.neighbors(node), "{what}, node {node}");
    }
}

/// A copy of a golden index, one file of which is replaced.
struct Copy {
    folder: TempDir,
    format: IndexFormat,
    name: &'static str,
}

impl Copy {
    fn of(name: &'static str) -> Self {
        let (format, _, _, files) = goldens().into_iter().find(|golden| golden.2 == name).unwrap();
        let folder = tempfile::tempdir().unwrap();
        // Without checksums, which would be complained of first.
        for file in files.into_iter().filter(|file| !file.ends_with(".crc32")) {
            fs::copy(golden(file), folder.path().join(file)).unwrap();
        }
        Self { folder, format, name }
    }

    /// What reading the index complains of when `file` holds `bytes`.
    fn complaint(&self, file: &str, bytes: &[u8]) -> Option<String> {
        fs::write(self.folder.path().join(file), bytes).unwrap();
        let path = self.folder.path().join(self.name);
        let text = match Index::import(path, self.format, &base(), Metric::L2, &Progress::silent()) {
            Ok(index) => {
                index.verify(&Progress::silent()).unwrap();
                return None;
            }
            Err(error) => error.to_string(),
        };
        assert!(!text.contains('\n') && text.contains("found ") && text.contains("expected "), "{text}");
        Some(text)
    }
}

#[test]
fn golden_files_are_written_and_read_back() {
    let folder = tempfile::tempdir().unwrap();
    for (format, layers, name, files) in goldens() {
        let (index, base) = (tiny(format), base());
        let path = folder.path().join(name);
        index.export(format).base(&base).layers(layers).save(&path).unwrap();
        for file in files {
            let written = fs::read(folder.path().join(file)).unwrap();
            if std::env::var_os("TAGORE_BLESS").is_some() {
                fs::write(golden(file), &written).unwrap();
            }
            assert!(written == fs::read(golden(file)).unwrap(), "{file} is written otherwise now");
        }
        let read = Index::import(golden(name), format, &base, Metric::L2, &Progress::silent()).unwrap();
        assert_same_rows(&read, &index, name);
        read.check_base(&base).unwrap();
        assert_eq!((read.kind(), read.max_degree()), (format.name(), index.max_degree()), "{name}");
        let entries = match format.max_entries() {
            None => vec![2, 0],
            Some(0) => vec![0, 1, 2, 3, 4],
            // The entry point of layers lies on the highest.
            Some(_) if layers => read.entries().to_vec(),
            Some(_) => vec![2],
        };
        assert_eq!(read.entries(), entries, "{name}");
    }
    // Those of DiskANN, which are many, have a file of tests of their own.
    let mut others =
        foreign().filter(|format| !matches!(format, IndexFormat::Diskann | IndexFormat::DiskannDisk));
    assert!(
        others.all(|format| goldens().iter().any(|golden| golden.0 == format)),
        "a format without golden file"
    );
}

#[test]
fn the_bytes_are_the_documented_ones() {
    let words = |name: &str| -> Vec<u32> {
        let bytes = fs::read(golden(name)).unwrap();
        bytes.chunks(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
    };
    let rows = [1, 1, 2, 0, 2, 3, 1, 3, 4, 1, 2, 0];
    assert_eq!(words("chain.nsg"), [&[3, 2][..], &rows].concat());
    assert_eq!(words("chain.nssg"), [&[3, 2, 2, 0][..], &rows].concat());
    let magic = [u32::from_le_bytes(*b"KNNG"), u32::from_le_bytes(*b"RAPH")];
    let rows = [1, 1, 1, 2, 2, 0, 2, 3, 3, 1, 3, 4, 1, 1, 2, 0, 0];
    assert_eq!(words("chain.kgraph"), [&magic[..], &[2, 1, 5], &rows].concat());
    let hnswlib = words("chain.hnswlib");
    // Offset, room, elements, their size (4 + 3 x 4 + 2 x 4 + 8), label and vector, each in two words.
    assert_eq!(hnswlib[..12], [0, 0, 5, 0, 5, 0, 32, 0, 24, 0, 16, 0]);
    // No layers above; entered at 2; M, M of the base layer, M.
    assert_eq!(hnswlib[12..20], [0, 2, 2, 0, 3, 0, 2, 0]);
    // The third element: degree, links, vector (2, 0), label.
    assert_eq!(hnswlib[24 + 2 * 8..][..8], [3, 1, 3, 4, 2f32.to_bits(), 0, 2, 0]);
    assert_eq!((hnswlib.len(), &hnswlib[24 + 5 * 8..]), (24 + 5 * 9, &[0; 5][..]));
}

#[test]
fn odd_graphs_come_back_as_they_were() {
    let folder = tempfile::tempdir().unwrap();
    let isolated = |n: usize| vec![Vec::new(); n];
    let ring = |n: u32| (0..n).map(|node| vec![(node + 1) % n]).collect::<Vec<_>>();
    let star = |n: u32| (0..n).map(|node| if node == 0 { (1..n).collect() } else { vec![0] }).collect();
    let cases: [(&str, usize, Vec<Vec<u32>>); 6] = [
        ("one node", 3, isolated(1)),
        ("isolated nodes", 1, isolated(5)),
        ("degree 1", 97, ring(7)),
        ("two nodes", 1, ring(2)),
        ("a star", 97, star(40)),
        ("a large ring", 1, ring(300)),
    ];
    for (what, dim, rows) in cases {
        let metrics: &[Metric] = match what {
            "degree 1" => &[Metric::L2, Metric::InnerProduct, Metric::Cosine],
            _ => &[Metric::L2],
        };
        for &metric in metrics {
            let base = uniform(rows.len(), dim, 3);
            let index = Index::from_rows(description(metric), &base, &rows, vec![0]).unwrap();
            for format in foreign() {
                let path = folder.path().join(format!("x.{format}"));
                let with = |layers| index.export(format).base(&base).layers(layers).save(&path);
                if let Err(error) = with(false) {
                    let text = error.to_string();
                    let (edges, alike) = (index.max_degree() > 0, what != "a star");
                    let refused = (matches!(format, IndexFormat::Ibin | IndexFormat::Diskann) && !edges)
                        || (format == IndexFormat::Npy && !(edges && alike));
                    assert!(refused, "{what} as {format}: {text}");
                    continue;
                }
                let read = || Index::import(&path, format, &base, metric, &Progress::silent()).unwrap();
                assert_same_rows(&read(), &index, &format!("{what} as {format}"));
                if format.has_layers() {
                    with(true).unwrap();
                    assert_same_rows(&read(), &index, &format!("{what} as {format} with layers"));
                }
            }
        }
    }
}

#[test]
fn no_damage_is_followed() {
    for (_, _, name, files) in goldens() {
        let copy = Copy::of(name);
        for file in files {
            let whole = fs::read(golden(file)).unwrap();
            for length in 0..whole.len() {
                // A graph of NSG ends where its file does; this one is no longer one of the base.
                assert!(copy.complaint(file, &whole[..length]).is_some(), "{file} cut at {length}");
            }
            let mut unseen = 0;
            for at in 0..whole.len() {
                for flip in [1, 0x80] {
                    let mut damaged = whole.clone();
                    damaged[at] ^= flip;
                    unseen += usize::from(copy.complaint(file, &damaged).is_none());
                }
            }
            // Some bytes mean nothing here, such as the breadth of insertions, or mean another graph.
            assert!(unseen < whole.len(), "{file}: {unseen} of {} changes are not seen", 2 * whole.len());
            assert!(
                copy.complaint(file, &[&whole[..], &[0]].concat()).is_some(),
                "{file} with a byte behind"
            );
            copy.complaint(file, &whole);
        }
    }
}

/// Replaces 4 bytes of a golden file, and looks for `told` in what reading it complains of.
fn replaced(name: &'static str, at: usize, value: u32, told: &[&str]) {
    let mut bytes = fs::read(golden(name)).unwrap();
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    let text = Copy::of(name).complaint(name, &bytes).unwrap();
    assert!(text.contains(name) && told.iter().all(|word| text.contains(word)), "{told:?}: {text}");
}

#[test]
fn what_is_wrong_is_told() {
    replaced("chain.nsg", 0, 2, &["degree 3 of node 2", "at most 2"]);
    replaced("chain.nsg", 4, 5, &["entry point 5", "ids below 5"]);
    replaced("chain.nsg", 8, 0, &["6 nodes", "5 as vectors has"]);
    replaced("chain.nsg", 12, 5, &["id 5 in row 0", "ids below 5"]);
    replaced("chain.nssg", 4, u32::MAX, &["56 bytes from byte 8 on", "entry points (4294967295 x 4 bytes)"]);
    replaced("chain.kgraph", 0, 0, &["another kind of file", "a KGraph index"]);
    replaced("chain.kgraph", 8, 3, &["version 3", "2"]);
    replaced("chain.kgraph", 12, 2, &["flags 2", "0 or 1"]);
    replaced("chain.kgraph", 16, 6, &["6 nodes", "5 as vectors has"]);
    replaced("chain.kgraph", 20, 2, &["2 of 1 neighbours of node 0"]);
    replaced("chain.hnswlib", 16, 4, &["4 nodes", "5 as vectors has"]);
    replaced("chain.hnswlib", 8, 4, &["room for 4 elements", "5"]);
    replaced("chain.hnswlib", 24, 36, &["elements of 36 bytes", "32: vector at 16"]);
    replaced("chain.hnswlib", 52, 5, &["entry point 5"]);
    replaced("chain.hnswlib", 64, 65_536, &["largest degree 65536", "65535"]);
    replaced("chain.hnswlib", 96, 1 << 16, &["element 0 deleted"]);
    replaced("chain.hnswlib", 96, 4, &["degree 4 of element 0", "at most 3"]);
    replaced("chain.hnswlib", 96 + 16, 1f32.to_bits(), &["another vector of node 0", "row 0 of vectors"]);
    replaced("chain.hnswlib", 96 + 24, 9, &["label 9 of element 0", "below 5"]);
    replaced("chain.hnswlib", 96 + 5 * 32, 12, &["12 bytes of upper links of element 0", "at most 0 layers"]);
    replaced("chain.faiss-nsg", 0, u32::from_le_bytes(*b"IHNf"), &["kind of index IHNf", "INSf"]);
    replaced("chain.faiss-nsg", 4, 3, &["dimension 3", "2"]);
    replaced("chain.faiss-nsg", 8, 4, &["4 nodes"]);
    replaced("chain.faiss-nsg", 33, 0, &["metric ip", "l2 as asked for"]);
    replaced("chain.faiss-nsg", 33, 4, &["metric 4", "0 (inner product) or 1 (L2)"]);
    replaced("chain.faiss-nsg", 62, 2, &["more than 2 neighbours of node 2"]);
    replaced("chain.faiss-hnsw", 37, u32::MAX, &["the probabilities of layers"]);
}

#[test]
fn another_base_or_metric_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x");
    let other = Vectors::from_u8(vec![0, 0, 1, 0, 2, 0, 3, 0, 200, 8], 2).unwrap();
    let none = Vectors::from_u8(vec![], 2).unwrap();
    for format in foreign() {
        let index = tiny(format);
        index.export(format).base(&base()).save(&path).unwrap();
        let error = |base: &Vectors, metric| {
            Index::import(&path, format, base, metric, &Progress::silent()).err().map(|e| e.to_string())
        };
        assert!(error(&none, Metric::L2).unwrap().contains("0 rows"), "{format}");
        let message = error(&other, Metric::L2);
        assert_eq!(message.is_some(), format.holds_vectors(), "{format}: {message:?}");
        let message = error(&base(), Metric::InnerProduct);
        let states_metric = format.holds_vectors() && format != IndexFormat::Hnswlib;
        assert_eq!(message.is_some(), states_metric, "{format}: {message:?}");
        let message = error(&base(), Metric::Cosine);
        assert_eq!(message.is_some(), format.holds_vectors(), "{format}: {message:?}");
        let refused = index.export(format).base(&other).save(&path).unwrap_err().to_string();
        assert!(refused.contains("other values"), "{format}: {refused}");
    }
    let native = golden("chain.tagore");
    assert!(Index::import(&native, IndexFormat::Tagore, &base(), Metric::L2, &Progress::silent()).is_ok());
    assert!(Index::import(&native, IndexFormat::Tagore, &other, Metric::L2, &Progress::silent()).is_err());
    assert!(
        Index::import(&native, IndexFormat::Tagore, &base(), Metric::Cosine, &Progress::silent()).is_err()
    );
}

#[test]
fn what_an_export_needs_is_told_and_nothing_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x");
    let refused = |format: IndexFormat, layers: bool| {
        let text = tiny(IndexFormat::Nsg).export(format).layers(layers).save(&path).unwrap_err().to_string();
        assert_eq!(folder.path().read_dir().unwrap().count(), 0, "{format}");
        text
    };
    for format in foreign().filter(|format| format.holds_vectors()) {
        assert!(refused(format, false).starts_with("base: found none, expected the data set"), "{format}");
    }
    for format in foreign().filter(|format| !format.has_layers()) {
        assert!(refused(format, true).starts_with("layers: found true, expected no layers for "), "{format}");
    }
    let text = refused(IndexFormat::Npy, false);
    assert!(text.contains("1 neighbours of node 0, 2 of node 1") && text.contains("CAGRA"), "{text}");
}

#[test]
fn edges_that_no_search_follows_are_left_out_and_counted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.nsg");
    // Node 0 with itself, node 1 with 3 twice.
    let words = [4u32, 2, 2, 0, 4, 4, 3, 2, 3, 0, 0, 0, 0];
    fs::write(&path, words.map(u32::to_le_bytes).concat()).unwrap();
    let index = Index::import(&path, IndexFormat::Nsg, &base(), Metric::L2, &Progress::silent()).unwrap();
    index.verify(&Progress::silent()).unwrap();
    let rows: Vec<&[u32]> = (0..5).map(|node| index.neighbors(node)).collect();
    assert_eq!(rows, [&[4][..], &[3, 2, 0], &[], &[], &[]]);
    assert_eq!(index.description().parameters["edges-left-out"], "2");
}

#[test]
fn a_skewed_file_does_not_fill_the_memory() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.nsg");
    // One node with all others as neighbours, which have none: padded, a row of 4,095 ids for each.
    let n = 4096u32;
    let words = [n, 0, n - 1].into_iter().chain(1..n).chain((1..n).map(|_| 0));
    fs::write(&path, words.flat_map(u32::to_le_bytes).collect::<Vec<_>>()).unwrap();
    let base = Vectors::from_u8(vec![0; n as usize], 1).unwrap();
    let text = Index::import(&path, IndexFormat::Nsg, &base, Metric::L2, &Progress::silent())
        .unwrap_err()
        .to_string();
    assert!(text.contains("a row of 4095 neighbours, 0 on average"), "{text}");
}

/// Writes `words` and says what importing them complains of.
fn complaint_of(format: IndexFormat, base: &Vectors, words: impl IntoIterator<Item = u32>) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x");
    fs::write(&path, words.into_iter().flat_map(u32::to_le_bytes).collect::<Vec<_>>()).unwrap();
    Index::import(&path, format, base, Metric::L2, &Progress::silent()).unwrap_err().to_string()
}

#[test]
fn rows_are_checked_before_anything_is_done_with_them() {
    // One row of very many ids; looking for its repeats in the row itself took seconds.
    let row = |ids: std::ops::Range<u32>| [400_000, 0, ids.len() as u32].into_iter().chain(ids).chain([0; 4]);
    let text = complaint_of(IndexFormat::Nsg, &base(), row(0..400_000));
    assert!(text.contains("found 400000 neighbours of node 0, expected at most 5"), "{text}");
    let text = complaint_of(IndexFormat::Nsg, &base(), row(2..6));
    assert!(text.contains("found id 5 in row 0, expected ids below 5"), "{text}");
}

#[test]
fn repeats_in_long_rows_are_left_out() {
    // Every node has all others as neighbours, the first ten of them twice.
    let n = 600u32;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.nsg");
    let rows = (0..n).flat_map(|node| {
        [n - 1].into_iter().chain((0..n - 11).chain(0..10).map(move |id| (node + 1 + id) % n))
    });
    let words = [n, 0].into_iter().chain(rows);
    fs::write(&path, words.flat_map(u32::to_le_bytes).collect::<Vec<_>>()).unwrap();
    let index =
        Index::import(&path, IndexFormat::Nsg, &uniform(n as usize, 1, 1), Metric::L2, &Progress::silent())
            .unwrap();
    assert_eq!(index.description().parameters["edges-left-out"], (10 * n).to_string());
    // The stride is that of what is left.
    assert_eq!(index.max_degree(), n as usize - 11);
    for node in [0, 1, n - 1] {
        let expected: Vec<u32> = (0..n - 11).map(|id| (node + 1 + id) % n).collect();
        assert_eq!(index.neighbors(node as usize), expected, "node {node}");
    }
}

#[test]
fn an_index_without_entry_points_is_refused() {
    let told =
        |text: &str| text.contains("found no entry points, expected at least one") && text.contains("again");
    let text = complaint_of(IndexFormat::Nssg, &base(), [3, 0, 1, 1, 0, 0, 0, 0]);
    assert!(told(&text), "{text}");
    // As many as there are nodes may be entered, no more.
    let text = complaint_of(IndexFormat::Nssg, &base(), [3, 6, 0, 1, 2, 3, 4, 0, 1, 1, 0, 0, 0, 0]);
    assert!(text.contains("found 6 entry points, expected at most 5"), "{text}");
    let copy = Copy::of("chain.ibin");
    let text = copy.complaint("chain.entries.ibin", &[0, 0, 0, 0, 1, 0, 0, 0]).unwrap();
    assert!(told(&text), "{text}");
    // The only one is none, as hnswlib and FAISS have it of an empty index.
    for (name, at) in [("chain.nsg", 4), ("chain.hnswlib", 52), ("chain.faiss-nsg", 78)] {
        replaced(name, at, u32::MAX, &["entry point 4294967295", "below 5"]);
    }
    // DiskANN's on disk, in a file of their own.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x");
    tiny(IndexFormat::DiskannDisk).export(IndexFormat::DiskannDisk).base(&base()).save(&path).unwrap();
    fs::write(folder.path().join("x_disk.index_medoids.bin"), [0, 0, 0, 0, 1, 0, 0, 0]).unwrap();
    let text = Index::import(&path, IndexFormat::DiskannDisk, &base(), Metric::L2, &Progress::silent())
        .unwrap_err()
        .to_string();
    assert!(told(&text), "{text}");
}

#[test]
fn an_error_holds_little_of_a_file() {
    // Where layers begin, as many as the file has room for: an error of 12 bytes for each.
    let mut bytes = fs::read(golden("chain.faiss-hnsw")).unwrap()[..53].to_vec();
    bytes.extend(100_000u64.to_le_bytes());
    bytes.extend(vec![1; 400_000]);
    let text = Copy::of("chain.faiss-hnsw").complaint("chain.faiss-hnsw", &bytes).unwrap();
    assert!(text.contains("layers that begin at [16843009, 16843009]") && text.len() < 500, "{text:.500}");
    // The type of an array.
    let header =
        format!("{{'descr': '{}', 'fortran_order': False, 'shape': (5, 2), }}\n", "x".repeat(50_000));
    let length = (header.len() as u16).to_le_bytes();
    let bytes = [b"\x93NUMPY\x01\x00", &length[..], header.as_bytes()].concat();
    for (name, file) in [("ring.npy", "ring.npy"), ("chain.csr", "chain.indptr.npy")] {
        let text = Copy::of(name).complaint(file, &bytes).unwrap();
        assert!(text.len() < 500, "{name}: {text:.500}");
    }
}

#[test]
fn elements_of_hnswlib_may_lie_in_any_order() {
    // The first two elements of the golden file swapped: hnswlib numbers them as they come, from many threads.
    let whole = fs::read(golden("chain.hnswlib")).unwrap();
    let swap = |id: u32| match id {
        0 => 1,
        1 => 0,
        other => other,
    };
    let mut swapped = whole.clone();
    for element in 0..5u32 {
        let mut bytes = whole[96 + 32 * swap(element) as usize..][..32].to_vec();
        let degree = bytes[0] as usize;
        for link in bytes[4..4 + 4 * degree].chunks_mut(4) {
            let id = u32::from_le_bytes((&*link).try_into().unwrap());
            link.copy_from_slice(&swap(id).to_le_bytes());
        }
        swapped[96 + 32 * element as usize..][..32].copy_from_slice(&bytes);
    }
    assert_ne!(swapped, whole);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x");
    fs::write(&path, &swapped).unwrap();
    let read = Index::import(&path, IndexFormat::Hnswlib, &base(), Metric::L2, &Progress::silent()).unwrap();
    assert_same_rows(&read, &tiny(IndexFormat::Hnswlib), "swapped");
    assert_eq!(read.entries(), [2]);
    // Two elements of one label.
    swapped[96 + 24] = swapped[96 + 32 + 24];
    swapped.copy_within(96 + 32 + 16..96 + 32 + 24, 96 + 16);
    fs::write(&path, &swapped).unwrap();
    let text = Index::import(&path, IndexFormat::Hnswlib, &base(), Metric::L2, &Progress::silent())
        .unwrap_err()
        .to_string();
    assert!(text.contains("label 0 twice"), "{text}");
}

#[test]
fn rows_of_kgraph_are_read_with_distances_too() {
    let mut bytes = fs::read(golden("chain.kgraph")).unwrap()[..20].to_vec();
    bytes[12] = 0;
    let index = tiny(IndexFormat::Kgraph);
    for node in 0..5 {
        let row = index.neighbors(node);
        bytes.extend([row.len() as u32; 2].iter().flat_map(|length| length.to_le_bytes()));
        bytes.extend(row.iter().flat_map(|&id| [id, 0.5f32.to_bits(), 1]).flat_map(u32::to_le_bytes));
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.kgraph");
    fs::write(&path, bytes).unwrap();
    assert_same_rows(
        &Index::import(&path, IndexFormat::Kgraph, &base(), Metric::L2, &Progress::silent()).unwrap(),
        &index,
        "kgraph",
    );
}

#[test]
fn layers_thin_out_and_hold_what_is_below() {
    // Read as the documentation has it: the tests of other readers are in tests/readers.
    let (n, dim) = (3000, 8);
    let base = uniform(n, dim, 5);
    let index = Builder::new(Strategy::nsg().degree(16)).knn(24).build(&base).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.hnswlib");
    index.export(IndexFormat::Hnswlib).base(&base).layers(true).save(&path).unwrap();
    let bytes = fs::read(&path).unwrap();
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
    let (highest, entry, upper) = (word(48), word(52), 8);
    let element = 4 + 4 * 16 + 4 * dim + 8;
    let mut at = 96 + n * element;
    let mut rows = Vec::new();
    for _ in 0..n {
        let layers = word(at) / (4 + 4 * upper);
        let row = |layer: usize| {
            let start = at + 4 + layer * (4 + 4 * upper);
            (0..word(start)).map(|link| word(start + 4 + 4 * link)).collect::<Vec<_>>()
        };
        rows.push((0..layers).map(row).collect::<Vec<_>>());
        at += 4 + word(at);
    }
    assert_eq!(at, bytes.len());
    assert!(highest >= 2 && rows[entry].len() == highest && rows.iter().all(|row| row.len() <= highest));
    // One node in eight is above the base layer, one in 64 above that: within four standard deviations.
    let above = |layer: usize| rows.iter().filter(|row| row.len() >= layer).count() as f64;
    assert!(
        (above(1) - 375.0).abs() < 4.0 * 19.0 && (above(2) - 47.0).abs() < 4.0 * 7.0,
        "{} {}",
        above(1),
        above(2)
    );
    for (node, row) in rows.iter().enumerate() {
        for (layer, links) in row.iter().enumerate() {
            assert!(links.len() <= upper && !links.contains(&node));
            assert!(
                links.iter().all(|&link| rows[link].len() > layer),
                "a link to a node that is not in the layer"
            );
        }
    }
}
