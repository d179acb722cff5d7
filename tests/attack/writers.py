"""Several runs that write the same output at once, and inputs that are written over while they are read."""

import threading
import time

from cases import BUILD
from part import files_in

NAME = "writers"
TIMED = (".json",)


class Part:
    def __init__(self, world):
        self.world = world
        self.names = world.data.names()
        self.reads = [(subject, line) for subject in world.data.subjects for line in subject.runs]
        self.writes = [
            (["build", "-i", "{base}", "-o", "x.tagore", "--index", "vamana", *BUILD], ["inspect", "x.tagore", "--base", "{base}"]),
            (["convert", "{base}", "x.fvecs"], ["inspect", "x.fvecs"]),
            (["knn", "-i", "{base}", "-o", "x", "--knn", "8", "--device", "cpu"], ["build", "-i", "{base}", "-o", "read", "--index", "nsg", "--device", "cpu", "--graph", "x", "--no-report"]),
        ]
        for name in world.data.indexes:
            write = ["convert", "{cagra}" if name == "npy" else "{index}", f"x.{name}", "--to", name, "--base", "{base}"]
            read = ["convert", f"x.{name}", "read", "--to", "tagore", "--from", name, "--base", "{base}"]
            self.writes.append((write, read))
        self.expected = [self.prepare(str(place), write) for place, (write, _) in enumerate(self.writes)]

    def line(self, command):
        return [part.format(**self.names) for part in command]

    def prepare(self, name, write):
        """What one run writes."""
        folder = self.world.fast / NAME / "prepared" / name
        folder.mkdir(parents=True)
        self.world.runner.succeeds(self.line(write), folder)
        return files_in(folder)

    def run(self, case, number):
        if number % 3 == 2:
            self.read_while_written(case)
        else:
            self.write_at_once(case)

    def write_at_once(self, case):
        place = case.draw.randrange(len(self.writes))
        (write, read), expected = self.writes[place], self.expected[place]
        case.title = " ".join(write)
        outcomes = []
        delays = [case.draw.random() * 0.01 for _ in range(4)]

        def one(delay):
            time.sleep(delay)
            outcomes.append(self.world.runner.run(self.line(write), case.folder))

        threads = [threading.Thread(target=one, args=[delay]) for delay in delays]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for outcome in outcomes:
            case.ran(outcome)
            if outcome.code != 0:
                case.count("refused")
                told = b"another run writing it" in outcome.stderr
                case.expect(told, f"one of several writers fails: {outcome.last_line()}")
        found = files_in(case.folder)
        if any(outcome.code == 0 for outcome in outcomes):
            case.count("written")
            for name, content in expected.items():
                same = found.get(name) == content or (name.endswith(TIMED) and found.get(name))
                case.expect(same, f"lost: {name} is not that of one writer")
            outcome = case.ran(self.world.runner.run(self.line(read), case.folder))
            case.expect(outcome.code == 0, f"what several writers leave cannot be read: {outcome.last_line()}")
            found.pop("read", None)
        left = sorted(set(found) - set(expected))
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
