"""Attacks the folder of a build in tasks: what others plant in it before a task or while tasks run, objects that vanish, and
numbers that are wrong behind right checksums."""

import collections
import json
import os
import shutil
import struct
import threading
import time
import zlib

from mutations import edit_number, mutate, sealed, unsealed
from part import files_in
from process import FILE_SIZE

NAME = "task_folders"
VICTIM = b"of someone else"
TIMES = 10  # that an object is removed at most
HUGE = FILE_SIZE * 3 // 4  # bytes
BUILD = ["--kind", "vamana", "--device", "cpu", "--knn", "8", "--cluster-size", "600"]
PLAN = ["task", "plan", "-i", "base.fbin", "-o", "x", "--dir", "tasks", "--range-rows", "1024", *BUILD]
STAGES = ["assign", "place", "write", "build", "merge", "assemble", "finish"]


class Part:
    def __init__(self, world):
        self.world = world
        folder = world.fast / NAME / "prepared"
        folder.mkdir(parents=True)
        world.runner.succeeds(["synth", "-o", "base.fbin", "--n", "2100", "--dim", "4"], folder)
        self.base = (folder / "base.fbin").read_bytes()
        world.runner.succeeds(["build", "-i", "base.fbin", "-o", "x", *BUILD, "--no-report"], folder)
        self.index = (folder / "x").read_bytes()
        self.made = {}  # by folder: a plan has absolute paths

    def run(self, case, number):
        folder = case.folder
        kinds = [self.plant, self.forge_object, self.forge_object, self.plant, self.forge_plan, self.vanish, self.forge_object, self.plant_before, self.forge_object, self.plant_meanwhile, self.output_is_base]
        if str(folder) not in self.made:
            self.made[str(folder)] = self.make(folder)
        (folder / "base.fbin").write_bytes(self.base)
        (folder / "victim").write_bytes(VICTIM)
        (folder / "private").mkdir()
        kind = kinds[number % len(kinds)]
        if kind != self.plant_before:
            # Some stages have run before.
            run_before = case.draw.randrange(1, len(STAGES)) if kind in (self.plant, self.forge_object) else 0
            self.lay(folder, STAGES[:run_before])
        kind(case, folder / "tasks")
        case.count(kind.__name__)
        case.expect((folder / "victim").read_bytes() == VICTIM, "lost: a file behind a link in the folder of tasks")
        case.expect((folder / "base.fbin").read_bytes() == self.base, "lost: the base changed")
        case.expect(not (folder / "elsewhere").exists(), "a file was made behind a dangling link")
        case.expect(not os.listdir(folder / "private"), "a file was made behind a link to a folder")

    def make(self, folder):
        """The plan and all objects of the tasks of a folder."""
        (folder / "base.fbin").write_bytes(self.base)
        self.world.runner.succeeds(PLAN, folder)
        self.world.runner.succeeds(["task", "run", "--dir", "tasks", "--all"], folder)
        if (folder / "x").read_bytes() != self.index:
            raise SystemExit("tasks make another index than one machine")
        made = files_in(folder / "tasks")
        shutil.rmtree(folder / "tasks")
        (folder / "x").unlink()
        return made

    def lay(self, folder, stages):
        """The folder of tasks of which those of `stages` have run."""
        (folder / "tasks").mkdir()
        for name, content in self.made[str(folder)].items():
            if stage_of(name) in ["plan", *stages]:
                (folder / "tasks" / name).write_bytes(content)

    def task(self, case, *arguments):
        outcome = case.ran(self.world.runner.run(["task", *arguments, "--dir", "tasks"], case.folder))
        case.count(f"exit {outcome.code}")
        return outcome

    def all(self, case):
        return self.task(case, "run", "--all")

    def is_right(self, case):
        written = case.folder / "x"
        return written.is_file() and written.read_bytes() == self.index

    def expect_index(self, case, outcome, what):
        case.expect(outcome.code == 0, f"{what}: {outcome.last_line()}")
        case.expect(outcome.code != 0 or self.is_right(case), "wrong result: other bytes than those of one machine")
        if outcome.code != 0:
            case.expect(not (case.folder / "x").exists(), "failed, and wrote an index")

    def plant_at(self, case, path, kind):
        """Puts something that is no file of a task in the place of one."""
        path.unlink(missing_ok=True)
        if kind == "link":
            os.symlink("../victim", path)
        elif kind == "dangling":
            os.symlink("../elsewhere", path)
        elif kind == "link to a folder":
            os.symlink("../private", path)
        elif kind == "hard link":
            os.link(case.folder / "victim", path)
        elif kind == "pipe":
            os.mkfifo(path)
        elif kind == "device":
            os.symlink(case.draw.choice(["/dev/zero", "/dev/null", "/dev/stdin"]), path)
        elif kind == "loop":
            os.symlink(path.name, path)
        elif kind == "folder":
            path.mkdir()
        elif kind == "empty":
            path.touch()
        else:
            with open(path, "wb") as file:
                file.truncate(HUGE)

    KINDS = ["link", "dangling", "link to a folder", "hard link", "pipe", "device", "loop", "empty", "huge"]

    def plant(self, case, tasks):
        """Plants something in the place of an object, a claim or the plan, before tasks run."""
        name = case.draw.choice(self.names(case))
        kind = case.draw.choice([*self.KINDS, "folder"])
        case.title = f"{kind} as {name}"
        self.plant_at(case, tasks / name, kind)
        # A plan cannot be made again, nor a task put its object in the place of a folder.
        may_fail = name.startswith("plan") or (kind == "folder" and not name.endswith(".claim"))
        if case.draw.random() < 0.5:
            self.task(case, "status")
        if case.draw.random() < 0.5:
            self.task(case, "run", case.draw.choice([name.split(".")[0] or "place", "--next"]))
        outcome = self.all(case)
        if outcome.code == 0 or not may_fail:
            self.expect_index(case, outcome, f"a planted {kind} ends it")

    def output_is_base(self, case, tasks):
        """Makes the output of the plan another name of the data set, after the plan was made."""
        base, output, more = case.folder / "base.fbin", case.folder / "x", []
        kind = case.draw.choice(["link", "hard link", "named"])
        case.title = f"the output is the data set: {kind}"
        if kind == "link":
            output.symlink_to("base.fbin")
        elif kind == "hard link":
            os.link(base, output)
        else:
            # The data set at another path than that of the plan.
            output.write_bytes(self.base)
            more = ["-i", "x", "--format", "fbin"]
        self.task(case, "run", "--all", *more)
        # The rename of the index over a hard link leaves the other name.
        kept = kind == "hard link" or output.read_bytes() == self.base
        case.expect(kept, "lost: the data set is the output, and was written over")

    def plant_before(self, case, tasks):
        """Plants something before the plan is made."""
        name = case.draw.choice(["plan.json", ".plan.json.tagore-tmp", *[name for name in self.names(case) if stage_of(name) == "plan"]])
        kind = case.draw.choice([*self.KINDS, "folder"])
        case.title = f"{kind} as {name} before the plan"
        tasks.mkdir()
        self.plant_at(case, tasks / name, kind)
        planned = case.ran(self.world.runner.run(PLAN, case.folder))
        case.count(f"plan: exit {planned.code}")
        outcome = self.all(case)
        if planned.code == 0:
            self.expect_index(case, outcome, "a plan was made, and its tasks fail")

    def plant_meanwhile(self, case, tasks):
        """Plants links, pipes and damage in the place of objects and claims while tasks run, again and again."""
        case.title = "planted while tasks run"
        # A process makes the same object again 16 times, and then gives up.
        names = [name for name in self.names(case) if stage_of(name) != "plan"] * TIMES
        case.draw.shuffle(names)

        def change():
            if not names:
                return
            path = tasks / names.pop()
            kind = case.draw.choice([*self.KINDS, "gone"])
            if kind == "gone":
                path.unlink(missing_ok=True)
            else:
                try:
                    self.plant_at(case, path, kind)
                except FileExistsError:
                    return  # The task was faster.
            case.count("planted")

        outcome = self.while_running(case, change)
        # An index may be complete before the last plant.
        self.expect_index(case, outcome, "something that was planted while tasks run ends it")

    def vanish(self, case, tasks):
        """Removes objects while tasks run; each is made again."""
        case.title = "objects vanish"
        removed = collections.Counter()

        def remove():
            objects = [path for path in sorted(tasks.iterdir()) if not path.name.startswith("plan") and removed[path] < TIMES]
            if objects:
                path = case.draw.choice(objects)
                path.unlink(missing_ok=True)
                removed[path] += 1
                case.count("removed")

        self.expect_index(case, self.while_running(case, remove), "vanished objects end it")

    def while_running(self, case, change):
        """Runs all tasks, by one process or two, and meanwhile makes a change again and again, for a while: the run has to come
        to an end."""
        running = threading.Event()
        pause, end = case.draw.choice([0.002, 0.01, 0.03]), time.monotonic() + case.draw.choice([0.1, 0.3, 0.6])

        def disturb():
            while not running.wait(pause) and time.monotonic() < end:
                change()

        thread = threading.Thread(target=disturb)
        thread.start()
        beside = self.world.runner.start(["task", "run", "--dir", "tasks", "--all"], case.folder) if case.draw.random() < 0.3 else None
        outcome = self.all(case)
        if beside:
            stderr = beside.communicate(timeout=60)[1]
            case.expect(beside.returncode == 0, f"the second process fails: {stderr[-200:]!r}")
        running.set()
        thread.join()
        return outcome

    def names(self, case):
        """Names of objects, of the claims of their tasks, and of the plan."""
        objects = [name for name in self.made[str(case.folder)] if name != "plan.json"]
        # As many of each stage.
        few = [name for name in objects if name.split(".")[0].rpartition("-")[2] in ["0", "1", "plan", "place", "finish"]]
        return few + [f".{name}.claim" for name in few] + ["plan.json"] * 4

    def forge_object(self, case, tasks):
        """Changes numbers of an object behind right checksums."""
        objects = sorted(path for path in tasks.iterdir() if path.name != "plan.json")
        stage = case.draw.choice(sorted({stage_of(path.name) for path in objects}))
        path = case.draw.choice([path for path in objects if stage_of(path.name) == stage])
        case.title = f"{path.name} forged"
        others = [other.read_bytes() for other in objects if stage_of(other.name) == stage]
        before = path.read_bytes()
        path.write_bytes(forged(before, case.draw, case.draw.choice(others)))
        case.count("not changed" if path.read_bytes() == before else f"{stage} forged")
        self.task(case, "status")
        if self.all(case).code == 0:
            # Numbers that are as good as the right ones make another index.
            case.count("as before" if self.is_right(case) else "another index")
            outcome = case.ran(self.world.runner.run(["inspect", "x", "--base", "base.fbin"], case.folder))
            case.expect(outcome.code == 0, f"wrote an index that inspect refuses: {outcome.last_line()}")
        else:
            case.expect(not (case.folder / "x").exists(), "failed, and wrote an index")

    def forge_plan(self, case, tasks):
        """Changes a number of the plan, and its hash to the right one."""
        case.title = "plan.json forged"
        path = tasks / "plan.json"
        head, plan, _ = unsealed(path.read_bytes())
        plan = json.dumps(json.loads(edit_number(plan, case.draw)), separators=(",", ":"), ensure_ascii=False).encode()
        record = sealed(head, plan)
        path.write_bytes(record)
        old = next(tasks.glob("plan.????????????????"))
        # The object of the plan is of the new one too.
        head, content, pieces = unsealed(old.read_bytes())
        content = json.dumps(json.loads(content) | {"plan": fnv(record)}).encode()
        (tasks / f"plan.{fnv(record):016x}").write_bytes(sealed(head, content) + pieces)
        self.task(case, "status")
        self.all(case)


def stage_of(name):
    """The stage of an object or a claim by its name; `plan` of the plan."""
    return name.removeprefix(".").split(".")[0].split("-")[0]


def fnv(content):
    value = 0xCBF29CE484222325
    for byte in content:
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


def forged(content, draw, other):
    """An object with damage in its description, a piece or its index, and right checksums; or with a piece of an `other`."""
    head, content, rest = unsealed(content)
    content = json.loads(content)
    pieces = pieces_of(content, rest)
    full = [place for place, (_, piece) in enumerate(pieces) if piece]
    kind = draw.choice(["piece"] * 6 + ["numbers"] * 6 + ["other", "lost", "description", "description", "index"] if full else ["description"])
    if kind in ["piece", "numbers"]:
        place = draw.choice(full)
        key, piece = pieces[place]
        # Lengths say much about what fits: most damage keeps them.
        damaged = mutate(piece, draw) if kind == "piece" else with_numbers(piece, draw)
        pieces[place] = (key, damaged if draw.random() < 0.3 else (damaged + bytes(len(piece)))[: len(piece)])
    elif kind == "other":
        _, theirs, rest = unsealed(other)
        pieces = pieces_of(json.loads(theirs), rest)
    elif kind == "lost":
        del pieces[draw.choice(full)]
    elif kind == "description":
        content["more"] = json.loads(edit_number(json.dumps(content["more"]), draw))
    content["pieces"] = [[key, len(piece), zlib.crc32(piece)] for key, piece in pieces]
    if kind == "index":
        content["pieces"] = json.loads(edit_number(json.dumps(content["pieces"]), draw))
    return sealed(head, json.dumps(content).encode()) + b"".join(piece for _, piece in pieces)


def with_numbers(piece, draw):
    """Changes words of a piece to other words of it, or to small numbers: most are in range, and at odds with the rest."""
    words = list(struct.unpack(f"<{len(piece) // 4}I", piece[: len(piece) // 4 * 4]))
    for _ in range(draw.choice([1, 1, 2, 8])):
        if words:
            words[draw.randrange(len(words))] = draw.choice([draw.choice(words), draw.randrange(2100), draw.randrange(16), 2**32 - 1])
    return struct.pack(f"<{len(words)}I", *words) + piece[4 * len(words) :]


def pieces_of(content, rest):
    """The keys and bytes of the pieces after a record."""
    pieces = []
    for key, length, _ in content["pieces"]:
        pieces.append((key, rest[:length]))
        rest = rest[length:]
    return pieces
