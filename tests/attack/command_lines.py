"""Random command lines: any flags with any values, and outputs that are inputs by another name."""

import json
import os
import re

from grammar import OUTPUTS, commands, named_as_input
from process import as_bytes

NAME = "command_lines"
PATIENCE = 3  # seconds of a run that was asked for much; then it is interrupted

# Lines that succeed, from which most others are made.
LINES = [
    "build -i base.fbin -o out --kind nsg --knn 8 --device cpu",
    "build -i base.fbin -o out --kind vamana --knn 8 --device cpu --html page.html --report report.json",
    "build -i base.fbin -o out --kind nssg --knn 8 --device cpu --cluster-size 60 --work-dir work",
    "build -i base.fbin -o out --kind dpg --device cpu --graph graph --no-report",
    "build -i base.fbin -o out --kind tau-mng --knn 8 --device cpu --no-report --threshold 1",
    "build base.fbin --device cpu",
    "build base.npy --kind NSG --knn 8 --device CPU --no-report",
    "update index.tagore --base base.fbin -o out --device cpu",
    "knn base.fbin -o out --knn 8 --device cpu",
    "knn -i base.fbin --knn 8 --verify 10",
    "search --index index.tagore --base base.fbin --queries query.fbin -k 5 --beam 20 -o out",
    "eval --index index.tagore --base base.fbin --queries query.fbin --groundtruth truth.gt --beams 10,20 --plot plot.svg",
    "groundtruth base.fbin --queries query.fbin -k 5 -o out",
    "synth -o out.fbin --n 200 --dim 8",
    "synth -o out.npy --n 200 --dim 8 --queries 10 --seed 3",
    "convert base.fbin out.fvecs",
    "convert truth.gt out.ibin",
    "convert truth.gt out --to pair",
    "convert index.tagore out.hnswlib --base base.fbin --layers",
    "convert index.tagore out.diskann-disk --base base.fbin --pq-chunks 4",
    "convert index.tagore out.csr",
    "convert base.nsg out.tagore --base base.fbin",
    "inspect base.fbin",
    "inspect index.tagore --base base.fbin --html page.html --report report.json",
    "inspect base.nsg --base base.fbin --from nsg --json",
    "plan base.fbin --kind nsg --knn 8",
    "plan --n 1000000 --dim 96 --type u8 --kind vamana --host-memory 96MiB",
    "bench descent -i base.fbin --iterations 1,1 --knn 8 --repeat 1 -o out.jsonl",
    "bench outofcore -i base.fbin --kind vamana --knn 8 --cluster-size 60 --device cpu --folder .",
    "bench prune -i base.fbin --kinds nsg --knn 8 --repeat 1 --device cpu -o out.jsonl",
    "doctor",
]

NUMBERS = ["0", "1", "2", "8", "16", "100", "-1", "-0", "65535", "65536", "4294967295", "4294967296", "9223372036854775808",
           "18446744073709551615", "18446744073709551616", "1" + "0" * 60, "NaN", "inf", "-inf", "1e308", "1e-45", "0.5", "1.5",
           "0x10", "1_000", " 1", "1,1", "0,0", "900000,900000", "1,1;2,2", "4096", "1KiB", "64MiB", "4GiB", "1e3", "1M", "4G", "1__0", "1MM", "16777216TiB", "99999999999GiB"]
SMALL = ["1", "2", "4", "8", "16", "0.5"]
NAMES = re.compile(r"[a-z0-9][\w:-]*(?:, [a-z0-9][\w:-]*)+(?:,? or [a-z0-9][\w:-]*)?")
TEXTS = ["", " ", "-", "--", "'", "a" * 300, "a" * 5000, "é" * 400, "x\ny", "\x1b[31mred", "\x9b1m", "%s%n", "\u202egnp", b"\xff\xfe", b"bad\xc3", b"a" * 2000 + b"\x1b" * 900]
DEVICES = ["cpu", "emulated", "auto", "cuda", "cuda:0,1", "cpu,cpu", "emulated:8.9", "emulated:0.0", "cuda:4294967296"]
MISSING = ["no.fbin", "missing/x", "/proc/x", "folder", "loop", "empty", "base.fbin/x"]
READ_ALSO = ["/dev/null", "/dev/zero", "/proc/self/mem", "/proc/self/maps", "/proc/cpuinfo"]
ODD = [b"bad\xff.fbin", b"new\nline.fbin", b"esc\x1b[31m.fbin"]
DATA = ["base.fbin", "query.fbin", "truth.gt", "index.tagore", "graph", "base.nsg", "base.npy", "link.fbin", "hard.fbin",
        "fifo", "fifo.fbin", "short.fbin", *ODD]
FRESH = ["out", "out.fbin", "out.tagore", "old.out", "link-to-old", "dangling", "out.ibin", b"o\xff.fvecs", b"o\xff.fbin", b"o\xff", b"o\nut.npy",
         b"o\x1b[1m.nsg", "out.unknown", "folder/out", "." * 3, "a" * 255, "a" * 256, "folder/../out"]


class Part:
    def __init__(self, world):
        self.world = world
        found = commands(world.runner, world.data.folder)
        self.commands = {" ".join(command.words): command for command in found}
        self.lines = []
        for line in LINES:
            words = line.split()
            name = next(name for name in (" ".join(words[:2]), words[0]) if name in self.commands)
            self.lines.append((self.commands[name], words))
        self.contents = {name: world.data.path(name).read_bytes() for name in ["base.fbin", "query.fbin", "truth.gt", "index.tagore", "base.npy"]}
        self.contents["base.nsg"] = world.data.path("indexes/nsg/x.nsg").read_bytes()
        self.contents.update({path.name.replace("graph.gt", "graph"): path.read_bytes() for path in world.data.folder.glob("graph.gt*")})

    def lay(self, folder):
        """Data under all kinds of names."""
        for name, content in self.contents.items():
            (folder / name).write_bytes(content)
        base = self.contents["base.fbin"]
        for name in ODD:
            (folder / os.fsdecode(name)).write_bytes(base)
        (folder / "short.fbin").write_bytes(base[:-3])
        (folder / "empty").touch()
        (folder / "old.out").write_bytes(b"old")
        (folder / "folder").mkdir()
        (folder / "folder" / "base.fbin").write_bytes(base)
        for name, target in [("link.fbin", "base.fbin"), ("link-to-old", "old.out"), ("dangling", "nothing"), ("loop", "loop"), ("here", ".")]:
            (folder / name).symlink_to(target)
        os.link(folder / "base.fbin", folder / "hard.fbin")
        for name in ["fifo", "fifo.fbin"]:
            os.mkfifo(folder / name)

    def run(self, case, number):
        folder, draw = case.folder, case.draw
        self.lay(folder)
        command, line = self.line(draw)
        before = snapshot(folder)
        case.title = " ".join(command.words)
        outcome = case.ran(self.world.runner.run(line, folder, interrupt_after=PATIENCE))
        case.count(f"exit {outcome.code}")
        if b"error: interrupted" in outcome.stderr:
            case.count("interrupted")
        after = snapshot(folder)
        read = [as_bytes(token) for token in named_as_input(command, outcome.command[1:])]
        changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
        for name in sorted(changed & before.keys()):
            if is_one_of(folder, name, read, before):
                case.fault(f"lost: input {name!r} changed")
            elif isinstance(before[name], tuple):
                case.fault(f"lost: symbolic link {name!r} replaced")
            elif outcome.code != 0 and b"--min-recall" not in line:
                case.fault(f"lost: failed, and changed {name!r}")
        added = sorted(changed - before.keys())
        if outcome.code != 0 and b"--min-recall" not in line:
            # Work files stay, for --resume.
            left = [name for name in added if not (outcome.code in (1, 130) and is_work(name))]
            case.expect(not left, f"failed, and left {left}")
        temporary = [name for name in added if ".tagore-" in os.path.basename(name)]
        case.expect(not temporary, f"left temporary files: {temporary}")
        self.check_json(case, outcome)

    def check_json(self, case, outcome):
        if b"--json" in outcome.command and outcome.code == 0 and outcome.stdout.startswith(b"{"):
            for text in outcome.stdout.splitlines():
                try:
                    json.loads(text, parse_constant=refuse)
                except ValueError as error:
                    case.fault(f"no JSON: {error} in {text[:100]!r}")

    def line(self, draw):
        """A command and a line for it."""
        if draw.random() < 0.15:
            command = draw.choice(list(self.commands.values()))
            line = [*command.words, *(self.path(draw, name) for name in command.arguments if draw.random() < 0.9)]
            line += self.options(draw, command, draw.randrange(8))
        else:
            command, words = draw.choice(self.lines)
            line = list(words)
            if draw.random() < 0.4:
                self.collide(draw, command, line)
            elif draw.random() < 0.4:
                self.rename(draw, command, line)
            for _ in range(draw.choice([0, 0, 0, 1, 1, 2])):
                self.change(draw, command, line)
            line += self.options(draw, command, draw.choice([0, 0, 1, 1, 2, 3]), line)
        # No argument can hold a zero byte.
        return command, [as_bytes(token).replace(b"\0", b"") for token in line]

    def collide(self, draw, command, line):
        """Gives an output the name of something that the line reads, or of another output."""
        outputs = places_of_outputs(command, line)
        files = [token for at, token in enumerate(line) if at not in outputs and token in self.contents] or ["base.fbin"]
        if not outputs:
            outputs = [len(line) + 1]
            option = draw.choice(["--report", "--html", "-o", "--plot"])
            line += [option, ""]
        line[draw.choice(outputs)] = self.alias(draw, draw.choice(files))

    def rename(self, draw, command, line):
        """Gives an output a name that is hard to print, or reads a file that has one."""
        outputs = places_of_outputs(command, line)
        inputs = [at for at, token in enumerate(line) if token == "base.fbin" and at not in outputs]
        if outputs and (not inputs or draw.random() < 0.5):
            line[draw.choice(outputs)] = draw.choice(FRESH)
        elif inputs:
            line[draw.choice(inputs)] = draw.choice(ODD)

    def alias(self, draw, name):
        """Another name of the same file, or one from which the same is derived."""
        names = [name, f"./{name}", f"folder/../{name}", f"here/{name}", f"here/here/{name}", f".//{name}", name.rsplit(".", 1)[0]]
        names += ["link.fbin", "hard.fbin"] if name == "base.fbin" else []
        names += [name.removesuffix(end) for end in [".report.json", ".data", ".ibin", ".fbin"]]
        return draw.choice(names)

    def change(self, draw, command, line):
        """Changes one word: to a drawn value, to nothing, or to itself twice."""
        at = draw.randrange(len(command.words), len(line)) if len(line) > len(command.words) else None
        kind = draw.random()
        if at is None:
            return
        if kind < 0.7:
            before = line[at - 1] if at else ""
            option = next((option for option in command.options if before in option.names and option.value), None)
            if option:
                line[at] = self.value(draw, option)
            elif not str(line[at]).startswith("-"):
                line[at] = draw.choice([draw.choice(DATA), draw.choice(TEXTS), draw.choice(MISSING)])
        elif kind < 0.85:
            del line[at]
        else:
            line.insert(at, line[at])

    def options(self, draw, command, count, before=()):
        """Options with values; seldom those that are there already."""
        words = []
        for option in draw.choices(command.options, k=count):
            seldom = {"--help", "--version", *before, *words} & set(option.names)
            if seldom and draw.random() < 0.9:
                continue
            name = draw.choice(option.names)
            if not option.value:
                words.append(name)
            elif name.startswith("--") and draw.random() < 0.3:
                words.append(as_bytes(name) + b"=" + as_bytes(self.value(draw, option)))
            else:
                words += [name, self.value(draw, option)]
        return words

    def value(self, draw, option):
        """A value of an option: one that its help names, an extreme one, or a path."""
        kind = draw.random()
        if set(option.names) & OUTPUTS:
            return draw.choice(FRESH + MISSING) if kind < 0.6 else draw.choice(DATA) if kind < 0.8 else draw.choice(TEXTS)
        if "--threads" in option.names:
            # Thousands of threads are allowed, and take a minute to start.
            return draw.choice([*SMALL, "64", "0", "-1", "65536", "18446744073709551616", *TEXTS])
        if "--device" in option.names and kind < 0.8:
            return draw.choice(DEVICES)
        if kind < 0.6:
            return draw.choice(told(option.text) or SMALL)
        if kind < 0.8:
            return draw.choice(NUMBERS)
        return draw.choice(TEXTS) if kind < 0.9 else draw.choice(DATA + MISSING + READ_ALSO)

    def path(self, draw, argument):
        return draw.choice(FRESH + DATA if argument in OUTPUTS else DATA + MISSING)


def places_of_outputs(command, line):
    """Where a line, whose positional arguments come first, has the names of outputs."""
    places = [at + 1 for at, token in enumerate(line[:-1]) if token in OUTPUTS]
    return places + ([len(command.words) + command.arguments.index("OUT")] if "OUT" in command.arguments else [])


def told(text):
    """The names that a help text lists, as in "l2, ip or cosine"."""
    return [name for names in NAMES.findall(text) for name in re.split(r",? or |, ", names)]


def refuse(constant):
    raise ValueError(f"{constant} as a number")


def snapshot(folder):
    """All files of a folder without following links; of a pipe, that it is there."""
    found = {}
    for at, folders, names in os.walk(folder):
        for name in folders + names:
            path = os.path.join(at, name)
            key = os.path.relpath(path, folder)
            if os.path.islink(path):
                found[key] = ("link", os.readlink(path))
            elif os.path.isdir(path):
                found[key] = "folder"
            elif os.path.isfile(path):
                with open(path, "rb") as file:
                    found[key] = file.read()
            else:
                found[key] = "pipe"
    return found


def is_one_of(folder, name, read, before):
    """Whether a file is read by a line: named in it, by any name, or with the beginning of its name."""
    target = os.path.realpath(folder / name)
    linked = {"hard.fbin": "base.fbin", "base.fbin": "hard.fbin"}.get(name)
    for token in read:
        if not token or len(token) > 1000:
            continue
        path = os.path.realpath(os.path.join(folder, os.fsdecode(token)))
        if target == path or (linked and os.path.realpath(folder / linked) == path):
            return True
        if os.path.basename(target).startswith(os.path.basename(path)) and os.path.dirname(target) == os.path.dirname(path) and name in before:
            return True
    return False


def is_work(name):
    return name.split("/")[0].endswith(("work", ".work"))
