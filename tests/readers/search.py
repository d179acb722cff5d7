"""Loads the files that run.sh writes, and compares what a search finds with `tagore eval`."""

import json
import sys
from importlib.metadata import version
from pathlib import Path

import faiss
import hnswlib
import numpy as np

K = 10
MOST = 0.01  # how far recall may lie from ours


def read_bin(path, dtype):
    """The matrix of a big-ann file, or the ids of a ground truth."""
    rows, cols = np.fromfile(path, np.uint32, 2)
    return np.fromfile(path, dtype, rows * cols, offset=8).reshape(rows, cols)


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


def compare(folder, metric, queries):
    """One line per file of a metric; whether all recalls are near enough."""
    truth = read_bin(folder / f"{metric}.gt", np.uint32)
    ours = [json.loads(line) for line in (folder / f"{metric}.jsonl").read_text().splitlines()]
    good = True
    for name, package, search in [
        ("hnswlib", "hnswlib", hnswlib_search),
        ("faiss-nsg", "faiss-cpu", faiss_search),
        ("faiss-hnsw", "faiss-cpu", faiss_search),
    ]:
        for path in sorted(folder.glob(f"{metric}*.{name}")):
            found = search(path, metric, queries, [line["beam"] for line in ours])
            for line, ids in zip(ours, found, strict=True):
                recall = np.mean([len(np.intersect1d(a, b)) for a, b in zip(ids, truth)]) / K
                near = abs(recall - line["recall"]) <= MOST
                good &= near
                verdict = "" if near else "   TOO FAR"
                reader = f"{package} {version(package)}"
                print(f"{path.name:24} {reader:18} {line['beam']:4} {recall:9.4f} {line['recall']:9.4f}{verdict}")
    return good


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
    print(f"{'file':24} {'reader':18} beam recall@{K}    tagore")
    good = [compare(folder, metric, queries) for metric in ["l2", "ip", "cosine"]]
    sys.exit(0 if all(good) else "recall is further than 0.01 from that of tagore")


if __name__ == "__main__":
    main()
