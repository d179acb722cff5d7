"""Searches the files that run.sh writes with the libraries that they are for, and compares what that finds with
`tagore eval`; and what tagore finds in their files with what they find."""

import json
import sys
from importlib.metadata import version
from pathlib import Path

import faiss
import hnswlib
import numpy as np

K = 10
MAX_DIFFERENCE = 0.01  # how far recall may lie from that of the other


def read_bin(path, dtype):
    """The matrix of a big-ann file, or the ids of a ground truth."""
    rows, cols = np.fromfile(path, np.uint32, 2)
    return np.fromfile(path, dtype, rows * cols, offset=8).reshape(rows, cols)


def read_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def recall_of(found, truth):
    truth = read_bin(truth, np.uint32)
    return float(np.mean([len(np.intersect1d(a, b)) for a, b in zip(found, truth, strict=True)]) / K)


def hnswlib_search(path, metric, queries, beams):
    index = hnswlib.Index(space=metric, dim=queries.shape[1])
    index.load_index(str(path))
    for beam in beams:
        index.set_ef(beam)
        yield index.knn_query(queries, k=K)[0]


def faiss_search(path, metric, queries, beams):
    index = faiss.read_index(str(path))
    graph, width = (index.nsg, "search_L") if hasattr(index, "nsg") else (index.hnsw, "efSearch")
    if metric == "cosine":
        queries = queries / np.linalg.norm(queries, axis=1, keepdims=True)
    for beam in beams:
        setattr(graph, width, beam)
        yield index.search(queries, K)[1]


READERS = [
    ("hnswlib", "hnswlib", hnswlib_search),
    ("faiss-nsg", "faiss-cpu", faiss_search),
    ("faiss-hnsw", "faiss-cpu", faiss_search),
]


def compare(file, package, beam, theirs, ours):
    """Prints a line; whether the recalls are near enough."""
    near = abs(theirs - ours) <= MAX_DIFFERENCE
    verdict = "" if near else "   TOO FAR"
    reader = f"{package} {version(package)}"
    print(f"{file:24} {reader:18} {beam:4} {theirs:9.4f} {ours:9.4f}{verdict}")
    return near


def compare_ours(folder, metric, queries):
    """Our files of a metric in their libraries."""
    ours = read_lines(folder / f"{metric}.jsonl")
    for name, package, search in READERS:
        for path in sorted(folder.glob(f"{metric}*.{name}")):
            found = search(path, metric, queries, [line["beam"] for line in ours])
            for line, ids in zip(ours, found, strict=True):
                yield compare(path.name, package, line["beam"], recall_of(ids, folder / f"{metric}.gt"), line["recall"])


def compare_theirs(folder):
    """Their files, read by tagore."""
    for name, package, _ in READERS:
        (theirs,), (ours,) = (read_lines(folder / f"{kind}.{name}.jsonl") for kind in ["theirs", "read"])
        yield compare(f"theirs.{name}", package, ours["beam"], theirs["recall"], ours["recall"])


def check_arrays(folder):
    """The same graph as an array and as compressed sparse rows."""
    rows = np.load(folder / "cagra.npy")
    pointers, ids = np.load(folder / "cagra.indptr.npy"), np.load(folder / "cagra.indices.npy")
    assert rows.dtype == ids.dtype == np.uint32 and pointers.dtype == np.uint64
    assert np.array_equal(np.diff(pointers), np.full(len(rows), rows.shape[1]))
    assert np.array_equal(rows.ravel(), ids)
    print(f"cagra.npy and cagra.csr hold the same rows by numpy {np.__version__}")


def main():
    folder = Path(sys.argv[1])
    queries = read_bin(folder / "query.fbin", np.float32)
    check_arrays(folder)
    print(f"{'file':24} {'library':18} beam {'recall@10':>9} {'tagore':>9}")
    good = [near for metric in ["l2", "ip", "cosine"] for near in compare_ours(folder, metric, queries)]
    good += compare_theirs(folder)
    sys.exit(0 if all(good) else f"recall is further than {MAX_DIFFERENCE} from that of tagore")


if __name__ == "__main__":
    main()
