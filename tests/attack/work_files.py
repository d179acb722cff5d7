"""Mutated work files: builds out of core that were killed, whose files are damaged before they go on."""

import os
import shutil

import cases
from mutations import edit_number, is_checked_json, mutate, text
from part import files_in
from scenarios import DISK

NAME = "work_files"
SNAPSHOTS = 12
VICTIM = b"of someone else"


class Part:
    def __init__(self, world):
        self.world = world
        self.folder = world.fast / "work_files" / "prepared"
        self.folder.mkdir(parents=True)
        world.runner.succeeds(["synth", "-o", "base.fbin", "--n", "300", "--dim", "8"], self.folder)
        self.base = (self.folder / "base.fbin").read_bytes()
        self.build = ["build", "-i", "base.fbin", "-o", "x", "--index", "vamana", *DISK, "--no-report"]
        world.runner.succeeds(self.build, self.folder)
        self.index = (self.folder / "x").read_bytes()
        (self.folder / "x").unlink()
        self.snapshots = self.stopped()

    def stopped(self):
        """Work folders of builds that were killed at one of their renames, each after one more checkpoint."""
        found = []
        for when in range(2, 2 + SNAPSHOTS):
            kill = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=/^rename", "-e", f"inject=/^rename:signal=KILL:when={when}"]
            outcome = self.world.runner.run(self.build, self.folder, prefix=kill)
            work = self.folder / "x.work"
            if outcome.code == 0 or not work.exists():
                break
            found.append({name: content for name, content in files_in(work).items() if content != "folder"})
            shutil.rmtree(work)
        for path in self.folder.iterdir():
            if path.name.startswith("."):
                path.unlink()
        if not found:
            raise SystemExit("no work files of a build that was killed")
        return found

    def run(self, case, number):
        folder, snapshot = case.folder, self.snapshots[number % len(self.snapshots)]
        (folder / "base.fbin").write_bytes(self.base)
        victim = folder / "victim"
        victim.write_bytes(VICTIM)
        work = folder / "x.work"
        for name, content in snapshot.items():
            (work / name).parent.mkdir(exist_ok=True, mode=0o700)
            (work / name).write_bytes(content)
        for _ in range(case.draw.choice([1, 1, 2])):
            self.damage(case, work, case.draw.choice(sorted(snapshot)), snapshot)
        outcome = case.ran(self.world.runner.run([*self.build, "--resume"], folder))
        case.count(f"exit {outcome.code}")
        case.expect(victim.read_bytes() == VICTIM, "lost: a file behind a link in the work folder")
        case.expect((folder / "base.fbin").read_bytes() == self.base, "lost: the base changed")
        written = folder / "x"
        if outcome.code == 0:
            right = written.exists() and written.read_bytes() == self.index
            case.expect(right, "wrong result: other bytes than those of a build that was not stopped")
            left = sorted(cases.names_in(folder) - {"base.fbin", "x", "victim"})
            case.expect(not left, f"left behind: {left}")
        else:
            case.expect(not written.exists(), "failed, and wrote an index")

    def damage(self, case, work, name, snapshot):
        """Damages one work file."""
        path, draw, content = work / name, case.draw, snapshot[name]
        kind = draw.choice(["bytes", "bytes", "bytes", "numbers", "numbers", "text", "gone", "older", "link", "folder"])
        json = json_of(content)
        case.title += f"{name}: {kind} "
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
        if kind == "link":
            os.symlink("../victim", path)
        elif kind == "folder":
            path.mkdir()
        elif kind == "older":
            # That of another stop of the same build.
            path.write_bytes(draw.choice(self.snapshots).get(name, b""))
        elif kind in ["numbers", "text"] and json:
            changed = edit_number(json, draw) if kind == "numbers" else bytes(text(bytearray(json), draw))
            path.write_bytes(content.replace(json, changed))
        elif kind != "gone" and content:
            path.write_bytes(mutate(content, draw))


def json_of(content):
    """The JSON of a state or of the manifest; none if it is neither."""
    if is_checked_json(content):
        return content[4:]
    return content if content[:1] == b"{" else None
