//! Tasks of a checkout: `cargo xtask install`.
#![expect(clippy::print_stderr, clippy::print_stdout, reason = "a program")]

mod install;

use std::process::ExitCode;

const USAGE: &str = "\
Usage: cargo xtask install [--prefix DIR] [--libdir DIR] [--includedir DIR] [--destdir DIR] [--built DIR]

Builds libtagore, or takes it from the folder of a release build, and installs it with tagore.h, tagore.hpp, tagore.pc and
a CMake config.

  --prefix DIR      where it will be used from [default: /usr/local]
  --libdir DIR      libraries, below the prefix unless absolute [default: lib]
  --includedir DIR  headers, below the prefix unless absolute [default: include]
  --destdir DIR     a root for packagers, before all other paths [default: $DESTDIR]";

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let done = match arguments.next().as_deref() {
        Some("install") => install::run(arguments),
        Some("--help" | "-h") => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Some(other) => Err(format!("found the task {other}, expected install")),
        None => Err("no task, expected install".to_owned()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error} (cargo xtask --help)");
            ExitCode::FAILURE
        }
    }
}
