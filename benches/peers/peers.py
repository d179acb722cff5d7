"""Compares tagore, faiss, hnswlib and cuVS on the same data, truth, threads and beams.

Prints a table in Markdown. Each system builds and searches in a process of its own. `build s` is
wall time and `CPU s` user time, from an array of float32 in memory to an index that answers;
recall@k is of ids, and QPS of all queries in one call on all threads, the median of three.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import platform
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Search = Callable[[Array, int, int], Any]


class Task(NamedTuple):
    """What every system gets."""

    x: Array
    q: Array
    k: int
    beams: list[int]
    threads: int
    device: str


def tagore(task: Task, kind: Any) -> Iterator[Search]:
    """An index of `kind` by this project."""
    import tagore_ann

    yield lambda q, k, beam: q  # imports are not counted
    options: dict[str, Any] = {"device": task.device, "threads": task.threads}
    index = tagore_ann.build(task.x, kind, **options)
    index.search(task.q[:1], task.k, **options)
    yield lambda q, k, beam: index.search(q, k, max(beam, k), **options)[0]


def hnswlib(task: Task, m: int) -> Iterator[Search]:
    """HNSW by hnswlib."""
    import hnswlib as library

    yield lambda q, k, beam: q
    index = library.Index(space="l2", dim=task.x.shape[1])
    index.init_index(max_elements=len(task.x), M=m, ef_construction=200)
    index.add_items(task.x, num_threads=task.threads)

    def search(q: Array, k: int, beam: int) -> Any:
        index.set_ef(beam)
        return index.knn_query(q, k=k, num_threads=task.threads)[0]

    yield search


def faiss_hnsw(task: Task, m: int) -> Iterator[Search]:
    """HNSW by faiss."""
    import faiss

    yield lambda q, k, beam: q
    faiss.omp_set_num_threads(task.threads)
    index = faiss.IndexHNSWFlat(task.x.shape[1], m)
    index.hnsw.efConstruction = 200
    index.add(task.x)

    def search(q: Array, k: int, beam: int) -> Any:
        index.hnsw.efSearch = beam
        return index.search(q, k)[1]

    yield search


def faiss_nsg(task: Task, r: int) -> Iterator[Search]:
    """NSG by faiss."""
    import faiss

    yield lambda q, k, beam: q
    faiss.omp_set_num_threads(task.threads)
    index = faiss.IndexNSGFlat(task.x.shape[1], r)
    index.add(task.x)

    def search(q: Array, k: int, beam: int) -> Any:
        index.nsg.search_L = beam
        return index.search(q, k)[1]

    yield search


def cuvs(task: Task, algorithm: str) -> Iterator[Search]:
    """CAGRA by cuVS, from host memory, of degree 32."""
    import cupy
    from cuvs.neighbors import cagra

    cupy.zeros(1)
    yield lambda q, k, beam: q
    settings = cagra.IndexParams(metric="sqeuclidean", graph_degree=32, build_algo=algorithm)
    index = cagra.build(settings, task.x)

    def search(q: Array, k: int, beam: int) -> Any:
        # Its lists are of a multiple of 32 nodes.
        settings = cagra.SearchParams(itopk_size=-(-max(beam, k) // 32) * 32)
        return cupy.asnumpy(cupy.asarray(cagra.search(settings, index, cupy.asarray(q), k)[1]))

    yield search


SYSTEMS: dict[str, tuple[str, Callable[[Task, Any], Iterator[Search]], Any]] = {
    "tagore nsg": ("tagore-ann", tagore, "nsg"),
    "tagore cagra": ("tagore-ann", tagore, "cagra"),
    "tagore vamana": ("tagore-ann", tagore, "vamana"),
    "hnswlib, M = 16, ef_construction 200": ("hnswlib", hnswlib, 16),
    "faiss HNSW, M = 16, efConstruction 200": ("faiss-cpu", faiss_hnsw, 16),
    "faiss NSG, R = 32": ("faiss-cpu", faiss_nsg, 32),
    "cuVS CAGRA, nn_descent": ("cuvs-cu12", cuvs, "nn_descent"),
    "cuVS CAGRA, ivf_pq": ("cuvs-cu12", cuvs, "ivf_pq"),
}


def user_seconds() -> float:
    """User time of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_utime


def measure(name: str, task: Task, truth: Array, answer: Any) -> None:
    """Builds and searches with one system; sends times and recalls, or the error."""
    try:
        _, make, setting = SYSTEMS[name]
        steps = make(task, setting)
        next(steps)
        wall, user = time.perf_counter(), user_seconds()
        search = next(steps)
        built = time.perf_counter() - wall, user_seconds() - user
        rows = []
        for beam in task.beams:
            found = search(task.q, task.k, beam)
            hits = (found[:, :, None].astype(np.int64) == truth[:, None, : task.k]).any(axis=2).sum()
            times = []
            for _ in range(3):
                began = time.perf_counter()
                search(task.q, task.k, beam)
                times.append(time.perf_counter() - began)
            rows.append((hits / (len(task.q) * task.k), len(task.q) / statistics.median(times)))
        answer.send((built, rows))
    except Exception as error:
        answer.send(f"{type(error).__name__}: {error}")


def run(name: str, task: Task, truth: Array) -> Any:
    """The answer of a process of its own."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=measure, args=(name, task, truth, sender))
    process.start()
    sender.close()
    try:
        answer = receiver.recv()
    except EOFError:
        answer = "the process ended early"
    process.join()
    return answer


def read(path: Path) -> Array:
    """Vectors of any format, as float32."""
    import tagore_ann

    return np.ascontiguousarray(tagore_ann.read(path), dtype=np.float32)


def data(options: argparse.Namespace) -> tuple[Array, Array, str]:
    """The base, the queries and their name."""
    if options.base is None:
        import subprocess
        import tempfile

        with tempfile.TemporaryDirectory() as folder:
            base, queries = Path(folder, "base.fbin"), Path(folder, "query.fbin")
            synth = [
                sys.executable,
                "-m",
                "tagore_ann",
                "synth",
                "--n",
                str(options.n),
                "--dim",
                str(options.dim),
            ]
            subprocess.run([*synth, "-o", base], check=True, stderr=subprocess.DEVNULL)
            subprocess.run([*synth, "-o", queries, "--queries", "1000"], check=True, stderr=subprocess.DEVNULL)
            return read(base), read(queries), f"tagore synth --n {options.n} --dim {options.dim}"
    if options.base.suffix == ".hdf5":
        import h5py

        with h5py.File(options.base) as file:
            x, q = (np.ascontiguousarray(file[name], np.float32) for name in ("train", "test"))
        return x, q, options.base.name
    x = read(options.base)
    if options.queries is not None:
        return x, read(options.queries), options.base.name
    print("no --queries: the last 1,000 rows are the queries", file=sys.stderr)
    return x[:-1000], x[-1000:], options.base.name


def main() -> int:
    """Prints the table; 1 if a system that is installed failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--base",
        type=Path,
        help="fvecs, bvecs, fbin, f16bin, bf16bin, u8bin, i8bin, npy or hdf5; made if missing",
    )
    parser.add_argument("--queries", type=Path, help="queries; the last 1,000 rows if missing")
    parser.add_argument("--n", type=int, default=20_000, help="rows of made data")
    parser.add_argument("--dim", type=int, default=64, help="values per row of made data")
    parser.add_argument("-k", type=int, default=10)
    parser.add_argument("--beams", default="20,50,100,200")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--device", default="auto", help="device of tagore")
    parser.add_argument("--systems", default="", help="only systems whose name begins so, such as tagore,faiss")
    options = parser.parse_args()

    import tagore_ann

    x, q, name = data(options)
    beams = [int(beam) for beam in options.beams.split(",")]
    truth = tagore_ann.exact(x, q, options.k)[0].astype(np.int64)
    task = Task(x, q, options.k, beams, options.threads, options.device)
    print(f"{name}: {len(x):,} x {x.shape[1]}, {len(q):,} queries, k = {options.k}, {options.threads} threads,")
    print(f"Python {platform.python_version()}, {platform.machine()}. Recall@{options.k} and QPS by beam.\n")
    print("| system | version | build s | CPU s | " + " | ".join(f"beam {beam}" for beam in beams) + " |")
    print("| --- " * (4 + len(beams)) + "|")
    failed = False
    chosen = tuple(part.strip() for part in options.systems.split(","))
    for system, (package, _, _) in SYSTEMS.items():
        try:
            found = version(package)
        except PackageNotFoundError:
            continue
        if not system.startswith(chosen):
            continue
        answer = run(system, task, truth)
        if isinstance(answer, str):
            failed = True
            print(f"| {system} | {found} | {answer} |" + " |" * (1 + len(beams)))
            continue
        (wall, user), rows = answer
        cells = " | ".join(f"{recall:.4f}, {qps:,.0f}" for recall, qps in rows)
        print(f"| {system} | {found} | {wall:.2f} | {user:.2f} | {cells} |", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
