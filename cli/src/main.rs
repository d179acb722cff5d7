//! The `tagore` program; the command is the library beside it.

use std::process::ExitCode;
use std::thread::Builder;

use tagore_cli::OrError;

#[global_allocator]
static ALLOCATOR: OrError = OrError;

/// Bytes of the stack, whatever `ulimit -s` is: it may be too small for the command.
const STACK: usize = 8 << 20;

fn main() -> ExitCode {
    let run = || ExitCode::from(tagore_cli::run(std::env::args_os()));
    let thread = Builder::new().stack_size(STACK).spawn(run);
    thread.map_or_else(|_| run(), |thread| thread.join().unwrap_or(ExitCode::FAILURE))
}
