"""Several runs that write different content to the same output at once, and inputs that are written over while they are
read."""

import json
import random
import threading
import time

from cases import BUILD
from part import files_in

NAME = "writers"
WRITERS = 4


class Part:
    def __init__(self, world):
        self.world = world
        self.names = world.data.names()
        self.reads = [(subject, line) for subject in world.data.subjects for line in subject.runs]
        self.writes = [
            (["build", "-i", "{base}", "-o", "x.tagore", "--kind", "nsg", "--device", "cpu", "--knn", "8"], ["inspect", "x.tagore", "--base", "{base}"]),
            (["build", "-i", "{base}", "-o", "x.tagore", "--kind", "vamana", *BUILD], ["inspect", "x.tagore", "--base", "{base}"]),
            (["convert", "{base}", "x.fvecs"], ["inspect", "x.fvecs"]),
            (["knn", "-i", "{base}", "-o", "x", "--knn", "8", "--device", "cpu"], ["build", "-i", "{base}", "-o", "read", "--kind", "nsg", "--device", "cpu", "--graph", "x", "--no-report"]),
        ]
        for name in world.data.indexes:
            write = ["convert", "{cagra}" if name == "npy" else "{index}", f"x.{name}", "--to", name, "--base", "{base}"]
            read = ["convert", f"x.{name}", "read", "--to", "tagore", "--from", name, "--base", "{base}"]
            self.writes.append((write, read))
        self.variants = [self.names, self.other_data()]
        self.expected = [[self.prepare(f"{place}-{at}", write, at) for at in range(2)] for place, (write, _) in enumerate(self.writes)]
        for (write, _), (one, other) in zip(self.writes, self.expected):
            # Else files of two writers in one set would not be told from those of one.
            if one.keys() != other.keys() or one == other:
                raise SystemExit(f"{' '.join(write)}: two inputs make the same files")

        # Sets of files matter most.
        self.weights = [3 if len(one) > 1 else 1 for one, _ in self.expected]

    def other_data(self):
        """Other data of the same shape: the rows in another order, and indexes of them."""
        folder = self.world.fast / NAME / "other"
        folder.mkdir(parents=True)
        content = self.world.data.path("base.fbin").read_bytes()
        dim = int.from_bytes(content[4:8], "little")
        rows = [content[at : at + 4 * dim] for at in range(8, len(content), 4 * dim)]
        random.Random(0).shuffle(rows)
        (folder / "base.fbin").write_bytes(content[:8] + b"".join(rows))
        for name, kind in [("index", ["nsg"]), ("cagra", ["cagra", "--degree", "8"])]:
            self.world.runner.succeeds(["build", "-i", "base.fbin", "-o", f"{name}.tagore", "--kind", *kind, *BUILD], folder)
        names = {"base": "base.fbin", "index": "index.tagore", "cagra": "cagra.tagore"}
        return {name: str(folder / file) for name, file in names.items()}

    def line(self, command, variant=0):
        return [part.format(**self.variants[variant]) for part in command]

    def prepare(self, name, write, variant):
        """What one run writes."""
        folder = self.world.fast / NAME / "prepared" / name
        folder.mkdir(parents=True)
        self.world.runner.succeeds(self.line(write, variant), folder)
        return files_in(folder)

    def run(self, case, number):
        if number % 3 == 2:
            self.read_while_written(case)
        else:
            self.write_at_once(case)

    def write_at_once(self, case):
        place = case.draw.choices(range(len(self.writes)), self.weights)[0]
        (write, read), expected = self.writes[place], self.expected[place]
        case.title = " ".join(write)
        outcomes = []
        # Now and then an older output is there.
        if case.draw.random() < 0.3:
            case.ran(self.world.runner.run(self.line(write, case.draw.randrange(2)), case.folder))
        variants = [number % 2 for number in range(WRITERS)]
        delays = [case.draw.random() * case.draw.choice([0, 0.002, 0.01, 0.03]) for _ in variants]

        def one(variant, delay):
            time.sleep(delay)
            outcomes.append((variant, self.world.runner.run(self.line(write, variant), case.folder)))

        threads = [threading.Thread(target=one, args=pair) for pair in zip(variants, delays)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for _, outcome in outcomes:
            case.ran(outcome)
            if outcome.code != 0:
                case.count("refused")
                told = b"another run writing it" in outcome.stderr
                case.expect(told, f"one of several writers fails: {outcome.last_line()}")
        found = files_in(case.folder)
        written = {variant for variant, outcome in outcomes if outcome.code == 0}
        if written:
            case.count("written")
            of = [variant for variant in written if all(is_same(name, found.get(name), content) for name, content in expected[variant].items())]
            if case.expect(of, "lost: the files are not those of one writer that exited 0"):
                outcome = case.ran(self.world.runner.run(self.line(read, of[0]), case.folder))
                case.expect(outcome.code == 0, f"what several writers leave cannot be read: {outcome.last_line()}")
            found.pop("read", None)
        left = sorted(set(found) - set(expected[0]))
        case.expect(not left, f"left behind: {left}")

    def read_while_written(self, case):
        """A run reads a file that another program writes over."""
        subject, line = case.draw.choice(self.reads)
        case.title = f"{subject.name}, written over"
        read = case.folder / "in"
        read.mkdir()
        for file in subject.files:
            (read / file.name).write_bytes(file.read_bytes())
        target = read / case.draw.choice(subject.files).name
        length, stop = target.stat().st_size, threading.Event()

        def write():
            with open(target, "r+b", buffering=0) as file:
                while not stop.is_set():
                    at = case.draw.randrange(length)
                    file.seek(at)
                    file.write(case.draw.choice([b"\xff" * 4, bytes(4), case.draw.randbytes(8), b"\x7f" * 64])[: length - at])

        thread = threading.Thread(target=write)
        thread.start()
        try:
            case.ran(self.world.runner.run(line.format(file=f"in/{subject.main}", out="out", **self.names).split(), case.folder))
        finally:
            stop.set()
            thread.join()


def is_same(name, found, expected):
    """Whether a file is the expected one; of a report, which has times, whether it is of the same index."""
    if found is None or not name.endswith(".json"):
        return found == expected
    try:
        one, other = json.loads(found), json.loads(expected)
    except ValueError:
        return False
    return [one.get(key) for key in ["entries", "degrees"]] == [other.get(key) for key in ["entries", "degrees"]]
