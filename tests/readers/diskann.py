"""Searches the files that diskann.sh writes with DiskANN's Python package, and compares what it and the Rust crates find
with `tagore eval`."""

import json
import sys
from importlib.metadata import version
from pathlib import Path

import diskannpy
import numpy as np

K = 10
MAX_DIFFERENCE = 0.01  # how far recall may lie from ours


def read_bin(path, dtype):
    """The matrix of a big-ann file, or the ids of a ground truth."""
    rows, cols = np.fromfile(path, np.uint32, 2)
    return np.fromfile(path, dtype, rows * cols, offset=8).reshape(rows, cols)


def read_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def python(folder, metric, beams):
    """Reader, beam and recall of both indexes of a metric. The metadata beside them tell type, metric and dimension."""
    queries, truth = read_bin(folder / "query.fbin", np.float32), read_bin(folder / f"{metric}.gt", np.uint32)
    place = {"index_directory": str(folder), "num_threads": 0}
    memory = diskannpy.StaticMemoryIndex(**place, index_prefix=f"{metric}.diskann", initial_search_complexity=100)
    disk = diskannpy.StaticDiskIndex(**place, index_prefix=metric, num_nodes_to_cache=0)
    # One node at a time, as a search in memory does.
    for name, index, options in [("memory", memory, {}), ("disk", disk, {"beam_width": 1})]:
        for beam in beams:
            found = index.batch_search(queries, K, beam, num_threads=0, **options).identifiers
            hits = sum(len(np.intersect1d(a, b)) for a, b in zip(found, truth))
            yield f"diskannpy {version('diskannpy')}, {name}", beam, hits / truth[:, :K].size


def main():
    folder = Path(sys.argv[1])
    rows = []
    for metric in ["l2", "ip", "cosine"]:
        ours = {line["beam"]: line["recall"] for line in read_lines(folder / f"{metric}.jsonl")}
        found = list(python(folder, metric, ours))
        if metric == "l2":
            found += [(line["reader"], line["l"], line["recall"]) for line in read_lines(folder / "l2.rust.jsonl")]
        rows += [(metric, reader, beam, recall, ours[beam]) for reader, beam, recall in found]
    print(f"metric  {'reader':38} beam recall@{K}    tagore")
    for metric, reader, beam, recall, expected in rows:
        verdict = "" if abs(recall - expected) <= MAX_DIFFERENCE else "   TOO FAR"
        print(f"{metric:7} {reader:38} {beam:4} {recall:9.4f} {expected:9.4f}{verdict}")
    good = all(abs(recall - expected) <= MAX_DIFFERENCE for *_, recall, expected in rows)
    sys.exit(0 if good else f"recall is further than {MAX_DIFFERENCE} from that of tagore")


if __name__ == "__main__":
    main()
