"""An index in the form of pynndescent, with which UMAP transforms new rows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ._arrays import rows
from ._neighbors import Fitted, Metric, Pair, seed_of, threads_of

try:
    # UMAP takes an index of this class alone.
    from pynndescent import NNDescent as _NNDescent
except ImportError:
    _NNDescent = object


class NNDescent(_NNDescent):  # type: ignore[misc]
    """Neighbours of all rows, and an index over them that the first query builds.

    Args:
        data: vectors, shape (n, dim), as of `tagore_ann.build`.
        metric: ``euclidean``, ``sqeuclidean`` or ``cosine``.
        n_neighbors: neighbours per row with the row itself, at most n; 30, or n if that is less,
            unless given.
        random_state: the same seed gives the same neighbours.
        n_jobs: threads; one per core unless given, and for -1.
        kind: the kind of index for queries.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.

    >>> import numpy as np
    >>> from tagore_ann.pynndescent import NNDescent
    >>> x = np.random.default_rng(0).standard_normal((500, 8))
    >>> index = NNDescent(x, n_neighbors=15)
    >>> ids, distances = index.query(x[:3], k=5)
    >>> ids[:, 0].tolist()
    [0, 1, 2]

    UMAP that transforms: ``umap.UMAP(precomputed_knn=(*index.neighbor_graph, index)).fit(x)``.
    """

    def __init__(
        self,
        data: Any,
        metric: Metric = "euclidean",
        *,
        n_neighbors: int | None = None,
        random_state: Any = None,
        n_jobs: int | None = None,
        kind: str = "cagra",
        device: str = "auto",
    ) -> None:
        self._raw_data = rows(data, "data")
        self._fitted = Fitted(
            self._raw_data, metric, kind=kind, device=device, seed=seed_of(random_state), threads=threads_of(n_jobs)
        )
        self._neighbor_graph = self._fitted.self_first(n_neighbors, "n_neighbors", default=30)
        self.metric = metric
        self.n_neighbors = self._neighbor_graph[0].shape[1]
        self._angular_trees = metric == "cosine"

    @property
    def neighbor_graph(self) -> Pair:
        """Ids and distances, shape (n, n_neighbors): the row itself, then its nearest others."""
        return self._neighbor_graph

    def prepare(self, compile_search: bool = False) -> None:
        """Builds the index of queries."""
        self._fitted.index()

    def query(self, query_data: Any, k: int = 10, epsilon: float = 0.1) -> Pair:
        """Finds the k nearest rows of each query, shape (m, dim).

        Returns:
            Ids (int32) and distances, shape (m, k) each; more of them are true with a larger
            epsilon.
        """
        beam = math.ceil(max(80, 4 * k) * (1 + 2 * epsilon))
        ids, distances = self._fitted.search(rows(query_data, "query_data"), k, beam)
        return ids.astype(np.int32), distances

    def update(self, xs_fresh: Any = None, xs_updated: Any = None, updated_indices: Any = None) -> None:
        """Adds rows and replaces others, and finds all neighbours again."""
        x = np.array(self._raw_data)
        if xs_updated is not None:
            x[np.asarray(updated_indices)] = rows(xs_updated, "xs_updated")
        if xs_fresh is not None:
            x = np.concatenate([x, rows(xs_fresh, "xs_fresh")])
        self._raw_data = x
        self._fitted = self._fitted.over(x)
        self._neighbor_graph = self._fitted.self_first(self.n_neighbors, "n_neighbors")

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
