"""The subcommands and their flags, as `--help` tells them: new ones are attacked without a word here."""

import re
from dataclasses import dataclass

OPTION = re.compile(r"^ +(?=-)(-\w)?(?:, )?(--[\w-]+)?(?:[ =]?\[?[<=](.+?)>\]?(?:\.\.\.)?)?(?: {2,}(.*))?$")
ARGUMENT = re.compile(r"^ +[<\[](\w+)[>\]](?:\.\.\.)?(?: {2,}(.*))?$")
SUBCOMMAND = re.compile(r"^  (\w[\w-]*) {2,}")

# What is written; every other path is read.
OUTPUTS = {"-o", "--output", "--report", "--html", "--plot", "--timeline", "--work-dir", "--folder", "OUT"}


@dataclass
class Option:
    names: list
    value: str  # the name of its value; none if it takes none
    text: str


@dataclass
class Command:
    words: list
    options: list
    arguments: list  # names of positional ones


def commands(runner, folder, words=()):
    """All commands that do something, by their own help."""
    text = runner.succeeds([*words, "--help"], folder).stdout.decode()
    section, options, arguments, below = "", [], [], []
    for line in text.splitlines():
        if line.endswith(":") and not line.startswith(" "):
            section = line[:-1]
        elif section == "Commands" and (found := SUBCOMMAND.match(line)) and found[1] != "help":
            below.append(found[1])
        elif section == "Arguments" and (found := ARGUMENT.match(line)):
            arguments.append(found[1])
        elif section not in ("", "Commands", "Arguments") and (found := OPTION.match(line)):
            short, long, value, text = found.groups()
            options.append(Option([name for name in (long, short) if name], value, text or ""))
        elif section not in ("", "Commands", "Arguments") and options and line.strip():
            options[-1].text += " " + line.strip()
    if not below:
        return [Command(list(words), options, arguments)]
    return [command for word in below for command in commands(runner, folder, (*words, word))]


def named_as_input(command, line):
    """The values of a command line that are not the name of an output."""
    takes = {name: option for option in command.options for name in option.names if option.value}
    found, places, output = [], list(command.arguments), False
    rest = iter(line[len(command.words) :])
    for token in rest:
        text = token.decode(errors="replace")
        name, equals, _ = text.partition("=")
        if name.startswith("--") and equals:
            output = name in OUTPUTS
            token = token.partition(b"=")[2]
        elif name in takes:
            output = name in OUTPUTS
            token = next(rest, b"")
        elif not name.startswith("-") and places:
            output = places.pop(0) in OUTPUTS
        if not output:
            found.append(token)
        output = False
    return found
