"""Neighbours of all rows in the form of scikit-learn and umap-learn."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from . import _build
from ._arrays import Array, rows, whole
from ._errors import refused
from ._progress import Progress

Metric = Literal["euclidean", "sqeuclidean", "cosine"]

_METRICS: dict[str, Literal["l2", "cosine"]] = {
    "euclidean": "l2",
    "l2": "l2",
    "sqeuclidean": "l2",
    "cosine": "cosine",
}


def library_metric(metric: str) -> Literal["l2", "cosine"]:
    """The metric of this package for one of scikit-learn."""
    if metric not in _METRICS:
        raise refused("metric", repr(metric), '"euclidean", "sqeuclidean" or "cosine"')
    return _METRICS[metric]


def far(distances: npt.NDArray[np.float32], metric: str) -> npt.NDArray[np.float32]:
    """Distances of this package in the unit of scikit-learn's metric."""
    distances = np.maximum(distances, 0)
    return np.sqrt(distances) if metric in ("euclidean", "l2") else distances


def self_first(
    x: Any,
    k: int,
    metric: Metric = "euclidean",
    *,
    device: str = "auto",
    seed: int = 0,
    threads: int | None = None,
    progress: Progress = None,
    convert: bool = False,
) -> tuple[Array, npt.NDArray[np.float32]]:
    """Each row and its k - 1 nearest others: ids as int32 (int64 from 2**31 rows) and distances."""
    array = rows(x, "x", convert)
    k = whole(k, "k")
    if array.ndim == 2 and not 1 <= k <= len(array):
        raise refused("k", k, f"1 to the {len(array)} rows")
    n = len(array) if array.ndim == 2 else 0
    integer = np.int32 if n < 1 << 31 else np.int64
    ids = np.empty((n, k), integer)
    distances = np.zeros((n, k), np.float32)
    ids[:, 0] = np.arange(n)
    if k > 1 or array.ndim != 2:
        near, apart = _build.knn_graph(
            array, max(k - 1, 1), library_metric(metric), device=device, seed=seed, threads=threads,
            progress=progress,
        )  # fmt: skip
        ids[:, 1:] = near
        distances[:, 1:] = far(apart, metric)
    return ids, distances
