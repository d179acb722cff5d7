"""Kills at system calls that change a disk: what is there afterwards, and what the same run then makes of it."""

import json
import re
import shutil
from dataclasses import dataclass

import cases
from part import files_in
from process import shown
from scenarios import scenarios

NAME = "kills"

CALLS = [
    "openat", "write", "pwrite64", "writev", "ftruncate", "fallocate", "fsync", "fdatasync", "rename", "renameat",
    "renameat2", "link", "linkat", "symlink", "symlinkat", "unlink", "unlinkat", "mkdir", "mkdirat", "rmdir", "fchmod",
    "chmod", "flock", "close", "copy_file_range", "sendfile", "sync_file_range", "msync",
]
TIMED = (".json", ".jsonl", ".html", ".svg")  # files that hold times
REPORTS = (".json", ".html")
CALL = re.compile(r"^(\d+) +(\w+)\((.*)")
STRACE = ["strace", "-f", "-qq", "-e", "signal=none"]


@dataclass
class Prepared:
    """A scenario, and what runs of it that nobody kills leave."""

    scenario: object
    inputs: dict
    new: dict  # what is written, by name
    old: dict  # what the same run writes of other inputs
    changing: set  # names whose content differs from run to run, such as those of reports
    points: dict  # with old files there or not: by system call, the numbers of those that touch the folder
    reads: list  # what the reader makes of the old files and of the new ones; none if it refuses


class Part:
    def __init__(self, world):
        self.world, self.run_command = world, world.runner.run
        self.folder = world.fast / "kills" / "prepared"
        self.variants = [self.data(seed) for seed in [0, 1]]
        found = scenarios(world.data.ids, world.data.indexes, self.host_memory())
        self.prepared = [self.prepare(scenario) for scenario in found]
        self.weights = [one.scenario.weight for one in self.prepared]

    def data(self, seed):
        """Inputs of a seed, by name."""
        folder = self.folder / f"data{seed}"
        folder.mkdir(parents=True)
        run = lambda *arguments: self.world.runner.succeeds([*arguments, "--seed", seed] if arguments[0] in ["synth", "build", "knn"] else arguments, folder)
        run("synth", "-o", "base.fbin", "--n", "300", "--dim", "8")
        run("synth", "-o", "query.fbin", "--n", "300", "--dim", "8", "--queries", "10")
        run("synth", "-o", "tiny.fbin", "--n", "40", "--dim", "4")
        run("groundtruth", "--base", "base.fbin", "--queries", "query.fbin", "-k", "10", "-o", "truth.gt")
        run("build", "-i", "base.fbin", "-o", "index.tagore", "--kind", "nsg", *cases.BUILD)
        run("build", "-i", "base.fbin", "-o", "cagra.tagore", "--kind", "cagra", "--degree", "8", *cases.BUILD)
        run("knn", "-i", "base.fbin", "-o", "graph", "--knn", "8", "--device", "cpu")
        return files_in(folder)

    def host_memory(self):
        """The least host memory of a build out of core, which the command tells, and a little."""
        folder = self.folder / "data0"
        build = ["build", "-i", "base.fbin", "-o", "x", "--kind", "vamana", "--device", "cpu", "--knn", "8"]
        outcome = self.run_command([*build, "--host-memory", "1", "--cluster-size", "60"], folder)
        least = re.search(rb"at least (\d+)", outcome.stderr)
        return str(int(least[1]) * 21 // 20) if least else "64MiB"

    def inputs(self, scenario, variant):
        """The inputs of a scenario; one may be of several files."""
        wanted = tuple(scenario.inputs)
        return {name: content for name, content in self.variants[variant].items() if name.startswith(wanted)} if wanted else {}

    def lay(self, folder, *contents):
        """An empty folder with files in it."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for content in contents:
            for name, text in content.items():
                (folder / name).write_bytes(text)
        return folder

    def prepare(self, scenario):
        folder = self.folder / "run"
        seeds = [scenario.command, scenario.command, [*scenario.command, "--seed", "1"] if scenario.command[0] == "synth" else scenario.command]
        written = []
        for variant, command in zip([0, 0, 1], seeds):
            inputs = self.inputs(scenario, variant)
            self.world.runner.succeeds(command, self.lay(folder, inputs))
            written.append({name: text for name, text in files_in(folder).items() if name not in inputs})
        new, again, old = written
        changing = {name for name in new if new[name] != again[name] or name.endswith(TIMED)}
        inputs = self.inputs(scenario, 0)
        points = {}
        for has_old in [False, True]:
            self.lay(folder, inputs, old if has_old else {})
            points[has_old] = self.points(scenario.command, folder)
        reads = [self.read(scenario, self.lay(folder, inputs, files)) for files in [old, new]]
        if scenario.reader and reads[1] is None:
            raise SystemExit(f"{scenario.name}: {scenario.reader} does not read it")
        return Prepared(scenario, inputs, new, old, changing, points, reads)

    def points(self, command, folder):
        """Every system call of a run that changes something in its folder."""
        log = self.folder / "log"
        trace = ["-y", "-o", log, "-e", "trace=" + ",".join("?" + call for call in CALLS)]
        self.world.runner.succeeds(command, folder, [*STRACE, *trace])
        counts, points = {}, {}
        for line in log.read_text(errors="replace").splitlines():
            if not (found := CALL.match(line)):
                continue
            thread, call, rest = found.groups()
            number = counts[thread, call] = counts.get((thread, call), 0) + 1
            reads = call == "openat" and "O_RDONLY" in rest
            if f"<{folder}" in rest and not reads:
                points.setdefault(call, []).append(number)
        return points

    def read(self, scenario, folder):
        """What the reader makes of the files in a folder; none if it refuses them."""
        if not scenario.reader:
            return None
        outcome = self.run_command(scenario.reader, folder)
        read = folder / "read"
        content = read.read_bytes() if read.exists() else None
        read.unlink(missing_ok=True)
        return content if outcome.code == 0 else None

    def run(self, case, number):
        prepared = case.draw.choices(self.prepared, self.weights)[0]
        has_old = case.draw.random() < 0.5
        folder = self.lay(case.folder, prepared.inputs, prepared.old if has_old else {})
        case.title = prepared.scenario.name + (", old files there" if has_old else "")
        command = prepared.scenario.command
        for _ in range(case.draw.choice([1, 1, 1, 2])):
            self.kill(case, prepared, self.command_now(prepared, folder), folder, has_old)
        outcome = case.ran(self.run_command(self.command_now(prepared, folder), folder))
        if case.expect(outcome.code == 0, f"the next run fails: {outcome.last_line()}"):
            self.check_end(case, prepared, files_in(folder))

    def command_now(self, prepared, folder):
        """The command; with what it takes to go on if there is a work folder."""
        has_work = any(path.is_dir() for path in folder.iterdir())
        return prepared.scenario.command + (["--resume"] if has_work and prepared.scenario.resumes else [])

    def kill(self, case, prepared, command, folder, has_old):
        # First of all calls, so that the few that rename or remove are as many as those that write.
        points = prepared.points[has_old]
        call = case.draw.choice(sorted(points))
        when = case.draw.choice(points[call])
        inject = ["-o", "/dev/null", "-e", f"trace={call}", "-e", f"inject={call}:signal=KILL:when={when}"]
        outcome = self.run_command(command, folder, prefix=[*STRACE, *inject])
        case.log.append(f"{shown(outcome.command)}   # {outcome.code}")
        if outcome.code == -9:
            case.count("kills")
            case.count(f"at {call}")
        else:
            # Threads do not always come to a call in the same order.
            case.count("not killed")
            case.faults += outcome.faults()
            case.expect(outcome.code == 0, f"a run under strace fails: {outcome.last_line()}")
        self.check_killed(case, prepared, folder, has_old)

    def check_killed(self, case, prepared, folder, has_old):
        """No input lost, no output half written, no mix of files that belong together accepted."""
        found = files_in(folder)
        for name, content in prepared.inputs.items():
            case.expect(found.get(name) == content, f"lost: input {name} changed by a kill")
        # Files that belong together may be gone for a while, all or some of them: none is read then.
        belong = prepared.scenario.reader and len(prepared.new) > 1
        for name, content in prepared.new.items():
            old = prepared.old.get(name) if has_old else None
            # A build deletes the report of an older index before the new index takes its place.
            may_be_gone = belong or (prepared.scenario.command[0] == "build" and name.endswith(REPORTS))
            allowed = [content, old, None] if may_be_gone else [content, old]
            now = found.get(name)
            whole = now in allowed or (now is not None and name in prepared.changing and is_whole(name, now, content))
            case.expect(whole, f"lost: {name} is {'gone' if now is None else 'neither the old file nor the new'} after a kill")
        old_index, index = prepared.old.get("x.tagore"), prepared.new.get("x.tagore")
        if has_old and old_index != index and found.get("x.tagore") == index:
            for name in prepared.new:
                stale = name.endswith(REPORTS) and found.get(name) == prepared.old[name]
                case.expect(not stale, f"lost: {name} of the older index is beside the new one after a kill")
        if prepared.scenario.reader:
            read = self.read(prepared.scenario, folder)
            case.expect(read is None or read in prepared.reads, "lost: files of two sets are read as one after a kill")

    def check_end(self, case, prepared, found):
        """The files of a run that nobody killed, and no others."""
        expected = {**prepared.inputs, **prepared.new}
        for name in sorted(found.keys() | expected.keys()):
            if name not in expected:
                case.fault(f"left behind after the next run: {kind_of_name(name)} ({name})")
            elif name not in found:
                case.fault(f"lost: the next run does not write {name}")
            elif found[name] != expected[name]:
                whole = name in prepared.changing and is_whole(name, found[name], expected[name])
                case.expect(whole, f"lost: {name} differs from that of a run that was not killed")


def is_whole(name, content, like):
    """Whether a file that has times in it is all there."""
    if name.endswith((".json", ".jsonl")):
        try:
            return [json.loads(line) for line in ([content] if name.endswith(".json") else content.splitlines())] != []
        except ValueError:
            return False
    return content[-8:] == like[-8:] and content[:8] == like[:8]


def kind_of_name(name):
    return "a temporary file" if "/." in f"/{name}" else "a work file" if "work" in name or "elsewhere" in name else "a file"
