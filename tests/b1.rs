//! Vectors of bits: distances of a plain reference, and builds and searches as of the same zeros
//! and ones in u8.

use std::fs;
use std::sync::Arc;

use tagore::outofcore::{ClusterPlan, Limits, OutOfCore};
use tagore::{
    Bits, Builder, CellSettings, Descent, Device, ElementType, ExactSearch, Format, GroundTruth, Index,
    IndexFormat, Iterations, MAX_DIM, Metric, Progress, Search, Searcher, Start, Strategy, Synth, Vectors,
};
use tagore_device::random::{Draws, Stage};

use crate::formats::Folder;
use crate::gpu::devices;

/// Rows of random bits, one in three of them set, as booleans.
fn booleans(rows: usize, dim: usize, seed: u64) -> Vec<Vec<bool>> {
    let draws = Draws::new(seed, Stage::Test, 7, dim as u64);
    let bit = |place: usize| draws.below(place as u64, 3) == 0;
    (0..rows).map(|row| (0..dim).map(|column| bit(row * dim + column)).collect()).collect()
}

/// Rows as bits.
fn packed(rows: &[Vec<bool>]) -> Vectors {
    let byte = |bits: &[bool]| bits.iter().rev().fold(0, |byte, &bit| byte << 1 | u8::from(bit));
    Vectors::from_bits(rows.iter().flat_map(|row| row.chunks(8).map(byte)).collect(), rows[0].len()).unwrap()
}

/// Rows as bits, and as zeros and ones in u8.
fn both(rows: &[Vec<bool>]) -> [Vectors; 2] {
    let bytes = rows.iter().flatten().map(|&bit| u8::from(bit)).collect();
    [packed(rows), Vectors::from_u8(bytes, rows[0].len()).unwrap()]
}

fn random(rows: usize, dim: usize, seed: u64) -> [Vectors; 2] {
    both(&booleans(rows, dim, seed))
}

fn lists(truth: &GroundTruth) -> Vec<(Vec<u32>, Vec<f32>)> {
    (0..truth.len()).map(|row| (truth.ids(row).to_vec(), truth.distances(row).unwrap().to_vec())).collect()
}

fn every_device() -> impl Iterator<Item = Device> {
    [Device::Cpu].into_iter().chain(devices())
}

/// All that an index holds, except for the fingerprint of its base.
fn contents(index: &Index) -> (Vec<Vec<u32>>, Vec<u32>, usize) {
    let rows = (0..index.len()).map(|node| index.neighbors(node).to_vec()).collect();
    (rows, index.entries().to_vec(), index.layers().len())
}

#[test]
fn exact_search_counts_different_bits() {
    let (n, k) = (70, 20);
    for dim in [1, 7, 8, 9, 63, 64, 65, 100, 1000] {
        let (rows, asked) = (booleans(n, dim, 1), booleans(9, dim, 2));
        let (base, queries) = (packed(&rows), packed(&asked));
        let on = |device| lists(&ExactSearch::new(k).device(device).run(&base, &queries).unwrap().0);
        let found = on(Device::Cpu);
        devices().into_iter().for_each(|device| assert_eq!(on(device), found, "{dim}, {device}"));
        for (query, (ids, distances)) in asked.iter().zip(found) {
            let different = |row: &Vec<bool>| row.iter().zip(query).filter(|(x, y)| x != y).count();
            let mut expected: Vec<(usize, u32)> = rows.iter().map(different).zip(0..).collect();
            expected.sort_unstable();
            expected.truncate(k);
            let found: Vec<_> = distances.iter().map(|&d| d as usize).zip(ids).collect();
            assert_eq!(found, expected, "{dim}");
        }
    }
}

#[test]
fn rows_come_back_and_the_largest_dimension_is_that_of_32768_bits() {
    let (rows, most) = (booleans(2, 8 * MAX_DIM, 3), 8 * MAX_DIM);
    let base = packed(&rows);
    let expected: Vec<f32> = rows.concat().into_iter().map(|bit| f32::from(u8::from(bit))).collect();
    assert_eq!((base.dim(), base.element_type().max_dim()), (most, most));
    assert_eq!(base.to_f32().unwrap(), expected);
    assert_eq!(base.row_to_f32(1).unwrap(), &expected[most..]);
    let (found, _) = ExactSearch::new(2).device(Device::Cpu).run(&base, &base).unwrap();
    let different = rows[0].iter().zip(&rows[1]).filter(|(x, y)| x != y).count();
    assert_eq!(found.distances(0).unwrap(), [0.0, different as f32]);
    let text = |dim| Vectors::from_bits(vec![0; 5000], dim).unwrap_err().to_string();
    assert_eq!(text(most + 1), "dim: found 32769, expected 1 to 32768");
    assert_eq!(text(0), "dim: found 0, expected 1 to 32768");
    assert_eq!(
        text(9 * 8),
        "bytes: found 5000, expected a multiple of 9, the bytes of a row of 72 b1 values"
    );
    let bits = vec![Bits(1), Bits(2), Bits(3)];
    let text = Vectors::from_owner(bits.clone(), 10).unwrap_err().to_string();
    assert_eq!(text, "values: found 3, expected a multiple of 2, the bytes of 10 bits");
    let strided = Vectors::from_strided(bits, 2, 5, 2).unwrap();
    assert_eq!(strided.to_f32().unwrap(), [1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0]);
    assert_eq!(strided.into_vec::<Bits>().unwrap(), [Bits(1), Bits(3)]);
    let whole = Vectors::from_rows([[Bits(1), Bits(2)], [Bits(3), Bits(4)]]).unwrap();
    assert_eq!((whole.len(), whole.dim()), (2, 16));
}

#[test]
fn graphs_and_answers_are_those_of_the_same_zeros_and_ones() {
    let starts = [
        (13, Start::AllPairs),
        (37, Start::AllPairs),
        (37, Start::Random),
        (13, Start::Random),
        (37, Start::Cells),
    ];
    // Each start with three of the kinds, and each kind with two starts.
    let mut kinds = Strategy::all().into_iter().cycle();
    for (dim, start) in starts {
        let ([base, wide], [queries, wide_queries]) = (random(300, dim, 4), random(20, dim, 5));
        let descent = Descent::new().knn(32).start(start).seed(5).device(Device::Cpu);
        for strategy in kinds.by_ref().take(3) {
            let case = format!("{strategy:?}, {dim}, {start}");
            let builder = Builder::new(strategy).descent(descent.clone());
            let [index, expected] = [&base, &wide].map(|base| Arc::new(builder.build(base).unwrap()));
            assert_eq!(contents(&index), contents(&expected), "{case}");
            assert_eq!(index.fingerprint().element, ElementType::B1, "{case}");
            assert_eq!(index.fingerprint().dim, dim as u32, "{case}");
            let silent = Progress::silent();
            let search = |index: &Arc<Index>, base: &Vectors, queries: &Vectors| {
                let searcher = Searcher::new(Arc::clone(index), base.clone(), &silent).unwrap();
                let one = searcher.search_one(&queries.row_to_f32(0).unwrap(), Search::new(5)).unwrap();
                let many = searcher.search(queries, Search::new(5).beam(32), &silent).unwrap();
                let rows = (0..20).map(|query| format!("{:?} {:?}", many.ids(query), many.distances(query)));
                (format!("{one:?}"), rows.collect::<Vec<_>>())
            };
            let found = search(&index, &base, &queries);
            assert_eq!(found, search(&expected, &wide, &wide_queries), "{case}");
            // Queries of other types are converted.
            assert_eq!(found, search(&index, &base, &wide_queries), "{case}");
        }
    }
}

#[test]
fn devices_give_the_bytes_of_the_cpu() {
    let ([base, wide], [queries, _]) = (random(40, 21, 4), random(2, 21, 5));
    let silent = Progress::silent();
    for device in devices() {
        let descent = Descent::new().knn(33).device(device);
        let [graph, of_wide] = [&base, &wide].map(|base| descent.build(base).unwrap());
        for strategy in Strategy::all() {
            let case = format!("{strategy:?}, {device}");
            let builder = Builder::new(strategy).seed(3);
            let [index, expected] =
                [device, Device::Cpu].map(|d| builder.clone().device(d).build_from(&base, &graph).unwrap());
            assert_eq!(contents(&index), contents(&expected), "{case}");
            let searcher = Searcher::new(index, base.clone(), &silent).unwrap();
            let search = |device| {
                let searcher = searcher.clone().device(device).unwrap();
                let found = searcher.search(&queries, Search::new(5).beam(32), &silent).unwrap();
                (0..2).map(|q| (found.ids(q).to_vec(), found.distances(q).to_vec())).collect::<Vec<_>>()
            };
            assert_eq!(search(device), search(Device::Cpu), "{case}");
        }
        assert_eq!(graph.into_parts(), of_wide.into_parts(), "{device}");
    }
    // Descent expands packed bits: of rows that end within a word, and of more than 16 bytes.
    for device in devices() {
        // The phases after the start are the same for all starts.
        for (rows, dim, start, phases) in
            [(769, 150, Start::Cells, 0), (70, 21, Start::Random, 1), (70, 150, Start::Random, 1)]
        {
            let [base, wide] = random(rows, dim, 6);
            let iterations = Iterations::Fixed(phases, phases);
            let cells = CellSettings { clusterings: Some(1), probes: Some(2), ..CellSettings::default() };
            let descent = Descent::new().knn(8).start(start).cells(cells);
            let descent = descent.iterations(iterations).device(device);
            let [found, expected] = [&base, &wide].map(|base| descent.build(base).unwrap().into_parts());
            assert_eq!(found, expected, "{start}, {device}, {dim}");
        }
    }
}

#[test]
fn a_gpu_takes_4096_bits() {
    let [most, more] = [MAX_DIM, MAX_DIM + 1].map(|dim| packed(&booleans(20, dim, 13)));
    let search = ExactSearch::new(3).device(Device::Emulated);
    let (found, _) = search.run(&most, &most).unwrap();
    let (expected, _) = search.clone().device(Device::Cpu).run(&most, &most).unwrap();
    assert_eq!(lists(&found), lists(&expected));
    let expected = "device: found emulated for 4097 bits, expected cpu, or at most 4096 bits";
    assert_eq!(search.run(&more, &more).unwrap_err().to_string(), expected);
    let builder = Builder::new(Strategy::cagra()).device(Device::Emulated);
    assert_eq!(builder.build(&more).unwrap_err().to_string(), expected);
    let index = Builder::new(Strategy::cagra()).build(&more).unwrap();
    let searcher = Searcher::new(index, more, &Progress::silent()).unwrap();
    assert_eq!(searcher.device(Device::Emulated).err().unwrap().to_string(), expected);
}

#[test]
fn equal_rows_and_ties_give_the_same_graphs() {
    // Of four bits there are sixteen rows; most pairs tie.
    let few = random(400, 4, 6);
    // Rows that differ in one place at most.
    let near: Vec<Vec<bool>> = (0..130).map(|row| (0..129).map(|column| row == column).collect()).collect();
    for [base, wide] in [few, both(&near)] {
        for start in [Start::AllPairs, Start::Random] {
            let descent = Descent::new().knn(10).start(start).device(Device::Cpu);
            let [found, expected] = [&base, &wide].map(|base| descent.build(base).unwrap());
            assert!((0..base.len()).all(|node| found.neighbors(node) == expected.neighbors(node)), "{start}");
            let builder = Builder::new(Strategy::vamana()).descent(descent);
            let [index, other] = [&base, &wide].map(|base| builder.build(base).unwrap());
            assert_eq!(contents(&index), contents(&other), "{start}");
            assert_eq!(index.repeated(), other.repeated(), "{start}");
        }
    }
}

#[test]
fn files_hold_rows_of_whole_bytes() {
    let folder = Folder::new();
    let path = folder.path("x.b1bin");
    let vectors = Vectors::from_bits(vec![0b1010_0101, 1, 0xff, 0b10], 10).unwrap();
    vectors.save(&path).unwrap();
    let bytes = [2, 0, 0, 0, 10, 0, 0, 0, 0b1010_0101, 1, 0xff, 0b10];
    assert_eq!(fs::read(&path).unwrap(), bytes);
    let read = Vectors::open(&path).unwrap();
    assert_eq!((read.len(), read.dim(), read.element_type()), (2, 10, ElementType::B1));
    assert_eq!(
        read.to_f32().unwrap(),
        [1, 0, 1, 0, 0, 1, 0, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1, 0, 1].map(|x| x as f32)
    );
    // Eight-byte numbers of rows and columns.
    let long = [&2u64.to_le_bytes(), &10u64.to_le_bytes(), &bytes[8..]].concat();
    let path = folder.path("long.b1bin");
    fs::write(&path, long).unwrap();
    assert_eq!(Vectors::open(&path).unwrap().to_f32().unwrap(), read.to_f32().unwrap());
    // Other types, and back.
    for format in Format::ALL.into_iter().filter(|format| format.element().is_some()) {
        let (other, back) = (folder.path(&format!("x.{format}")), folder.path("back.b1bin"));
        vectors.save(&other).unwrap();
        assert_eq!(Vectors::open(&other).unwrap().to_f32().unwrap(), vectors.to_f32().unwrap(), "{format}");
        Vectors::open(&other).unwrap().save(&back).unwrap();
        assert_eq!(fs::read(&back).unwrap(), bytes, "{format}");
    }
}

#[test]
fn faulty_files_are_refused_in_one_line() {
    let folder = Folder::new();
    let path = folder.path("x.b1bin");
    let text = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        let result = Vectors::open(&path).and_then(|vectors| vectors.validate(&Progress::silent()));
        let text = result.unwrap_err().to_string();
        text.strip_prefix(&path.display().to_string()).unwrap().to_owned()
    };
    let head = |rows: u32, dim: u32| [rows.to_le_bytes(), dim.to_le_bytes()].concat();
    assert_eq!(
        text(&[&head(2, 10)[..], &[1, 1, 1]].concat()),
        ": found 11 bytes, expected 12 (8 + 2 x 2 x 1, by its header)"
    );
    assert_eq!(text(&head(2, 32_769)), ": found 8 bytes, expected 8202 (8 + 2 x 4097 x 1, by its header)");
    assert_eq!(text(&head(0, 32_769)), ": found 32769 values per row, expected 1 to 32768");
    assert_eq!(
        text(&[&head(3, 10)[..], &[0xff, 3, 0, 0, 0, 0b1000]].concat()),
        ": row 2, dimension 11: found 1, expected 0: only padding follows the 10 bits of a row"
    );
}

#[test]
fn other_values_and_metrics_are_refused() {
    let folder = Folder::new();
    let half = Vectors::from_f32(vec![1.0, 0.0, 0.5], 3).unwrap();
    let text = half.save(folder.path("x.b1bin")).unwrap_err().to_string();
    assert_eq!(text, "vectors: row 0, dimension 2: found 0.5, expected 0 or 1 for b1");
    let [base, wide] = random(50, 12, 8);
    let text = base.save(folder.path("x.npy")).unwrap_err().to_string();
    let expected = "b1bin, or a format of another type: npy holds no packed bits";
    assert_eq!(text, format!("format: found npy, expected {expected}"));
    for metric in [Metric::InnerProduct, Metric::Cosine] {
        let expected = format!("metric: found {metric} for b1 vectors, expected hamming, that of bits");
        let search = ExactSearch::new(3).metric(metric);
        assert_eq!(search.run(&base, &base).unwrap_err().to_string(), expected);
        let builder = Builder::new(Strategy::cagra()).metric(metric);
        assert_eq!(builder.build(&base).unwrap_err().to_string(), expected);
        assert_eq!(Metric::named(metric.name(), ElementType::B1).unwrap_err().to_string(), expected);
        assert_eq!(Metric::named(metric.name(), ElementType::U8).unwrap(), metric);
    }
    for name in ["hamming", "l2"] {
        let metric = Metric::named(name, ElementType::B1).unwrap();
        assert_eq!((metric, metric.name_for(ElementType::B1)), (Metric::L2, "hamming"));
    }
    assert_eq!(Metric::L2.name_for(ElementType::U8), "l2");
    let text = Metric::named("hamming", ElementType::F32).unwrap_err().to_string();
    assert_eq!(
        text,
        "metric: found hamming for f32 vectors, expected l2, ip or cosine: hamming is that of bits"
    );
    let searcher = |base: &Vectors| {
        let index = Builder::new(Strategy::cagra()).build(base).unwrap();
        Searcher::new(index, base.clone(), &Progress::silent()).unwrap()
    };
    let refused = searcher(&base).search_one(&[0.5; 12], Search::new(1)).unwrap_err().to_string();
    assert_eq!(refused, "vectors: row 0, dimension 0: found 0.5, expected 0 or 1 for b1");
    let found = searcher(&wide).search(&base, Search::new(1), &Progress::silent()).unwrap();
    assert!((0..base.len()).all(|query| found.distances(query) == [0.0]));
}

#[test]
fn an_index_is_saved_and_exported_where_the_format_holds_no_vectors() {
    let folder = Folder::new();
    let [base, _] = random(200, 21, 9);
    let index = Builder::new(Strategy::nsg()).device(Device::Cpu).build(&base).unwrap();
    let path = folder.path("x.tagore");
    index.save(&path).unwrap();
    let opened = Index::open(&path).unwrap();
    opened.check_base(&base).unwrap();
    assert_eq!(contents(&opened), contents(&index));
    for format in IndexFormat::ALL.into_iter().filter(|&format| format != IndexFormat::Npy) {
        let path = folder.path(&format!("y.{format}"));
        let saved = index.export(format).base(&base).save(&path);
        let import = || Index::import(&path, format, &base, Metric::L2, &Progress::silent());
        if format.holds_vectors() {
            let expected = format!(
                "{}: found b1 vectors for {format}, expected another type, or a format of the graph alone for bits",
                path.display()
            );
            assert_eq!(saved.unwrap_err().to_string(), expected);
            assert_eq!(import().unwrap_err().to_string(), expected);
        } else {
            saved.unwrap();
            assert_eq!(import().unwrap().neighbors(7), index.neighbors(7), "{format}");
        }
    }
}

#[test]
fn a_build_out_of_core_is_that_of_the_same_zeros_and_ones() {
    let folder = Folder::new();
    let pair = random(100, 27, 10);
    for device in every_device() {
        let builder = Builder::new(Strategy::vamana().degree(12)).knn(33).device(device).seed(2);
        let [found, expected] = [&pair[0], &pair[1]].map(|base| {
            let limits = Limits { cluster_size: Some(50), ..Limits::default() };
            let plan = ClusterPlan::new(&builder, base, &limits).unwrap().unwrap();
            let path = folder.path("x.tagore");
            OutOfCore::new(builder.clone(), plan).build(base, &path).unwrap();
            contents(&Index::open(&path).unwrap())
        });
        assert_eq!(found, expected, "{device}");
    }
}

#[test]
fn synthetic_bits_are_signs() {
    for dim in [5, 24] {
        let synth = Synth::new(300, dim, 11).unwrap();
        let (floats, bits) = (synth.base(), synth.clone().element_type(ElementType::B1).base());
        let signs: Vec<f32> =
            floats.to_f32().unwrap().iter().map(|&x| if x >= 0.0 { 1.0 } else { 0.0 }).collect();
        assert_eq!(bits.to_f32().unwrap(), signs);
        bits.validate(&Progress::silent()).unwrap();
        let folder = Folder::new();
        let path = folder.path("x.b1bin");
        synth.element_type(ElementType::B1).write(0..300, &path, Format::B1bin, &Progress::silent()).unwrap();
        assert_eq!(Vectors::open(&path).unwrap().to_f32().unwrap(), signs);
    }
    let base = Synth::new(3000, 64, 12).unwrap().element_type(ElementType::B1).base();
    let descent =
        Descent::new().knn(20).start(Start::Random).iterations(Iterations::Auto).device(Device::Cpu);
    let graph = descent.build(&base).unwrap();
    let exact = Descent::new().knn(20).start(Start::AllPairs).device(Device::Cpu).build(&base).unwrap();
    let sum = |graph: &tagore::KnnGraph| (0..3000).flat_map(|n| graph.distances(n).to_vec()).sum::<f32>();
    assert!(sum(&graph) < 1.02 * sum(&exact), "{} and {}", sum(&graph), sum(&exact));
}
