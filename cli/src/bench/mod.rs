//! `tagore bench`

mod descent;
mod disk;
mod judge;
mod kernels;
mod outofcore;
mod prune;
mod search;
mod stages;
mod start;

use std::path::PathBuf;

use tagore::{Device, Target};

use crate::error::Result;
use crate::number;
use crate::output::Output;

/// Parameters of the runs of a bench.
#[derive(clap::Args)]
struct Runs {
    /// Seed: the same seed gives the same graphs and indexes
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Device of builds and searches: auto, cpu, cuda or cuda:N
    #[arg(long, default_value = "auto")]
    device: Device,
    /// Builds of each graph or index; the last is reported [default: 1, or 2 on a GPU, where the
    /// first compiles kernels]
    #[arg(long, value_name = "N", value_parser = number::positive)]
    repeat: Option<u32>,
    /// Copy of the JSON lines; - for standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

impl Runs {
    /// Builds of each graph or index of `nodes` nodes.
    fn repeat(&self, nodes: usize) -> Result<u32> {
        Ok(match self.repeat {
            Some(repeat) => repeat,
            None => 1 + u32::from(self.is_on_gpu(nodes)?),
        })
    }

    /// Whether a graph of `nodes` nodes is built on a GPU.
    fn is_on_gpu(&self, nodes: usize) -> Result<bool> {
        Ok(Target::open(self.device, nodes)?.gpu.is_some())
    }
}

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    /// Compare k-NN graphs of several starts and iterations
    Descent(descent::Args),
    /// Build an index out of core, and sum the times of its tasks
    Outofcore(Box<outofcore::Args>),
    /// Compare kinds of index: times of pruning, recall and throughput
    Prune(prune::Args),
    /// Compare searches with several beams, widths and batches
    Search(search::Args),
    /// Open a device and copy a data set to it: the least time of any command with the device
    Start(start::Args),
}

impl Args {
    pub(crate) fn run(self, output: &Output) -> Result<()> {
        match self.what {
            What::Descent(args) => args.run(output),
            What::Outofcore(args) => args.run(output),
            What::Prune(args) => args.run(output),
            What::Search(args) => args.run(output),
            What::Start(args) => args.run(output),
        }
    }
}
