//! The `tagore` command: arguments, and one file per subcommand. It is a library, so that the
//! program and the Python package run the same command.

mod bar;
mod bench;
mod build;
mod command;
mod content;
mod convert;
mod demo;
mod doctor;
mod draw;
mod error;
mod eval;
mod files;
mod groundtruth;
mod inspect;
mod knn;
mod laps;
mod limits;
mod live;
mod merge;
mod metric;
mod number;
mod options;
mod out_of_memory;
mod output;
mod plan;
mod read;
mod report;
mod results;
mod search;
mod shell;
mod signals;
mod spool;
mod synth;
mod task;
mod tasks;
mod timeline;
mod update;
mod usage;
mod walked;
mod warnings;

use std::ffi::OsString;
use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, Mutex, PoisonError};

use clap::error::ErrorKind;
use clap::{FromArgMatches, Parser, Subcommand};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

pub use draw::report_page;
pub use out_of_memory::OrError;

use crate::output::{Output, STANDARD};
use crate::warnings::Warnings;

/// Exit codes: done, failed, wrong usage, and interrupted by a signal.
const DONE: u8 = 0;
const FAILED: u8 = 1;
const WRONG_USAGE: u8 = 2;
const INTERRUPTED: u8 = 130;

/// Build, search and measure graph indexes for approximate nearest-neighbour search
#[derive(Parser)]
#[command(name = "tagore", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Print one JSON object per line on standard output
    #[arg(long, global = true, help_heading = "Everywhere")]
    json: bool,
    /// Print no progress and no notes: results, warnings and errors alone
    #[arg(short, long, global = true, help_heading = "Everywhere")]
    quiet: bool,
    /// Worker threads, 1 to 1024, at most four per core [default: one per core]
    #[arg(
        long,
        global = true,
        hide_short_help = true,
        help_heading = "Everywhere",
        value_name = "N",
        value_parser = number::within::<u16>(1..=1024)
    )]
    threads: Option<u16>,
    /// Log to standard error at this level: error, warn, info, debug or trace
    #[arg(
        long,
        global = true,
        hide_short_help = true,
        help_heading = "Everywhere",
        value_name = "LEVEL",
        value_parser = level
    )]
    log: Option<tracing::Level>,
}

#[derive(Subcommand)]
enum Command {
    /// Build a graph index of a data set
    Build(Box<build::Args>),
    /// Bring an index up to date with its data set: rows inserted, removed, replaced
    Update(update::Args),
    /// Merge indexes over different rows into one over all of them
    Merge(merge::Args),
    /// Keep an index in a folder whose rows come and go: insert, remove, search
    Live(live::Args),
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
    Plan(Box<plan::Args>),
    /// Build out of core as tasks on a shared folder: on a cluster of machines
    Task(task::Args),
    /// Run benchmarks of single stages
    Bench(bench::Args),
    /// Describe the CPU and GPUs of this machine
    Doctor(doctor::Args),
    /// Make a data set, build five kinds of index and compare them
    Demo(demo::Args),
    /// Print the completions of a shell
    Completions(shell::Completions),
    /// Write the manual pages
    #[command(hide = true)]
    Man(shell::Man),
}

fn level(name: &str) -> Result<tracing::Level, String> {
    name.parse().map_err(|_| "expected error, warn, info, debug or trace".to_owned())
}

/// Runs the command line `args`, the name of the program first, and returns its exit code: 0 done,
/// 1 failed, 2 wrong usage, 130 interrupted.
///
/// The process belongs to the command: it handles signals, builds rayon's global pool and installs
/// the log, so a process runs one command.
pub fn run(args: impl IntoIterator<Item = OsString>) -> u8 {
    ask_for_few_queues();
    refuse_small_stacks();
    return_large_buffers();
    let args: Vec<OsString> = args.into_iter().collect();
    let parsed =
        command::command().try_get_matches_from(&args).and_then(|matches| Cli::from_arg_matches(&matches));
    let cli = match parsed {
        Ok(cli) => cli,
        Err(error) => return wrong_usage(&error, &args),
    };
    let output = Arc::new(Output::new(cli.json, cli.quiet));
    read::note_to(&output);
    log(cli.log, matches!(&cli.command, Command::Build(args) if args.has_timeline()), &output);
    if let Err(error) = signals::handle(output.progress()) {
        let limit = "raise the limit of processes (ulimit -u, pids)";
        output.error(format_args!("the thread for signals: {error}: {limit}"));
        return FAILED;
    }
    spool::stop_with(output.progress());
    if let Err(error) = tagore::start_threads(cli.threads.map(usize::from)) {
        output.error(error);
        return FAILED;
    }
    let done = or_changed_file(|| cli.command.run(&output));
    output.finish();
    let code = match done.and_then(|()| output.check()) {
        Ok(()) => DONE,
        // Nobody reads what the work was for.
        Err(_) if output.is_closed() && output.progress().is_cancelled() => DONE,
        Err(error) => {
            output.error(&error);
            error.exit_code()
        }
    };
    spool::remove();
    code
}

/// Runs `work`. A panic is an error if another process has changed a file while it was read: values
/// that had been checked are others then.
fn or_changed_file(work: impl FnOnce() -> error::Result<()>) -> error::Result<()> {
    static CHANGED: Mutex<Option<tagore::Error>> = Mutex::new(None);
    let changed = || CHANGED.lock().unwrap_or_else(PoisonError::into_inner);
    // While the hook runs, the files are still mapped.
    let hook = panic::take_hook();
    panic::set_hook(Box::new(move |panic| match tagore::changed_while_read() {
        Some(error) => *changed() = Some(error),
        None => hook(panic),
    }));
    panic::catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| match changed().take() {
        Some(error) => Err(error.into()),
        None => panic::resume_unwind(panic),
    })
}

/// Asks the CUDA driver for two queues of work to each device, unless the user asks for another
/// number. With its default of eight it opens a device 40 ms later, and closes it 30 ms later.
fn ask_for_few_queues() {
    const NAME: &str = "CUDA_DEVICE_MAX_CONNECTIONS";
    if std::env::var_os(NAME).is_none() {
        // SAFETY: the process belongs to the command, and no other thread of it uses the
        // environment yet.
        unsafe { std::env::set_var(NAME, "2") };
    }
}

/// Tells glibc's allocator to return large buffers to the system when they are freed, as the plan
/// of the host's memory assumes. By default it keeps freed buffers of up to 32 MiB among those in
/// use; a build then took up to a sixth more than its buffers. Smaller buffers are cheaper to keep
/// than to map anew.
fn return_large_buffers() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        const LARGE: libc::c_int = 2 << 20;
        // SAFETY: a setting of the allocator, which may change at any time.
        unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE) };
    }
}

/// Takes stacks of the usual size for new threads where `RUST_MIN_STACK` asks for smaller ones.
fn refuse_small_stacks() {
    const NAME: &str = "RUST_MIN_STACK";
    let size = std::env::var(NAME).ok().and_then(|size| size.parse::<usize>().ok());
    if size.is_some_and(|size| size < tagore::THREAD_STACK) {
        // SAFETY: the process belongs to the command, and no other thread of it uses the
        // environment yet.
        unsafe { std::env::remove_var(NAME) };
    }
}

impl Command {
    fn run(self, output: &Output) -> error::Result<()> {
        match self {
            Self::Build(args) => args.run(output),
            Self::Update(args) => args.run(output),
            Self::Merge(args) => args.run(output),
            Self::Live(args) => args.run(output),
            Self::Knn(args) => args.run(output),
            Self::Search(args) => args.run(output),
            Self::Eval(args) => args.run(output),
            Self::Groundtruth(args) => args.run(output),
            Self::Synth(args) => args.run(output),
            Self::Convert(args) => args.run(output),
            Self::Inspect(args) => args.run(output),
            Self::Plan(args) => args.run(output),
            Self::Task(args) => args.run(output),
            Self::Bench(args) => args.run(output),
            Self::Doctor(args) => args.run(output),
            Self::Demo(args) => args.run(output),
            Self::Completions(args) => args.run(output),
            Self::Man(args) => args.run(output),
        }
    }
}

/// Logs to standard error at `level`, prints the library's warnings if that does not, and records
/// stages for a timeline.
fn log(level: Option<tracing::Level>, timeline: bool, output: &Arc<Output>) {
    let lines = level.map(|level| {
        let lines = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(std::io::stderr);
        lines.with_filter(LevelFilter::from_level(level))
    });
    let are_logged = level >= Some(tracing::Level::WARN);
    let warnings = (!are_logged).then(|| Warnings(Arc::clone(output)).with_filter(LevelFilter::WARN));
    let stages = timeline.then(|| timeline::record().with_filter(LevelFilter::DEBUG));
    tracing_subscriber::registry().with(lines).with(warnings).with(stages).init();
}

/// Prints help in full, and an error of clap in one line.
fn wrong_usage(error: &clap::Error, args: &[OsString]) -> u8 {
    let output = Output::new(false, false);
    if !error.use_stderr() {
        let printed = output.write(STANDARD.as_ref(), &error.render().to_string());
        return match printed.and_then(|()| output.check()) {
            Ok(()) => DONE,
            Err(error) => {
                output.error(error);
                FAILED
            }
        };
    }
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        // A closed standard error is ignored: there is nowhere to report it.
        let _ = error.print();
        return WRONG_USAGE;
    }
    output.error(usage::one_line(error, args));
    WRONG_USAGE
}
