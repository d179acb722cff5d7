"""Neighbours of rows in the form of scikit-learn and umap-learn."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from . import _build
from ._arrays import Array, Rows, whole
from ._errors import refused
from ._index import Index
from ._progress import Progress

Metric = Literal["euclidean", "sqeuclidean", "cosine"]

_METRICS: dict[str, Literal["l2", "cosine"]] = {
    "euclidean": "l2",
    "l2": "l2",
    "sqeuclidean": "l2",
    "cosine": "cosine",
}

Pair = tuple[Array, npt.NDArray[np.float32]]


def library_metric(metric: str) -> Literal["l2", "cosine"]:
    """The metric of this package for one of scikit-learn."""
    if metric not in _METRICS:
        raise refused("metric", repr(metric), '"euclidean", "sqeuclidean" or "cosine"')
    return _METRICS[metric]


def far(distances: npt.NDArray[np.float32], metric: str) -> npt.NDArray[np.float32]:
    """Distances of this package in the unit of scikit-learn's metric."""
    distances = np.maximum(distances, 0)
    return np.sqrt(distances) if metric in ("euclidean", "l2") else distances


def seed_of(random_state: Any) -> int:
    """The seed of an integer, a generator of NumPy, or None, which is 0."""
    if random_state is None:
        return 0
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(1 << 31))
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(1 << 31))
    return whole(random_state, "random_state")


def threads_of(n_jobs: int | None) -> int | None:
    """The threads of ``n_jobs``."""
    return None if n_jobs is None or n_jobs < 1 else n_jobs


class Fitted:
    """Rows of a fit, and their index once other rows are compared with them."""

    def __init__(self, x: Rows, metric: str, **options: Any) -> None:
        self.x = x
        self.metric = metric
        self.options = {"metric": library_metric(metric)} | options
        self._index: Index | None = None

    def index(self) -> Index:
        """The index, built by the first call."""
        if self._index is None:
            self._index = _build.build(self.x, **self.options)
        return self._index

    def over(self, x: Rows) -> Fitted:
        """Other rows with the same options."""
        fitted = Fitted(x, self.metric)
        fitted.options = self.options
        return fitted

    def others(self, k: int, progress: Progress = None) -> Pair:
        """The k nearest other rows of each row."""
        options = {name: value for name, value in self.options.items() if name != "kind"}
        near, apart = _build.knn_graph(self.x, k, progress=progress, **options)
        # scikit-learn and umap-learn take ids of int32 as far as these go.
        return near.astype(np.int32 if len(self.x) < 1 << 31 else np.int64), far(apart, self.metric)

    def self_first(self, k: int | None, name: str, progress: Progress = None, default: int = 15) -> Pair:
        """Each row and its k - 1 nearest others; ``name`` is the argument of k."""
        n = len(self.x)
        k = max(1, min(default, n)) if k is None else whole(k, name)
        if not 1 <= k <= n:
            raise refused(name, k, f"1 to the {n} rows")
        ids = np.empty((n, k), np.int32 if n < 1 << 31 else np.int64)
        distances = np.zeros((n, k), np.float32)
        ids[:, 0] = np.arange(n)
        if k > 1:
            ids[:, 1:], distances[:, 1:] = self.others(k - 1, progress)
        return ids, distances

    def search(self, q: Any, k: int, beam: int | None) -> Pair:
        """The k nearest rows of each query."""
        beam = max(k, max(100, 4 * k) if beam is None else beam)
        device, threads = self.options.get("device", "auto"), self.options.get("threads")
        ids, distances = self.index().search(q, k, beam, device=device, threads=threads)
        return ids, far(distances, self.metric)
