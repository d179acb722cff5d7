//! The `tagore` command.

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    tagore::return_large_buffers();
    cli::main()
}
