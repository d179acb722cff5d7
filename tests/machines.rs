//! The same bytes on every processor: checksums of indexes and answers of the CPU, against those in
//! `golden/machines.txt`, which `TAGORE_BLESS=1` writes anew.

use std::fmt::Write;
use std::path::Path;

use tagore::{Builder, Descent, ElementType, Index, Metric, SearchResult, Start, Strategy, Synth};

use crate::reference::search;

const STARTS: [Start; 3] = [Start::AllPairs, Start::Random, Start::Cells];

fn index_checksum(index: &Index) -> u32 {
    let mut hash = crc32fast::Hasher::new();
    let mut add = |ids: &[u32]| ids.iter().for_each(|id| hash.update(&id.to_le_bytes()));
    add(index.entries());
    (0..index.len()).for_each(|node| add(index.neighbors(node)));
    for layer in index.layers() {
        add(layer.nodes());
        (0..layer.nodes().len()).for_each(|place| add(layer.neighbors(place)));
    }
    hash.finalize()
}

fn answer_checksum(found: &SearchResult) -> u32 {
    let mut hash = crc32fast::Hasher::new();
    for query in 0..found.len() {
        found.ids(query).iter().for_each(|id| hash.update(&id.to_le_bytes()));
        found.distances(query).iter().for_each(|distance| hash.update(&distance.to_bits().to_le_bytes()));
    }
    hash.finalize()
}

#[test]
fn every_processor_builds_and_finds_the_same() {
    let kinds = Strategy::all();
    let mut lines = String::new();
    for (number, element) in ElementType::ALL.into_iter().enumerate() {
        for (metric, &start) in [Metric::L2, Metric::Cosine, Metric::InnerProduct].into_iter().zip(&STARTS) {
            if element == ElementType::B1 && metric != Metric::L2 {
                continue;
            }
            // Dimensions that end in a part of a register.
            let synth = Synth::new(250, 83 + number, 7).unwrap().element_type(element);
            let (base, queries) = (synth.base(), synth.queries(20));
            let graph = Descent::new().metric(metric).knn(40).start(start).build(&base).unwrap();
            let kind = &kinds[lines.lines().count() % kinds.len()];
            let builder = Builder::new(kind.clone()).metric(metric).layers(true);
            let index = builder.build_from(&base, &graph).unwrap();
            let (built, name) = (index_checksum(&index), index.kind().to_owned());
            let found = answer_checksum(&search(index, &base, &queries, 10, 40).unwrap());
            writeln!(lines, "{element} {metric} {start} {name}: {built:08x} {found:08x}").unwrap();
        }
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/machines.txt");
    if std::env::var_os("TAGORE_BLESS").is_some() {
        std::fs::write(&path, &lines).unwrap();
    }
    let golden = std::fs::read_to_string(&path).unwrap_or_default().replace("\r\n", "\n");
    assert_eq!(lines, golden, "another processor or change gives other bytes");
}
