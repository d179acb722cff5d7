//! Indexes fitted to queries that do not look like their rows.

use tagore::outofcore::{ClusterPlan, Limits, OutOfCore};
use tagore::{
    Builder, Compression, Device, Evaluation, IdSet, Index, IndexUpdate, Metric, Progress, QueryKind,
    QueryStats, Searcher, Strategy, Synth, SynthKind, TestQueries, Vectors, ground_truth,
};

use crate::gpu::devices;

const ROWS: usize = 5000;
const DIM: usize = 64;

/// Rows, queries like them, a sample of queries from elsewhere, and others of these.
struct Data {
    base: Vectors,
    own: Vectors,
    sample: Vectors,
    others: Vectors,
}

fn data(kind: QueryKind) -> Data {
    data_of(ROWS, DIM, kind)
}

fn data_of(rows: usize, dim: usize, kind: QueryKind) -> Data {
    let synth = Synth::new(rows, dim, 5).unwrap();
    let (base, own) = (synth.base(), synth.queries(200));
    let synth = synth.query_kind(kind);
    let first = rows as u64;
    let rows = |from: u64, to: u64| synth.rows(first + from..first + to).unwrap();
    Data { base, own, sample: rows(0, 1000), others: rows(1000, 1200) }
}

fn builder(strategy: Strategy, metric: Metric) -> Builder {
    Builder::new(strategy).metric(metric).device(Device::Cpu)
}

fn fitted(builder: &Builder, data: &Data) -> (Index, QueryStats) {
    let builder = builder.clone().queries(data.sample.clone());
    let (index, stats) = builder.build_with_stats(&data.base, None).unwrap();
    index.verify(&Progress::silent()).unwrap();
    (index, stats.queries.unwrap())
}

fn evaluated(index: &Index, base: &Vectors, queries: &Vectors, beam: usize) -> Evaluation {
    let silent = Progress::silent();
    let truth = ground_truth(base, queries, index.metric(), 10, &silent).unwrap();
    let searcher = Searcher::new(index.clone(), base.clone(), &silent).unwrap().device(Device::Cpu).unwrap();
    searcher.evaluate(TestQueries::new(queries, &truth, 10), &[beam], &silent).unwrap().remove(0)
}

/// Searches find more in the `fitted` index than in a `plain` one at equal distances, and queries
/// like the rows about as much.
fn check_gain(plain: &Index, fitted: &Index, data: &Data, what: &str) {
    let [before, after] = [plain, fitted].map(|index| evaluated(index, &data.base, &data.others, 10));
    let what = format!("{what}: {before:?}, {after:?}");
    assert!(after.recall > 0.93 && 1.0 - after.recall < 0.4 * (1.0 - before.recall), "{what}");
    // Entry points that were added were not needed everywhere.
    assert!(after.distances < 1.2 * before.distances, "{what}");
    let [before, after] = [plain, fitted].map(|index| evaluated(index, &data.base, &data.own, 32));
    let what = format!("own: {before:?}, {after:?}");
    assert!(after.recall > before.recall - 0.005 && after.distances < 1.03 * before.distances, "{what}");
}

#[test]
fn searches_from_elsewhere_find_more_in_each_kind_and_metric() {
    let data = data(QueryKind::Tower);
    for (strategy, metric) in [
        (Strategy::cagra(), Metric::L2),
        (Strategy::nsg(), Metric::L2),
        (Strategy::vamana(), Metric::Cosine),
        (Strategy::dpg(), Metric::InnerProduct),
    ] {
        let builder = builder(strategy, metric);
        let plain = builder.build(&data.base).unwrap();
        let (index, stats) = fitted(&builder, &data);
        let what = format!("{} {metric}: {stats:?}", index.kind());
        assert_eq!((stats.queries, stats.held_out), (1000, 200), "{what}");
        assert!(stats.edges > 0, "{what}");
        assert_eq!(index.max_degree(), plain.max_degree(), "{what}");
        check_gain(&plain, &index, &data, &what);
    }
}

#[test]
fn an_index_of_a_sample_that_tells_nothing_is_the_plain_one() {
    // Queries like the rows need neither edges nor entry points.
    let data = Data { sample: Synth::new(ROWS, DIM, 5).unwrap().queries(1000), ..data(QueryKind::Rows) };
    let builder = builder(Strategy::vamana(), Metric::L2);
    let (index, stats) = fitted(&builder, &data);
    assert_eq!((stats.edges, stats.recall), (0, stats.recall_before), "{stats:?}");
    let plain = builder.build(&data.base).unwrap();
    assert_eq!(index.padded_rows().unwrap(), plain.padded_rows().unwrap());
}

#[test]
fn a_fitted_index_is_the_same_on_any_number_of_threads_and_on_the_emulator() {
    // The emulator takes long for more.
    let data = data_of(500, 32, QueryKind::Tower);
    let builder = builder(Strategy::vamana().degree(12), Metric::L2).knn(16).queries(data.sample.clone());
    let graph = builder.knn_graph(&data.base).unwrap();
    let (index, stats) = builder.build_with_stats(&data.base, Some(&graph)).unwrap();
    assert!(stats.queries.as_ref().is_some_and(|stats| stats.edges > 0), "{:?}", stats.queries);
    for threads in [1, 3] {
        let pool = tagore::thread_pool(Some(threads)).unwrap();
        let again = pool.install(|| builder.build_from(&data.base, &graph)).unwrap();
        assert_eq!(again.padded_rows().unwrap(), index.padded_rows().unwrap(), "{threads} threads");
        assert_eq!(again.entries(), index.entries(), "{threads} threads");
    }
    for device in devices() {
        let there = builder.clone().device(device).build_from(&data.base, &graph).unwrap();
        assert_eq!(there.padded_rows().unwrap(), index.padded_rows().unwrap(), "{device}");
        assert_eq!(there.entries(), index.entries(), "{device}");
    }
}

#[test]
fn codes_chosen_rows_repeated_rows_and_updates_take_a_sample() {
    let data = data(QueryKind::Tower);
    let builder = builder(Strategy::nsg(), Metric::L2);
    let gain = |builder: Builder, base: &Vectors, what: &str| {
        let builder = builder.queries(data.sample.clone());
        let (index, stats) = builder.build_with_stats(base, None).unwrap();
        index.verify(&Progress::silent()).unwrap();
        let stats = stats.queries.unwrap();
        assert!(stats.edges > 0 && stats.recall[0] > stats.recall_before[0], "{what}: {stats:?}");
        index
    };
    gain(builder.clone().compressed(Compression::Int8), &data.base, "codes");
    let some = IdSet::from_ids(ROWS, (0..ROWS as u32).filter(|row| row % 5 > 0)).unwrap();
    let index = gain(builder.clone().among(some.clone()), &data.base, "chosen rows");
    assert!((0..ROWS).filter(|row| row % 5 == 0).all(|row| index.neighbors(row).is_empty()));
    // Every row twice.
    let rows: Vec<Vec<f32>> =
        (0..2 * ROWS).map(|row| data.base.row_to_f32(row / 2).unwrap().to_vec()).collect();
    let index = gain(builder.clone(), &Vectors::from_rows(&rows).unwrap(), "repeated rows");
    assert_eq!(index.repeated().len(), ROWS);
    let first = Vectors::from_rows(rows.into_iter().step_by(2).take(4500).collect::<Vec<_>>()).unwrap();
    let plain = builder.build(&first).unwrap();
    let update = IndexUpdate::with(&plain, builder.queries(data.sample.clone()));
    let (index, stats) = update.run(&data.base).unwrap();
    let what = format!("{:?}", stats.build.queries);
    assert!(stats.mended.is_some() && stats.build.queries.is_some_and(|stats| stats.edges > 0), "{what}");
    let (old, new) =
        (evaluated(&plain, &first, &data.others, 16), evaluated(&index, &data.base, &data.others, 16));
    assert!(1.0 - new.recall < 0.7 * (1.0 - old.recall), "{old:?}, {new:?}, {what}");
}

#[test]
fn an_index_built_out_of_core_is_fitted_too() {
    let data = data(QueryKind::Tower);
    let folder = tempfile::tempdir().unwrap();
    for metric in [Metric::L2, Metric::Cosine] {
        let builder = builder(Strategy::vamana(), metric);
        let limits = Limits { cluster_size: Some(1000), ..Limits::default() };
        let build = |builder: Builder, name: &str| {
            let path = folder.path().join(format!("{name}-{metric}.tagore"));
            let plan = ClusterPlan::new(&builder, &data.base, &limits).unwrap().unwrap();
            let stats = OutOfCore::new(builder, plan).build(&data.base, &path).unwrap();
            let index = Index::open(&path).unwrap();
            index.verify(&Progress::silent()).unwrap();
            (index, stats.queries)
        };
        let (plain, none) = build(builder.clone(), "plain");
        let (index, stats) = build(builder.queries(data.sample.clone()), "fitted");
        assert!(none.is_none() && stats.as_ref().is_some_and(|stats| stats.edges > 0), "{stats:?}");
        check_gain(&plain, &index, &data, &format!("out of core, {metric}: {stats:?}"));
    }
}

#[test]
fn a_wrong_sample_is_refused_before_the_build() {
    let base = Synth::new(500, 8, 1).unwrap().base();
    let error = |sample: Vectors| {
        let builder = Builder::new(Strategy::nsg()).device(Device::Cpu).queries(sample);
        builder.build(&base).unwrap_err().to_string()
    };
    let queries = |count: usize, dim: usize| Synth::new(500, dim, 1).unwrap().queries(count);
    assert_eq!(
        error(queries(99, 8)),
        "queries: found 99 queries, expected at least 100: fewer do not show what others look like"
    );
    assert_eq!(error(queries(100, 9)), "queries: found dimension 9, expected 8 as in the base");
    let mut rows = vec![vec![1.0; 8]; 100];
    rows[7][3] = f32::NAN;
    assert!(error(Vectors::from_rows(&rows).unwrap()).contains("found NaN"));
    // A base of fewer rows than a list has.
    let few = Synth::of_kind(SynthKind::Uniform, 20, 8, 1).unwrap().base();
    let builder = Builder::new(Strategy::nsg()).device(Device::Cpu).queries(queries(100, 8));
    builder.build(&few).unwrap().verify(&Progress::silent()).unwrap();
}
