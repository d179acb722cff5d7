//! The `tagore` command: arguments, and one file per subcommand.

mod bench;
mod build;
mod content;
mod convert;
mod demo;
mod doctor;
mod error;
mod eval;
mod files;
mod groundtruth;
mod inspect;
mod knn;
mod laps;
mod limits;
mod options;
mod out_of_memory;
mod output;
mod plan;
mod report;
mod search;
mod signals;
mod synth;
mod tasks;
mod timeline;

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Parser, Subcommand};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::output::Output;

/// Build, search and measure graph indexes for approximate nearest-neighbour search
#[derive(Parser)]
#[command(name = "tagore", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Print one JSON object per line on standard output
    #[arg(long, global = true)]
    json: bool,
    /// Worker threads, 1 to 1024 [default: one per core]
    #[arg(long, global = true, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Log to standard error at this level: error, warn, info, debug or trace
    #[arg(long, global = true, value_name = "LEVEL")]
    log: Option<tracing::Level>,
}

#[derive(Subcommand)]
enum Command {
    /// Build a graph index of a data set
    Build(Box<build::Args>),
    /// Build the k-nearest-neighbour graph alone
    Knn(knn::Args),
    /// Find the nearest neighbours of queries with an index
    Search(search::Args),
    /// Measure recall and throughput of an index at several beam widths
    Eval(eval::Args),
    /// Find the exact nearest neighbours of queries
    Groundtruth(groundtruth::Args),
    /// Make a synthetic data set
    Synth(synth::Args),
    /// Convert between formats of vectors, of indexes, or of ids
    Convert(convert::Args),
    /// Describe a file and check its content
    Inspect(inspect::Args),
    /// Estimate memory, disk and time of a build
    Plan(plan::Args),
    /// Run benchmarks of single stages
    Bench(bench::Args),
    /// Describe the CPU and GPUs of this machine
    Doctor(doctor::Args),
    /// Make a data set, build five kinds of index and compare them
    Demo(demo::Args),
}

/// Runs the command line of this process. Exit codes: 0 done, 1 failed or interrupted, 2 wrong
/// usage.
fn main() -> ExitCode {
    tagore::return_large_buffers();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    let output = Output::new(cli.json);
    log(cli.log, matches!(&cli.command, Command::Build(args) if args.has_timeline()));
    if let Err(error) = signals::handle(output.progress()) {
        let limit = "raise the limit of processes (ulimit -u, pids)";
        output.error(format_args!("the thread for signals: {error}: {limit}"));
        return ExitCode::FAILURE;
    }
    let threads = cli.threads.map_or(0, usize::from);
    if let Err(error) = rayon::ThreadPoolBuilder::new().num_threads(threads).build_global() {
        output.error(format_args!(
            "threads: {error}: lower --threads, or raise the limit of processes (ulimit -u, pids) or memory (ulimit -v)"
        ));
        return ExitCode::FAILURE;
    }
    let done = match cli.command {
        Command::Build(args) => args.run(&output),
        Command::Knn(args) => args.run(&output),
        Command::Search(args) => args.run(&output),
        Command::Eval(args) => args.run(&output),
        Command::Groundtruth(args) => args.run(&output),
        Command::Synth(args) => args.run(&output),
        Command::Convert(args) => args.run(&output),
        Command::Inspect(args) => args.run(&output),
        Command::Plan(args) => args.run(&output),
        Command::Bench(args) => args.run(&output),
        Command::Doctor(args) => args.run(&output),
        Command::Demo(args) => args.run(&output),
    };
    output.finish();
    match done.and_then(|()| output.check()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            output.error(&error);
            error.exit_code()
        }
    }
}

/// Logs to standard error at `level`, and records stages for a timeline.
fn log(level: Option<tracing::Level>, timeline: bool) {
    let lines = level.map(|level| {
        let lines = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(std::io::stderr);
        lines.with_filter(LevelFilter::from_level(level))
    });
    let stages = timeline.then(|| timeline::record().with_filter(LevelFilter::DEBUG));
    if lines.is_some() || stages.is_some() {
        tracing_subscriber::registry().with(lines).with(stages).init();
    }
}

/// Prints help in full, and an error of clap in one line.
fn usage(error: &clap::Error) -> ExitCode {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) || !error.use_stderr() {
        return if error.print().is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        // A closed standard error is ignored: there is nowhere to report it.
        let _ = error.print();
        return ExitCode::from(2);
    }
    let text = error.to_string();
    let first: Vec<&str> = text.lines().take_while(|line| !line.trim().is_empty()).map(str::trim).collect();
    Output::new(false).error(first.join(" ").trim_start_matches("error: "));
    ExitCode::from(2)
}
