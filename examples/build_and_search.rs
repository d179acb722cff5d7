//! Builds an NSG index, saves it, opens it again and searches it: `cargo run --release --example
//! build_and_search`.
#![expect(clippy::print_stdout, reason = "an example shows its results")]

use tagore::{
    Builder, Index, Metric, Progress, Search, Searcher, Strategy, Synth, TestQueries, ground_truth,
};

fn main() -> tagore::Result<()> {
    let synth = Synth::new(10_000, 64, 42)?;
    let (base, queries) = (synth.base(), synth.queries(100));

    let folder = std::env::temp_dir();
    let path = folder.join("build_and_search.tagore");
    Builder::new(Strategy::nsg()).build(&base)?.save(&path)?;

    let progress = Progress::silent();
    let truth = ground_truth(&base, &queries, Metric::L2, 10, &progress)?;
    let searcher = Searcher::new(Index::open(&path)?, base, &progress)?;
    let result = searcher.search(&queries, Search::new(10).beam(50), &progress)?;
    println!("the first query's neighbours: {:?}", result.ids(0));

    for found in searcher.evaluate(TestQueries::new(&queries, &truth, 10), &[20, 50, 100], &progress)? {
        println!(
            "beam {:>3}: recall@10 {:.4}, {:.0} queries per second",
            found.beam, found.recall, found.qps
        );
    }
    Ok(())
}
