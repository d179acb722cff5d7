"""Mutated work files: builds out of core that were killed, whose files are damaged before they go on."""

import json
import os
import re
import shutil
import zlib
from dataclasses import dataclass

import cases
from mutations import edit_number, mutate, sealed, text, unsealed
from part import files_in
from scenarios import DISK

NAME = "work_files"
KILLED_AT = [1, 12, 40, 80, 150, 250, 400, 600, 800]  # writes of the main thread
VICTIM = b"of someone else"
ROW = 8 * 4  # bytes
BUILD = ["build", "-i", "base.fbin", "-o", "x", "--kind", "vamana", *DISK, "--no-report"]
# The file of the pieces that a state lists under a key.
LOGS = {"members": "clusters", "waiting": "lists", "rows": "rows", "repeated": "repeated"}


@dataclass
class Build:
    """A build, what it makes, and the work folders of kills at several moments."""

    command: list
    base: bytes
    index: bytes
    snapshots: list


class Part:
    def __init__(self, world):
        self.world = world
        self.folder = world.fast / "work_files" / "prepared"
        self.folder.mkdir(parents=True)
        world.runner.succeeds(["synth", "-o", "base.fbin", "--n", "300", "--dim", "8"], self.folder)
        base = (self.folder / "base.fbin").read_bytes()
        repeating = base[: 8 + 200 * ROW] + base[8 : 8 + 60 * ROW] + base[8 + 260 * ROW :]
        # The second build has repeated rows, and lists on disk.
        self.builds = [self.build(BUILD, base)]
        (self.folder / "base.fbin").write_bytes(repeating)
        self.builds.append(self.build([*BUILD, "--host-memory", self.host_memory()], repeating))
        self.killed = [(build, snapshot) for build in self.builds for snapshot in build.snapshots]

    def host_memory(self):
        """The least host memory of a build out of core, which the command tells, and a little."""
        told = self.world.runner.run([*BUILD, "--host-memory", "1"], self.folder)
        return str(int(re.search(rb"at least (\d+)", told.stderr)[1]) * 21 // 20)

    def build(self, command, base):
        self.world.runner.succeeds(command, self.folder)
        index = (self.folder / "x").read_bytes()
        (self.folder / "x").unlink()
        found = Build(command, base, index, self.stopped(command))
        # One moment says little: members, lists and rows come and go.
        written = {name for snapshot in found.snapshots for name, content in snapshot.items() if content}
        expected = {"manifest.json", "table", "checkpoint", "clusters", "rows"}
        if len(found.snapshots) < len(KILLED_AT) // 2 or not expected <= written:
            raise SystemExit(f"too few work files of builds that were killed: {sorted(written)}")
        return found

    def stopped(self, command):
        """Work folders of builds that were killed at one of their writes, each later than the one before."""
        found = []
        for when in KILLED_AT:
            kill = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", "signal=none", "-e", "trace=write", "-e", f"inject=write:signal=KILL:when={when}"]
            outcome = self.world.runner.run(command, self.folder, prefix=kill)
            work = self.folder / "x.work"
            if outcome.code == 0:
                (self.folder / "x").unlink()
                break
            if work.exists():
                found.append({name: content for name, content in files_in(work).items() if content != "folder"})
                shutil.rmtree(work)
        for path in self.folder.iterdir():
            if path.name.startswith("."):
                path.unlink()
        return [snapshot for snapshot in found if snapshot]

    def run(self, case, number):
        folder, (build, snapshot) = case.folder, self.killed[number % len(self.killed)]
        (folder / "base.fbin").write_bytes(build.base)
        victim = folder / "victim"
        victim.write_bytes(VICTIM)
        work = folder / "x.work"
        for name, content in snapshot.items():
            (work / name).parent.mkdir(exist_ok=True, mode=0o700)
            (work / name).write_bytes(content)
        if case.draw.random() < 0.25 and (piece := forged_piece(snapshot, case.draw)):
            kinds = ["forged"]
            for name, content in piece.items():
                (work / name).write_bytes(content)
            case.title = f"{' and '.join(piece)}: forged"
            case.count("forged")
        else:
            damaged = case.draw.choice([1, 1, 2])
            kinds = [self.damage(case, work, case.draw.choice(sorted(snapshot)), build, snapshot) for _ in range(damaged)]
        outcome = case.ran(self.world.runner.run([*build.command, "--resume"], folder))
        case.count(f"exit {outcome.code}")
        case.expect(victim.read_bytes() == VICTIM, "lost: a file behind a link in the work folder")
        case.expect((folder / "base.fbin").read_bytes() == build.base, "lost: the base changed")
        case.expect(not (folder / "elsewhere").exists(), "a file was made behind a dangling link")
        written = folder / "x"
        if outcome.code == 0:
            right = written.exists() and written.read_bytes() == build.index
            if "forged" in kinds:
                # Numbers that are as good as the right ones make another index.
                case.count("as before" if right else "another index")
                inspected = case.ran(self.world.runner.run(["inspect", "x", "--base", "base.fbin"], folder))
                case.expect(inspected.code == 0, f"wrote an index that inspect refuses: {inspected.last_line()}")
            else:
                case.expect(right, "wrong result: other bytes than those of a build that was not stopped")
            left = sorted(cases.names_in(folder) - {"base.fbin", "x", "victim"})
            case.expect(not left, f"left behind: {left}")
        else:
            case.expect(not written.exists(), "failed, and wrote an index")

    def damage(self, case, work, name, build, snapshot):
        """Damages one work file."""
        path, draw, content = work / name, case.draw, snapshot[name]
        kinds = ["bytes", "bytes", "bytes", "numbers", "numbers", "forged", "forged", "text", "gone", "older", "link", "dangling", "pipe", "folder"]
        kind = draw.choice(kinds)
        record = unsealed(content)
        text_of = record and record[1]
        case.title += f"{name}: {kind} "
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
        if kind == "link":
            os.symlink("../victim", path)
        elif kind == "dangling":
            os.symlink("../elsewhere", path)
        elif kind == "pipe":
            os.mkfifo(path)
        elif kind == "folder":
            path.mkdir()
        elif kind == "older":
            # That of another stop of the same build.
            path.write_bytes(draw.choice(build.snapshots).get(name, b""))
        elif kind in ["numbers", "text"] and text_of:
            changed = edit_number(text_of, draw) if kind == "numbers" else bytes(text(bytearray(text_of), draw))
            path.write_bytes(content.replace(text_of, changed))
        elif kind == "forged" and text_of:
            path.write_bytes(forged(content, draw))
        elif kind != "gone" and content:
            path.write_bytes(mutate(content, draw))
        return kind


def forged(content, draw):
    """A state or the manifest with another number behind a right checksum."""
    head, json_text, _ = unsealed(content)
    return sealed(head, edit_number(json_text, draw))


def forged_piece(snapshot, draw):
    """A log with damage in one piece, and the state that lists the piece, with the checksum of the damaged bytes; none
    if no state lists one."""
    records = {name: record for name in ["table", "checkpoint"] if (record := unsealed(snapshot.get(name, b"")))}
    states = {name: json.loads(json_text) for name, (_, json_text, _) in records.items()}
    pieces = [
        (name, LOGS[key], piece)
        for name, state in states.items()
        for key, value in state.items()
        if key in LOGS
        for piece in pieces_of(value)
        if 0 < piece["bytes"] and piece["offset"] + piece["bytes"] <= len(snapshot[LOGS[key]])
    ]
    if not pieces:
        return None
    # As many from each file, not from each piece.
    log = draw.choice(sorted({log for _, log, _ in pieces}))
    name, log, piece = draw.choice([found for found in pieces if found[1] == log])
    data, begin, length = bytearray(snapshot[log]), piece["offset"], piece["bytes"]
    damaged = mutate(bytes(data[begin : begin + length]), draw)
    data[begin : begin + length] = (damaged + bytes(length))[:length]
    piece["crc"] = zlib.crc32(data[begin : begin + length])
    return {log: bytes(data), name: sealed(records[name][0], json.dumps(states[name]).encode())}


def pieces_of(value):
    if isinstance(value, dict):
        return [value] if value.keys() == {"offset", "bytes", "crc"} else []
    return [piece for item in value for piece in pieces_of(item)] if isinstance(value, list) else []
