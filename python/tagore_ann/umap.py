"""Neighbours for umap-learn."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ._arrays import Array
from ._neighbors import Metric, self_first
from ._progress import Progress


def precomputed_knn(
    x: Any,
    k: int = 15,
    metric: Metric = "euclidean",
    *,
    device: str = "auto",
    seed: int = 0,
    threads: int | None = None,
    progress: Progress = None,
    convert: bool = False,
) -> tuple[Array, npt.NDArray[np.float32]]:
    """Finds neighbours for ``umap.UMAP(n_neighbors=k, precomputed_knn=precomputed_knn(x, k))``.

    Args:
        x: vectors, shape (n, dim), as of `tagore_ann.build`.
        k: neighbours per row with the row itself: UMAP's ``n_neighbors``, at most n.
        metric: ``euclidean``, ``sqeuclidean`` or ``cosine``: the metric given to UMAP.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        seed: the same seed gives the same neighbours.
        threads: threads of the call; one per core unless given.
        progress: True for a bar, or a callable that takes each `tagore_ann.Update`.
        convert: convert float64 and other orders, by a copy.

    Returns:
        Ids (int32) and distances (float32), shape (n, k) each: the row itself, then its nearest
        others. There is no search index, so that UMAP does not transform new rows.

    Raises:
        ArgumentError: if an argument is out of its range, or a value of x is not finite.

    >>> import numpy as np
    >>> from tagore_ann.umap import precomputed_knn
    >>> x = np.arange(60, dtype=np.float32).reshape(20, 3)
    >>> ids, distances = precomputed_knn(x, k=3)
    >>> ids[10].tolist(), bool(distances[10, 0] == 0)
    ([10, 9, 11], True)
    """
    return self_first(x, k, metric, device=device, seed=seed, threads=threads, progress=progress, convert=convert)
