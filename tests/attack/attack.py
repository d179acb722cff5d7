"""Attacks the command: kills, mutated files, random command lines, signals. See README.md."""

import argparse
import collections
import concurrent.futures
import os
import queue
import random
import re
import shutil
import sys
import tempfile
from pathlib import Path

import cases
import command_lines
import kills
import mutants
import signals
import task_folders
import work_files
import writers
from part import World, case_of, files_in
from process import Runner, hear_hangups, limit_runs, now

PARTS = {part.NAME: part for part in [kills, work_files, mutants, command_lines, signals, task_folders, writers]}
COUNTS = {"kills": 250, "work_files": 500, "mutants": 9800, "command_lines": 1000, "signals": 60, "task_folders": 200, "writers": 300}
LARGE = 10  # times the counts of the small budget
SHOWN = 3  # failures of a kind that are shown


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tagore", type=Path, help="the command, built for release")
    parser.add_argument("--budget", choices=["small", "large"], default="small")
    parser.add_argument("--seed", type=int, default=None, help="default: a random one, which is printed")
    parser.add_argument("--parts", default=",".join(PARTS), help="those to run, of " + ", ".join(PARTS))
    parser.add_argument("--count", type=int, help="cases of each part, instead of a budget")
    parser.add_argument("--case", metavar="PART:NUMBER", help="replay one case, and keep its folder")
    parser.add_argument("--jobs", type=int, default=2, help="cases at a time")
    return parser.parse_args()


class Attack:
    def __init__(self, given, seed):
        self.given, self.seed = given, seed
        self.disk = Path(tempfile.mkdtemp(prefix="attack-"))
        memory = Path("/dev/shm")
        has_room = memory.is_dir() and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 2 << 30
        self.fast = Path(tempfile.mkdtemp(prefix="attack-", dir=memory)) if has_room else self.disk
        self.failures = collections.defaultdict(list)
        self.began = now()

    def world(self):
        runner = Runner(self.given.tagore)
        data = cases.make(runner, self.fast / "data")
        return World(runner, self.seed, data, self.fast, self.disk)

    def run(self, world, name):
        """Runs all cases of a part."""
        count = self.given.count or COUNTS[name] * (LARGE if self.given.budget == "large" else 1)
        before, began = files_in(world.data.folder), now()
        part = PARTS[name].Part(world)
        folders = queue.SimpleQueue()
        for job in range(self.given.jobs):
            folders.put(self.folder(world, name) / f"job{job}")
        totals = collections.Counter()

        def one(number):
            folder = folders.get()
            try:
                return number, self.case(world, name, part, number, folder)
            except Exception as error:
                raise RuntimeError(f"the attack itself fails: --seed {self.seed} --case {name}:{number}") from error
            finally:
                folders.put(folder)

        with concurrent.futures.ThreadPoolExecutor(self.given.jobs) as pool:
            for number, case in pool.map(one, range(count)):
                totals.update(case.counts)
                for fault in case.faults:
                    self.failures[kind_of(name, fault)].append((f"{name}:{number}", fault, case))
        if files_in(world.data.folder) != before:
            self.failures[f"{name}: data changed"].append((name, "data of all cases changed", None))
        shutil.rmtree(self.folder(world, name), ignore_errors=True)
        if hasattr(part, "finish"):
            part.finish(totals)
        told = ", ".join(f"{value} {key}" for key, value in sorted(totals.items()))
        print(f"{name:14} {count:6} cases in {now() - began:5.0f} s: {told}", flush=True)

    def folder(self, world, name):
        return (world.disk if getattr(PARTS[name], "ON_DISK", False) else world.fast) / name

    def case(self, world, name, part, number, folder):
        case = case_of(world, name, number, folder)
        part.run(case, number)
        return case

    def replay(self, world, name, number):
        part = PARTS[name].Part(world)
        case = self.case(world, name, part, number, self.folder(world, name) / "replay")
        print(f"{name}:{number} {case.title}\nfolder: {case.folder}")
        print("\n".join([*case.log, *(f"FAULT {fault}" for fault in case.faults)]))
        sys.exit(1 if case.faults else 0)

    def report(self):
        """Prints the failures by their kinds."""
        for kind, found in sorted(self.failures.items(), key=lambda item: -len(item[1])):
            print(f"\nFAILED {len(found)} x {kind}")
            for number, fault, case in found[:SHOWN]:
                print(f"  --seed {self.seed} --case {number}   {case.title if case else ''}\n    {fault[:400]}")
                for line in case.log if case else []:
                    print(f"    {line[:600]}")
        failed = sum(len(found) for found in self.failures.values())
        print(f"\nseed {self.seed}: {failed} failures of {len(self.failures)} kinds in {now() - self.began:.0f} s")
        return 1 if failed else 0

    def remove(self):
        for folder in {self.fast, self.disk}:
            shutil.rmtree(folder, ignore_errors=True)


def kind_of(part, fault):
    """A fault without its numbers and names, so that the same ones are one kind."""
    if fault.startswith(("control character", "panic")):
        return f"{part}: {fault[:70] if fault.startswith('panic') else fault.partition(':')[0]}"
    return f"{part}: " + re.sub(r"\d+", "N", re.sub(r"\S*\.tagore-\w+|'[^']*'|/\S*", "..", fault))[:100]


def main():
    given = arguments()
    seed = random.SystemRandom().randrange(1 << 32) if given.seed is None else given.seed
    print(f"seed {seed}", flush=True)
    limit_runs()
    hear_hangups()
    attack = Attack(given, seed)
    if given.case:
        name, number = given.case.split(":")
        attack.replay(attack.world(), name, int(number))
    try:
        world = attack.world()
        for name in given.parts.split(","):
            attack.run(world, name)
        result = attack.report()
    finally:
        attack.remove()
    sys.exit(result)


if __name__ == "__main__":
    main()
