"""Runs the command, and lists the faults that no run may have, whatever it was given."""

import os
import re
import resource
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

LONGEST_LINE = 1000  # bytes of an error line
GUARD = 30  # seconds after which a run hangs
MEMORY = 4 << 30  # address space of a run: a size read from a file must not take the machine down
FILE_SIZE = 64 << 20  # the same for a file that is written

ENVIRONMENT = {**os.environ, "RUST_BACKTRACE": "0"}

# All control characters but the line feed: those of ASCII, and C1 as UTF-8.
CONTROL = re.compile(rb"[\x00-\x09\x0b-\x1f\x7f]|\xc2[\x80-\x9f]")


def hear_hangups():
    """Under nohup this process ignores SIGHUP, and runs would too. A handler is reset to the default as a run starts."""
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda number, frame: None)


def limit_runs(memory=MEMORY):
    """Limits this process, from which runs inherit: setting limits in a child would make its start slow."""
    for kind, most in [
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_FSIZE, FILE_SIZE),
        (resource.RLIMIT_CORE, 0),
    ]:
        resource.setrlimit(kind, (most, resource.getrlimit(kind)[1]))


@dataclass
class Outcome:
    """What became of a run."""

    command: list
    code: int
    stdout: bytes
    stderr: bytes
    hangs: bool

    def errors(self):
        return [line for line in self.stderr.splitlines() if line.startswith(b"error: ")]

    def last_line(self):
        lines = self.stderr.strip().splitlines()
        return lines[-1][:200].decode(errors="replace") if lines else ""

    def faults(self):
        """The faults of any run: hangs, panics, aborts, signals, other exit codes, wrong error lines."""
        if self.hangs:
            return [f"hangs: no end after {GUARD} s"]
        if b"panicked at" in self.stderr:
            start = self.stderr.index(b"panicked at")
            return ["panic: " + self.stderr[start : start + 300].decode(errors="replace").replace("\n", " ")]
        if self.code in (-signal.SIGXCPU, -signal.SIGKILL):
            return ["slow: more time of the processor than allowed"]
        if self.code < 0:
            kind = "abort" if self.code == -signal.SIGABRT else f"signal {-self.code}"
            return [f"{kind}: {self.last_line()}"]
        is_interrupted = self.code == 130 and b"interrupted" in self.stderr
        if self.code not in (0, 1, 2) and not is_interrupted:
            return [f"exit code {self.code}: {self.last_line()}"]
        return self.wrong_lines()

    def wrong_lines(self):
        faults = []
        # Help for a missing argument is no error line.
        is_help = self.code == 2 and b"Usage:" in self.stderr
        expected = 0 if self.code == 0 or is_help else 1
        if len(self.errors()) != expected:
            faults.append(f"{len(self.errors())} error lines with exit code {self.code}: {self.last_line()}")
        longest = max((len(line) for line in self.stderr.split(b"\n")), default=0)
        if longest > LONGEST_LINE:
            faults.append(f"line too long: {longest} bytes on standard error")
        # The bytes of a file may be any.
        holds_file = any(word in (b"-", b"-o-") or word.endswith(b"=-") for word in self.command)
        for stream, text in [("error", self.stderr), ("output", b"" if holds_file else self.stdout)]:
            if found := CONTROL.search(text):
                start = max(0, found.start() - 60)
                faults.append(f"control character on standard {stream}: {text[start : found.end()]!r}")
        return faults


def as_bytes(argument):
    if isinstance(argument, bytes):
        return argument
    return str(argument).encode(errors="surrogateescape")


class Runner:
    """Runs the command in a folder."""

    def __init__(self, tagore):
        self.tagore = Path(tagore).resolve()

    def command(self, arguments, prefix=()):
        return [as_bytes(part) for part in [*prefix, self.tagore, *arguments]]

    def start(self, arguments, folder, prefix=()):
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(self.command(arguments, prefix), cwd=folder, env=ENVIRONMENT, **streams)

    def run(self, arguments, folder, prefix=(), guard=GUARD, interrupt_after=None, cpu=None):
        """Runs it to its end, which SIGINT asks for after `interrupt_after` seconds; with `cpu`, for that many seconds
        of the processor's time at most, which other work on the machine does not change."""
        child = self.start(arguments, folder, prefix)
        if cpu is not None and child.poll() is None:
            resource.prlimit(child.pid, resource.RLIMIT_CPU, (cpu, cpu + 1))
        hangs = False
        try:
            stdout, stderr = child.communicate(timeout=interrupt_after or guard)
        except subprocess.TimeoutExpired:
            try:
                if interrupt_after is None:
                    raise
                child.send_signal(signal.SIGINT)
                stdout, stderr = child.communicate(timeout=guard)
            except subprocess.TimeoutExpired:
                child.kill()
                stdout, stderr = child.communicate()
                hangs = True
        return Outcome(self.command(arguments, prefix), child.returncode, stdout, stderr, hangs)

    def succeeds(self, arguments, folder, prefix=()):
        """Runs what has to succeed for the attack to begin."""
        outcome = self.run(arguments, folder, prefix)
        if outcome.code != 0 or outcome.faults():
            raise SystemExit(f"{shown(outcome.command)} in {folder}: exit code {outcome.code}\n{outcome.stderr.decode(errors='replace')}")
        return outcome


def shown(command):
    """A command line for bash, control characters and all."""
    return " ".join(quoted(part) for part in command)


def quoted(part):
    if re.fullmatch(rb"[A-Za-z0-9_./:=,+@%-]+", part):
        return part.decode()
    if len(part) > 200 and len(set(part)) == 1:
        return f"$(printf '%{len(part)}s' | tr ' ' {chr(part[0])})"
    special = {ord("'"): r"\'", ord("\\"): r"\\", ord("\n"): r"\n"}
    return "$'" + "".join(special.get(byte) or (chr(byte) if 32 <= byte < 127 else f"\\x{byte:02x}") for byte in part) + "'"


def now():
    return time.monotonic()
