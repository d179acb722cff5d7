//! `tagore bench`

mod descent;

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
}

impl Args {
    pub(crate) fn run(self, output: &Output) -> Result<()> {
        match self.what {
            What::Descent(args) => args.run(output),
        }
    }
}
