"""ann-benchmarks: `tagore_ann` builds the index, and answers single queries and batches."""

import tempfile
from pathlib import Path

import numpy as np
import tagore_ann

from ..base.module import BaseANN

METRICS = {"euclidean": "l2", "angular": "cosine"}


def named(parameters):
    return " ".join(f"{name} {value}" for name, value in parameters.items())


class Tagore(BaseANN):
    def __init__(self, metric, parameters):
        self.metric = METRICS[metric]
        self.parameters = parameters  # arguments of tagore_ann.build, such as {"kind": "nsg", "degree": 32}
        self.name = named(parameters)
        self.index = None

    def fit(self, X):
        self.base = np.ascontiguousarray(X, np.float32)
        self.index = tagore_ann.build(self.base, metric=self.metric, **self.parameters)
        self.index.search(self.base[:1], k=1)  # checks the base once

    def set_query_arguments(self, beam):
        self.beam = beam
        self.distances = 0
        self.name = named(self.parameters | {"beam": beam})

    def query(self, q, n):
        return self.index.search(np.asarray(q, np.float32), n, max(self.beam, n), threads=1).ids

    def batch_query(self, X, n):
        found = self.index.search(np.ascontiguousarray(X, np.float32), n, max(self.beam, n))
        self.ids, self.distances = found.ids, self.distances + found.computed

    def get_batch_results(self):
        return [row[row != tagore_ann.MISSING] for row in self.ids]

    def get_additional(self):
        """Distances of batches; single queries are not counted."""
        return {"dist_comps": self.distances} if self.distances else {}

    def get_memory_usage(self):
        """Kilobytes of the graph and the base."""
        return self.index is not None and (self.index.graph.nbytes + self.base.nbytes) / 1024


class TagoreHnswlib(Tagore):
    """The graph of `tagore_ann` in hnswlib."""

    def fit(self, X):
        import hnswlib

        super().fit(X)
        self.graph = hnswlib.Index(space=self.metric, dim=X.shape[1])
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "index.hnswlib")
            self.index.to("hnswlib", file)
            self.graph.load_index(str(file))
        self.graph.set_num_threads(1)

    def set_query_arguments(self, beam):
        super().set_query_arguments(beam)
        self.graph.set_ef(beam)

    def query(self, q, n):
        return self.graph.knn_query(q, k=n)[0][0]

    def batch_query(self, X, n):
        self.ids = self.graph.knn_query(X, k=n)[0]
