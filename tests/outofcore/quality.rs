//! Recall of indexes built out of core, layers, and groups of equal rows.

use tagore::{
    Builder, Device, Evaluation, Index, Metric, Progress, Strategy, Synth, TestQueries, Vectors, evaluate,
    ground_truth,
};
use tagore_device::random::{Draws, Stage};

use super::{build, plan};
use crate::reference::{check_graph, uniform};

#[test]
fn recall_is_close_to_an_index_built_in_memory() {
    let synth = Synth::new(10_000, 24, 3).unwrap();
    let (base, queries) = (synth.base(), synth.queries(300));
    let truth = ground_truth(&base, &queries, Metric::L2, 10, &Progress::silent()).unwrap();
    let builder = Builder::new(Strategy::vamana()).knn(48).device(Device::Cpu);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("index");
    let stats = build(&builder, &base, plan(&builder, &base, 3_800), &path);
    assert!((8..12).contains(&stats.clusters), "{} clusters", stats.clusters);
    assert_eq!(stats.cache.second_visits, 10_000);
    let index = Index::open(&path).unwrap();
    index.verify(&Progress::silent()).unwrap();
    check_graph(&index, "out of core");
    assert_eq!(index.statistics(&Progress::silent()).unwrap().unreachable, stats.unreachable);
    assert!(stats.unreachable < 100, "{} unreachable nodes", stats.unreachable);
    let judge = |index: &Index| -> Vec<Evaluation> {
        evaluate(index, &base, TestQueries::new(&queries, &truth, 10), &[20, 50, 100], &Progress::silent())
            .unwrap()
    };
    let in_memory = judge(&builder.build(&base).unwrap());
    for (found, expected) in judge(&index).iter().zip(&in_memory) {
        assert!(found.recall > expected.recall - 0.02, "{found:?} for {expected:?}");
    }
}

/// Vectors around `clusters` centres far apart.
pub(super) fn separated(rows: usize, dim: usize, clusters: usize) -> Vectors {
    let draws = Draws::new(11, Stage::Test, 6, 0);
    // About normally distributed: the sum of twelve uniform draws.
    let normal = |place: usize| (0..12).map(|i| draws.unit((12 * place + i) as u64)).sum::<f64>() - 6.0;
    let value = |i: usize| {
        let (row, at) = (i / dim, i % dim);
        let cluster = draws.below((1 << 40) + row as u64, clusters as u64) as usize;
        (normal(cluster * dim + at) + 0.2 * normal(clusters * dim + i)) as f32
    };
    Vectors::from_f32((0..rows * dim).map(value).collect(), dim).unwrap()
}

/// A data set of some rows of `all`.
fn part(all: &Vectors, rows: impl Iterator<Item = usize>) -> Vectors {
    Vectors::from_f32(rows.flat_map(|row| all.row_to_f32(row).unwrap().into_owned()).collect(), all.dim())
        .unwrap()
}

/// Each of the first `rows` rows ten times, shuffled.
pub(super) fn ten_times(all: &Vectors, rows: usize) -> Vectors {
    let draws = Draws::new(3, Stage::Test, 5, 0);
    let mut places: Vec<usize> = (0..10 * rows).map(|row| row % rows).collect();
    for end in (1..places.len()).rev() {
        places.swap(end, draws.below(end as u64, end as u64 + 1) as usize);
    }
    part(all, places.into_iter())
}

/// Compares the recall at beam 100 of an index built in memory with an index built in clusters of a
/// tenth of the vectors. Returns the index built in clusters.
fn compare(builder: &Builder, base: &Vectors, queries: &Vectors, what: &str) -> Index {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("index");
    let stats = build(builder, base, plan(builder, base, base.len() / 10), &path);
    let out = Index::open(&path).unwrap();
    out.verify(&Progress::silent()).unwrap();
    out.check_base(base).unwrap();
    check_graph(&out, what);
    let memory = builder.build(base).unwrap();
    assert_eq!(out.repeated(), memory.repeated(), "{what}");
    assert_eq!(stats.repeated, out.repeated().len() as u64, "{what}");
    let truth = ground_truth(base, queries, out.metric(), 10, &Progress::silent()).unwrap();
    let [expected, found] = [&memory, &out].map(|index| {
        let queries = TestQueries::new(queries, &truth, 10);
        evaluate(index, base, queries, &[100], &Progress::silent()).unwrap()[0].recall
    });
    assert!(found > expected - 0.005, "{what}: {found} for {expected}");
    out
}

#[test]
fn layers_connect_separate_clusters() {
    let all = separated(1900, 24, 20);
    let (base, queries) = (part(&all, 0..1800), part(&all, 1800..1900));
    for (metric, strategy) in [
        (Metric::L2, Strategy::vamana()),
        (Metric::L2, Strategy::cagra()),
        (Metric::Cosine, Strategy::nsg()),
        (Metric::InnerProduct, Strategy::vamana()),
    ] {
        let builder = Builder::new(strategy).metric(metric).knn(32).device(Device::Cpu);
        let what = format!("{} under {metric}", builder.strategy().kind());
        let index = compare(&builder, &base, &queries, &what);
        assert!(!index.layers().is_empty(), "{what}");
        let statistics = index.statistics(&Progress::silent()).unwrap();
        assert!(statistics.unreachable < 20, "{what}: {}", statistics.unreachable);
    }
    // Data in one cluster needs no layers.
    let base = Synth::new(2000, 8, 4).unwrap().base();
    let builder = Builder::new(Strategy::vamana()).knn(24).device(Device::Cpu);
    assert!(compare(&builder, &base, &base, "one cluster").layers().is_empty());
}

#[test]
fn equal_rows_are_grouped() {
    let (all, apart) = (uniform(600, 16, 4), separated(600, 16, 20));
    for (what, all) in [("uniform", &all), ("separate clusters", &apart)] {
        let (base, queries) = (ten_times(all, 400), part(all, 400..600));
        for (metric, strategy) in [
            (Metric::L2, Strategy::vamana()),
            (Metric::Cosine, Strategy::cagra()),
            (Metric::InnerProduct, Strategy::nssg()),
        ] {
            let builder = Builder::new(strategy).metric(metric).knn(32).device(Device::Cpu);
            let what = format!("{} of {what} under {metric}", builder.strategy().kind());
            let index = compare(&builder, &base, &queries, &what);
            assert_eq!(index.repeated().len(), 3600, "{what}");
            for (row, first) in index.repeated().pairs() {
                assert_eq!(index.neighbors(row as usize), index.neighbors(first as usize), "{what}");
            }
        }
    }
}
