"""Attacks the folder of a build in tasks: what others plant in it, objects that vanish while tasks run, and numbers that
are wrong behind right checksums."""

import json
import os
import struct
import threading
import time
import zlib

from mutations import edit_number, mutate

NAME = "task_folders"
VICTIM = b"of someone else"
BUILD = ["--index", "vamana", "--device", "cpu", "--knn", "8", "--cluster-size", "600"]
STAGES = ["assign", "place", "write", "build", "merge", "assemble"]
HEAD, ENTRY = struct.Struct("<8sIIQQII"), struct.Struct("<IIQQ")


class Part:
    def __init__(self, world):
        self.world = world
        folder = world.fast / NAME / "prepared"
        folder.mkdir(parents=True)
        world.runner.succeeds(["synth", "-o", "base.fbin", "--n", "2100", "--dim", "4"], folder)
        self.base = (folder / "base.fbin").read_bytes()
        world.runner.succeeds(["build", "-i", "base.fbin", "-o", "x", *BUILD, "--no-report"], folder)
        self.index = (folder / "x").read_bytes()

    def run(self, case, number):
        folder = case.folder
        (folder / "base.fbin").write_bytes(self.base)
        (folder / "victim").write_bytes(VICTIM)
        plan = ["task", "plan", "-i", "base.fbin", "-o", "x", "--dir", "tasks", "--range-rows", "1024", *BUILD]
        self.world.runner.succeeds(plan, folder)
        kind = [self.plant, self.plant, self.vanish, self.forge_object, self.forge_object, self.forge_plan][number % 6]
        # Some stages have run before.
        if kind in (self.plant, self.forge_object):
            for stage in STAGES[: case.draw.randrange(1, len(STAGES) + 1)]:
                self.world.runner.succeeds(["task", "run", "--dir", "tasks", "--stage", stage], folder)
        kind(case, folder / "tasks")
        case.expect((folder / "victim").read_bytes() == VICTIM, "lost: a file behind a link in the folder of tasks")
        case.expect((folder / "base.fbin").read_bytes() == self.base, "lost: the base changed")
        case.expect(not (folder / "elsewhere").exists(), "a file was made behind a dangling link")

    def all(self, case):
        outcome = case.ran(self.world.runner.run(["task", "run", "--dir", "tasks", "--all"], case.folder))
        case.count(f"exit {outcome.code}")
        return outcome

    def is_right(self, case):
        written = case.folder / "x"
        return written.is_file() and written.read_bytes() == self.index

    def plant(self, case, tasks):
        """Puts something that is no file of a task under a name that a task uses."""
        name = case.draw.choice(self.names(tasks))
        kind = case.draw.choice(["link", "dangling", "hard link", "pipe", "device", "folder", "huge"])
        case.title = f"{kind} as {name}"
        path = tasks / name
        path.unlink(missing_ok=True)
        if kind == "link":
            os.symlink("../victim", path)
        elif kind == "dangling":
            os.symlink("../elsewhere", path)
        elif kind == "hard link":
            os.link(case.folder / "victim", path)
        elif kind == "pipe":
            os.mkfifo(path)
        elif kind == "device":
            os.symlink("/dev/zero", path)
        elif kind == "folder":
            path.mkdir()
        else:
            with open(path, "wb") as file:
                file.truncate(1 << 40 if name.endswith(".claim") else 1 << 31)
        outcome = self.all(case)
        # A plan cannot be made again, nor an object in the place of a folder.
        may_fail = name == "plan.json" or name.startswith("plan.") or kind == "folder"
        case.expect(outcome.code == 0 or may_fail, f"a planted {kind} ends it: {outcome.last_line()}")
        case.expect(outcome.code != 0 or self.is_right(case), "wrong result: other bytes than those of one machine")

    def names(self, tasks):
        """Names of objects, of the claims of their tasks, and of the plan."""
        plan = next(path.name.split(".")[1] for path in tasks.glob("plan.????????????????"))
        names = [f"{stage}-{number}.{plan}" for stage in STAGES if stage != "place" for number in range(2)]
        names += [f"{stage}.{plan}" for stage in ["plan", "place", "finish"]]
        return names + [f".{name}.claim" for name in names] + ["plan.json"]

    def vanish(self, case, tasks):
        """Removes objects while tasks run; each is made again."""
        case.title = "objects vanish"
        running = threading.Event()

        def remove():
            while not running.wait(case.draw.choice([0.002, 0.01, 0.03])):
                objects = [path for path in sorted(tasks.iterdir()) if not path.name.startswith("plan")]
                if objects:
                    case.draw.choice(objects).unlink(missing_ok=True)
                    case.count("removed")
                if time.monotonic() > end:
                    return

        # The run has to come to an end.
        end = time.monotonic() + case.draw.choice([0.1, 0.3, 0.6])
        thread = threading.Thread(target=remove)
        thread.start()
        outcome = self.all(case)
        running.set()
        thread.join()
        case.expect(outcome.code == 0, f"vanished objects end it: {outcome.last_line()}")
        case.expect(outcome.code != 0 or self.is_right(case), "wrong result: other bytes than those of one machine")

    def forge_object(self, case, tasks):
        """Changes numbers of an object behind right checksums."""
        objects = sorted(path for path in tasks.iterdir() if not path.name.startswith((".", "plan.json")))
        path = case.draw.choice(objects)
        case.title = f"{path.name} forged"
        path.write_bytes(forged(path.read_bytes(), case.draw))
        case.ran(self.world.runner.run(["task", "status", "--dir", "tasks"], case.folder))
        if self.all(case).code == 0:
            # Numbers that are as good as the right ones make another index.
            outcome = case.ran(self.world.runner.run(["inspect", "x"], case.folder))
            case.expect(outcome.code == 0, f"wrote an index that inspect refuses: {outcome.last_line()}")

    def forge_plan(self, case, tasks):
        """Changes a number of the plan, and its hash to the right one."""
        case.title = "plan.json forged"
        path = tasks / "plan.json"
        sealed = json.loads(path.read_text())
        plan = json.loads(edit_number(json.dumps(sealed["plan"]), case.draw))
        sealed = {"plan": plan, "hash": f"{fnv(json.dumps(plan, separators=(',', ':'), ensure_ascii=False).encode()):016x}"}
        path.write_text(json.dumps(sealed))
        old = next(tasks.glob("plan.????????????????"))
        content = bytearray(old.read_bytes())
        # The object of the plan is of the new one too.
        struct.pack_into("<Q", content, 24, int(sealed["hash"], 16))
        (tasks / f"plan.{sealed['hash']}").write_bytes(sealed_object(content))
        case.ran(self.world.runner.run(["task", "status", "--dir", "tasks"], case.folder))
        self.all(case)


def fnv(content):
    value = 0xCBF29CE484222325
    for byte in content:
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


def forged(content, draw):
    """An object with damage in its head, its description or a piece, and right checksums."""
    data = bytearray(content)
    _, _, count, _, _, description, _ = HEAD.unpack_from(data)
    entries = [ENTRY.unpack_from(data, HEAD.size + ENTRY.size * place) for place in range(count)]
    full = [entry for entry in entries if entry[3]]
    begin = HEAD.size + ENTRY.size * count
    where = draw.choice(["piece"] * 6 + ["description", "description", "index"]) if full else "description"
    if where == "piece":
        _, _, offset, length = draw.choice(full)
        piece = mutate(bytes(data[offset : offset + length]), draw)
        data[offset : offset + length] = (piece + bytes(length))[:length]
    elif where == "description":
        text = bytes(data[begin : begin + description])
        changed = edit_number(text, draw)[:description]
        data[begin : begin + description] = changed.ljust(description)
    else:
        at = HEAD.size + draw.randrange(ENTRY.size * count) // 4 * 4
        struct.pack_into("<I", data, at, draw.choice([0, 1, 2**31, 2**32 - 1]))
    return sealed_object(data)


def sealed_object(data):
    """The object with right checksums."""
    count, description = struct.unpack_from("<I", data, 12)[0], struct.unpack_from("<I", data, 32)[0]
    for place in range(count):
        at = HEAD.size + ENTRY.size * place
        _, _, offset, length = ENTRY.unpack_from(data, at)
        struct.pack_into("<I", data, at + 4, zlib.crc32(data[offset : offset + length]))
    heading = HEAD.size + ENTRY.size * count + description
    struct.pack_into("<I", data, 36, zlib.crc32(data[:36] + data[HEAD.size : heading]))
    return bytes(data)
