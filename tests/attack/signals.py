"""Signals while large files are read: the run ends soon, says so, and leaves nothing behind."""

import resource
import shutil
import signal
import struct
import subprocess
import time
import zlib
from pathlib import Path

from process import Outcome, now, shown

NAME = "signals"
ON_DISK = True  # files in memory have no holes once they are read

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
GUARD = 10  # seconds from the signal to the end
BOUND = 2  # seconds that it should take at most
SIZE = 8 << 30  # bytes of a file of vectors; the file is sparse and takes no disk space
DIM = 128

CLUSTERS = "--device cpu --knn 16 --cluster-size 50000"
RUNS = [
    "inspect base.fbin --all",
    "inspect base.f16bin --all",
    "inspect base.npy --all",
    "inspect base.fvecs --all",
    "inspect index.tagore --all",
    "convert base.fbin x.f16bin",
    "convert base.u8bin x.fbin",
    "convert base.fvecs x.fbin",
    "build -i base.fbin -o x --kind nsg --device cpu",
    "build -i base.npy -o x --kind vamana --device cpu",
    "build -i base.fbin -o x --kind vamana " + CLUSTERS,
    "build -i base.u8bin -o x --kind vamana " + CLUSTERS,
    "knn -i base.f16bin -o x --device cpu",
    "groundtruth --base base.fbin --queries query.fbin -k 10 -o x",
    "groundtruth --base base.u8bin --queries query.fbin -k 10 -o x",
    "groundtruth --base base.npy --queries query.fbin -k 10 -o x --metric cosine",
]


class Part:
    def __init__(self, world):
        self.world, self.longest, self.late = world, 0.0, 0
        self.folder = world.disk / "signals" / "data"
        self.folder.mkdir(parents=True)
        # What started the attack may ignore signals, as nohup does; what it runs would inherit that.
        for one in SIGNALS:
            if signal.getsignal(one) == signal.SIG_IGN:
                signal.signal(one, signal.SIG_DFL)
        # Large files are mapped, and a conversion of one is large.
        for kind in [resource.RLIMIT_AS, resource.RLIMIT_FSIZE]:
            resource.setrlimit(kind, (resource.getrlimit(kind)[1],) * 2)
        for name, width in [("fbin", 4), ("f16bin", 2), ("u8bin", 1)]:
            rows = SIZE // DIM // width // (4 if width == 1 else 1)
            self.sparse(f"base.{name}", struct.pack("<2I", rows, DIM), rows * DIM * width)
        self.sparse("base.npy", npy_header(SIZE // DIM // 4), SIZE)
        self.rows("base.fvecs", 1 << 16, 4096)
        self.index("index.tagore", 1 << 25, 32)
        (self.folder / "query.fbin").write_bytes(struct.pack("<2I", 10, DIM) + bytes(10 * DIM * 4))

    def sparse(self, name, head, size):
        with open(self.folder / name, "wb") as file:
            file.write(head)
            file.truncate(len(head) + size)

    def rows(self, name, rows, dim):
        """Rows that each follow their dimension."""
        with open(self.folder / name, "wb") as file:
            for row in range(rows):
                file.seek(row * 4 * (dim + 1))
                file.write(struct.pack("<I", dim))
            file.truncate(rows * 4 * (dim + 1))

    def index(self, name, nodes, degree):
        """A native index with right checksums, of nodes without neighbours (docs/formats.md)."""
        description = b'{"kind":"nsg","metric":"l2","seed":0,"parameters":{}}'
        page = lambda offset: -(-offset // 4096) * 4096
        lengths, offsets, at = [len(description), 4, 4 * nodes, 4 * nodes * degree], [], 4096
        for length in lengths:
            offsets.append(at)
            at = page(at + length)
        starts = [description, bytes(4), b"", b""]
        checksums = []
        whole = zlib.crc32(bytes(1 << 20))
        for length, start in zip(lengths, starts):
            full, rest = divmod(length, 1 << 20)
            checksums += [whole] * full + ([zlib.crc32(start or bytes(rest))] if rest else [])
        offsets.append(at)
        lengths.append(4 * len(checksums))
        header = b"TAGOREIX" + struct.pack("<2IQ2IQ2I2Q", 1, 0, nodes, degree, 1, nodes, DIM, 0, 0, at + lengths[4])
        header += b"".join(struct.pack("<2Q", *section) for section in zip(offsets, lengths))
        header = header.ljust(4092, b"\0")
        with open(self.folder / name, "wb") as file:
            file.write(header + struct.pack("<I", zlib.crc32(header)) + description)
            file.seek(at)
            file.write(struct.pack(f"<{len(checksums)}I", *checksums))

    def run(self, case, number):
        line = RUNS[number % len(RUNS)]
        first = case.draw.choice(SIGNALS)
        second = case.draw.choice([one for one in SIGNALS if one != first]) if case.draw.random() < 0.25 else None
        delay = case.draw.uniform(0, 1)
        case.title = f"{first.name}{' and ' + second.name if second else ''} after {delay:.2f} s"
        # A run that has ended by then is tried again with an earlier signal.
        for attempt in range(4):
            if self.signal(case, line, first, second, delay / 4**attempt):
                return case.count("signals")
        case.count("ended before the signal")

    def signal(self, case, line, first, second, delay):
        """Runs a line, and sends it one signal or two; whether it was still at work then."""
        folder = case.folder / "run"
        folder.mkdir(exist_ok=True)
        for path in self.folder.iterdir():
            link = folder / path.name
            link.exists() or link.symlink_to(path)
        arguments = line.split()
        child = self.world.runner.start(arguments, folder)
        wait_for_reading(child, str(self.folder))
        time.sleep(delay)
        if child.poll() is not None:
            outcome = Outcome(self.world.runner.command(arguments), child.returncode, *child.communicate(), False)
            case.expect(not outcome.faults(), f"{outcome.faults()} before the signal")
            clear(folder)
            return False
        sent = now()
        child.send_signal(first)
        if second:
            child.send_signal(second)
        try:
            stdout, stderr = child.communicate(timeout=GUARD)
        except subprocess.TimeoutExpired:
            child.kill()
            child.communicate()
            case.log.append(f"{shown(self.world.runner.command(arguments))}   # {first.name} after {delay:.2f} s")
            case.fault(f"hangs: no end {GUARD} s after {first.name}{' and another signal' if second else ''}")
            return True
        took = now() - sent
        # A build out of core that finds no room on the disk ends by itself.
        if (child.returncode == 0 or b"bytes free" in stderr) and took < BOUND:
            case.count("at the last moment")
            clear(folder)
            return False
        self.longest = max(self.longest, took)
        self.late += took > BOUND
        outcome = Outcome(self.world.runner.command(arguments), child.returncode, stdout, stderr, False)
        left = [path.name for path in folder.iterdir() if not path.is_symlink()]
        if second:
            ends = {1, *(128 + one for one in SIGNALS), *(-one for one in SIGNALS)}
            case.expect(outcome.code in ends, f"exit code {outcome.code} after two signals")
            # The next run of the same output takes temporary files away.
            left = [name for name in left if not name.startswith(".")]
            case.log.append(f"{shown(outcome.command)}   # {outcome.code}, {first.name} and {second.name} after {delay:.2f} s")
        else:
            case.ran(outcome)
            case.log.append(f"# {first.name} after {delay:.2f} s, {took:.2f} s to the end")
            if not case.faults:
                says = outcome.code == 130 and b"interrupted" in outcome.stderr
                case.expect(says, f"exit code {outcome.code} after {first.name}: {outcome.last_line()}")
        # Work files are what --resume goes on with.
        left = [name for name in left if name != "x.work"]
        case.expect(not left, f"left behind after {first.name}: {left}")
        return True

    def finish(self, totals):
        totals["ms from a signal to the end at most"] = round(self.longest * 1000)
        totals[f"ends later than {BOUND} s"] = self.late


def clear(folder):
    """Removes what a run has written."""
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif not path.is_symlink():
            path.unlink()


def npy_header(rows):
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {DIM}), }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode()


def wait_for_reading(child, folder):
    """Waits until a file of the folder is mapped or open."""
    end = now() + 5
    while now() < end and child.poll() is None:
        try:
            if folder in Path(f"/proc/{child.pid}/maps").read_text():
                return
        except OSError:
            return
        time.sleep(0.005)
