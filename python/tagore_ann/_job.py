"""Tasks of a build on a worker of a cluster, whose objects are in a store."""

from __future__ import annotations

import errno
import fcntl
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from . import _tagore
from ._base import Base, find
from ._errors import Error, FileError, MissingFileError
from ._store import Begin, Store, parallel, split

T = TypeVar("T")

PLAN = "plan.json"

BEGIN = 1 << 16
"""First bytes of an object that are read to find its pieces: the index of 2,000."""

COPY = "base"
"""The name of a copy of the data set."""

_PREFIX, _LOCK = "tagore-ray-", ".lock"

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

_OLD = 60
"""Seconds before a scratch folder may be taken for one of a killed worker."""


class Job(NamedTuple):
    """A build: its stores, and how its tasks run."""

    work: Store
    output: str
    base: list[str]
    options: dict[str, Any]
    """Options of the plan."""
    scratch: str | None
    threads: int

    @property
    def storage(self) -> dict[str, Any]:
        """Options of all stores, which no text may show."""
        return self.work.options


class Ended(NamedTuple):
    """The end of a task: at most one of these is given."""

    lost: str | None = None
    """The task whose object is missing or damaged."""
    fault: Error | None = None


class Lost(Exception):
    """The object of a task is missing or damaged."""


def plan(job: Job) -> Ended:
    """Plans the tasks. The plan appears last, complete or not at all."""
    return _ended(lambda: _plan(job))


def run(planned: tuple[Job, bytes], task: str, options: dict[str, Any], again: bool) -> Ended:
    """Runs a task of a job and its written plan, and puts the object in the store.

    With ``again`` an object that is there is checked, and replaced.
    """
    return _ended(lambda: _run(*planned, task, options, again))


def _ended(do: Callable[[], None]) -> Ended:
    try:
        do()
    except Lost as lost:
        return Ended(lost=str(lost))
    except Error as error:
        return Ended(fault=error.with_traceback(None))
    return Ended()


def _plan(job: Job) -> None:
    options = dict(job.options)
    file_format, column = options.pop("format", None), options.pop("column", None)
    with _scratch(job, "plan") as folder:
        base = find(job.base, file_format, column, job.storage, folder)
        path, kind = _rows(job, base, folder, lambda: base.fetch(folder / COPY, [(0, base.rows)], job.storage))
        names = {folder / COPY: job.base[0], folder: job.work.url}
        planned = folder / "planned"
        named = {"base": job.base[0], "output": job.output, "format": kind, "threads": job.threads}
        tasks = _named(names, lambda: _tagore.plan_tasks(path, planned, options | named))
        rows = b"" if base.local else base.read_rows(path, tasks.fingerprint_rows())
        job.work.put(base_object(tasks), base.pack(rows), replace=True)
        job.work.put(tasks.plan_object, planned / tasks.plan_object, replace=True)
        job.work.put(PLAN, planned / PLAN)


def _rows(job: Job, base: Base, folder: Path, fetch: Callable[[], None]) -> tuple[Path, str]:
    """Path and format of the data set: the file itself, or a copy with rows by ``fetch``."""
    if base.local:
        return Path(base.parts[0].url), base.local
    base.create(folder / COPY)
    fetch()
    return folder / COPY, base.format


def base_object(tasks: _tagore.Tasks) -> str:
    """The name of the object of the data set: its parts, and the rows of its fingerprint."""
    return f"base{tasks.plan_object.removeprefix('plan')}"


def _run(job: Job, written: bytes, task: str, options: dict[str, Any], again: bool) -> None:
    with _scratch(job, task) as folder:
        (folder / PLAN).write_bytes(written)
        tasks = open_tasks(job, folder)
        made, output = tasks.object(task), folder / "index"
        fetch = partial(_fetch, job, tasks, folder)
        # Which objects of `build` a task of `merge` reads follows from that of `place`.
        for one in tasks.inputs(task)[:2]:
            fetch(one)
        parallel(fetch, tasks.inputs(task)[2:])
        base, rows = _described(job, base_object(tasks))

        def fetch_rows() -> None:
            base.write_rows(folder / COPY, tasks.fingerprint_rows(), rows)
            # Without rows the task ends before it reads any: an object is damaged.
            base.fetch(folder / COPY, tasks.base_rows(task) or [], job.storage)

        path, kind = _rows(job, base, folder, fetch_rows)
        if again and task != "finish":
            _fetch_made(job, folder, made)
        names = {folder / COPY: job.base[0], output: job.output, folder: job.work.url}
        options = options | {"format": kind, "threads": job.threads, "output": output}
        lost = _named(names, lambda: tasks.run(task, path, options))
        if lost is not None:
            raise Lost(lost)
        if task == "finish":
            store, name = split(job.output, "path", job.storage, make=True)
            store.put(name, output, replace=True)
        job.work.put(made, folder / made, replace=again)


def _fetch(job: Job, tasks: _tagore.Tasks, folder: Path, one: _tagore.TaskObject) -> None:
    """Copies the parts of an object that its task reads."""
    path = folder / one.name
    if path.exists():
        return
    try:
        begin, ranges = _part(job, tasks, one)
    except Lost:
        if one.task is not None:
            raise
        fault = _unplanned(job, one.name)
    else:
        write(path, begin)
        # Of any version: its checksums tell whether a damaged object was replaced meanwhile.
        rest = [(max(start, len(begin.bytes)), end) for start, end in ranges]
        job.work.copy(one.name, [(start, end) for start, end in rest if start < end], path)
        return
    raise fault


def _described(job: Job, name: str) -> tuple[Base, bytes]:
    """Reads the object of the data set, with the rows of its fingerprint."""
    found = Base.unpack(job.work.get(name))
    if found is None:
        raise _unplanned(job, name)
    return found


def _unplanned(job: Job, name: str) -> FileError:
    """The error of an object of the plan, which no task makes again."""
    expected = "an intact object: delete the work objects and start again"
    return FileError(f"{job.work.named(name)}: found damage, or no object, expected {expected}")


def _part(job: Job, tasks: _tagore.Tasks, one: _tagore.TaskObject) -> tuple[Begin, list[tuple[int, int]]]:
    """The first bytes of an object, and the byte ranges that its task reads."""
    length = BEGIN
    while True:
        try:
            begin = job.work.begin(one.name, length)
        except MissingFileError:
            raise Lost(one.task) from None
        try:
            found = tasks.bytes_of(one, begin.bytes)
        except FileError:
            raise Lost(one.task) from None
        if found is None and len(begin.bytes) == length:
            length *= 16
        elif found is None or found[0] != begin.size:
            raise Lost(one.task)
        else:
            return begin, found[1]


def write(path: Path, begin: Begin) -> None:
    """Makes a file of the length of an object, with its first bytes and a hole."""
    with path.open("wb") as file:
        file.write(begin.bytes)
        file.truncate(begin.size)


def _fetch_made(job: Job, folder: Path, name: str) -> None:
    """Copies all of an object, if it is there, to be checked."""
    try:
        begin = job.work.begin(name, BEGIN)
    except MissingFileError:
        return
    write(folder / name, begin)
    job.work.copy(name, [(len(begin.bytes), begin.size)], folder / name)


def open_tasks(job: Job, folder: Path) -> _tagore.Tasks:
    """Opens the plan that is copied to a folder."""
    return _named({folder: job.work.url}, lambda: _tagore.open_tasks(folder))


def _named(names: dict[Path, str], do: Callable[[], T]) -> T:
    """Calls ``do``. Its errors name objects in place of their copies."""
    try:
        return do()
    except Error as error:
        if getattr(error, "errno", None) in _FULL:
            raise
        text = str(error)
        for path, name in names.items():
            text = text.replace(str(path), name)
        fault = type(error)(text)
    raise fault


@contextmanager
def _scratch(job: Job, task: str) -> Iterator[Path]:
    """A folder of a task, locked while the task runs. Removes folders of killed workers."""
    root = Path(job.scratch or tempfile.gettempdir())
    fault = None
    try:
        _sweep(root)
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=root))
        try:
            with (folder / _LOCK).open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    except OSError as error:
        full = error.errno in _FULL
        if isinstance(error, Error) and not full:
            raise
        found = "no space left" if full else error.strerror or type(error).__name__
        fault = FileError(f"{root}: found {found}, expected room for the files of {task}: free some, or pass scratch")
    if fault is not None:
        raise fault


def _sweep(root: Path) -> None:
    for folder in root.glob(f"{_PREFIX}*"):
        try:
            if time.time() - folder.stat().st_mtime < _OLD:
                continue
            with (folder / _LOCK).open("a") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            # In use, of another user, or removed meanwhile.
            continue
