//! DiskANN's files: exact bytes, round trips, and errors.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use tagore::{
    Builder, Description, ElementType, Index, IndexFormat, Metric, Progress, Result, Strategy, Vectors,
};
use tempfile::TempDir;

use crate::reference::uniform;

const BOTH: [IndexFormat; 2] = [IndexFormat::Diskann, IndexFormat::DiskannDisk];

/// The files at the prefix `chain`.
const GRAPH_FILES: [&str; 3] = ["chain", "chain.data", "chain_metadata.bin"];
const DISK_FILES: [&str; 6] = [
    "chain_disk.index",
    "chain_disk.index_centroids.bin",
    "chain_disk.index_medoids.bin",
    "chain_metadata.bin",
    "chain_pq_compressed.bin",
    "chain_pq_pivots.bin",
];

fn files_of(format: IndexFormat) -> &'static [&'static str] {
    if format == IndexFormat::Diskann { &GRAPH_FILES } else { &DISK_FILES }
}

fn tiny_base() -> Vectors {
    Vectors::from_u8(vec![0, 0, 1, 0, 2, 0, 3, 0, 200, 7], 2).unwrap()
}

fn described(metric: Metric) -> Description {
    Description { kind: "chain".into(), metric, seed: 7, parameters: BTreeMap::new() }
}

/// A chain of five nodes with entry point 2.
fn tiny() -> Index {
    let rows = [vec![1], vec![0, 2], vec![1, 3, 4], vec![2], vec![3]];
    Index::from_rows(described(Metric::L2), &tiny_base(), &rows, vec![2, 0]).unwrap()
}

fn golden(format: IndexFormat) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(format.name())
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn numbers<const N: usize>(bytes: &[u8], size: usize) -> [u64; N] {
    std::array::from_fn(|i| {
        let number = &bytes[i * size..(i + 1) * size];
        number.iter().rev().fold(0, |sum, &byte| sum << 8 | u64::from(byte))
    })
}

/// Exports and imports an index.
fn round_trip(index: &Index, base: &Vectors, format: IndexFormat) -> Index {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x");
    index.export(format).base(base).save(&path).unwrap();
    let read = Index::import(&path, format, base, index.metric(), &Progress::silent()).unwrap();
    // In the files, rows of a group of equal rows have edges to one another.
    let repeated = index.repeated();
    let alone =
        |node: &usize| !repeated.contains(*node as u32) && repeated.copies_of(*node as u32).len() == 0;
    let mut nodes = (0..index.len()).filter(alone);
    assert!(nodes.all(|node| read.neighbors(node) == index.neighbors(node)), "{format}");
    let entries = if format == IndexFormat::Diskann { 1 } else { index.entries().len() };
    assert_eq!(read.entries(), &index.entries()[..entries], "{format}");
    assert_eq!((read.metric(), read.fingerprint()), (index.metric(), index.fingerprint()));
    read
}

#[test]
fn the_golden_files_are_written_and_read_back() {
    for format in BOTH {
        let folder = tempfile::tempdir().unwrap();
        tiny().export(format).base(&tiny_base()).save(folder.path().join("chain")).unwrap();
        assert_eq!(names(folder.path()), files_of(format));
        for name in files_of(format) {
            let (written, expected) = (folder.path().join(name), golden(format).join(name));
            if std::env::var_os("TAGORE_BLESS").is_some() {
                fs::create_dir_all(golden(format)).unwrap();
                fs::copy(&written, &expected).unwrap();
            }
            assert!(
                fs::read(written).unwrap() == fs::read(expected).unwrap(),
                "{name} of {format} has changed"
            );
        }
        let read = Index::import(
            golden(format).join("chain"),
            format,
            &tiny_base(),
            Metric::L2,
            &Progress::silent(),
        )
        .unwrap();
        assert_eq!((read.kind(), read.max_degree(), read.entries()[0]), (format.name(), 3, 2));
        assert_eq!(read.neighbors(2), [1, 3, 4]);
    }
}

#[test]
fn the_graph_in_memory_has_the_documented_bytes() {
    let file = |name: &str| fs::read(golden(IndexFormat::Diskann).join(name)).unwrap();
    let graph = file("chain");
    let bytes = graph.len() as u64;
    assert_eq!(numbers(&graph, 8), [bytes, 3 | 2 << 32, 0], "size, largest degree and start, frozen points");
    assert_eq!(numbers(&graph[24..], 4), [1, 1, 2, 0, 2, 3, 1, 3, 4, 1, 2, 1, 3]);
    assert_eq!(bytes, 24 + 4 * 13);
    let data = file("chain.data");
    assert_eq!(numbers(&data, 4), [5, 2]);
    assert_eq!(&data[8..], [0, 0, 1, 0, 2, 0, 3, 0, 200, 7]);
    assert_eq!(numbers(&file("chain_metadata.bin"), 8), [2, 0, 5, 2], "u8, l2, vectors, dimension");
}

#[test]
fn the_files_on_disk_have_the_documented_bytes() {
    let file = |name: &str| fs::read(golden(IndexFormat::DiskannDisk).join(name)).unwrap();
    let index = file("chain_disk.index");
    // Two bytes of vector, a degree and three neighbours per node: 227 nodes per sector.
    assert_eq!(numbers(&index, 4), [12, 1]);
    let version = 1;
    assert_eq!(numbers(&index[8..], 8), [5, 2, 2, 18, 227, 0, 0, 0, 8192, 0, 4096, version]);
    assert_eq!((index.len(), &index[104..4096]), (8192, &[0; 3992][..]));
    let node = &index[4096 + 2 * 18..][..18];
    assert_eq!((&node[..2], numbers(&node[2..], 4)), (&[2, 0][..], [3, 1, 3, 4]));
    assert!(index[4096 + 5 * 18..].iter().all(|&byte| byte == 0));
    assert_eq!(numbers(&file("chain_disk.index_medoids.bin"), 4), [2, 1, 2, 0]);
    let centroids = file("chain_disk.index_centroids.bin");
    assert_eq!(numbers(&centroids, 4), [2, 2, u64::from(2f32.to_bits()), 0, 0, 0]);
    let pivots = file("chain_pq_pivots.bin");
    let (mean, offsets) = (4096 + 8 + 256 * 2 * 4, 4096 + 8 + 256 * 2 * 4 + 8 + 2 * 4);
    assert_eq!(numbers(&pivots, 4), [4, 1]);
    assert_eq!(numbers(&pivots[8..], 8), [4096, mean, offsets, pivots.len() as u64]);
    assert_eq!(numbers(&pivots[4096..], 4), [256, 2]);
    assert_eq!(numbers(&pivots[mean as usize..], 4), [2, 1, 0, 0]);
    assert_eq!(numbers(&pivots[offsets as usize..], 4), [3, 1, 0, 1, 2]);
    // The centres of each vector's codes equal the vector.
    let codes = file("chain_pq_compressed.bin");
    assert_eq!(numbers(&codes, 4), [5, 2]);
    let centre = |code: u8, chunk: usize| {
        let at = 4096 + 8 + 4 * (2 * usize::from(code) + chunk);
        f32::from_le_bytes(pivots[at..at + 4].try_into().unwrap())
    };
    let decoded: Vec<f32> =
        codes[8..].iter().zip([0, 1].into_iter().cycle()).map(|(&c, i)| centre(c, i)).collect();
    assert_eq!(decoded, [0.0, 0.0, 1.0, 0.0, 2.0, 0.0, 3.0, 0.0, 200.0, 7.0]);
}

#[test]
fn large_nodes_take_whole_sectors() {
    let base = uniform(3, 1100, 1);
    let index =
        Index::from_rows(described(Metric::L2), &base, &[vec![1], vec![2], vec![0]], vec![1]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    index.export(IndexFormat::DiskannDisk).base(&base).save(folder.path().join("x")).unwrap();
    let file = fs::read(folder.path().join("x_disk.index")).unwrap();
    assert_eq!(numbers(&file[8..], 8), [3, 1100, 1, 4408, 0, 0, 0, 0, 7 * 4096]);
    for node in 0..3 {
        let place = &file[4096 * (1 + 2 * node)..];
        assert_eq!(bytemuck::cast_slice::<f32, u8>(&base.row_to_f32(node).unwrap()), &place[..4400]);
        assert_eq!(numbers(&place[4400..], 4), [1, (node as u64 + 1) % 3]);
    }
    round_trip(&index, &base, IndexFormat::DiskannDisk);
}

#[test]
fn every_type_size_and_metric_round_trips() {
    use {ElementType::*, Metric::*};
    let of_type = |floats: &Vectors, element| {
        let values =
            (0..floats.len()).flat_map(|row| floats.row_to_f32(row).unwrap().into_owned()).map(|x| x * 100.0);
        let dim = floats.dim();
        match element {
            F32 => Vectors::from_f32(values.collect(), dim),
            F16 => Vectors::from_f16(values.map(f16::from_f32).collect(), dim),
            Bf16 => Vectors::from_bf16(values.map(bf16::from_f32).collect(), dim),
            U8 => Vectors::from_u8(values.map(|x| x as u8).collect(), dim),
            I8 => Vectors::from_i8(values.map(|x| x as i8).collect(), dim),
            B1 => unreachable!("DiskANN has no bits"),
        }
        .unwrap()
    };
    let kinds = [
        (F32, L2),
        (F16, L2),
        (Bf16, L2),
        (U8, L2),
        (I8, L2),
        (F32, InnerProduct),
        (U8, InnerProduct),
        (F16, Cosine),
    ];
    for (n, dim) in [(1, 97), (2, 3), (33, 1), (300, 97)] {
        let floats = uniform(n, dim, 3);
        for (element, metric) in kinds {
            let base = of_type(&floats, element);
            let built = Builder::new(Strategy::vamana()).metric(metric).build(&base).unwrap();
            round_trip(&built, &base, IndexFormat::DiskannDisk);
            if n > 1 {
                round_trip(&built, &base, IndexFormat::Diskann);
            }
        }
    }
}

#[test]
fn vectors_are_stored_as_the_metric_requires() {
    let base = Vectors::from_i8(vec![3, 4, -1, 0], 2).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let stored = |metric, format: IndexFormat, name: &str| -> Vec<f32> {
        let index = Index::from_rows(described(metric), &base, &[vec![1], vec![0]], vec![0]).unwrap();
        index.export(format).base(&base).save(folder.path().join("x")).unwrap();
        let bytes = fs::read(folder.path().join(name)).unwrap();
        bytes[8..].chunks_exact(4).map(|x| f32::from_le_bytes(x.try_into().unwrap())).collect()
    };
    assert_eq!(stored(Metric::Cosine, IndexFormat::Diskann, "x.data"), [0.6, 0.8, -1.0, 0.0]);
    assert_eq!(stored(Metric::InnerProduct, IndexFormat::Diskann, "x.data"), [3.0, 4.0, -1.0, 0.0]);
    // On disk an added coordinate makes all norms 1; a file holds the largest norm.
    let index = stored(Metric::InnerProduct, IndexFormat::DiskannDisk, "x_disk.index");
    let node = |node: usize| &index[(4096 - 8) / 4 + node * 5..][..3];
    assert_eq!(node(0), [0.6, 0.8, 0.0]);
    assert_eq!(node(1), [-0.2, 0.0, 24f32.sqrt() / 5.0]);
    let norm = fs::read(folder.path().join("x_disk.index_max_base_norm.bin")).unwrap();
    assert_eq!(numbers(&norm, 4), [1, 1, u64::from(5f32.to_bits())]);
}

#[test]
fn the_files_do_not_depend_on_threads() {
    let base = uniform(2000, 20, 5);
    let index = Builder::new(Strategy::nsg()).knn(16).build(&base).unwrap();
    let written = |threads| {
        let folder = tempfile::tempdir().unwrap();
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let export = index.export(IndexFormat::DiskannDisk).base(&base).pq_chunks(6);
        pool.install(|| export.save(folder.path().join("x"))).unwrap();
        names(folder.path())
            .iter()
            .map(|name| fs::read(folder.path().join(name)).unwrap())
            .collect::<Vec<_>>()
    };
    assert!(written(1) == written(3));
}

#[test]
fn unsupported_exports_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x");
    let refused = |result: Result<()>, expected: &str| {
        let error = result.unwrap_err().to_string();
        assert!(error.ends_with(expected) && !error.contains('\n'), "{error}");
        assert!(names(folder.path()).is_empty(), "{error}: a file was written");
    };
    for format in BOTH {
        let expected =
            format!("base: found none, expected the data set of the index: {format} holds vectors");
        refused(tiny().export(format).save(&path), &expected);
        let other = Vectors::from_u8(vec![0; 10], 2).unwrap();
        refused(tiny().export(format).base(&other).save(&path), "expected the data set of index");
    }
    for (chunks, format, expected) in [
        (0, IndexFormat::DiskannDisk, "pq_chunks: found 0, expected 1 to 2"),
        (3, IndexFormat::DiskannDisk, "pq_chunks: found 3, expected 1 to 2"),
        (
            1,
            IndexFormat::Diskann,
            "pq_chunks: found 1, expected none for diskann: only diskann-disk has a quantizer",
        ),
    ] {
        refused(tiny().export(format).base(&tiny_base()).pq_chunks(chunks).save(&path), expected);
    }
    let base = uniform(600, 2, 1);
    let mut rows: Vec<Vec<u32>> = (0..600).map(|node| vec![(node + 1) % 600]).collect();
    rows[0] = (1..514).collect();
    let wide = Index::from_rows(described(Metric::L2), &base, &rows, vec![0]).unwrap();
    refused(
        wide.export(IndexFormat::DiskannDisk).base(&base).save(&path),
        "x: found degree 513 for diskann-disk, expected at most 512",
    );
    let lone = Vectors::from_f32(vec![1.0], 1).unwrap();
    let index = Index::from_rows(described(Metric::L2), &lone, &[vec![]], vec![0]).unwrap();
    refused(
        index.export(IndexFormat::Diskann).base(&lone).save(&path),
        "found an index without edges for diskann, expected at least one edge: DiskANN cannot load a graph without edges",
    );
    // A folder blocks the last file.
    fs::create_dir(folder.path().join("x_disk.index")).unwrap();
    let error = tiny().export(IndexFormat::DiskannDisk).base(&tiny_base()).save(&path).unwrap_err();
    assert!(error.to_string().ends_with("x_disk.index: found a folder, expected a file to write"), "{error}");
    assert_eq!(names(folder.path()), ["x_disk.index"], "the other files were left behind");
}

#[test]
fn an_export_replaces_an_earlier_one() {
    let base = uniform(40, 12, 6);
    let export = |folder: &Path, metric, chunks| {
        let index = Builder::new(Strategy::nsg()).knn(8).metric(metric).build(&base).unwrap();
        let export = index.export(IndexFormat::DiskannDisk).base(&base).pq_chunks(chunks);
        export.save(folder.join("x"))
    };
    let all = |folder: &Path| {
        let file = |name: String| (fs::read(folder.join(&name)).unwrap(), name);
        names(folder).into_iter().map(file).collect::<Vec<_>>()
    };
    let (new, used) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    export(new.path(), Metric::L2, 3).unwrap();
    // Inner product has one file more, and longer vectors.
    export(used.path(), Metric::InnerProduct, 5).unwrap();
    assert!(names(used.path()).contains(&"x_disk.index_max_base_norm.bin".to_owned()));
    export(used.path(), Metric::L2, 3).unwrap();
    assert!(all(used.path()) == all(new.path()));

    // Files of other programs are neither deleted nor left to be read with the index.
    let rotation = used.path().join("x_pq_pivots.bin_rotation_matrix.bin");
    fs::write(&rotation, "theirs").unwrap();
    let before = all(used.path());
    let error = export(used.path(), Metric::InnerProduct, 5).unwrap_err().to_string();
    let expected = "x_pq_pivots.bin_rotation_matrix.bin: found a file of another DiskANN build";
    assert!(error.contains(expected) && !error.contains('\n'), "{error}");
    assert!(all(used.path()) == before);
}

/// Overwrites a file in place: closing a truncated file waits for the disk on some file systems.
fn overwrite(path: &Path, bytes: &[u8]) {
    let mut file = fs::OpenOptions::new().write(true).open(path).unwrap();
    file.write_all(bytes).unwrap();
    file.set_len(bytes.len() as u64).unwrap();
}

/// A copy of golden files.
struct Copied {
    folder: TempDir,
    format: IndexFormat,
}

impl Copied {
    fn new(format: IndexFormat) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for name in files_of(format) {
            fs::copy(golden(format).join(name), folder.path().join(name)).unwrap();
        }
        Self { folder, format }
    }

    /// The error of importing after `change` to a file; the file is restored.
    fn error(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) -> Option<String> {
        let path = self.folder.path().join(name);
        let bytes = fs::read(&path).unwrap();
        let mut changed = bytes.clone();
        change(&mut changed);
        overwrite(&path, &changed);
        let read = Index::import(
            self.folder.path().join("chain"),
            self.format,
            &tiny_base(),
            Metric::L2,
            &Progress::silent(),
        );
        overwrite(&path, &bytes);
        let error = read.err()?.to_string();
        assert!(!error.contains('\n') && error.contains("chain"), "{error}");
        Some(error)
    }

    /// The error of importing with `value` at byte `at` of a file.
    fn with(&self, name: &str, at: usize, value: &[u8]) -> String {
        let error = self.error(name, |file| file[at..at + value.len()].copy_from_slice(value));
        error.unwrap_or_else(|| panic!("{value:?} at {at} of {name} went unnoticed"))
    }
}

/// The files that an import reads, and the number of their bytes with a meaning.
const READ: [(IndexFormat, &str, usize); 6] = [
    (IndexFormat::Diskann, "chain", 76),
    (IndexFormat::Diskann, "chain.data", 18),
    (IndexFormat::Diskann, "chain_metadata.bin", 32),
    (IndexFormat::DiskannDisk, "chain_disk.index", 8192),
    (IndexFormat::DiskannDisk, "chain_disk.index_medoids.bin", 16),
    (IndexFormat::DiskannDisk, "chain_metadata.bin", 32),
];

#[test]
fn every_truncation_is_refused() {
    for (format, name, bytes) in READ {
        let copied = Copied::new(format);
        for length in (0..bytes).filter(|length| length % 89 == 0 || *length < 120 || *length > bytes - 20) {
            let cut = copied.error(name, |file| file.truncate(length));
            assert!(cut.is_some(), "{name} cut to {length} bytes");
        }
        assert!(copied.error(name, |file| file.push(0)).is_some(), "{name} and a byte");
        assert!(copied.error(name, |_| ()).is_none(), "{name}");
    }
}

#[test]
fn no_damage_makes_a_reader_panic() {
    for (format, name, bytes) in READ {
        let copied = Copied::new(format);
        for at in (0..bytes).filter(|at| *at < 112 || (4096..4096 + 5 * 18).contains(at)) {
            for value in [0, 0x7f, 0xff] {
                copied.error(name, |file| file[at] = value);
                copied.error(name, |file| file[at..(at + 8).min(bytes)].fill(value));
            }
        }
    }
}

#[test]
fn inconsistent_headers_are_refused() {
    let [in_memory, on_disk] = BOTH.map(Copied::new);
    let graph = |at, value: u32| in_memory.with("chain", at, &value.to_le_bytes());
    assert!(graph(0, 77).ends_with("found file size in the header: 77, expected 76"));
    assert!(graph(8, 2).ends_with("found degree 3 of node 2, expected at most 2 by the header"));
    assert!(graph(12, 5).contains("entry point 5"));
    assert!(graph(16, 1).ends_with("found frozen points: 1, expected 0"));
    assert!(graph(24, u32::MAX).contains("degree 4294967295"));
    assert!(graph(28, 5).contains("id 5 in row 0"));
    let data = |at, value: u32| in_memory.with("chain.data", at, &value.to_le_bytes());
    assert!(data(0, 6).contains("found 6 nodes, expected 5"));
    assert!(data(4, 3).ends_with("found dimension 3, expected 2"));
    assert!(data(8, 1).contains("found another vector of node 0"));
    let index =
        |word: usize, value: u64| on_disk.with("chain_disk.index", 8 + 8 * word, &value.to_le_bytes());
    assert!(index(0, 6).contains("found 6 nodes, expected 5"));
    assert!(index(1, 3).ends_with("found dimension 3, expected 2"));
    assert!(
        index(3, 19)
            .ends_with("found nodes of 19 bytes, expected a vector of 2, and 4 for each of 1 to 513 numbers")
    );
    assert!(index(3, 5000).contains("nodes of 5000 bytes"));
    assert!(index(4, 226).ends_with("found nodes per sector: 226, expected 227"));
    assert!(index(5, 1).ends_with("found frozen points: 1, expected 0"));
    assert!(index(7, 1).ends_with("found reordered vectors: 1, expected 0"));
    assert!(index(8, 4096).ends_with("found file size in the header: 4096, expected 8192"));
    assert!(index(9, 8).ends_with("found bytes of associated data: 8, expected 0"));
    let medoids = |at, value: u32| on_disk.with("chain_disk.index_medoids.bin", at, &value.to_le_bytes());
    assert!(medoids(0, u32::MAX).contains("entry points (4294967295 x 4 bytes)"));
    assert!(medoids(8, 5).contains("entry point 5"));
    for copied in [in_memory, on_disk] {
        assert!(copied.with("chain_metadata.bin", 0, &[0]).contains("element type"));
        let metric = copied.with("chain_metadata.bin", 8, &[1]);
        assert!(metric.contains("found metric (0 l2, 1 ip, 2 cosine) 1"), "{metric}");
    }
}

#[test]
fn files_of_other_programs_lack_optional_parts() {
    // DiskANN's C++ writes nine header fields, and entry points only for shards; neither its
    // programs nor those in Rust write metadata.
    let folder = tempfile::tempdir().unwrap();
    let mut index = fs::read(golden(IndexFormat::DiskannDisk).join("chain_disk.index")).unwrap();
    index[..4].copy_from_slice(&9u32.to_le_bytes());
    index[8 + 9 * 8..8 + 12 * 8].fill(0);
    fs::write(folder.path().join("chain_disk.index"), index).unwrap();
    fs::copy(golden(IndexFormat::Diskann).join("chain"), folder.path().join("chain")).unwrap();
    for format in BOTH {
        let read =
            Index::import(folder.path().join("chain"), format, &tiny_base(), Metric::L2, &Progress::silent())
                .unwrap();
        assert_eq!((read.entries(), read.neighbors(1)), (&[2][..], &[0, 2][..]));
    }
}
