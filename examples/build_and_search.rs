//! Builds an NSG index, saves it, opens it again and searches it: `cargo run --release --example
//! build_and_search`.
#![expect(clippy::print_stdout, reason = "an example shows its results")]

use tagore::{
    Builder, Index, Metric, Progress, Strategy, Synth, TestQueries, evaluate, ground_truth, search,
};

fn main() -> tagore::Result<()> {
    let synth = Synth::new(10_000, 64, 42)?;
    let (base, queries) = (synth.base(), synth.queries(100));

    let folder = std::env::temp_dir();
    let path = folder.join("build_and_search.tagore");
    Builder::new(Strategy::nsg()).build(&base)?.save(&path)?;

    let index = Index::open(&path)?;
    let progress = Progress::silent();
    let result = search(&index, &base, &queries, 10, 50, &progress)?;
    println!("the first query's neighbours: {:?}", result.ids(0));

    let truth = ground_truth(&base, &queries, Metric::L2, 10, &progress)?;
    for found in evaluate(&index, &base, TestQueries::new(&queries, &truth, 10), &[20, 50, 100], &progress)? {
        println!(
            "beam {:>3}: recall@10 {:.4}, {:.0} queries per second",
            found.beam, found.recall, found.qps
        );
    }
    Ok(())
}
