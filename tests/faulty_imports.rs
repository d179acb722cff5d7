//! Faulty files in the formats of other systems: errors, and no panic.

use std::fs;

use tagore::{Index, IndexFormat, Metric, Progress, Vectors};
use tempfile::TempDir;

use crate::foreign::{base, foreign, golden, goldens, tiny};

/// A copy of a golden index, to damage one of its files.
struct Copy {
    folder: TempDir,
    format: IndexFormat,
    name: &'static str,
}

impl Copy {
    fn new(name: &'static str) -> Self {
        let (format, _, _, files) = goldens().into_iter().find(|golden| golden.2 == name).unwrap();
        let folder = tempfile::tempdir().unwrap();
        // Without the checksums, which would hide other errors.
        for file in files.into_iter().filter(|file| !file.ends_with(".crc32")) {
            fs::copy(golden(file), folder.path().join(file)).unwrap();
        }
        Self { folder, format, name }
    }

    /// The error of importing the index with `bytes` in `file`; none if it succeeds.
    fn error(&self, file: &str, bytes: &[u8]) -> Option<String> {
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
fn damaged_files_are_refused_or_sound() {
    for (_, _, name, files) in goldens() {
        let copy = Copy::new(name);
        for file in files {
            let whole = fs::read(golden(file)).unwrap();
            for length in 0..whole.len() {
                // NSG's graph ends with its file, so a cut one lacks nodes of the base.
                assert!(copy.error(file, &whole[..length]).is_some(), "{file} cut at {length}");
            }
            let mut unseen = 0;
            for at in 0..whole.len() {
                let mut damaged = whole.clone();
                damaged[at] ^= if at.is_multiple_of(3) { 0x80 } else { 1 };
                unseen += usize::from(copy.error(file, &damaged).is_none());
            }
            // Some bytes have no effect on the graph, such as ef_construction; others make another
            // valid graph.
            assert!(2 * unseen < whole.len(), "{file}: {unseen} of {} changes go unnoticed", whole.len());
            assert!(copy.error(file, &[&whole[..], &[0]].concat()).is_some(), "{file} with an extra byte");
            copy.error(file, &whole);
        }
    }
}

/// Replaces 4 bytes of a golden file; the error of the import must contain `expected`.
fn replaced(name: &'static str, at: usize, value: u32, expected: &[&str]) {
    let mut bytes = fs::read(golden(name)).unwrap();
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    let text = Copy::new(name).error(name, &bytes).unwrap();
    assert!(text.contains(name) && expected.iter().all(|part| text.contains(part)), "{expected:?}: {text}");
}

#[test]
fn errors_name_the_fault() {
    replaced("chain.nsg", 0, 2, &["degree 3 of node 2", "at most 2"]);
    replaced("chain.nsg", 4, 5, &["entry point 5", "ids below 5"]);
    replaced("chain.nsg", 8, 0, &["6 nodes", "5 as in vectors"]);
    replaced("chain.nsg", 12, 5, &["id 5 in row 0", "ids below 5"]);
    replaced("chain.nssg", 4, u32::MAX, &["56 bytes from byte 8 on", "entry points (4294967295 x 4 bytes)"]);
    replaced("chain.kgraph", 0, 0, &["another kind of file", "a KGraph index"]);
    replaced("chain.kgraph", 8, 3, &["version 3", "2"]);
    replaced("chain.kgraph", 12, 2, &["flags 2", "0 or 1"]);
    replaced("chain.kgraph", 16, 6, &["6 nodes", "5 as in vectors"]);
    replaced("chain.kgraph", 20, 2, &["2 of 1 neighbours of node 0"]);
    replaced("chain.hnswlib", 16, 4, &["4 nodes", "5 as in vectors"]);
    replaced("chain.hnswlib", 8, 4, &["room for 4 elements", "5"]);
    replaced("chain.hnswlib", 24, 36, &["elements of 36 bytes", "32: vector at 16"]);
    replaced("chain.hnswlib", 52, 5, &["entry point 5"]);
    replaced("chain.hnswlib", 64, 65_536, &["largest degree 65536", "65535"]);
    replaced("chain.hnswlib", 96, 1 << 16, &["element 0 deleted"]);
    replaced("chain.hnswlib", 96, 4, &["degree 4 of element 0", "at most 3"]);
    replaced("chain.hnswlib", 96 + 16, 1f32.to_bits(), &["another vector of node 0", "row 0 of vectors"]);
    replaced("chain.hnswlib", 96 + 5 * 32, 12, &["12 bytes of upper links of element 0", "at most 0 layers"]);
    replaced("chain.faiss-nsg", 0, u32::from_le_bytes(*b"IHNf"), &["kind of index IHNf", "INSf"]);
    replaced("chain.faiss-nsg", 4, 3, &["dimension 3", "2"]);
    replaced("chain.faiss-nsg", 8, 4, &["4 nodes"]);
    replaced("chain.faiss-nsg", 33, 0, &["metric ip", "l2 as requested"]);
    replaced("chain.faiss-nsg", 33, 4, &["metric 4", "0 (inner product) or 1 (L2)"]);
    replaced("chain.faiss-nsg", 62, 2, &["more than 2 neighbours of node 2"]);
    replaced("chain.faiss-hnsw", 37, u32::MAX, &["the probabilities of layers"]);
}

#[test]
fn another_base_or_metric_is_refused() {
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
fn a_skewed_file_does_not_exhaust_memory() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.nsg");
    // One node links to all others, which have no neighbours: padding would take 4,095 ids per
    // node.
    let n = 4096u32;
    let words = [n, 0, n - 1].into_iter().chain(1..n).chain((1..n).map(|_| 0));
    fs::write(&path, words.flat_map(u32::to_le_bytes).collect::<Vec<_>>()).unwrap();
    let base = Vectors::from_u8(vec![0; n as usize], 1).unwrap();
    let text = Index::import(&path, IndexFormat::Nsg, &base, Metric::L2, &Progress::silent())
        .unwrap_err()
        .to_string();
    assert!(text.contains("a row of 4095 neighbours, 0 on average"), "{text}");
}

/// The error of importing a file of `words`.
fn import_error(format: IndexFormat, base: &Vectors, words: impl IntoIterator<Item = u32>) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x");
    fs::write(&path, words.into_iter().flat_map(u32::to_le_bytes).collect::<Vec<_>>()).unwrap();
    Index::import(&path, format, base, Metric::L2, &Progress::silent()).unwrap_err().to_string()
}

#[test]
fn rows_are_checked_before_other_work() {
    // A row of very many ids; finding its repeats within the row took seconds.
    let row = |ids: std::ops::Range<u32>| [400_000, 0, ids.len() as u32].into_iter().chain(ids).chain([0; 4]);
    let text = import_error(IndexFormat::Nsg, &base(), row(0..400_000));
    assert!(text.contains("found 400000 neighbours of node 0, expected at most 5"), "{text}");
    let text = import_error(IndexFormat::Nsg, &base(), row(2..6));
    assert!(text.contains("found id 5 in row 0, expected ids below 5"), "{text}");
}

#[test]
fn an_index_without_entry_points_is_refused() {
    let is_expected =
        |text: &str| text.contains("found no entry points, expected at least one") && text.contains("again");
    let text = import_error(IndexFormat::Nssg, &base(), [3, 0, 1, 1, 0, 0, 0, 0]);
    assert!(is_expected(&text), "{text}");
    // At most one entry point per node.
    let text = import_error(IndexFormat::Nssg, &base(), [3, 6, 0, 1, 2, 3, 4, 0, 1, 1, 0, 0, 0, 0]);
    assert!(text.contains("found 6 entry points, expected at most 5"), "{text}");
    let copy = Copy::new("chain.ibin");
    let text = copy.error("chain.entries.ibin", &[0, 0, 0, 0, 1, 0, 0, 0]).unwrap();
    assert!(is_expected(&text), "{text}");
    // hnswlib and FAISS store -1 as the entry point of an empty index.
    for (name, at) in [("chain.nsg", 4), ("chain.hnswlib", 52), ("chain.faiss-nsg", 78)] {
        replaced(name, at, u32::MAX, &["entry point 4294967295", "below 5"]);
    }
    // DiskANN's format for disks stores entry points in a separate file.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x");
    tiny(IndexFormat::DiskannDisk).export(IndexFormat::DiskannDisk).base(&base()).save(&path).unwrap();
    fs::write(folder.path().join("x_disk.index_medoids.bin"), [0, 0, 0, 0, 1, 0, 0, 0]).unwrap();
    let text = Index::import(&path, IndexFormat::DiskannDisk, &base(), Metric::L2, &Progress::silent())
        .unwrap_err()
        .to_string();
    assert!(is_expected(&text), "{text}");
}

#[test]
fn errors_quote_little_of_a_file() {
    // Layer offsets up to the end of the file would make an error of 12 bytes each.
    let mut bytes = fs::read(golden("chain.faiss-hnsw")).unwrap()[..53].to_vec();
    bytes.extend(100_000u64.to_le_bytes());
    bytes.extend(vec![1; 400_000]);
    let text = Copy::new("chain.faiss-hnsw").error("chain.faiss-hnsw", &bytes).unwrap();
    assert!(text.contains("layer offsets [16843009, 16843009]") && text.len() < 500, "{text:.500}");
    // The element type of an array.
    let header =
        format!("{{'descr': '{}', 'fortran_order': False, 'shape': (5, 2), }}\n", "x".repeat(50_000));
    let length = (header.len() as u16).to_le_bytes();
    let bytes = [b"\x93NUMPY\x01\x00", &length[..], header.as_bytes()].concat();
    for (name, file) in [("ring.npy", "ring.npy"), ("chain.csr", "chain.indptr.npy")] {
        let text = Copy::new(name).error(file, &bytes).unwrap();
        assert!(text.len() < 500, "{name}: {text:.500}");
    }
}
