"""What the parts of the attack have in common: cases by number, each drawn from the seed and its number alone."""

import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from cases import Data
from process import Runner, shown


@dataclass
class World:
    """What all parts are given."""

    runner: Runner
    seed: int
    data: Data
    fast: Path  # a folder in memory, where there is one
    disk: Path  # a folder on a disk


@dataclass
class Case:
    """One case: its generator, its folder, and what was found."""

    draw: random.Random
    folder: Path
    title: str = ""
    log: list = field(default_factory=list)  # command lines, in order
    faults: list = field(default_factory=list)
    counts: dict = field(default_factory=dict)

    def ran(self, outcome):
        """Notes a run and the faults that any run may have."""
        self.log.append(shown(outcome.command) + f"   # {outcome.code}")
        self.faults += outcome.faults()
        return outcome

    def fault(self, text):
        self.faults.append(text)

    def expect(self, holds, text):
        if not holds:
            self.faults.append(text)
        return holds

    def count(self, name, value=1):
        self.counts[name] = self.counts.get(name, 0) + value


def case_of(world, part, number, folder):
    """The case `number` of a part, in an empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return Case(random.Random(f"{world.seed} {part} {number}"), folder)


def files_in(folder):
    """The content of every file below a folder, by its name from there; of links, where they lead."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = ("link", str(path.readlink()))
        elif path.is_dir():
            found[name] = "folder"
        else:
            found[name] = path.read_bytes()
    return found
