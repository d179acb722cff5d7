//! Builds an index with a custom pruning rule and searches it: `cargo run --release` in this
//! folder. The optional argument is a device: `cpu`, `cuda` or `emulated`.

use custom_rule_device::Cone;
use tagore::{Builder, Device, Metric, Progress, Strategy, Synth, TestQueries, evaluate, ground_truth};

/// The rule's kernels, if `build.rs` compiled them; without them pruning runs on the CPU.
#[cfg(has_ptx)]
const PTX: Option<&str> = Some(include_str!(env!("CUSTOM_RULE_PTX")));
#[cfg(not(has_ptx))]
const PTX: Option<&str> = None;

fn main() -> Result<(), tagore::Error> {
    let device = std::env::args().nth(1).map_or(Ok(Device::auto()), |name| name.parse())?;
    // The emulator is slow.
    let rows = if device == Device::Emulated { 300 } else { 10_000 };
    let synth = Synth::new(rows, 32, 7)?;
    let (base, queries) = (synth.base(), synth.queries(100));
    let truth = ground_truth(&base, &queries, Metric::L2, 10, &Progress::silent())?;
    println!("kernels of the rule: {}", if PTX.is_some() { "PTX" } else { "none, it runs on the CPU" });
    for strategy in [Strategy::vamana(), Strategy::custom("cone", Cone { alpha: 1.2 }, PTX, 70.0)?] {
        let index = Builder::new(strategy).device(device).build(&base)?;
        for found in
            evaluate(&index, &base, TestQueries::new(&queries, &truth, 10), &[20, 50], &Progress::silent())?
        {
            println!(
                "{:>6}: mean degree {:.1}, beam {}, recall@10 {:.4}",
                index.kind(),
                index.mean_degree(),
                found.beam,
                found.recall
            );
        }
    }
    Ok(())
}
