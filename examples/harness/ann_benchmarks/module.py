"""ann-benchmarks: `tagore` builds the index; the command searches batches, hnswlib single queries."""

import json
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from ..base.module import BaseANN

METRICS = {"euclidean": "l2", "angular": "cosine"}
MISSING = 2**32 - 1  # fills the row of a query with fewer than k results


def tagore(*arguments):
    """Runs the command and returns the last of its JSON lines."""
    run = subprocess.run(["tagore", *map(str, arguments), "--json"], check=True, stdout=subprocess.PIPE)
    return json.loads(run.stdout.splitlines()[-1])


def write_fbin(path, rows):
    with open(path, "wb") as file:
        np.array(rows.shape, np.uint32).tofile(file)
        rows.astype(np.float32).tofile(file)


def named(parameters):
    return " ".join(f"{name} {value}" for name, value in parameters.items())


class Tagore(BaseANN):
    """The command: `run.py --batch`."""

    def __init__(self, metric, parameters):
        self.metric = METRICS[metric]
        self.parameters = parameters  # flags of `tagore build`, such as {"index": "nsg", "degree": 32}
        self.name = named(parameters)
        self.work = tempfile.TemporaryDirectory()
        folder = Path(self.work.name)
        self.base, self.index = folder / "base.fbin", folder / "index.tagore"
        self.queries, self.found = folder / "query.fbin", folder / "found.bin"

    def fit(self, X):
        write_fbin(self.base, X)
        flags = [part for name, value in self.parameters.items() for part in (f"--{name}", value)]
        tagore("build", "-i", self.base, "-o", self.index, "--metric", self.metric, "--no-report", *flags)

    def set_query_arguments(self, beam):
        self.beam = beam
        self.distances = 0
        self.name = named(self.parameters | {"beam": beam})

    def query(self, q, n):
        raise NotImplementedError("the command searches batches: run with --batch, or run tagore-hnswlib")

    def prepare_batch_query(self, X, n):
        write_fbin(self.queries, X)
        self.shape = len(X), n

    def run_batch_query(self):
        files = ["--index", self.index, "--base", self.base, "--queries", self.queries, "-o", self.found]
        k = self.shape[1]
        self.search = tagore("search", *files, "-k", k, "--beam", max(self.beam, k))
        self.distances += self.search["distances"] * self.search["queries"]

    def get_batch_results(self):
        ids = np.fromfile(self.found, np.uint32, np.prod(self.shape), offset=8).reshape(self.shape)
        return [row[row != MISSING] for row in ids]

    def get_batch_latencies(self):
        """Seconds per query by the command's clock: the search alone, without the start of a process."""
        return [self.search["seconds"] / self.search["queries"]] * self.search["queries"]

    def get_additional(self):
        return {"dist_comps": self.distances}

    def get_memory_usage(self):
        """Kilobytes of the index and the base, which the command maps."""
        return self.index.exists() and (self.index.stat().st_size + self.base.stat().st_size) / 1024

    def done(self):
        self.work.cleanup()


class TagoreHnswlib(BaseANN):
    """The graph of `tagore` in hnswlib, for single queries."""

    def __init__(self, metric, parameters):
        self.tagore = Tagore(metric, parameters)
        self.name = self.tagore.name

    def fit(self, X):
        import hnswlib

        self.tagore.fit(X)
        file = self.tagore.index.with_suffix(".hnswlib")
        tagore("convert", self.tagore.index, file, "--base", self.tagore.base, "--layers")
        self.graph = hnswlib.Index(space=self.tagore.metric, dim=X.shape[1])
        self.graph.load_index(str(file))
        self.graph.set_num_threads(1)

    def set_query_arguments(self, beam):
        self.graph.set_ef(beam)
        self.name = named(self.tagore.parameters | {"beam": beam})

    def query(self, q, n):
        return self.graph.knn_query(q, k=n)[0][0]

    def done(self):
        self.tagore.done()
