//! Vectors of bf16: builds and searches give what the same values give as f32.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use half::bf16;
use tagore::outofcore::{ClusterPlan, Limits, OutOfCore};
use tagore::{
    Builder, Device, ElementType, ExactSearch, GroundTruth, Index, IndexFormat, Metric, Progress, Search,
    Searcher, Strategy, Vectors,
};

use crate::gpu::devices;
use crate::reference::uniform;

const METRICS: [Metric; 3] = [Metric::L2, Metric::InnerProduct, Metric::Cosine];

/// Rows of bf16, and the same values as f32.
fn both(rows: usize, dim: usize, seed: u64) -> [Vectors; 2] {
    let values: Vec<bf16> =
        uniform(rows, dim, seed).to_f32().unwrap().into_iter().map(bf16::from_f32).collect();
    let floats = values.iter().map(|x| x.to_f32()).collect();
    [Vectors::from_bf16(values, dim).unwrap(), Vectors::from_f32(floats, dim).unwrap()]
}

/// All that an index holds, except for the fingerprint of its base.
fn contents(index: &Index) -> (Vec<Vec<u32>>, Vec<u32>, usize) {
    let rows = (0..index.len()).map(|node| index.neighbors(node).to_vec()).collect();
    (rows, index.entries().to_vec(), index.layers().len())
}

fn bits(truth: &GroundTruth) -> Vec<(Vec<u32>, Vec<u32>)> {
    let row = |query| {
        let distances = truth.distances(query).unwrap().iter().map(|d| d.to_bits()).collect();
        (truth.ids(query).to_vec(), distances)
    };
    (0..truth.len()).map(row).collect()
}

fn every_device() -> impl Iterator<Item = Device> {
    [Device::Cpu].into_iter().chain(devices())
}

/// The metrics of case `number`: one for an emulated device, which is slow.
fn metrics(device: Device, number: usize) -> Vec<Metric> {
    if device == Device::Emulated { vec![METRICS[number % 3]] } else { METRICS.to_vec() }
}

#[test]
fn exact_search_is_that_of_the_same_values_as_f32() {
    let shapes = [(40, 1), (300, 7), (129, 33), (70, 301), (40, 1024)];
    for (number, (rows, dim)) in shapes.into_iter().enumerate() {
        let ([base, wide], [queries, wide_queries]) = (both(rows, dim, 1), both(9, dim, 2));
        let cases = every_device().flat_map(|d| metrics(d, number).into_iter().map(move |m| (m, d)));
        for (metric, device) in cases {
            let search = ExactSearch::new(10).metric(metric).device(device);
            let (found, _) = search.run(&base, &queries).unwrap();
            let (expected, _) = search.run(&wide, &wide_queries).unwrap();
            assert_eq!(bits(&found), bits(&expected), "{rows} x {dim}, {metric}, {device}");
        }
    }
}

#[test]
fn graphs_and_answers_are_those_of_the_same_values_as_f32() {
    let ([base, wide], [_, queries]) = (both(48, 19, 3), both(6, 19, 4));
    for ((number, strategy), device) in
        Strategy::all().into_iter().enumerate().flat_map(|s| every_device().map(move |d| (s.clone(), d)))
    {
        for metric in metrics(device, number) {
            let case = format!("{strategy:?}, {metric}, {device}");
            let builder = Builder::new(strategy.clone()).knn(33).metric(metric).device(device).seed(5);
            let [index, expected] = [&base, &wide].map(|base| Arc::new(builder.build(base).unwrap()));
            assert_eq!(contents(&index), contents(&expected), "{case}");
            assert_eq!(index.fingerprint().element, ElementType::Bf16, "{case}");
            let silent = Progress::silent();
            let search = |index: &Arc<Index>, base: &Vectors| {
                let searcher = Searcher::new(Arc::clone(index), base.clone(), &silent).unwrap();
                let one = searcher.search_one(&queries.row_to_f32(0).unwrap(), Search::new(5)).unwrap();
                let many =
                    searcher.device(device).unwrap().search(&queries, Search::new(5).beam(32), &silent);
                let many = many.unwrap();
                let rows = (0..6).map(|query| format!("{:?} {:?}", many.ids(query), many.distances(query)));
                (format!("{one:?}"), rows.collect::<Vec<_>>())
            };
            assert_eq!(search(&index, &base), search(&expected, &wide), "{case}");
        }
    }
}

#[test]
fn an_index_of_bf16_is_saved_opened_and_exported() {
    let folder = tempfile::tempdir().unwrap();
    let [base, wide] = both(200, 8, 7);
    let builder = Builder::new(Strategy::vamana());
    let path = folder.path().join("x.tagore");
    builder.build(&base).unwrap().save(&path).unwrap();
    let index = Index::open(&path).unwrap();
    index.check_base(&base).unwrap();
    assert!(index.check_base(&wide).is_err());
    // Formats of other systems hold f32: the same bytes as from the f32 base.
    let expected = builder.build(&wide).unwrap();
    // The native file names the type of its base.
    for format in IndexFormat::ALL.into_iter().filter(|&format| format != IndexFormat::Tagore) {
        let [from_bf16, from_f32] =
            ["a", "b"].map(|name| folder.path().join(name).join(format!("x.{format}")));
        let of = |index: &Index, base: &Vectors, path: &Path| {
            let folder = path.parent().unwrap();
            fs::create_dir_all(folder).unwrap();
            // Vamana's rows differ in length, which npy refuses.
            let saved = index.export(format).base(base).save(path).is_ok();
            let mut files: Vec<PathBuf> =
                fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
            files.sort();
            let bytes: Vec<Vec<u8>> = files.iter().map(|file| fs::read(file).unwrap()).collect();
            (saved, bytes)
        };
        let [found, expected] = [of(&index, &base, &from_bf16), of(&expected, &wide, &from_f32)];
        assert!(found.0 || format == IndexFormat::Npy, "{format}");
        assert_eq!(found, expected, "{format}");
    }
}

#[test]
fn npy_holds_it_as_plain_values_of_two_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.npy");
    let [base, wide] = both(5, 3, 8);
    base.save(&path).unwrap();
    let bytes = fs::read(&path).unwrap();
    let name = bytes.windows(5).position(|window| window == b"'<V2'").unwrap() + 1;
    let values: Vec<u8> =
        wide.to_f32().unwrap().iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes()).collect();
    assert_eq!(bytes[bytes.len() - 30..], values);
    // `numpy.save` writes either name, by its version. Values of other sizes are not bf16.
    for (first, size) in [(b'<', b'2'), (b'|', b'2'), (b'<', b'4'), (b'|', b'1')] {
        let mut bytes = bytes.clone();
        (bytes[name], bytes[name + 2]) = (first, size);
        fs::write(&path, bytes).unwrap();
        match Vectors::open(&path) {
            Ok(read) => assert_eq!((size, read.to_f32().unwrap()), (b'2', wide.to_f32().unwrap())),
            Err(error) => {
                let (found, text) = (char::from(first), error.to_string());
                assert_ne!(size, b'2', "{text}");
                assert!(text.contains(&format!("of {found}V{}", char::from(size))), "{text}");
                assert!(text.ends_with("of <f4, <f2, <V2, |u1, |i1, |V2"), "{text}");
            }
        }
    }
}

#[test]
fn values_are_checked_as_those_of_f32() {
    let of = |values: [f32; 2]| Vectors::from_bf16(values.map(bf16::from_f32).to_vec(), 2).unwrap();
    let error = of([1.0, f32::INFINITY]).validate(&Progress::silent()).unwrap_err().to_string();
    assert_eq!(error, "vectors: row 0, dimension 1: found inf, expected a finite number");
    let truth = |base: &Vectors| tagore::ground_truth(base, base, Metric::L2, 1, &Progress::silent());
    let error = truth(&of([1e30, 1.0])).unwrap_err().to_string();
    assert!(error.contains("for dimension 2 under l2: scale the data down"), "{error}");
    let error = truth(&of([1e-30, 0.0])).unwrap_err().to_string();
    assert!(error.ends_with("under l2: scale the data up"), "{error}");
}

#[test]
fn a_build_out_of_core_is_that_of_the_same_values_as_f32() {
    let folder = tempfile::tempdir().unwrap();
    let [base, wide] = both(100, 12, 9);
    for device in every_device() {
        for metric in metrics(device, 0) {
            let builder = Builder::new(Strategy::vamana()).knn(33).metric(metric).device(device).seed(2);
            let built = [&base, &wide].map(|base| {
                let limits = Limits { cluster_size: Some(50), ..Limits::default() };
                let plan = ClusterPlan::new(&builder, base, &limits).unwrap().unwrap();
                let path = folder.path().join("x.tagore");
                OutOfCore::new(builder.clone(), plan).build(base, &path).unwrap();
                contents(&Index::open(&path).unwrap())
            });
            assert_eq!(built[0], built[1], "{metric}, {device}");
        }
    }
}
