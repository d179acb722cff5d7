"""big-ann-benchmarks: `tagore_ann` builds the index, and searches batches of queries."""

import time
from pathlib import Path

import numpy as np
import tagore_ann

from benchmark.algorithms.base import BaseANN
from benchmark.datasets import DATASETS

METRICS = {"euclidean": "l2", "ip": "ip", "angular": "cosine"}
FORMATS = {"float32": "fbin", "uint8": "u8bin", "int8": "i8bin"}  # files of some data sets have no extension


class Tagore(BaseANN):
    def __init__(self, metric, parameters):
        self.metric = METRICS[metric]
        self.parameters = parameters  # arguments of tagore_ann.build_file, such as {"kind": "vamana", "degree": 64}
        self.index = None

    def __str__(self):
        named = self.parameters | ({"beam": self.beam} if hasattr(self, "beam") else {})
        return " ".join(f"{name} {value}" for name, value in named.items())

    def track(self):
        return "ood"

    def fit(self, dataset):
        path = self.open(dataset)
        path.parent.mkdir(parents=True, exist_ok=True)
        tagore_ann.build_file(self.base, path, metric=self.metric, format=self.format, **self.parameters)
        self.load_index(dataset)

    def load_index(self, dataset):
        path = self.open(dataset)
        if path.exists():
            self.index = tagore_ann.Index.open(path, base=self.base, base_format=self.format)
            self.search(tagore_ann.read(self.base, self.format)[:1], 1, 1)  # checks the base once
        return self.index is not None

    def index_files_to_store(self, dataset):
        path = self.open(dataset)
        return str(path.parent), path.name, [""]

    def open(self, dataset):
        """Remembers the data set; returns the path of its index."""
        self.dataset = DATASETS[dataset]()
        self.base, self.format = self.dataset.get_dataset_fn(), FORMATS[np.dtype(self.dataset.dtype).name]
        folder = Path("data/indices", self.track(), "tagore", self.dataset.short_name())
        self.distances = 0
        return folder / ("-".join(map(str, self.parameters.values())) + ".tagore")

    def set_query_arguments(self, arguments):
        self.beam = arguments["beam"]
        self.distances = 0

    def query(self, X, k):
        self.res, _ = self.search(X, k, self.beam)

    def range_query(self, X, radius):
        """Nodes nearer than the squared radius, by k-NN searches.

        The first k is the beam. A query whose k-th result is nearer is searched again for twice as many.
        """
        found, pending, k = [None] * len(X), np.arange(len(X)), min(self.beam, self.dataset.nb)
        while len(pending) > 0:
            ids, distances = self.search(X[pending], k, k)
            nearer = distances < radius
            for row, query in enumerate(pending):
                found[query] = ids[row][nearer[row]], distances[row][nearer[row]]
            pending = pending[nearer[:, -1]] if k < self.dataset.nb else pending[:0]
            k = min(2 * k, self.dataset.nb)
        lims = np.cumsum([0] + [len(ids) for ids, _ in found])
        self.res = lims, np.concatenate([d for _, d in found]), np.concatenate([ids for ids, _ in found])

    def search(self, X, k, beam):
        """Ids and distances, both of shape (len(X), k). A missing result has the id -1 and is infinitely far."""
        found = self.index.search(np.ascontiguousarray(X), k, max(beam, k))
        self.distances += found.computed
        return found.ids.view(np.int32), found.distances

    def get_additional(self):
        return {"dist_comps": self.distances}

    def get_memory_usage(self):
        """Kilobytes of the index and the base, which are mapped."""
        return self.index is not None and (Path(self.index.path).stat().st_size + Path(self.base).stat().st_size) / 1024
