"""Neighbours for umap-learn."""

from __future__ import annotations

from typing import Any

from ._arrays import rows
from ._build import renamed
from ._neighbors import Fitted, Metric, Pair, seed_of
from ._progress import Progress


@renamed(seed="random_state=")
def precomputed_knn(
    x: Any,
    k: int | None = None,
    metric: Metric = "euclidean",
    *,
    device: str = "auto",
    random_state: Any = 0,
    threads: int | None = None,
    progress: Progress = None,
    convert: bool = True,
) -> Pair:
    """Finds neighbours for ``umap.UMAP(n_neighbors=k, precomputed_knn=precomputed_knn(x, k))``.

    UMAP transforms new rows too if it has an index: `tagore_ann.pynndescent.NNDescent`.

    Args:
        x: vectors, shape (n, dim), as of `tagore_ann.build`.
        k: neighbours per row with the row itself: UMAP's ``n_neighbors``, at most n; 15, or n if
            that is less, unless given.
        metric: ``euclidean``, ``sqeuclidean`` or ``cosine``: the metric given to UMAP.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        random_state: the same seed gives the same neighbours.
        threads: threads of the call; one per core unless given.
        progress: True for a bar, or a callable that takes each `tagore_ann.Update`.
        convert: False refuses what needs a copy.

    Returns:
        Ids (int32) and distances (float32), shape (n, k) each: the row itself, then its nearest
        others.

    Raises:
        ArgumentError: if an argument is out of its range, or a value of x is not finite.

    >>> import numpy as np
    >>> from tagore_ann.umap import precomputed_knn
    >>> x = np.arange(60, dtype=np.float32).reshape(20, 3)
    >>> ids, distances = precomputed_knn(x, k=3)
    >>> ids[10].tolist(), bool(distances[10, 0] == 0)
    ([10, 9, 11], True)
    """
    fitted = Fitted(rows(x, "x", convert), metric, device=device, seed=seed_of(random_state), threads=threads)
    return fitted.self_first(k, "k", progress)
