"""Mutated files: every format that is read, damaged, and given to each command that reads it."""

from cases import ROWS
from mutations import mutate, repair
from results import fault_of_neighbors

NAME = "mutants"
CPU = 5  # seconds of processor time that a run may take; it needs about 5 ms


class Part:
    def __init__(self, world):
        self.world = world
        self.names = world.data.names()
        self.contents = {file: file.read_bytes() for subject in world.data.subjects for file in subject.files}
        # Long files belong to the out-of-core attack.
        self.others = [content for content in self.contents.values() if len(content) < 1 << 16]

    def run(self, case, number):
        subjects = self.world.data.subjects
        subject = subjects[number % len(subjects)]
        damaged = case.draw.choice(subject.files)
        content = mutate(self.contents[damaged], case.draw, case.draw.choice(self.others))
        if case.draw.random() < 0.7:
            content = repair(content)
        read = case.folder / "in"
        read.mkdir()
        for file in subject.files:
            (read / file.name).write_bytes(content if file == damaged else self.contents[file])
        line = case.draw.choice(subject.runs)
        case.title = f"{subject.name}, {damaged.name} damaged"
        arguments = line.format(file=f"in/{subject.main}", out="out", **self.names).split()
        outcome = case.ran(self.world.runner.run(arguments, case.folder, cpu=CPU))
        case.count(f"exit {outcome.code}")
        case.expect((read / damaged.name).read_bytes() == content, "input changed")
        outputs = [path for path in case.folder.iterdir() if path != read]
        if outcome.code != 0:
            case.expect(not outputs, f"failed, and left {[path.name for path in outputs]}")
        elif outputs and not case.faults:
            self.check(case, line, outputs)

    def check(self, case, line, outputs):
        """Checks what a run that succeeded has written."""
        output = outputs[0]
        if line.startswith(("search", "groundtruth", "knn")) and output.name == "out":
            rows = None if "{base}" not in line else ROWS
            # A search of an index whose edges are damaged may reach few nodes.
            if fault := fault_of_neighbors(output.read_bytes(), rows, may_be_short=line.startswith("search")):
                case.fault(f"wrong result: {fault}")
        if line.startswith("build") or output.suffix == ".tagore":
            outcome = case.ran(self.world.runner.run(["inspect", output.name], case.folder))
            case.expect(outcome.code == 0, f"wrote an index that inspect refuses: {outcome.last_line()}")
