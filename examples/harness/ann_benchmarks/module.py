"""ann-benchmarks: `tagore` builds the index, hnswlib searches it."""

import subprocess
import tempfile
from pathlib import Path

import hnswlib
import numpy as np

from ..base.module import BaseANN

METRICS = {"euclidean": "l2", "angular": "cosine"}


def tagore(*arguments):
    subprocess.run(["tagore", *map(str, arguments)], check=True)


class Tagore(BaseANN):
    def __init__(self, metric, kind, degree):
        self.metric = METRICS[metric]
        self.kind, self.degree = kind, degree
        self.name = f"tagore {kind} {degree}"

    def fit(self, X):
        with tempfile.TemporaryDirectory() as folder:
            base, index, graph = (Path(folder, name) for name in ["base.fbin", "index.tagore", "index.hnswlib"])
            with open(base, "wb") as file:
                np.array(X.shape, np.uint32).tofile(file)
                X.astype(np.float32).tofile(file)
            tagore("build", "-i", base, "-o", index, "--index", self.kind, "--degree", self.degree, "--metric", self.metric)
            tagore("convert", index, graph, "--base", base, "--layers")
            self.index = hnswlib.Index(space=self.metric, dim=X.shape[1])
            self.index.load_index(str(graph))
        self.index.set_num_threads(1)

    def set_query_arguments(self, beam):
        self.index.set_ef(beam)
        self.name = f"tagore {self.kind} {self.degree} beam {beam}"

    def query(self, q, n):
        return self.index.knn_query(q, k=n)[0][0]
