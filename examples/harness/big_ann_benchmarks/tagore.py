"""big-ann-benchmarks: the `tagore` command builds the index, and searches batches of queries."""

import json
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from benchmark.algorithms.base import BaseANN
from benchmark.datasets import DATASETS

METRICS = {"euclidean": "l2", "ip": "ip", "angular": "cosine"}
FORMATS = {"float32": "fbin", "uint8": "u8bin", "int8": "i8bin"}  # files of some data sets have no extension


def tagore(*arguments):
    """Runs the command and returns the last of its JSON lines."""
    run = subprocess.run(["tagore", *map(str, arguments), "--json"], check=True, stdout=subprocess.PIPE)
    return json.loads(run.stdout.splitlines()[-1])


class Tagore(BaseANN):
    def __init__(self, metric, parameters):
        self.metric = METRICS[metric]
        self.parameters = parameters  # flags of `tagore build`, such as {"index": "vamana", "degree": 64}
        self.index = None

    def __str__(self):
        named = self.parameters | ({"beam": self.beam} if hasattr(self, "beam") else {})
        return " ".join(f"{name} {value}" for name, value in named.items())

    def track(self):
        return "ood"

    def fit(self, dataset):
        index = self.open(dataset)
        index.parent.mkdir(parents=True, exist_ok=True)
        files = ["-i", self.base, "--format", self.format, "-o", index]
        flags = [part for name, value in self.parameters.items() for part in (f"--{name}", value)]
        tagore("build", *files, "--metric", self.metric, "--no-report", *flags)
        self.index = index

    def load_index(self, dataset):
        index = self.open(dataset)
        self.index = index if index.exists() else None
        return self.index is not None

    def index_files_to_store(self, dataset):
        index = self.open(dataset)
        return str(index.parent), index.name, [""]

    def open(self, dataset):
        """Remembers the data set; returns the path of its index."""
        self.dataset = DATASETS[dataset]()
        self.base, self.format = self.dataset.get_dataset_fn(), FORMATS[np.dtype(self.dataset.dtype).name]
        folder = Path("data/indices", self.track(), "tagore", self.dataset.short_name())
        return folder / ("-".join(map(str, self.parameters.values())) + ".tagore")

    def set_query_arguments(self, arguments):
        self.beam = arguments["beam"]
        self.times, self.distances = [], 0  # a time per run, the distances of all runs

    def query(self, X, k):
        with self.timed():
            self.res, _ = self.search(X, k)

    def range_query(self, X, radius):
        """Nodes nearer than the squared radius, by k-NN searches.

        The first k is the beam. A query whose k-th result is nearer is searched again for twice as many.
        """
        with self.timed():
            found, pending, k = [None] * len(X), np.arange(len(X)), min(self.beam, self.dataset.nb)
            while len(pending) > 0:
                ids, distances = self.search(X[pending], k)
                nearer = distances < radius
                for row, query in enumerate(pending):
                    found[query] = ids[row][nearer[row]], distances[row][nearer[row]]
                pending = pending[nearer[:, -1]] if k < self.dataset.nb else pending[:0]
                k = min(2 * k, self.dataset.nb)
            lims = np.cumsum([0] + [len(ids) for ids, _ in found])
            self.res = lims, np.concatenate([d for _, d in found]), np.concatenate([ids for ids, _ in found])

    @contextmanager
    def timed(self):
        """Notes the time of a run: searches by the command's clock, the rest by that of Python."""
        self.outside = 0  # seconds of starting the command, and of its files
        began = time.perf_counter()
        yield
        self.times.append(time.perf_counter() - began - self.outside)

    def search(self, X, k):
        """Ids and distances, both of shape (len(X), k). A missing result has the id -1 and is infinitely far."""
        began = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            queries, result = Path(folder, "queries"), Path(folder, "found")
            with open(queries, "wb") as file:
                np.array(X.shape, np.uint32).tofile(file)
                X.tofile(file)
            files = ["--index", self.index, "--base", self.base, "--queries", queries, "-o", result]
            formats = ["--base-format", self.format, "--query-format", self.format]
            line = tagore("search", *files, *formats, "-k", k, "--beam", max(self.beam, k))
            ids, distances = np.fromfile(result, np.int32, offset=8).reshape(2, len(X), k)
        self.distances += line["distances"] * len(X)
        self.outside += time.perf_counter() - began - line["seconds"]
        return ids, distances.view(np.float32)

    def get_additional(self):
        # The harness's clock includes the start of the command and the opening of its files: `search_times` keeps it.
        return {"best_search_time": min(self.times), "dist_comps": self.distances}

    def get_memory_usage(self):
        """Kilobytes of the index and the base, which the command maps."""
        return self.index is not None and (self.index.stat().st_size + Path(self.base).stat().st_size) / 1024
