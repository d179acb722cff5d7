//! `tagore bench`

mod descent;
mod dispatch;
mod judge;
mod kernels;
mod outofcore;
mod prune;
mod search;

use std::path::PathBuf;

use tagore::{Device, Result};

use super::output::Output;

/// How builds are run.
#[derive(clap::Args)]
struct Runs {
    /// The same seed gives the same graphs and indexes
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Where they are built and judged: auto, cpu, cuda or cuda:N
    #[arg(long, default_value = "auto")]
    device: Device,
    /// Builds of each, of which the last is reported: the first compiles kernels
    #[arg(long, default_value_t = 2, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
    /// Where the JSON lines go as well
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    /// Build k-NN graphs from several starts with several iterations, and compare them
    Descent(descent::Args),
    /// Put the clusters of a large data set in order, and count what a cache of them saves
    Dispatch(dispatch::Args),
    /// Build an index out of core, and sum up what its tasks took
    Outofcore(Box<outofcore::Args>),
    /// Build indexes of several kinds, and compare what pruning takes and what searching them finds
    Prune(prune::Args),
    /// Search indexes by beams, steps and batches of several sizes, and compare them
    Search(search::Args),
}

impl Args {
    pub(crate) fn run(self, output: &Output) -> Result<()> {
        match self.what {
            What::Descent(args) => args.run(output),
            What::Dispatch(args) => args.run(output),
            What::Outofcore(args) => args.run(output),
            What::Prune(args) => args.run(output),
            What::Search(args) => args.run(output),
        }
    }
}
