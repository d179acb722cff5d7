//! Wrong command lines: clap's errors in one line each, in the words of all other errors.

use std::error::Error as _;
use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory};

use crate::Cli;

/// The command line interface. A negative number is a value, not a flag: its error is that of the
/// flag before it.
pub(crate) fn command() -> Command {
    fn with_negative(command: Command) -> Command {
        command.allow_negative_numbers(true).mut_subcommands(with_negative)
    }
    with_negative(Cli::command())
}

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
    if let Some(renamed) =
        flag.filter(|_| error.kind() == ErrorKind::UnknownArgument).and_then(|flag| renamed(flag, args))
    {
        return renamed;
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
        _ => fault_and_tips(&error.to_string(), args),
    }
}

/// Former names of flags: what they name, and their names now.
const RENAMED: [(&str, &str, &str); 3] = [
    ("--index", "the kind of an index", "kind"),
    ("--indexes", "the kinds of indexes", "kinds"),
    ("--input", "the data set", "base"),
];

/// The error of a flag that the given command has under another name now.
fn renamed(flag: &str, args: &[OsString]) -> Option<String> {
    let (_, what, name) = RENAMED.into_iter().find(|&(old, ..)| old == flag)?;
    let command = given_command(args).1;
    command.get_arguments().find(|arg| arg.get_long() == Some(name))?;
    Some(format!("{flag}: {what} is now --{name}"))
}

/// What was found and expected, from the reason of a parser.
fn refused(found: &str, reason: &str) -> String {
    if reason.contains("number too large") {
        return format!("found {found}, expected a smaller number");
    }
    if ["invalid digit", "empty string"].iter().any(|text| reason.contains(text)) {
        return format!("found {found}, expected a whole number from 0");
    }
    if reason.contains("float literal") {
        return format!("found {found}, expected a number");
    }
    if reason.contains("would be zero") {
        return format!("found {found}, expected at least 1");
    }
    if let Some((least, most)) =
        reason.split_once(" is not in ").and_then(|(_, range)| range.split_once("..="))
    {
        return format!("found {found}, expected {least} to {most}");
    }
    // Parsers of this project say what they found; those of the library name their parameter first.
    match reason.find("found ") {
        Some(at) => reason[at..].to_owned(),
        None => format!("found {found}, {reason}"),
    }
}

/// The first paragraph of clap's text, then its tips, or else where to read on.
fn fault_and_tips(text: &str, args: &[OsString]) -> String {
    let lines = || text.lines().map(str::trim);
    let fault: Vec<&str> = lines().take_while(|line| !line.is_empty()).collect();
    let fault = fault.join(" ");
    let tips: Vec<&str> = lines().filter_map(|line| line.strip_prefix("tip: ")).collect();
    let remedy =
        if tips.is_empty() { format!("see `{} --help`", given_command(args).0) } else { tips.join("; ") };
    format!("{}: {remedy}", fault.trim_start_matches("error: "))
}

/// The subcommand of a command line, such as `tagore bench prune`, by name and as clap has it.
fn given_command(args: &[OsString]) -> (String, Command) {
    let mut command = Cli::command();
    let mut names = vec!["tagore".to_owned()];
    for word in args.iter().skip(1) {
        if let Some(below) = word.to_str().and_then(|word| command.find_subcommand(word)).cloned() {
            names.push(below.get_name().to_owned());
            command = below;
        }
    }
    (names.join(" "), command)
}
