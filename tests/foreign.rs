//! Indexes in the formats of other systems: exact bytes, and round trips.

use std::fs;
use std::path::{Path, PathBuf};

use tagore::{
    Builder, Description, Index, IndexFormat, Metric, Progress, Strategy, Synth, SynthKind, Vectors,
    ground_truth,
};

use crate::reference::uniform;

/// The formats of other systems.
pub fn foreign() -> impl Iterator<Item = IndexFormat> {
    IndexFormat::ALL.into_iter().filter(|&format| format != IndexFormat::Tagore)
}

fn description(metric: Metric) -> Description {
    Description { kind: "chain".into(), metric, seed: 7, parameters: [].into() }
}

pub fn base() -> Vectors {
    Vectors::from_u8(vec![0, 0, 1, 0, 2, 0, 3, 0, 200, 7], 2).unwrap()
}

/// The graph of the golden files: a chain of five nodes with entry point 2; a ring for npy, which
/// needs one degree for all nodes.
pub fn tiny(format: IndexFormat) -> Index {
    let rows = match format {
        IndexFormat::Npy => vec![vec![1, 4], vec![0, 2], vec![1, 3], vec![2, 4], vec![3, 0]],
        _ => vec![vec![1], vec![0, 2], vec![1, 3, 4], vec![2], vec![]],
    };
    Index::from_rows(description(Metric::L2), &base(), &rows, vec![2, 0]).unwrap()
}

pub fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

/// The golden files: format, whether with layers, path to import, and all files.
pub fn goldens() -> Vec<(IndexFormat, bool, &'static str, Vec<&'static str>)> {
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

pub fn assert_same_rows(found: &Index, expected: &Index, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for node in 0..expected.len() {
        assert_eq!(found.neighbors(node), expected.neighbors(node), "{what}, node {node}");
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
            assert!(written == fs::read(golden(file)).unwrap(), "{file} changed");
        }
        let read = Index::import(golden(name), format, &base, Metric::L2, &Progress::silent()).unwrap();
        assert_same_rows(&read, &index, name);
        read.check_base(&base).unwrap();
        assert_eq!((read.kind(), read.max_degree()), (format.name(), index.max_degree()), "{name}");
        let entries = match format.max_entries() {
            None => vec![2, 0],
            Some(0) => vec![0, 1, 2, 3, 4],
            // With layers, the entry point is on the highest.
            Some(_) if layers => read.entries().to_vec(),
            Some(_) => vec![2],
        };
        assert_eq!(read.entries(), entries, "{name}");
    }
    // The golden files of DiskANN's formats are tested in tests/diskann.rs.
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
    // Offset, capacity, elements, their size (4 + 3 x 4 + 2 x 4 + 8), label and vector offsets, two
    // words each.
    assert_eq!(hnswlib[..12], [0, 0, 5, 0, 5, 0, 32, 0, 24, 0, 16, 0]);
    // No upper layers; entry point 2; M, M of the base layer, M.
    assert_eq!(hnswlib[12..20], [0, 2, 2, 0, 3, 0, 2, 0]);
    // The third element: degree, links, vector (2, 0), label.
    assert_eq!(hnswlib[24 + 2 * 8..][..8], [3, 1, 3, 4, 2f32.to_bits(), 0, 2, 0]);
    assert_eq!((hnswlib.len(), &hnswlib[24 + 5 * 8..]), (24 + 5 * 9, &[0; 5][..]));
}

#[test]
fn odd_graphs_round_trip() {
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
fn incomplete_exports_are_refused_without_a_file() {
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
fn useless_edges_are_dropped_and_counted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.nsg");
    // Node 0 links to itself, node 1 twice to node 3.
    let words = [4u32, 2, 2, 0, 4, 4, 3, 2, 3, 0, 0, 0, 0];
    fs::write(&path, words.map(u32::to_le_bytes).concat()).unwrap();
    let index = Index::import(&path, IndexFormat::Nsg, &base(), Metric::L2, &Progress::silent()).unwrap();
    index.verify(&Progress::silent()).unwrap();
    let rows: Vec<&[u32]> = (0..5).map(|node| index.neighbors(node)).collect();
    assert_eq!(rows, [&[4][..], &[3, 2, 0], &[], &[], &[]]);
    assert_eq!(index.description().parameters["edges-left-out"], "2");
}

#[test]
fn repeats_in_long_rows_are_dropped() {
    // Every node links to all others, to the first ten of them twice.
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
    // The degree counts the remaining edges.
    assert_eq!(index.max_degree(), n as usize - 11);
    for node in [0, 1, n - 1] {
        let expected: Vec<u32> = (0..n - 11).map(|id| (node + 1 + id) % n).collect();
        assert_eq!(index.neighbors(node as usize), expected, "node {node}");
    }
}

#[test]
fn hnswlib_elements_may_be_in_any_order() {
    // Swaps the first two elements of the golden file: hnswlib inserts elements from many threads
    // in any order.
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
    // Two elements with the same label.
    swapped[96 + 24] = swapped[96 + 32 + 24];
    swapped.copy_within(96 + 32 + 16..96 + 32 + 24, 96 + 16);
    fs::write(&path, &swapped).unwrap();
    let text = Index::import(&path, IndexFormat::Hnswlib, &base(), Metric::L2, &Progress::silent())
        .unwrap_err()
        .to_string();
    assert!(text.contains("label 0 twice"), "{text}");
}

#[test]
fn kgraph_rows_with_distances_are_read() {
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
fn compressed_rows_of_other_integers_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.csr");
    let index = tiny(IndexFormat::Csr);
    index.export(IndexFormat::Csr).save(&path).unwrap();
    // SciPy's pointers have 4 bytes, or both arrays 8.
    let convert = |name: &str, from: (&str, usize), to: (&str, usize)| {
        let path = folder.path().join(name);
        let bytes = fs::read(&path).unwrap();
        let (header, values) = bytes.split_at(128);
        let header = String::from_utf8_lossy(&header[10..]).replace(from.0, to.0);
        let numbers = values.chunks(from.1).flat_map(|number| [number, &[0; 8]].concat()[..to.1].to_vec());
        let numbers: Vec<u8> = numbers.collect();
        fs::write(&path, [&bytes[..10], header.as_bytes(), &numbers].concat()).unwrap();
    };
    convert("x.indptr.npy", ("<u8", 8), ("<i4", 4));
    convert("x.indices.npy", ("<u4", 4), ("<i8", 8));
    let read = Index::import(&path, IndexFormat::Csr, &base(), Metric::L2, &Progress::silent()).unwrap();
    assert_same_rows(&read, &index, "csr");
}

#[test]
fn faiss_indexes_of_cagra_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.faiss-hnsw");
    let plain = fs::read(golden("chain.faiss-hnsw")).unwrap();
    for (base_alone, entries) in [(0, vec![2]), (1, vec![0, 1, 2, 3, 4])] {
        let more = [base_alone, 32, 0, 0, 0, 0, 0, 0, 0];
        let bytes = [b"IHc2", &plain[4..37], &more, &plain[37..]].concat();
        for bytes in
            [bytes.clone(), [b"IxMp", &plain[4..37], &bytes, &5u64.to_le_bytes(), &[255; 40]].concat()]
        {
            fs::write(&path, bytes).unwrap();
            let read = Index::import(&path, IndexFormat::FaissHnsw, &base(), Metric::L2, &Progress::silent());
            let read = read.unwrap();
            assert_same_rows(&read, &tiny(IndexFormat::FaissHnsw), "IHc2");
            assert_eq!(read.entries(), entries);
        }
    }
}

/// The nearest nodes by hnswlib's search of one layer: no node farther than a full list of the `ef`
/// nearest is kept.
fn search_as_hnswlib(index: &Index, distance: impl Fn(u32) -> f32, ef: usize) -> Vec<(f32, u32)> {
    let entry = index.entries()[0];
    let (mut seen, mut near, mut open) = (vec![false; index.len()], Vec::new(), Vec::new());
    seen[entry as usize] = true;
    near.push((distance(entry), entry));
    open.push((distance(entry), entry));
    while let Some(next) = (0..open.len()).min_by(|&a, &b| open[a].0.total_cmp(&open[b].0)) {
        let (at, node) = open.swap_remove(next);
        if near.len() == ef && at > near[ef - 1].0 {
            break;
        }
        for &id in index.neighbors(node as usize) {
            let at = distance(id);
            if std::mem::replace(&mut seen[id as usize], true) || (near.len() == ef && at >= near[ef - 1].0) {
                continue;
            }
            open.push((at, id));
            near.insert(near.partition_point(|other| other.0 <= at), (at, id));
            near.truncate(ef);
        }
    }
    near
}

#[test]
fn readers_without_groups_find_groups_of_equal_rows() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x");
    let (n, k) = (20_000, 10);
    let synth = Synth::of_kind(SynthKind::Repeated { copies: 50 }, n, 32, 3).unwrap();
    let (base, queries, silent) = (synth.base(), synth.queries(100), Progress::silent());
    let truth = ground_truth(&base, &queries, Metric::L2, k, &silent).unwrap();
    for strategy in [Strategy::nsg(), Strategy::vamana(), Strategy::cagra()] {
        let kind = strategy.kind().to_owned();
        let index = Builder::new(strategy).device(tagore::Device::Cpu).build(&base).unwrap();
        assert_eq!(index.repeated().len(), n - 400);
        index.export(IndexFormat::Hnswlib).base(&base).save(&path).unwrap();
        let read = Index::import(&path, IndexFormat::Hnswlib, &base, Metric::L2, &silent).unwrap();
        let mut found = 0;
        for query in 0..queries.len() {
            let values = queries.row_to_f32(query).unwrap();
            let distance = |row: u32| -> f32 {
                base.row_to_f32(row as usize)
                    .unwrap()
                    .iter()
                    .zip(values.iter())
                    .map(|(a, b)| (a - b) * (a - b))
                    .sum()
            };
            let farthest = distance(truth.ids(query)[k - 1]) * 1.000_01;
            let near = search_as_hnswlib(&read, distance, 100);
            found += near[..k].iter().filter(|(at, _)| *at <= farthest).count();
        }
        let recall = found as f64 / (k * queries.len()) as f64;
        assert!(recall >= 0.97, "{kind}: {recall}");
        // Every row is reached.
        let mut reached = vec![false; n];
        let mut open = vec![read.entries()[0]];
        while let Some(node) = open.pop() {
            if !std::mem::replace(&mut reached[node as usize], true) {
                open.extend(read.neighbors(node as usize));
            }
        }
        let missing = (0..n).filter(|&row| !reached[row]).count();
        assert!(missing == 0 || kind == "cagra", "{kind}: {missing} rows are not reached");
    }
}

#[test]
fn layers_thin_out_and_nest() {
    // Parses the documented layout; tests/readers runs other programs on the files.
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
    // One node in eight is above the base layer, one in 64 a layer higher, within four standard
    // deviations.
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
            assert!(links.iter().all(|&link| rows[link].len() > layer), "a link to a node outside the layer");
        }
    }
}
