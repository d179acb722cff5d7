//! The `tagore` program; the command is the library beside it.

use std::process::ExitCode;

use tagore_cli::OrError;

#[global_allocator]
static ALLOCATOR: OrError = OrError;

fn main() -> ExitCode {
    ExitCode::from(tagore_cli::run(std::env::args_os()))
}
