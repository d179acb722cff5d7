//! Wrong command lines: clap's errors in one line each, in the words of all other errors.

use std::error::Error as _;
use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command};
use strsim::osa_distance;

use crate::command::{command, examples};

/// The error of clap for `args` in one line: the fault, and the remedy.
pub(crate) fn one_line(error: &clap::Error, args: &[OsString]) -> String {
    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    let flag = context(ContextKind::InvalidArg).map(|name| name.split(' ').next().unwrap_or(name));
    // A positional argument, such as `[TASK]...`.
    let flag = flag.map(|name| name.trim_matches(['[', ']', '.']));
    let found = context(ContextKind::InvalidValue).filter(|value| !value.is_empty());
    let given = Given::new(args);
    let unknown = flag.filter(|_| error.kind() == ErrorKind::UnknownArgument);
    let answers = [Given::renamed, Given::of_others, Given::needless, Given::mistyped];
    if let Some(answer) = unknown.and_then(|flag| answers.iter().find_map(|answer| answer(&given, flag))) {
        return answer;
    }
    if let Some(name) = context(ContextKind::InvalidSubcommand) {
        return given.no_command(name);
    }
    match (error.kind(), flag, found) {
        (ErrorKind::ValueValidation, Some(flag), Some(found)) => {
            let reason = error.source().map(ToString::to_string).unwrap_or_default();
            format!("{flag}: {}", refused(found, &reason))
        }
        (ErrorKind::InvalidValue, Some(flag), Some(found)) => {
            let values = match error.get(ContextKind::ValidValue) {
                Some(ContextValue::Strings(values)) => values.join(", "),
                _ => "another value".to_owned(),
            };
            format!("{flag}: found {found}, expected one of {values}")
        }
        (kind, ..) => {
            let is_of_shape = match kind {
                ErrorKind::MissingRequiredArgument => true,
                // A positional argument too many.
                ErrorKind::UnknownArgument => flag.is_some_and(|flag| !flag.starts_with('-')),
                _ => false,
            };
            let fault = fault(&error.to_string());
            let remedy = given.example(&fault).filter(|_| is_of_shape);
            let remedy = remedy
                .map_or_else(|| format!("see `{} --help`", given.name), |line| format!("as in `{line}`"));
            format!("{fault}: {remedy}")
        }
    }
}

/// Former names of flags: what they name, and their names now.
const RENAMED: [(&str, &str, &str); 5] = [
    ("--index", "the kind of an index is", "kind"),
    ("--indexes", "the kinds of indexes are", "kinds"),
    ("--input", "the data set is", "base"),
    ("--base-format", "the format of the data set is", "format"),
    ("--queries-format", "the format of queries is", "query-format"),
];

/// Names that other programs give to flags, and what is written here: that of the first line whose
/// flag the command has.
const OTHERS: [(&str, &str); 18] = [
    ("--ef --ef-search --efsearch --itopk --itopk-size --search-list -L --L", "--beam"),
    ("--ef --ef-search --efsearch --itopk --itopk-size --search-list -L --L --beam", "--beams"),
    ("--ef-construction --efc --build-list -L --L", "--candidates"),
    ("--top-k --topk --limit --num-results -n --n", "-k"),
    ("--rows --count --num --size -n", "--n"),
    ("--dimension --dimensions --dims -d", "--dim"),
    ("--dtype --data-type --element", "--type"),
    ("-k --k --neighbors", "--knn"),
    ("--max-degree --graph-degree -R --R -M --M --m", "--degree"),
    ("--jobs --num-threads -j -T", "--threads"),
    ("--gt --truth --ground-truth", "--groundtruth"),
    ("--space --distance", "--metric"),
    ("--query", "--queries"),
    ("--gpu --cuda", "--device cuda"),
    ("--cpu", "--device cpu"),
    ("--verbose -v --debug", "--log debug"),
    ("--ids --delete", "--remove"),
    ("--subset --mask --among", "--filter"),
];

/// Flags by which other programs are asked to replace an output.
const REPLACE: [&str; 5] = ["--force", "-f", "--overwrite", "--yes", "-y"];

/// Names that other programs give to subcommands, and those of the subcommands here.
const MEANT: [(&str, &str); 22] = [
    ("add", "update, live insert"),
    ("append", "update, live insert"),
    ("create", "build"),
    ("delete", "update, live remove"),
    ("exact", "groundtruth"),
    ("export", "convert"),
    ("generate", "synth"),
    ("gt", "groundtruth"),
    ("import", "convert"),
    ("index", "build"),
    ("info", "inspect"),
    ("insert", "update, live insert"),
    ("query", "search"),
    ("recall", "eval"),
    ("remove", "update, live remove"),
    ("report", "inspect"),
    ("show", "inspect"),
    ("stats", "inspect"),
    ("train", "build"),
    ("truth", "groundtruth"),
    ("upsert", "update, live insert"),
    ("view", "inspect"),
];

/// What was found and expected, from the reason of a parser.
fn refused(found: &str, reason: &str) -> String {
    // Parsers of this project say what they found; those of the library name their parameter first.
    match reason.find("found ") {
        Some(at) => reason[at..].to_owned(),
        None => format!("found {found}, {reason}"),
    }
}

/// The command of a command line.
struct Given {
    /// Its name, such as `tagore bench prune`.
    name: String,
    command: Command,
}

impl Given {
    fn new(args: &[OsString]) -> Self {
        let mut command = command();
        command.build();
        let mut name = "tagore".to_owned();
        for word in args.iter().skip(1) {
            if let Some(below) = word.to_str().and_then(|word| command.find_subcommand(word)).cloned() {
                name = format!("{name} {}", below.get_name());
                command = below;
            }
        }
        Self { name, command }
    }

    /// The error of a flag that has another name now.
    fn renamed(&self, flag: &str) -> Option<String> {
        let (_, what, name) = RENAMED.into_iter().find(|&(old, ..)| old == flag)?;
        self.command.get_arguments().find(|arg| arg.get_long() == Some(name))?;
        Some(format!("{flag}: {what} now --{name}"))
    }

    /// The error of a flag that has another name in other programs.
    fn of_others(&self, flag: &str) -> Option<String> {
        let has = |here: &str| {
            let name = here.split(' ').next().unwrap_or(here).trim_start_matches('-');
            let mut flags = self.command.get_arguments();
            flags.any(|arg| {
                arg.get_long() == Some(name) || arg.get_short().is_some_and(|short| name == short.to_string())
            })
        };
        let mut lines = OTHERS.into_iter().filter(|(names, _)| names.split(' ').any(|name| name == flag));
        let (_, here) = lines.find(|(_, here)| has(here))?;
        Some(format!("unexpected argument '{flag}' found: here it is {here}"))
    }

    /// The error of a flag that asks for what is done without it.
    fn needless(&self, flag: &str) -> Option<String> {
        let writes = self.command.get_arguments().any(|arg| arg.get_long() == Some("output"));
        let is_needless = writes && REPLACE.contains(&flag);
        is_needless.then(|| format!("unexpected argument '{flag}' found: an output is replaced without it"))
    }

    /// The example with the most of the flags that a fault names, if it names any.
    fn example(&self, fault: &str) -> Option<&'static str> {
        let named: Vec<&str> = fault.split([' ', '\'']).filter(|word| word.starts_with("--")).collect();
        let has = |line: &str, flag: &str| {
            let flag = if flag == "--output" { "-o" } else { flag };
            line.split(' ').any(|word| word == flag)
        };
        let count = |line: &str| named.iter().filter(|flag| has(line, flag)).count();
        let best = examples(&self.name).iter().rev().max_by_key(|line| count(line))?;
        (named.is_empty() || count(best) > 0).then_some(best)
    }

    /// The error of a flag that is almost one of the command.
    fn mistyped(&self, flag: &str) -> Option<String> {
        let name = flag.strip_prefix("--")?;
        let mut flags = self.command.get_arguments();
        let near =
            match name.parse().ok().and_then(|name: char| flags.find(|arg| arg.get_short() == Some(name))) {
                Some(_) => format!("-{name}"),
                None => {
                    format!("--{}", nearest(name, self.command.get_arguments().filter_map(Arg::get_long))?)
                }
            };
        Some(format!("unexpected argument '{flag}' found: a similar argument exists: '{near}'"))
    }

    /// The error of an unknown subcommand.
    fn no_command(&self, name: &str) -> String {
        if name == "version" {
            return format!("unrecognized subcommand '{name}': see `tagore --version`");
        }
        let commands = self.command.get_subcommands().filter(|command| !command.is_hide_set());
        let meant = MEANT.into_iter().find(|&(other, _)| other == name).map(|(_, meant)| meant);
        let is_here =
            |meant: &&str| meant.split(", ").any(|name| self.command.find_subcommand(name).is_some());
        let remedy =
            meant.filter(is_here).or_else(|| nearest(name, commands.map(Command::get_name))).map_or_else(
                || format!("see `{} --help`", self.name),
                |near| format!("a similar subcommand exists: '{}'", near.replace(", ", "' or '")),
            );
        format!("unrecognized subcommand '{name}': {remedy}")
    }
}

/// The known name that `given` probably means: the one with the fewest edits, at most a third of
/// the letters, or one that begins with it or that it begins with.
fn nearest<'a>(given: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let edits = known.filter_map(|name| {
        let edits = osa_distance(given, name);
        let is_begin = given.len() > 1 && (name.starts_with(given) || given.starts_with(name));
        (is_begin || 3 * edits <= given.len().max(name.len())).then_some((edits, name))
    });
    edits.min().map(|(_, name)| name)
}

/// The first paragraph of clap's text.
fn fault(text: &str) -> String {
    let fault: Vec<&str> = text.lines().map(str::trim).take_while(|line| !line.is_empty()).collect();
    fault.join(" ").trim_start_matches("error: ").to_owned()
}
