"""Compares tagore, faiss, hnswlib, usearch, pynndescent and cuVS on the same data.

Prints tables in Markdown: indexes (`--tasks index`), k-NN graphs (`knn`), exact search (`exact`).
Each system works in a process of its own. `build s` is wall time and `CPU s` user time, from an
array of float32 in memory to an index that answers; recall@k is of ids, and QPS of all queries in
one call on all threads, the best of three. QPS at a recall lies between those of two beams,
by the logarithms of QPS and of the share that is not found.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import platform
import resource
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
    search_threads: int
    device: str
    cpu_clock: bool


def tagore(task: Task, kind: str) -> Iterator[Search]:
    """An index of a kind by this project, searched on the vectors, or on what follows a plus."""
    import tagore_ann

    yield lambda q, k, beam: q  # imports are not counted
    kind, _, walked = kind.partition("+")
    options: dict[str, Any] = {"device": task.device, "threads": task.threads}
    index = tagore_ann.build(task.x, kind, **options)
    options = {"device": task.device, "threads": task.search_threads, "vectors": walked or "full"}
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
        return index.knn_query(q, k=k, num_threads=task.search_threads)[0]

    yield search


def faiss_hnsw(task: Task, m: int) -> Iterator[Search]:
    """HNSW by faiss."""
    import faiss

    yield lambda q, k, beam: q
    faiss.omp_set_num_threads(task.threads)
    index = faiss.IndexHNSWFlat(task.x.shape[1], m)
    index.hnsw.efConstruction = 200
    index.add(task.x)
    faiss.omp_set_num_threads(task.search_threads)

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
    faiss.omp_set_num_threads(task.search_threads)

    def search(q: Array, k: int, beam: int) -> Any:
        index.nsg.search_L = beam
        return index.search(q, k)[1]

    yield search


def usearch(task: Task, m: int) -> Iterator[Search]:
    """HNSW by usearch."""
    from usearch.index import Index

    yield lambda q, k, beam: q
    index = Index(ndim=task.x.shape[1], metric="l2sq", connectivity=m, expansion_add=200)
    index.add(np.arange(len(task.x)), task.x, threads=task.threads)

    def search(q: Array, k: int, beam: int) -> Any:
        index.expansion_search = beam
        return index.search(q, k, threads=task.search_threads).keys.astype(np.int64)

    yield search


def pynndescent(task: Task, neighbors: int) -> Iterator[Search]:
    """NN-descent by pynndescent; its epsilon stands for the beam."""
    import numba
    import pynndescent as library

    # The first index compiles.
    numba.set_num_threads(task.threads)
    library.NNDescent(task.x[:2000], n_neighbors=neighbors, n_jobs=task.threads).prepare()
    yield lambda q, k, beam: q
    index = library.NNDescent(task.x, n_neighbors=neighbors, n_jobs=task.threads, random_state=0)
    index.prepare()
    numba.set_num_threads(task.search_threads)
    index.query(task.q[:1], k=task.k)
    yield lambda q, k, beam: index.query(q, k=k, epsilon=beam / 1000)[0]


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


def tagore_knn(task: Task, _: None) -> Iterator[Search]:
    """The k-NN graph of this project."""
    import tagore_ann

    yield lambda q, k, beam: q
    ids = tagore_ann.knn_graph(task.x, task.k, device=task.device, threads=task.threads)[0]
    yield lambda q, k, beam: ids


def pynndescent_knn(task: Task, _: None) -> Iterator[Search]:
    """The k-NN graph of pynndescent."""
    import numba
    import pynndescent as library

    numba.set_num_threads(task.threads)
    library.NNDescent(task.x[:2000], n_neighbors=task.k + 1, n_jobs=task.threads)
    yield lambda q, k, beam: q
    index = library.NNDescent(task.x, n_neighbors=task.k + 1, n_jobs=task.threads, random_state=0)
    yield lambda q, k, beam: index.neighbor_graph[0][:, 1:]


def tagore_exact(task: Task, _: None) -> Iterator[Search]:
    """Exact search by this project."""
    import tagore_ann

    yield lambda q, k, beam: q
    ids = tagore_ann.exact(task.x, task.q, task.k, device=task.device, threads=task.threads)[0]
    yield lambda q, k, beam: ids


def faiss_exact(task: Task, _: None) -> Iterator[Search]:
    """Exact search by faiss."""
    import faiss

    faiss.omp_set_num_threads(task.threads)
    yield lambda q, k, beam: q
    index = faiss.IndexFlatL2(task.x.shape[1])
    index.add(task.x)
    ids = index.search(task.q, task.k)[1]
    yield lambda q, k, beam: ids


def sklearn_exact(task: Task, _: None) -> Iterator[Search]:
    """Exact search by scikit-learn."""
    from sklearn.neighbors import NearestNeighbors

    yield lambda q, k, beam: q
    ids = NearestNeighbors(algorithm="brute").fit(task.x).kneighbors(task.q, task.k, return_distance=False)
    yield lambda q, k, beam: ids


SYSTEMS: dict[str, tuple[str, Callable[[Task, Any], Iterator[Search]], Any]] = {
    "tagore nsg": ("tagore-ann", tagore, "nsg"),
    "tagore nssg": ("tagore-ann", tagore, "nssg"),
    "tagore cagra": ("tagore-ann", tagore, "cagra"),
    "tagore vamana": ("tagore-ann", tagore, "vamana"),
    "tagore nssg, int8": ("tagore-ann", tagore, "nssg+int8"),
    "tagore cagra, int8": ("tagore-ann", tagore, "cagra+int8"),
    "tagore nssg, edges": ("tagore-ann", tagore, "nssg+edges"),
    "tagore cagra, edges": ("tagore-ann", tagore, "cagra+edges"),
    "hnswlib, M = 16, ef_construction 200": ("hnswlib", hnswlib, 16),
    "faiss HNSW, M = 16, efConstruction 200": ("faiss-cpu", faiss_hnsw, 16),
    "faiss NSG, R = 32": ("faiss-cpu", faiss_nsg, 32),
    "usearch, connectivity 16, expansion_add 200": ("usearch", usearch, 16),
    "pynndescent, n_neighbors 30": ("pynndescent", pynndescent, 30),
    "cuVS CAGRA, nn_descent": ("cuvs-cu12", cuvs, "nn_descent"),
    "cuVS CAGRA, ivf_pq": ("cuvs-cu12", cuvs, "ivf_pq"),
}
KNN = {
    "tagore": ("tagore-ann", tagore_knn, None),
    "pynndescent": ("pynndescent", pynndescent_knn, None),
}
EXACT = {
    "tagore": ("tagore-ann", tagore_exact, None),
    "faiss flat": ("faiss-cpu", faiss_exact, None),
    "scikit-learn": ("scikit-learn", sklearn_exact, None),
}


def user_seconds() -> float:
    """User time of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_utime


def measure(make: Callable[[Task, Any], Iterator[Search]], setting: Any, task: Task, truth: Array, answer: Any) -> None:
    """Builds and searches with one system; sends times and recalls, or the error."""
    try:
        steps = make(task, setting)
        next(steps)
        clock = time.process_time if task.cpu_clock else time.perf_counter
        wall, user = time.perf_counter(), user_seconds()
        search = next(steps)
        built = time.perf_counter() - wall, user_seconds() - user
        rows = []
        for beam in task.beams:
            found = search(task.q, task.k, beam)
            if len(found) != len(truth):
                found = found[np.linspace(0, len(found) - 1, len(truth)).astype(int)]
            hits = (found[:, :, None].astype(np.int64) == truth[:, None, : task.k]).any(axis=2).sum()
            times = []
            for _ in range(3):
                began = clock()
                search(task.q, task.k, beam)
                times.append(clock() - began)
            rows.append((hits / truth[:, : task.k].size, len(task.q) / min(times)))
        answer.send((built, rows))
    except Exception as error:
        answer.send(f"{type(error).__name__}: {error}")


def run(make: Callable[[Task, Any], Iterator[Search]], setting: Any, task: Task, truth: Array) -> Any:
    """The answer of a process of its own."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=measure, args=(make, setting, task, truth, sender))
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


def qps_at(rows: list[tuple[float, float]], recall: float) -> str:
    """QPS at a recall, between the two beams around it; of the fastest beam if all find more."""
    rows = sorted(rows)
    for (low, fast), (high, slow) in itertools.pairwise(rows):
        if low < recall <= high:
            missed = [np.log(max(1 - at, 1e-6)) for at in (low, recall, high)]
            share = (missed[0] - missed[1]) / (missed[0] - missed[2])
            return f"{np.exp(np.log(fast) + share * (np.log(slow) - np.log(fast))):,.0f}"
    best = max((qps for at, qps in rows if at >= recall), default=None)
    return "-" if best is None else f"> {best:,.0f}"


def table(systems: dict[str, Any], task: Task, truth: Array, options: argparse.Namespace) -> bool:
    """Prints a table of systems; whether all that are installed and wanted worked."""
    recalls = [float(recall) for recall in options.recalls.split(",")] if len(task.beams) > 1 else []
    titles = [f"beam {beam}" for beam in task.beams] if len(task.beams) > 1 else ["recall"]
    titles += [f"QPS at {recall}" for recall in recalls]
    print("| system | version | build s | CPU s | " + " | ".join(titles) + " |")
    print("| --- " * (4 + len(titles)) + "|")
    worked = True
    for system, (package, make, setting) in systems.items():
        if not system.startswith(tuple(part.strip() for part in options.systems.split(","))):
            continue
        try:
            found = version(package)
        except PackageNotFoundError:
            continue
        answer = run(make, setting, task, truth)
        if isinstance(answer, str):
            worked = False
            print(f"| {system} | {found} | {answer} |" + " |" * (1 + len(titles)))
            continue
        (wall, user), rows = answer
        cells = [f"{recall:.4f}, {qps:,.0f}" if recalls else f"{recall:.4f}" for recall, qps in rows]
        cells += [qps_at(rows, recall) for recall in recalls]
        print(f"| {system} | {found} | {wall:.2f} | {user:.2f} | {' | '.join(cells)} |", flush=True)
    print()
    return worked


def main() -> int:
    """Prints the tables; 1 if a system that is installed failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--base",
        type=Path,
        help="fvecs, bvecs, fbin, f16bin, bf16bin, u8bin, i8bin, npy or hdf5; made if missing",
    )
    parser.add_argument("--queries", type=Path, help="queries; the last 1,000 rows if missing")
    parser.add_argument("--n", type=int, default=20_000, help="rows of made data")
    parser.add_argument("--dim", type=int, default=64, help="values per row of made data")
    parser.add_argument("--rows", type=int, help="only the first rows of the base")
    parser.add_argument("--normalize", action="store_true", help="scale rows and queries to length 1 (cosine)")
    parser.add_argument("-k", type=int, default=10)
    parser.add_argument("--beams", default="20,50,100,200")
    parser.add_argument("--recalls", default=".95,.98,.99")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--search-threads", type=int, help="as many as --threads if missing")
    parser.add_argument("--cpu-clock", action="store_true", help="queries per CPU second, where other work runs beside")
    parser.add_argument("--device", default="auto", help="device of tagore")
    parser.add_argument("--systems", default="", help="only systems whose name begins so, such as tagore,faiss")
    parser.add_argument("--tasks", default="index", help="index, knn, exact, or some of them")
    options = parser.parse_args()

    import tagore_ann

    x, q, name = data(options)
    x, q = x[: options.rows], q[:1000] if options.rows else q
    if options.normalize:
        x, q = (rows / np.linalg.norm(rows, axis=1, keepdims=True).clip(1e-30) for rows in (x, q))
    beams = [int(beam) for beam in options.beams.split(",")]
    threads = options.threads
    task = Task(x, q, options.k, beams, threads, options.search_threads or threads, options.device, options.cpu_clock)
    print(f"{name}: {len(x):,} x {x.shape[1]}, {len(q):,} queries, k = {options.k}, {threads} threads, searches")
    print(f"on {task.search_threads}, Python {platform.python_version()}, {platform.machine()}.\n")
    worked = True
    exact = tagore_ann.exact(x, q, options.k)[0].astype(np.int64)
    if "index" in options.tasks:
        worked &= table(SYSTEMS, task, exact, options)
    if "knn" in options.tasks:
        print(f"k-NN graphs, recall@{options.k}:\n")
        sample = np.linspace(0, len(x) - 1, 1000).astype(int)
        near = tagore_ann.exact(x, x[sample], options.k + 1)[0].astype(np.int64)
        # Without the row itself, or else the last.
        own = near == sample[:, None]
        own[~own.any(axis=1), -1] = True
        near = near[~own].reshape(len(sample), options.k)
        worked &= table(KNN, task._replace(beams=[0]), near, options)
    if "exact" in options.tasks:
        print("Exact search:\n")
        worked &= table(EXACT, task._replace(beams=[0]), exact, options)
    return int(not worked)


if __name__ == "__main__":
    sys.exit(main())
