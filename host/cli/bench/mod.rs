//! `tagore bench`

mod descent;
mod dispatch;
mod kernels;
mod prune;
mod search;

use tagore::Result;

use super::output::Output;

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
            What::Prune(args) => args.run(output),
            What::Search(args) => args.run(output),
        }
    }
}
