//! Wrong command lines: clap's errors in one line each, in the words of all other errors.

use std::error::Error as _;
use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command};
use strsim::osa_distance;

use crate::command::command;

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
    if let Some(answer) = unknown.and_then(|flag| given.renamed(flag).or_else(|| given.mistyped(flag))) {
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
        _ => fault(&error.to_string(), &given),
    }
}

/// Former names of flags: what they name, and their names now.
const RENAMED: [(&str, &str, &str); 4] = [
    ("--index", "the kind of an index is", "kind"),
    ("--indexes", "the kinds of indexes are", "kinds"),
    ("--input", "the data set is", "base"),
    ("--base-format", "the format of the data set is", "format"),
];

/// Names that other programs give to subcommands.
const MEANT: [(&str, &str); 8] = [
    ("create", "build"),
    ("exact", "groundtruth"),
    ("generate", "synth"),
    ("index", "build"),
    ("info", "inspect"),
    ("query", "search"),
    ("show", "inspect"),
    ("train", "build"),
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
        let commands = self.command.get_subcommands().filter(|command| !command.is_hide_set());
        let meant = MEANT.into_iter().find(|&(other, _)| other == name).map(|(_, meant)| meant);
        let meant = meant.filter(|meant| self.command.find_subcommand(meant).is_some());
        let remedy = meant.or_else(|| nearest(name, commands.map(Command::get_name))).map_or_else(
            || format!("see `{} --help`", self.name),
            |near| format!("a similar subcommand exists: '{near}'"),
        );
        format!("unrecognized subcommand '{name}': {remedy}")
    }
}

/// The known name that `given` probably means: the one with the fewest edits, at most half of its
/// letters, or one that begins with it or that it begins with.
fn nearest<'a>(given: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let edits = known.filter_map(|name| {
        let edits = osa_distance(given, name);
        let is_begin = given.len() > 1 && (name.starts_with(given) || given.starts_with(name));
        (is_begin || 2 * edits <= given.len().max(name.len())).then_some((edits, name))
    });
    edits.min().map(|(_, name)| name)
}

/// The first paragraph of clap's text, and where to read on.
fn fault(text: &str, given: &Given) -> String {
    let fault: Vec<&str> = text.lines().map(str::trim).take_while(|line| !line.is_empty()).collect();
    let fault = fault.join(" ");
    format!("{}: see `{} --help`", fault.trim_start_matches("error: "), given.name)
}
