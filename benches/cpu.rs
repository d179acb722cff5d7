//! Benchmarks of the CPU backend: `cargo bench`. The tests check the results.
#![expect(clippy::unwrap_used, reason = "a benchmark stops at the first error")]

use divan::Bencher;
use divan::counter::ItemsCount;
use tagore::{
    Builder, Descent, KnnGraph, Metric, Progress, Search, Searcher, Start, Strategy, Synth, Vectors,
};

fn main() {
    divan::main();
}

const ROWS: usize = 10_000;

fn base(dim: usize) -> Vectors {
    Synth::new(ROWS, dim, 1).unwrap().base()
}

fn graph(base: &Vectors) -> KnnGraph {
    Descent::new().knn(64).build(base).unwrap()
}

/// Exact search: 100 queries against all rows, k = 10.
#[divan::bench(args = [32, 96, 128, 960], sample_count = 10)]
fn exact_search_f32(bencher: Bencher<'_, '_>, dim: usize) {
    let base = base(dim);
    let queries = Synth::new(ROWS, dim, 1).unwrap().queries(100);
    bencher
        .counter(ItemsCount::new(100 * ROWS))
        .bench(|| tagore::ground_truth(&base, &queries, Metric::L2, 10, &Progress::silent()).unwrap());
}

/// Both phases of descent: joins, proposals and merges.
#[divan::bench(args = [32, 96], sample_count = 5)]
fn descent(bencher: Bencher<'_, '_>, knn: usize) {
    let base = base(96);
    let descent = Descent::new().knn(knn).start(Start::Random);
    bencher.counter(ItemsCount::new(ROWS)).bench(|| descent.build(&base).unwrap());
}

/// Collect, filter and store, per kind.
#[divan::bench(args = ["cagra", "nsg", "nssg", "vamana", "dpg"], sample_count = 10)]
fn prune(bencher: Bencher<'_, '_>, kind: &str) {
    let base = base(96);
    let graph = graph(&base);
    let builder = Builder::new(kind.parse::<Strategy>().unwrap());
    bencher.counter(ItemsCount::new(ROWS)).bench(|| builder.build_from(&base, &graph).unwrap());
}

/// Beam search: 1,000 queries for 10 neighbours, per beam.
#[divan::bench(args = [20, 50, 100, 200], sample_count = 20)]
fn search(bencher: Bencher<'_, '_>, beam: usize) {
    let synth = Synth::new(ROWS, 96, 1).unwrap();
    let (base, queries) = (synth.base(), synth.queries(1000));
    let index = Builder::new(Strategy::nsg()).build_from(&base, &graph(&base)).unwrap();
    let searcher = Searcher::new(index, base, &Progress::silent()).unwrap();
    let search = Search::new(10).beam(beam);
    bencher
        .counter(ItemsCount::new(1000usize))
        .bench(|| searcher.search(&queries, search, &Progress::silent()).unwrap());
}
