"""Builds on a Ray cluster, in the bytes of one machine: ``pip install ray obstore``.

The state of a build is in its store alone. Whatever dies, the same call goes on.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ._build import Kind, options_of_build
from ._cluster import connected
from ._driver import MAX_WORKERS, Driver, Runs
from ._errors import refused
from ._index import Path, given
from ._job import Job
from ._metric import Metric, measure
from ._progress import Progress, reporting
from ._store import Store, split, whole

__all__ = ["Built", "build"]

_CALL = "call.json"


class Built(NamedTuple):
    """A finished index."""

    path: str
    """Its URL or path."""
    rows: int
    """Rows of the data set."""
    bytes: int
    """Bytes of the index."""
    unreachable: int
    """Nodes that no path from the entry points reaches."""
    repeated: int
    """Repeated rows."""
    devices: list[str]
    """Kinds of devices. More than one, by ``any_device``, give up equal bytes."""
    tasks: int
    """Tasks that this call has run; others had run before."""


def build(
    x: Path | Sequence[Path],
    path: Path,
    kind: Kind = "cagra",
    metric: Metric = "l2",
    *,
    address: str | None = None,
    work: Path | None = None,
    workers: int | None = None,
    threads: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    scratch: Path | None = None,
    max_retries: int = 3,
    format: str | None = None,
    column: str | None = None,
    host_memory: int | None = None,
    gpu_memory: int | None = None,
    cluster_size: int | None = None,
    range_rows: int | None = None,
    device: str = "auto",
    any_device: bool = False,
    knn: int | None = None,
    degree: int | None = None,
    seed: int = 0,
    progress: Progress = None,
    **options: Any,
) -> Built:
    """Builds an index of a data set in a store, cluster by cluster, on a Ray cluster.

    URLs are those of obstore: ``s3://bucket/name``, ``gs://``, ``az://``, ``file:///path``. A plain
    path is one that all nodes share. The index has the bytes of `tagore_ann.build_file` with the
    same limits and options.

    Args:
        x: the data set: a file of vectors; or files of one shape, in order, as a list or as a URL
            that ends with a slash; or Parquet files with a column of fixed-size lists.
        path: the index. It appears when it is complete.
        kind: the kind of index.
        metric: as of `tagore_ann.build`.
        address: of a Ray cluster, as `ray.init` takes it. Unless given, the cluster of
            ``RAY_ADDRESS`` or one that is connected already, else a new one on this machine.
        work: a prefix for the objects of the build, empty or of the same call; ``path`` + ``.work``
            unless given. Delete them when the index is complete.
        workers: the most tasks at a time; as many as the cluster has room for unless given.
        threads: threads and CPUs of a task; those of the smallest node, at most 8, unless given.
        storage_options: options of obstore for all URLs, credentials among them.
        scratch: a folder of each node for copies of objects; its temporary folder unless given.
        max_retries: times that Ray runs a task again whose worker or node died; -1 for any.
        format: the format of the files; by their extension unless given. Also ``parquet``.
        column: the column of Parquet files; the only one unless given.
        host_memory: as of `build_file`; unless given, that which Ray has on the smallest node.
        gpu_memory: as of `build_file`.
        cluster_size: as of `build_file`.
        range_rows: rows of a range, a multiple of 1,024; by the number of rows, at least
            262,144, unless given.
        device: ``cpu`` or ``cuda``; ``auto`` takes GPUs if the cluster has any.
        any_device: allow GPUs of several kinds, which gives up equal bytes.
        knn: as of `build`.
        degree: as of `build`.
        seed: as of `build`.
        progress: as of `build`: one bar, or a callable.
        options: the other options of `build`, from ``candidates`` to ``layers``, without ``graph``.

    Raises:
        ArgumentError: if an argument is out of its range, ``work`` has another call's objects, or
            no node has room for a task.
        FileError: if an object cannot be read or written, or the data set has changed.
        Error: if ``ray`` is not installed or not reachable, or a worker died too often.
    """
    for name in options:
        if name not in options_of_build() or name in ("graph", "convert", "ids", "filter", "queries", "verify"):
            raise TypeError(f"build() got an unexpected keyword argument {name!r}")
    for name, count in [("workers", workers), ("threads", threads)]:
        if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
            raise refused(name, repr(count), "a whole number from 1")
    urls = [whole(one, "x") for one in ([x] if isinstance(x, str | os.PathLike) else x)]
    if not urls:
        raise refused("x", "no files", "one or more")
    output = whole(path, "path")
    split(output, "path", storage_options)
    prefix = whole(f"{output}.work" if work is None else work, "work")
    every = options | given(
        kind=kind, metric=measure(metric).name, format=format, column=column, host_memory=host_memory,
        gpu_memory=gpu_memory, cluster_size=cluster_size, range_rows=range_rows,
        device=device, knn=knn, degree=degree, seed=seed,
    )  # fmt: skip
    store = Store(prefix, storage_options, make=True)
    _agree(store, {"x": urls, "path": output, "options": every})
    job = Job(store, output, urls, every, None if scratch is None else os.fspath(scratch), threads or 0)
    with reporting(progress) as callback, connected(address) as cluster:
        runs = Runs(workers or MAX_WORKERS, max_retries, any_device, callback)
        return Built(*Driver(cluster, job, runs).run())


def _agree(store: Store, call: dict[str, Any]) -> None:
    """Notes the call in the store, or compares it with that of the objects there."""
    try:
        noted = json.dumps(call, sort_keys=True, indent=1).encode()
    except TypeError:
        raise refused("options", "a value that is no plain one", "numbers, strings, True or False") from None
    if store.put(_CALL, noted):
        return
    found = store.get(_CALL)
    if found != noted:
        try:
            before = json.loads(found)
            names = [name for name in call if before.get(name) != call[name]]
        except (ValueError, AttributeError):
            names = [_CALL]
        expected = "the same call, or another work prefix"
        raise refused("work", f"{store.url}, of a call with another {', '.join(names)}", expected)
