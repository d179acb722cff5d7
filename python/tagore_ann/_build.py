"""Builds, exact search and plans."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any, Literal, ParamSpec, TypeVar, cast, get_args

import numpy as np
import numpy.typing as npt

from . import _tagore
from ._arrays import Devices, Output, bfloat16, leaves_on, on, own_ids, passing, rows, whole
from ._errors import refused
from ._index import Index, Path, Walked, _path, given
from ._metric import Metric, measure
from ._progress import Progress, reporting

Kind = Literal["cagra", "nsg", "nssg", "vamana", "dpg", "tau-mng", "alpha-cng"]
Collect = Literal["1-hop", "2-hop", "path"]
Rule = Literal["dist", "angle", "spread", "rank", "tau-mng", "alpha-cng"]
Start = Literal["auto", "all-pairs", "random", "cells"]
Iterations = Literal["auto"] | tuple[int, int]
Pair = tuple[npt.NDArray[np.uint32], npt.NDArray[np.float32]]

P = ParamSpec("P")
T = TypeVar("T")


def renamed(**names: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """A decorator: arguments by an old name are a TypeError that has the new one."""

    def decorated(call: Callable[P, T]) -> Callable[P, T]:
        @wraps(call)
        def checked(*args: P.args, **options: P.kwargs) -> T:
            for name in names.keys() & options.keys():
                raise TypeError(f"{call.__name__}() got an unexpected keyword argument {name!r}, pass {names[name]}")
            return call(*args, **options)

        return checked

    return decorated


def options_of_build() -> set[str]:
    """The names of all arguments of `build`."""
    return set(signature(build).parameters)


@renamed(among="filter=")
def build(
    x: Any,
    kind: Kind = "cagra",
    metric: Metric = "l2",
    *,
    knn: int | None = None,
    degree: int | None = None,
    device: Devices = "auto",
    seed: int = 0,
    ids: Any = None,
    filter: Any = None,
    queries: Any = None,
    threads: int | None = None,
    progress: Progress = None,
    convert: bool = True,
    candidates: int | None = None,
    collect: Collect | None = None,
    rule: Rule | None = None,
    alpha: float | None = None,
    angle: float | None = None,
    threshold: float | None = None,
    strict_detours: bool | None = None,
    iterations: Iterations | None = None,
    start: Start | None = None,
    expand: int | None = None,
    nodes_per_cell: int | None = None,
    probes: int | None = None,
    clusterings: int | None = None,
    graph: Path | None = None,
    layers: bool | None = None,
    vectors: Walked = "full",
    verify: int = 1000,
) -> Index:
    """Builds an index of the rows of x.

    Args:
        x: vectors, shape (n, dim) with dim at most 4,096. Rows of float32, float16, bfloat16, uint8
            or int8 in host memory or on a GPU are not copied, and must not change while the index
            is used, by other threads neither: results would be wrong. Lists, frames and columns of
            arrays, other types (float64 is narrowed to float32) and other orders are copied.
        kind: the kind of index (docs/data.md says which for which data).
        metric: ``l2`` or ``sqeuclidean`` (squared), ``euclidean`` (its root), ``ip`` or
            ``inner_product``, ``cosine``, or ``hamming``: of bits, eight to a byte of uint8 as of
            ``numpy.packbits``, or bools.
        knn: neighbours per node of the k-NN graph; by the kind and the data unless given.
        degree: the largest degree; 32 or 50, by the kind, unless given.
        device: ``auto``, ``cpu``, ``cuda``, ``cuda:N``, or several GPUs, as ``cuda:0,1`` or a list,
            which share the build of many rows.
        seed: the same seed gives the same index.
        ids: the caller's own ids of the rows, n integers of at least 0; searches return them. Or
            the path of a file of u64 (npy or u64bin).
        filter: rows to build over, the others left out: n bools, or ids. No search returns a row
            that was left out; all ids stay.
        queries: a sample of queries that do not look like the rows, such as texts among images: at
            least 100, about one for each ten rows for the whole gain. The index is fitted to them
            where that helps others like them (docs/data.md).
        threads: threads of the call, 1 to 1,024; one per core unless given.
        progress: True for a bar of tqdm, or a callable that takes each `Update`.
        convert: False refuses what needs a copy.
        candidates: the largest number of candidates per node.
        collect: how candidates are collected: ``1-hop``, ``2-hop`` or ``path``. Unless given,
            ``1-hop`` if knn is at least two thirds of candidates, else the kind's.
        rule: the rule that filters candidates; the kind's unless given.
        alpha: slack of the rule ``dist`` or ``alpha-cng``.
        angle: least angle of the rule ``angle``, in degrees.
        threshold: threshold of the rule.
        strict_detours: count a detour of the rule ``rank`` only if both its edges have a better
            rank.
        iterations: iterations of the two phases of descent: ``auto``, or a pair.
        start: start of descent.
        expand: neighbours per node whose lists are gathered in an iteration of phase 2.
        nodes_per_cell: nodes per cell of a start from cells.
        probes: cells that each node probes, 1 to 32.
        clusterings: clusterings into cells, 1 to 16.
        graph: the path of a k-NN graph of ``tagore knn``, to prune in place of a new one.
        layers: False for a graph without layers, even where searches need them.
        vectors: what the build walks on: ``full``, the vectors themselves, or their codes in
            ``f16`` or ``int8``: less memory of a GPU, and less to read.
        verify: nodes that the report measures recall on.

    Raises:
        ArgumentError: if an argument is out of its range, or a value of x is not finite.
        OutOfMemoryError: if the device has too little memory; the text names what would fit.
        DeviceError: if the device is missing or fails.

    >>> import numpy as np, tagore_ann
    >>> x = np.random.default_rng(0).standard_normal((2000, 16), dtype=np.float32)
    >>> index = tagore_ann.build(x, "vamana", degree=24)
    >>> index.graph.shape
    (2000, 24)
    """
    measured = measure(metric)
    array = rows(x, "x", convert, bits=measured.of_bits)
    device = on(device, x=array)
    own, kept = (ids, ids) if ids is None or isinstance(ids, (str, os.PathLike)) else own_ids(ids)
    if isinstance(filter, str) and filter in get_args(Rule):
        raise refused("filter", repr(filter), f"rows, as n bools or ids: the rule of pruning is rule={filter!r}")
    some = None if filter is None else passing(filter)
    sample = None if queries is None else rows(queries, "queries", convert, bits=measured.of_bits)
    with reporting(progress) as callback:
        options = given(
            kind=kind, metric=measured.name, knn=knn, degree=degree, device=device, seed=seed, ids=own,
            filter=some, queries=sample, threads=threads, progress=callback, candidates=candidates,
            collect=collect, rule=rule, alpha=alpha, angle=angle, threshold=threshold, strict_detours=strict_detours,
            iterations=iterations, start=start, expand=expand, nodes_per_cell=nodes_per_cell,
            probes=probes, clusterings=clusterings, graph=graph, layers=layers, vectors=vectors, verify=verify,
        )  # fmt: skip
        native = _tagore.build(array, options)
    return Index._of(native, array, kept, None, measured)


def build_file(
    x: Path,
    path: Path,
    kind: Kind = "cagra",
    metric: Metric = "l2",
    *,
    format: str | None = None,
    ids: Path | None = None,
    queries: Path | None = None,
    host_memory: int | None = None,
    gpu_memory: int | None = None,
    cluster_size: int | None = None,
    work_dir: Path | None = None,
    resume: bool = False,
    checkpoint: int = 30,
    device: Devices = "auto",
    knn: int | None = None,
    degree: int | None = None,
    seed: int = 0,
    threads: int | None = None,
    progress: Progress = None,
    **options: Any,
) -> Index:
    """Builds an index from file to file, within memory.

    The build is in memory if it fits; else on codes of one byte per component, as `build` with
    ``vectors="int8"``, if these fit; else cluster by cluster.

    Args:
        x: a file of vectors: fvecs, bvecs, fbin, f16bin, bf16bin, u8bin, i8bin, b1bin or npy.
            It is mapped, and must not change meanwhile.
        path: the file of the index. It appears when it is complete.
        kind: the kind of index.
        metric: as of `build`.
        format: the format of ``x``; by its extension unless given.
        ids: a file of the caller's own ids, u64 as npy or u64bin.
        queries: a file of a sample of queries, as of `build`.
        host_memory: bytes of host memory of the build, without the mapped file; free memory less an
            eighth unless given.
        gpu_memory: bytes of device memory; free memory less a sixteenth unless given.
        cluster_size: the largest number of vectors per cluster.
        work_dir: the folder of work files, empty or new; ``path`` + ``.work`` unless given.
        resume: continue an unfinished build, if its work files exist.
        checkpoint: least seconds between two checkpoints.
        device: a device, or several that share the build, as ``cuda:0,1`` or a list.
        knn: as of `build`.
        degree: as of `build`.
        seed: as of `build`.
        threads: as of `build`.
        progress: as of `build`.
        options: the other options of `build`, from ``candidates`` to ``verify``, without ``graph``
            and ``filter``.

    Raises:
        ArgumentError: if an argument is out of its range, or the memory is too little for any
            build.
        FileError: if a file cannot be read or written, or ``work_dir`` holds an unfinished build.

    >>> import os, tempfile, numpy as np, tagore_ann
    >>> folder = tempfile.mkdtemp()
    >>> path = os.path.join(folder, "x.fbin")
    >>> x = np.random.default_rng(0).standard_normal((2000, 16), dtype=np.float32)
    >>> tagore_ann.write(path, x)
    >>> index = tagore_ann.build_file(path, os.path.join(folder, "x.tagore"))
    >>> index.search(x[3], k=1)[0].tolist()
    [3]
    """
    for name in options:
        if name not in options_of_build() or name in ("graph", "convert", "filter", "queries"):
            raise TypeError(f"build_file() got an unexpected keyword argument {name!r}")
    _path(x, "x")
    _path(path, "path")
    devices = device if isinstance(device, str) else list(device)
    measured = measure(metric)
    with reporting(progress) as callback:
        every = options | given(
            kind=kind, metric=measured.name, format=format, ids=ids, queries=queries, host_memory=host_memory,
            gpu_memory=gpu_memory, cluster_size=cluster_size, work_dir=work_dir,
            resume=resume, checkpoint=checkpoint, device=devices, knn=knn, degree=degree, seed=seed,
            threads=threads, progress=callback,
        )  # fmt: skip
        native = _tagore.build_file(x, path, every)
    return Index._of(native, os.path.abspath(x), ids, path, measured)


def knn_graph(
    x: Any,
    k: int | None = None,
    metric: Metric = "l2",
    *,
    device: str = "auto",
    seed: int = 0,
    threads: int | None = None,
    progress: Progress = None,
    convert: bool = True,
    iterations: Iterations | None = None,
    start: Start | None = None,
    expand: int | None = None,
    nodes_per_cell: int | None = None,
    probes: int | None = None,
    clusterings: int | None = None,
    verify: int = 100,
    output: Output = "numpy",
) -> Pair:
    """Builds the k-NN graph of the rows of x: of each row its k nearest others.

    The log warns of a graph that misses many: exact search measures it on some rows.

    Args:
        x: vectors, shape (n, dim), as of `build`.
        k: neighbours per row, at most n - 1; 96, or n - 1 if that is less, unless given.
        metric: as of `build`.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        seed: the same seed gives the same graph.
        threads: threads of the call; one per core unless given.
        progress: True for a bar, or a callable that takes each `Update`.
        convert: False refuses what needs a copy.
        iterations: iterations of the two phases of descent: ``auto``, or a pair.
        start: start of descent.
        expand: neighbours per node whose lists are gathered in an iteration of phase 2.
        nodes_per_cell: nodes per cell of a start from cells.
        probes: cells that each node probes, 1 to 32.
        clusterings: clusterings into cells, 1 to 16.
        verify: random rows whose neighbours exact search compares; 0 for none. None on a device.
        output: ``numpy``, or ``device`` for results in the memory of the device, which names a GPU.

    Returns:
        Rows and distances of the neighbours, shape (n, k) each, nearest first, without the row
        itself. Distances are those of the metric: squared under l2, 1 - cos under cosine and minus
        the product under ip. On a device: two `DeviceArray`.

    Raises:
        ArgumentError: if an argument is out of its range, or a value of x is not finite.
        OutOfMemoryError: if the device has too little memory.
        DeviceError: if the device is missing or fails.

    >>> import numpy as np, tagore_ann
    >>> x = np.arange(200, dtype=np.float32).reshape(100, 2)
    >>> ids, distances = tagore_ann.knn_graph(x, k=2)
    >>> ids[50].tolist(), distances[50].tolist()
    ([49, 51], [8.0, 8.0])
    """
    measured = measure(metric, output)
    array = rows(x, "x", convert, bits=measured.of_bits)
    device = on(device, x=array)
    to_device = leaves_on(device, output)
    if k is None:
        k = min(96, len(array) - 1)
        if k < 1:
            return np.empty((len(array), 0), np.uint32), np.empty((len(array), 0), np.float32)
    with reporting(progress) as callback:
        options = given(
            k=whole(k, "k"), metric=measured.name, device=device, seed=seed, threads=threads,
            progress=callback, iterations=iterations, start=start, expand=expand,
            nodes_per_cell=nodes_per_cell, probes=probes, clusterings=clusterings, verify=verify,
        )  # fmt: skip
        if to_device:
            return cast(Pair, _tagore.knn_graph_on_device(array, options))
        near, apart = _tagore.knn_graph(array, options)
    return near, measured.distances(apart)


def exact(
    base: Any,
    q: Any,
    k: int | None = None,
    metric: Metric = "l2",
    *,
    filter: Any = None,
    device: Devices = "auto",
    threads: int | None = None,
    progress: Progress = None,
    convert: bool = True,
    output: Output = "numpy",
) -> Pair:
    """Finds the exact k nearest rows of the base for each query: a ground truth.

    Args:
        base: vectors, shape (n, dim), as of `build`.
        q: queries, shape (m, dim).
        k: neighbours per query, 1 to n; 100, or n if that is less, unless given.
        metric: as of `build`.
        filter: rows that may be found: n bools, or ids.
        device: ``auto``, ``cpu``, ``cuda``, ``cuda:N``, or several that share the search, as
            ``cuda:0,1`` or a list.
        threads: threads of the call; one per core unless given.
        progress: True for a bar, or a callable that takes each `Update`.
        convert: False refuses what needs a copy.
        output: as of `knn_graph`.

    Returns:
        Rows and distances, shape (m, k) each, nearest first, ties by row. Distances as of
        `knn_graph`.

    Raises:
        ArgumentError: if an argument is out of its range, or a value is not finite.
        DeviceError: if the device is missing or fails.

    >>> import numpy as np, tagore_ann
    >>> x = np.eye(4, dtype=np.float32)
    >>> tagore_ann.exact(x, x[:1], k=2)
    (array([[0, 1]], dtype=uint32), array([[0., 2.]], dtype=float32))
    """
    measured = measure(metric, output)
    bits = measured.of_bits
    array, queries = rows(base, "base", convert, bits=bits), rows(q, "q", convert, bits=bits)
    if queries.shape[1] != array.shape[1]:
        raise refused("q", f"{queries.shape[1]} columns", f"{array.shape[1]} as in base")
    device = on(device, base=array, q=queries)
    to_device = leaves_on(device, output)
    some = None if filter is None else passing(filter)
    if k is None:
        found = len(array) if some is None else int(some.sum()) if some.dtype.kind == "b" else len(np.unique(some))
        k = min(100, max(found, 1))
    k = whole(k, "k")
    with reporting(progress) as callback:
        options = given(metric=measured.name, filter=some, device=device, threads=threads, progress=callback)
        if to_device:
            return cast(Pair, _tagore.exact_on_device(array, queries, k, options))
        near, apart = _tagore.exact(array, queries, k, options)
    return near, measured.distances(apart)


def plan(
    n: int,
    dim: int,
    dtype: npt.DTypeLike = "float32",
    kind: Kind = "cagra",
    metric: Metric = "l2",
    *,
    device: str = "auto",
    device_kind: Literal[
        "rtx3090", "rtx4090", "rtx5090", "a10", "l4", "l40s", "a100", "h100", "h100-nvl", "h200", "b200"
    ]
    | None = None,
    knn: int | None = None,
    degree: int | None = None,
    host_memory: int | None = None,
    gpu_memory: int | None = None,
    cluster_size: int | None = None,
) -> dict[str, Any]:
    """Plans memory, disk and time of a build, before there is any data.

    Args:
        n: rows.
        dim: values per row.
        dtype: their type: float32, float16, bfloat16, uint8, int8, or bool for bits.
        kind: the kind of index.
        metric: as of `build`.
        device: the device of the build on this machine.
        device_kind: a GPU that this machine lacks.
        knn: as of `build`.
        degree: as of `build`.
        host_memory: limit of host memory in bytes; free memory less a reserve unless given.
        gpu_memory: limit of device memory in bytes; free memory less a reserve unless given.
        cluster_size: as of `build_file`.

    Returns:
        A dict with the keys of ``tagore plan --json``: ``knn``, ``device_bytes``, ``host_bytes``
        (without the vectors), ``disk_bytes``, the buffers of each stage (``stages`` on a GPU,
        ``host_stages``), and estimated ``seconds`` by stage and in ``total``. Also ``on_gpu``,
        ``out_of_core`` (clusters and bytes of a build cluster by cluster, or None if the build fits
        memory), and ``remedies``.

    Raises:
        ArgumentError: if an argument is out of its range.

    >>> import tagore_ann
    >>> plan = tagore_ann.plan(1_000_000_000, 96, "uint8", "nsg", device_kind="h200")
    >>> plan["out_of_core"]["clusters"] > 1
    True
    """
    # Without ml_dtypes bf16 is `V2`.
    names = {
        "float32": "f32", "float16": "f16", "bfloat16": "bf16", "void16": "bf16", "uint8": "u8", "int8": "i8",
        "bool": "b1",
    }  # fmt: skip
    expected = "float32, float16, bfloat16, uint8, int8 or bool"
    try:
        element = np.dtype(bfloat16() if dtype == "bfloat16" else dtype)
    except TypeError as error:
        raise refused("dtype", repr(dtype), expected) from error
    if element.name not in names:
        raise refused("dtype", element, expected)
    options = given(
        kind=kind, metric=measure(metric).name, device=device, device_kind=device_kind, knn=knn, degree=degree,
        host_memory=host_memory, gpu_memory=gpu_memory, cluster_size=cluster_size,
    )  # fmt: skip
    planned = _tagore.plan(whole(n, "n"), whole(dim, "dim"), names[element.name], options)
    return dict(json.loads(planned))
