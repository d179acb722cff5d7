"""big-ann-benchmarks: the `tagore` command builds the index, and searches batches of queries."""

import subprocess
import tempfile
from pathlib import Path

import numpy as np

from benchmark.algorithms.base import BaseANN
from benchmark.datasets import DATASETS

METRICS = {"euclidean": "l2", "ip": "ip", "angular": "cosine"}
SUFFIXES = {np.dtype(np.float32): "fbin", np.dtype(np.uint8): "u8bin", np.dtype(np.int8): "i8bin"}


def tagore(*arguments):
    subprocess.run(["tagore", *map(str, arguments)], check=True)


class Tagore(BaseANN):
    def __init__(self, metric, parameters):
        self.metric = METRICS[metric]
        self.parameters = parameters  # of the command line, such as {"index": "vamana", "degree": 64}
        self.name = "tagore"
        self.beam = 100

    def track(self):
        return "ood"

    def fit(self, dataset):
        index = self.open(dataset)
        options = [part for name, value in self.parameters.items() for part in (f"--{name}", value)]
        tagore("build", "-i", self.base, "-o", index, "--metric", self.metric, *options)

    def load_index(self, dataset):
        return self.open(dataset).exists()

    def open(self, dataset):
        """The file of the index; remembers it and its base."""
        options = "-".join(f"{name}-{value}" for name, value in self.parameters.items())
        folder = Path("data/indices") / self.track() / str(self) / DATASETS[dataset]().short_name()
        folder.mkdir(parents=True, exist_ok=True)
        self.base = DATASETS[dataset]().get_dataset_fn()
        self.index = folder / f"{options}.tagore"
        return self.index

    def set_query_arguments(self, arguments):
        self.beam = arguments["beam"]

    def query(self, X, k):
        with tempfile.TemporaryDirectory() as folder:
            queries, found = Path(folder, f"queries.{SUFFIXES[X.dtype]}"), Path(folder, "found.bin")
            with open(queries, "wb") as file:
                np.array(X.shape, np.uint32).tofile(file)
                X.tofile(file)
            files = ["--index", self.index, "--base", self.base, "--queries", queries, "-o", found]
            tagore("search", *files, "-k", k, "--beam", max(self.beam, k))
            self.res = np.fromfile(found, np.uint32, len(X) * k, offset=8).reshape(len(X), k)
