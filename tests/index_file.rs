//! The native index file: exact bytes, and errors on damaged files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tagore::{Builder, Description, Index, IndexRoom, Metric, Progress, Strategy, Vectors};

use crate::reference::{check_graph, search, separated, uniform};

const PAGE: usize = 4096;

fn tiny_base() -> Vectors {
    Vectors::from_u8(vec![0, 0, 1, 0, 2, 0, 3, 0, 200, 7], 2).unwrap()
}

/// A chain of five nodes with entry point 2.
fn tiny() -> Index {
    let parameters =
        BTreeMap::from([("degree".to_owned(), "3".to_owned()), ("knn".to_owned(), "4".to_owned())]);
    let description = Description { kind: "chain".into(), metric: Metric::L2, seed: 7, parameters };
    let rows = [vec![1], vec![0, 2], vec![1, 3, 4], vec![2], vec![]];
    Index::from_rows(description, &tiny_base(), &rows, vec![2, 0]).unwrap()
}

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/chain.tagore")
}

/// The error of opening or verifying a file of `bytes`; none if both succeed.
fn error_of(bytes: &[u8]) -> Option<String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.tagore");
    std::fs::write(&path, bytes).unwrap();
    let error = match Index::open(&path) {
        Err(error) => error,
        Ok(index) => {
            // Statistics of a damaged index must not panic.
            let statistics = index.statistics(&Progress::silent()).unwrap();
            assert!(statistics.max_degree <= index.max_degree());
            index.verify(&Progress::silent()).err()?
        }
    };
    let text = error.to_string();
    assert!(!text.contains('\n') && text.contains("x.tagore"), "{text}");
    Some(text)
}

/// The bytes with a matching header checksum.
fn resealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let crc = crc32fast::hash(&bytes[..PAGE - 4]);
    bytes[PAGE - 4..PAGE].copy_from_slice(&crc.to_le_bytes());
    bytes
}

#[test]
fn the_golden_file_is_written_and_read_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("chain.tagore");
    tiny().save(&path).unwrap();
    let written = std::fs::read(&path).unwrap();
    if std::env::var_os("TAGORE_BLESS").is_some() {
        std::fs::write(golden(), &written).unwrap();
    }
    assert!(written == std::fs::read(golden()).unwrap(), "the format changed: it needs a new version");

    let index = Index::open(golden()).unwrap();
    index.verify(&Progress::silent()).unwrap();
    index.check_base(&tiny_base()).unwrap();
    assert_eq!(index.description(), tiny().description());
    assert_eq!(index.fingerprint(), tiny().fingerprint());
    assert_eq!((index.len(), index.max_degree(), index.entries()), (5, 3, &[2, 0][..]));
    assert_eq!(index.neighbors(2), [1, 3, 4]);
    assert!(index.neighbors(4).is_empty());
    let statistics = index.statistics(&Progress::silent()).unwrap();
    assert_eq!((statistics.edges, statistics.unreachable, statistics.degrees), (7, 0, vec![1, 2, 1, 1]));
}

#[test]
fn an_index_is_written_to_its_room() {
    let folder = tempfile::tempdir().unwrap();
    let files = || std::fs::read_dir(folder.path()).unwrap().count();
    let path = folder.path().join("chain.tagore");
    let room = IndexRoom::reserve(&path, 5, 3).unwrap();
    assert!(files() == 1 && !path.exists());
    let refused = tiny().save(&path).unwrap_err().to_string();
    assert!(refused.contains("another run"), "{refused}");
    drop(room);
    assert_eq!(files(), 0);
    // Room for more nodes, and for fewer.
    for nodes in [5, 1000, 1] {
        tiny().save_in(IndexRoom::reserve(&path, nodes, 3).unwrap(), &[]).unwrap();
        assert!(std::fs::read(&path).unwrap() == std::fs::read(golden()).unwrap(), "{nodes}");
        assert_eq!(files(), 1);
    }
}

#[test]
fn a_file_of_version_1_is_read() {
    let path = golden().with_file_name("chain-1.tagore");
    let bytes = std::fs::read(&path).unwrap();
    assert_eq!(bytes[8..12], 1u32.to_le_bytes());
    let index = Index::open(&path).unwrap();
    index.verify(&Progress::silent()).unwrap();
    assert!(index.layers().is_empty() && index.repeated().is_empty());
    assert_eq!((index.entries(), index.description()), (tiny().entries(), tiny().description()));
    assert!((0..5).all(|node| index.neighbors(node) == tiny().neighbors(node)));
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("copy.tagore");
    index.save(&copy).unwrap();
    assert!(std::fs::read(copy).unwrap() == std::fs::read(golden()).unwrap());
}

#[test]
fn the_layout_is_the_documented_one() {
    let bytes = std::fs::read(golden()).unwrap();
    let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    assert_eq!(&bytes[..8], b"TAGOREIX");
    assert_eq!((u32_at(8), u64_at(16), u32_at(24), u32_at(28)), (2, 5, 3, 2));
    assert_eq!((u64_at(32), u32_at(40), u32_at(44), u64_at(56)), (5, 2, 2, bytes.len() as u64));
    assert_eq!(u32_at(PAGE - 4), crc32fast::hash(&bytes[..PAGE - 4]));
    let section =
        |i: usize| u64_at(64 + 16 * i) as usize..(u64_at(64 + 16 * i) + u64_at(72 + 16 * i)) as usize;
    assert!((0..7).all(|i| section(i).start % PAGE == 0));
    // Neither layers nor repeated rows.
    assert!(section(4).is_empty() && section(5).is_empty());
    let json: serde_json::Value = serde_json::from_slice(&bytes[section(0)]).unwrap();
    assert_eq!(
        (json["kind"].as_str(), json["metric"].as_str(), json["seed"].as_u64()),
        (Some("chain"), Some("l2"), Some(7))
    );
    let adjacency: Vec<u32> = section(3).step_by(4).map(u32_at).collect();
    let none = u32::MAX;
    assert_eq!(adjacency, [1, none, none, 0, 2, none, 1, 3, 4, 2, none, none, none, none, none]);
    for i in 0..4 {
        assert_eq!(
            u32_at(section(6).start + 4 * i),
            crc32fast::hash(&bytes[section(i)]),
            "one block per section"
        );
    }
}

#[test]
fn layers_round_trip_and_their_damage_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.tagore");
    let base = separated(2000, 40, 8, 0);
    let index = Builder::new(Strategy::cagra().degree(16)).knn(24).build(&base).unwrap();
    index.save(&path).unwrap();
    let read = Index::open(&path).unwrap();
    read.verify(&Progress::silent()).unwrap();
    assert!(!read.layers().is_empty());
    assert_eq!((read.layers(), read.entries()), (index.layers(), index.entries()));
    let bytes = std::fs::read(&path).unwrap();
    let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize;
    let (begin, length) = (u64_at(64 + 16 * 4), u64_at(64 + 16 * 4 + 8));
    assert!(length > 0);
    for at in [begin, begin + 4, begin + 8, begin + 12, begin + length / 2, begin + length - 1] {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x40;
        assert!(error_of(&damaged).is_some(), "byte {} of the layers", at - begin);
    }
}

#[test]
fn a_built_index_round_trips_and_searches_the_same() {
    let folder = tempfile::tempdir().unwrap();
    for n in [1, 2, 33, 700] {
        let base = uniform(n, 5, 3);
        for strategy in Strategy::all() {
            let path = folder.path().join("x.tagore");
            let built = Builder::new(strategy).build(&base).unwrap();
            built.save(&path).unwrap();
            let read = Index::open(&path).unwrap();
            check_graph(&read, built.kind());
            read.verify(&Progress::silent()).unwrap();
            assert_eq!(read.description(), built.description());
            assert_eq!(read.entries(), built.entries());
            assert!((0..n).all(|node| read.neighbors(node) == built.neighbors(node)));
            let queries = uniform(10, 5, 4);
            let found = |index| search(index, &base, &queries, 1, 20).unwrap();
            let (read, built) = (found(read), found(built));
            assert!((0..10).all(|query| read.ids(query) == built.ids(query)));
        }
    }
}

#[test]
fn every_truncation_is_refused() {
    let bytes = std::fs::read(golden()).unwrap();
    for length in [0, 1, 7, 8, 100, PAGE - 1, PAGE, PAGE + 1, bytes.len() - PAGE, bytes.len() - 1] {
        assert!(error_of(&bytes[..length]).is_some(), "cut to {length} bytes");
    }
    assert!(error_of(&[bytes.as_slice(), &[0]].concat()).is_some(), "a byte too many");
    assert!(error_of(&[bytes.as_slice(), &[0; PAGE]].concat()).is_some(), "a page too many");
    assert!(error_of(&bytes).is_none());
}

#[test]
fn every_flipped_bit_is_found() {
    let bytes = std::fs::read(golden()).unwrap();
    // Every bit of the header and of non-zero bytes, and a sample of the padding.
    let used = |at: usize| bytes[at] != 0 || at < 256 || at.is_multiple_of(97);
    for at in (0..bytes.len()).filter(|&at| used(at)) {
        let mut flipped = bytes.clone();
        flipped[at] ^= 1 << (at % 8);
        assert!(error_of(&flipped).is_some(), "a flipped bit in byte {at}");
    }
}

#[test]
fn an_inconsistent_header_is_refused() {
    let bytes = std::fs::read(golden()).unwrap();
    let with = |at: usize, value: &[u8]| {
        let mut changed = bytes.clone();
        changed[at..at + value.len()].copy_from_slice(value);
        error_of(&resealed(changed)).unwrap_or_else(|| panic!("{value:?} at {at} went unnoticed"))
    };
    assert!(with(0, b"TAGOREXX").contains("expected a tagore index"));
    assert!(with(8, &3u32.to_le_bytes()).contains("found version 3, expected version 1 to 2"));
    with(8, &1u32.to_le_bytes());
    for huge in [6, 1 << 20, u64::MAX / 4, u64::MAX] {
        with(16, &huge.to_le_bytes());
    }
    for huge in [4, 1 << 20, u32::MAX] {
        with(24, &huge.to_le_bytes());
        with(28, &huge.to_le_bytes());
    }
    with(32, &6u64.to_le_bytes());
    with(44, &6u32.to_le_bytes());
    with(56, &1u64.to_le_bytes());
    for section in 0..7 {
        // A section moved onto another, out of the file, or stretched.
        let at = 64 + 16 * section;
        for offset in [0, PAGE as u64 * 2 + 4, bytes.len() as u64, u64::MAX] {
            with(at, &offset.to_le_bytes());
        }
        let empty = [4, 5].contains(&section);
        for length in [if empty { 8 } else { 0 }, PAGE as u64 * 64, u64::MAX] {
            with(at + 8, &length.to_le_bytes());
        }
    }
}

#[test]
fn opening_an_index_without_entry_points_fails() {
    // Empties the second section of the golden file, one page long, and moves the later sections up
    // by one page.
    let mut bytes = std::fs::read(golden()).unwrap();
    let mut put = |at: usize, value: u64| bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
    put(24, 3);
    put(56, 5 * PAGE as u64);
    put(64 + 16 + 8, 0);
    for (section, page, length) in [(2, 2, 20), (3, 3, 60), (4, 4, 0), (5, 4, 0), (6, 4, 12)] {
        put(64 + 16 * section, page * PAGE as u64);
        put(64 + 16 * section + 8, length);
    }
    bytes.drain(2 * PAGE..3 * PAGE);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.tagore");
    std::fs::write(&path, resealed(bytes)).unwrap();
    let text = Index::open(&path).unwrap_err().to_string();
    let expected = ["x.tagore", "found no entry points", "at least one", "build or export the index again"];
    assert!(expected.iter().all(|word| text.contains(word)), "{text}");
}

#[test]
fn errors_quote_little_of_a_description() {
    let mut bytes = std::fs::read(golden()).unwrap();
    let metric = "\u{1d11e}".repeat(500);
    for (json, expected) in [
        (format!(r#"{{"kind": "", "metric": "{metric}", "seed": 0, "parameters": {{}}}}"#), "metric "),
        (
            format!(r#"{{"kind": "", "metric": "l2", "seed": "{metric}", "parameters": {{}}}}"#),
            "description: ",
        ),
    ] {
        bytes[PAGE..][..json.len()].copy_from_slice(json.as_bytes());
        bytes[72..80].copy_from_slice(&(json.len() as u64).to_le_bytes());
        let text = error_of(&resealed(bytes.clone())).unwrap();
        assert!(text.contains(expected) && text.len() < 300, "{text}");
    }
}

#[test]
fn an_unbounded_degree_is_refused() {
    // Without nodes no rows bound the degree, and statistics would allocate that much.
    let mut bytes = std::fs::read(golden()).unwrap();
    let mut put = |at: usize, value: u64| bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
    put(16, 0);
    put(24, u32::MAX.into());
    put(32, 0);
    let text = error_of(&resealed(bytes)).unwrap();
    assert!(text.contains("largest degree of 4294967295 for 0 nodes, expected at most 512"), "{text}");
}

#[test]
fn wrong_rows_are_found_and_cause_no_panic() {
    let bytes = std::fs::read(golden()).unwrap();
    let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize;
    let (entries, degrees, adjacency) = (u64_at(80), u64_at(96), u64_at(112));
    let folder = tempfile::tempdir().unwrap();
    // Searches begin at the entry points, so these are checked when the file is opened.
    for value in [0, 4, 5, u32::MAX] {
        let mut changed = bytes.clone();
        changed[entries..entries + 4].copy_from_slice(&value.to_le_bytes());
        let path = folder.path().join("x.tagore");
        std::fs::write(&path, &changed).unwrap();
        let error = Index::open(&path).unwrap_err().to_string();
        assert!(error.contains("damage in block 0 of section entry points"), "{error}");
    }
    for (at, value) in [
        (degrees, 4),
        (degrees, u32::MAX),
        (degrees, 0),
        (adjacency, 5),
        (adjacency, u32::MAX),
        (adjacency, 0),
    ] {
        let mut changed = bytes.clone();
        changed[at..at + 4].copy_from_slice(&value.to_le_bytes());
        assert!(error_of(&changed).is_some(), "{value} at {at}");
        // A search returns or fails, but never panics.
        let path = folder.path().join("x.tagore");
        std::fs::write(&path, &changed).unwrap();
        let index = Arc::new(Index::open(&path).unwrap());
        let result = search(Arc::clone(&index), &tiny_base(), &tiny_base(), 1, 5);
        assert!(index.save(folder.path().join("copy.tagore")).is_err(), "damage must not get a new checksum");
        let unknown = value >= 5 && at != degrees || value == u32::MAX && at == degrees || value == 4;
        assert_eq!(result.is_err(), unknown, "{value} at {at}");
    }
}

/// The bytes of an index over nine rows, three of them repeated.
fn with_repeats() -> (Vectors, Vec<u8>) {
    let base = Vectors::from_u8(vec![1, 5, 1, 9, 5, 1, 7, 8, 3], 1).unwrap();
    let index = Builder::new(Strategy::nsg()).build(&base).unwrap();
    assert_eq!(index.repeated().pairs().collect::<Vec<_>>(), [(2, 0), (4, 1), (5, 0)]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.tagore");
    index.save(&path).unwrap();
    (base, std::fs::read(path).unwrap())
}

#[test]
fn inconsistent_repeated_rows_are_refused() {
    let (base, bytes) = with_repeats();
    assert!(error_of(&bytes).is_none());
    let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize;
    let (begin, length) = (u64_at(64 + 16 * 5), u64_at(72 + 16 * 5));
    let words: Vec<u32> = bytes[begin..begin + length]
        .chunks(4)
        .map(|word| u32::from_le_bytes(word.try_into().unwrap()))
        .collect();
    assert_eq!(words, [2, 0, 4, 1, 5, 0]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.tagore");
    for (word, value, expected) in [
        (4, 9, "an unknown repeated row"),
        (4, u32::MAX, "an unknown repeated row"),
        (4, 4, "unsorted repeated rows"),
        (0, 5, "unsorted repeated rows"),
        (1, 2, "before its first row"),
        (5, 7, "before its first row"),
        (5, 2, "repeated itself"),
        // Plausible values: only the checksum finds them, or the graph if an edge leads there.
        (5, 1, "damage in block 0 of section repeated rows"),
        (4, 6, "damage in block 0 of section repeated rows"),
    ] {
        let mut changed = bytes.clone();
        changed[begin + 4 * word..][..4].copy_from_slice(&value.to_le_bytes());
        let text = error_of(&changed).unwrap_or_else(|| panic!("{value} in word {word}"));
        assert!(text.contains(expected), "{text}");
        std::fs::write(&path, &changed).unwrap();
        if let Ok(index) = Index::open(&path) {
            let found = search(index, &base, &base, 9, 9);
            assert_eq!(found.is_err(), value == 6, "{value} in word {word}");
        }
    }
    for length in [4, 12, 20, 28] {
        let mut changed = bytes.clone();
        changed[72 + 16 * 5..][..8].copy_from_slice(&(length as u64).to_le_bytes());
        assert!(error_of(&resealed(changed)).unwrap().contains("section repeated rows"));
    }
}

#[test]
fn a_failed_save_leaves_the_old_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.tagore");
    tiny().save(&path).unwrap();
    let before = std::fs::read(&path).unwrap();
    // A folder in place of the file blocks the rename.
    let taken = folder.path().join("taken.tagore");
    std::fs::create_dir(&taken).unwrap();
    let error = tiny().save(&taken).unwrap_err().to_string();
    assert!(error.contains("taken.tagore"), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), before);
    assert_eq!(folder.path().read_dir().unwrap().count(), 2, "a file was left behind");
}

#[test]
fn another_base_is_refused_with_the_difference() {
    let index = Index::open(golden()).unwrap();
    let refused = |base: Vectors, words: &[&str]| {
        let error = index.check_base(&base).unwrap_err().to_string();
        assert!(words.iter().all(|word| error.contains(word)) && error.contains("chain.tagore"), "{error}");
    };
    refused(Vectors::from_u8(vec![0; 12], 2).unwrap(), &["6 x 2 u8", "5 x 2 u8"]);
    refused(Vectors::from_u8(vec![0; 15], 3).unwrap(), &["5 x 3 u8"]);
    refused(Vectors::from_i8(vec![0; 10], 2).unwrap(), &["5 x 2 i8"]);
    refused(Vectors::from_u8(vec![0; 10], 2).unwrap(), &["other values"]);
}
