"""The driver of a build on a cluster. All that it knows is in the store: a new one goes on."""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Callable, Generator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from . import _job
from ._cluster import PROCESS, Cluster
from ._errors import Error, FileError, MissingFileError
from ._store import split

MAX_WORKERS = 1000
"""Tasks that Ray has at a time, running or waiting for room."""

_REPAIRS = 16
"""Damaged objects that are made again before the build gives up."""

_PAGE = 4096
"""First bytes of an index that tell it from others."""

_ON_DEVICE = ("plan", "assign", "build")
"""Stages that run on the device."""

_Ended = tuple[str, int, int, int, int, list[str], int]
"""The fields of `tagore_ann.ray.Built`."""


class Runs(NamedTuple):
    """How tasks run."""

    most: int
    """Tasks at a time."""
    retries: int
    any_device: bool
    callback: Callable[[str, int, int, float], None] | None


class Driver:
    """Runs the tasks of a job, stage by stage."""

    def __init__(self, cluster: Cluster, job: _job.Job, runs: Runs) -> None:
        self.cluster, self.ray, self.runs = cluster, cluster.ray, runs
        self.job = job._replace(threads=job.threads or cluster.threads())
        # Tasks begun, tasks that ended well, and repairs.
        self.begun = self.ran = self.repairs = 0
        # Objects made again: the tasks begun by then.
        self.repaired: dict[str, int] = {}

    def run(self) -> _Ended:
        """Runs the tasks whose objects are not in the store. Returns the finished index."""
        if _job.PLAN not in self.job.work.list():
            self._plan()
        with tempfile.TemporaryDirectory() as folder:
            self.folder = Path(folder)
            written = self.job.work.get(_job.PLAN)
            (self.folder / _job.PLAN).write_bytes(written)
            self.tasks = _job.open_tasks(self.job, self.folder)
            # Ray brings one copy to each node.
            self.planned = self.ray.put((self.job, written))
            if self._finished() is None:
                self._run_stages()
            ended = self._finished()
        if ended is None:
            raise FileError(f"{self.job.output}: found another index or none, expected that of this build: start again")
        return ended

    def _plan(self) -> None:
        options = self.job.options
        device = options["device"]
        if device == "auto":
            device = "cuda" if self.cluster.has_gpu() else "cpu"
        memory = options.get("host_memory", max(self.cluster.memory(), PROCESS))
        job = self.job._replace(options=options | {"device": device, "host_memory": memory})
        self._report("plan", 0, 1, 0.0)
        resources = self._resources("plan", device, 0)
        self._result("plan", self.ray.remote(_job.plan).options(**resources).remote(job))

    def _run_stages(self) -> None:
        made = self.job.work.list()
        stages = self.tasks.stages()
        self.memory = {stage: memory for stage, _, memory in stages}
        left = [[task for task in tasks if self.tasks.object(task) not in made] for _, tasks, _ in stages]
        # Its object may be there without its index.
        left[-1], again = stages[-1][1], not left[-1]
        total = sum(len(tasks) for _, tasks, _ in stages)
        done = total - sum(map(len, left))
        for (stage, tasks, _), missing in zip(stages, left, strict=True):
            ended = len(tasks) - len(missing)
            self._report(stage, ended, len(tasks), done / total)
            # Closed at an error of the callback, so that running tasks are cancelled.
            with closing(self._run(missing, again and stage == "finish")) as running:
                for _ in running:
                    ended, done = ended + 1, done + 1
                    self._report(stage, ended, len(tasks), done / total)

    def _run(self, tasks: list[str], again: bool = False) -> Generator[str, None, None]:
        """Runs tasks whose inputs exist, in any order, and yields each that has ended."""
        waiting = deque(tasks)
        running: dict[Any, tuple[str, int]] = {}
        try:
            while waiting or running:
                while waiting and len(running) < self.runs.most:
                    task = waiting.popleft()
                    self.begun += 1
                    running[self._submit(task, again)] = task, self.begun
                for reference in self.ray.wait(list(running))[0]:
                    task, begun = running.pop(reference)
                    lost = self._result(task, reference)
                    if lost is None:
                        self.ran += 1
                        yield task
                        continue
                    # The task may have read the object before another one had it made again.
                    if self.repaired.get(lost, 0) < begun:
                        self._repair(lost)
                    waiting.appendleft(task)
        finally:
            # After an error.
            for reference in running:
                self.ray.cancel(reference)

    def _repair(self, task: str) -> None:
        """Makes a missing or damaged object again, and first those that it needs."""
        self.repairs += 1
        if self.repairs > _REPAIRS:
            name = self.job.work.named(self.tasks.object(task))
            raise FileError(f"{name}: found damage again and again, expected intact objects: check the store")
        for _ in self._run([task], again=True):
            pass
        self.repaired[task] = self.begun

    def _submit(self, task: str, again: bool) -> Any:
        stage = task.split("-")[0]
        device = "cpu"
        if stage in _ON_DEVICE and self.tasks.device != "cpu":
            asked = str(self.job.options["device"])
            device = "cuda" if asked == "auto" else asked
        resources = self._resources(task, device, self.memory[stage] + PROCESS)
        options = {"device": device, "any_device": self.runs.any_device}
        return self.ray.remote(_job.run).options(**resources).remote(self.planned, task, options, again)

    def _resources(self, task: str, device: str, memory: int) -> dict[str, Any]:
        """Options of a task in Ray. Its dashboard shows the name."""
        needed = {"CPU": self.job.threads, "GPU": int(device != "cpu"), "memory": memory}
        self.cluster.check(task, {name: least for name, least in needed.items() if least})
        return {
            "name": task, "num_cpus": needed["CPU"], "num_gpus": needed["GPU"], "memory": memory or None,
            "max_retries": self.runs.retries,
        }  # fmt: skip

    def _result(self, task: str, reference: Any) -> str | None:
        """Waits for a task. Returns the task whose object it lacks, if any."""
        try:
            ended: _job.Ended = self.ray.get(reference)
        except self.ray.exceptions.RayError as error:
            found = type(error).__name__
        else:
            if ended.fault is not None:
                raise ended.fault
            return ended.lost
        raise Error(f"{task}: found {found} of Ray, expected a worker that ends: see Ray's logs, then start again")

    def _finished(self) -> _Ended | None:
        """The finished index, if it is complete and in place."""
        made, index = self.tasks.object("finish"), self.folder / "index"
        store, name = split(self.job.output, "path", self.job.storage)
        try:
            (self.folder / made).write_bytes(self.job.work.get(made))
            _job.write(index, store.begin(name, _PAGE))
        except MissingFileError:
            return None
        found = self.tasks.finished(index)
        return found and (self.job.output, self.tasks.rows, *found, self.ran)

    def _report(self, stage: str, done: int, total: int, fraction: float) -> None:
        if self.runs.callback is not None:
            self.runs.callback(stage, done, total, fraction)
