"""Neighbours for scikit-learn, and for scanpy's ``pp.neighbors(transformer=…)``."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import csr_matrix
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from ._arrays import Array
from ._errors import refused
from ._neighbors import Fitted, Pair, seed_of, threads_of

try:
    from sklearn.utils.validation import validate_data
except ImportError:  # before scikit-learn 1.6

    def validate_data(estimator: Any, X: Any, **options: Any) -> Any:
        """The method of older estimators."""
        return estimator._validate_data(X, **options)


class _Neighbors(BaseEstimator):  # type: ignore[misc]
    """What the estimators share: rows of a fit, and searches among them."""

    def fit(self, X: Any, y: Any = None) -> Any:
        """Takes the rows to find neighbours among. The first search of other rows builds an index.

        Raises:
            ArgumentError: if a parameter is out of its range.
        """
        X = validate_data(self, X, dtype=np.float32, order="C")
        self._fitted = Fitted(
            X, self.metric, kind=self.kind, device=self.device, seed=seed_of(self.random_state),
            threads=threads_of(self.n_jobs),
        )  # fmt: skip
        self.n_samples_fit_ = len(X)
        return self

    def _checked(self, X: Any) -> Any:
        check_is_fitted(self)
        return validate_data(self, X, dtype=np.float32, order="C", reset=False)

    def _matrix(self, ids: Array, distances: Array, mode: str) -> Any:
        """The sparse matrix of neighbours, one row per query."""
        if mode not in ("distance", "connectivity"):
            raise refused("mode", repr(mode), '"distance" or "connectivity"')
        count, k = ids.shape
        values = np.ones_like(distances) if mode == "connectivity" else distances
        integer = np.int32 if max(ids.size, self.n_samples_fit_) < 1 << 31 else np.int64
        ends = np.arange(0, count * k + 1, k, dtype=integer)
        parts = (values.ravel(), ids.astype(integer, copy=False).ravel(), ends)
        return csr_matrix(parts, shape=(count, self.n_samples_fit_))

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_fitted")


class NearestNeighbors(_Neighbors):
    """Finds the nearest rows of a fit: the contract of `sklearn.neighbors.NearestNeighbors`.

    Parameters
    ----------
    n_neighbors : int
        Neighbours per row.
    metric : {"euclidean", "sqeuclidean", "cosine"}
        The metric.
    kind : str
        The kind of index.
    beam : int or None
        Nodes that a search keeps; 4 times the neighbours, at least 100, unless given.
    device : str
        ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
    random_state : int, generator or None
        The same seed gives the same neighbours.
    n_jobs : int or None
        Threads; one per core unless given, and for -1.

    Attributes
    ----------
    n_samples_fit_ : int
        Rows of the fit.
    n_features_in_ : int
        Values per row.

    Examples
    --------
    >>> import numpy as np
    >>> from tagore_ann.sklearn import NearestNeighbors
    >>> x = np.random.default_rng(0).standard_normal((100, 8))
    >>> distances, ids = NearestNeighbors(n_neighbors=3).fit(x).kneighbors(x[:2])
    >>> ids[:, 0].tolist(), ids.shape
    ([0, 1], (2, 3))
    """

    def __init__(
        self,
        *,
        n_neighbors: int = 5,
        metric: str = "euclidean",
        kind: str = "cagra",
        beam: int | None = None,
        device: str = "auto",
        random_state: Any = None,
        n_jobs: int | None = None,
    ) -> None:
        self.n_neighbors = n_neighbors
        self.metric = metric
        self.kind = kind
        self.beam = beam
        self.device = device
        self.random_state = random_state
        self.n_jobs = n_jobs

    def kneighbors(self, X: Any = None, n_neighbors: int | None = None, return_distance: bool = True) -> Any:
        """Finds the neighbours of X, or of each row of the fit without the row itself.

        Returns:
            Distances and rows of the fit, shape (rows of X, n_neighbors) each, nearest first; the
            rows alone unless ``return_distance``.

        Raises:
            ArgumentError: if there are fewer rows than neighbours.
        """
        ids, distances = self._found(X, n_neighbors)
        ids = ids.astype(np.int64)
        return (distances, ids) if return_distance else ids

    def kneighbors_graph(self, X: Any = None, n_neighbors: int | None = None, mode: str = "connectivity") -> Any:
        """The neighbours of `kneighbors` as a sparse matrix of ones, or of distances.

        Returns:
            A CSR matrix of float32, shape (rows of X, rows of the fit).
        """
        return self._matrix(*self._found(X, n_neighbors), mode)

    def _found(self, X: Any, n_neighbors: int | None) -> Pair:
        X = self._checked(X) if X is not None else check_is_fitted(self)
        k = self.n_neighbors if n_neighbors is None else n_neighbors
        most = self.n_samples_fit_ - (X is None)
        if isinstance(k, bool) or not isinstance(k, (int, np.integer)) or not 1 <= k <= most:
            raise refused("n_neighbors", repr(k), f"a whole number from 1 to {most}, for {self.n_samples_fit_} rows")
        return self._fitted.others(int(k)) if X is None else self._fitted.search(X, int(k), self.beam)


class TagoreTransformer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, _Neighbors):  # type: ignore[misc]
    """Transforms rows into the sparse graph of their nearest neighbours.

    It keeps the contract of `sklearn.neighbors.KNeighborsTransformer`: a CSR matrix of shape
    (queries, rows of the fit) with explicit zeros, of n_neighbors + 1 neighbours per row in mode
    ``distance`` (a row of the fit is its own first neighbour) and n_neighbors in ``connectivity``.
    So it serves as the first step of a pipeline, and as the ``transformer`` of scanpy's
    ``pp.neighbors``.

    `fit_transform` builds a k-NN graph. `transform` of other rows builds an index by its first
    call.

    Parameters
    ----------
    n_neighbors : int
        Neighbours per row.
    mode : {"distance", "connectivity"}
        The values: distances, or ones.
    metric : {"euclidean", "sqeuclidean", "cosine"}
        The metric.
    kind : str
        The kind of index for `transform`.
    beam : int or None
        Nodes that a search of `transform` keeps; 4 times the neighbours, at least 100, unless
        given.
    device : str
        ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
    random_state : int, generator or None
        The same seed gives the same neighbours.
    n_jobs : int or None
        Threads; one per core unless given, and for -1.

    Attributes
    ----------
    n_samples_fit_ : int
        Rows of the fit.
    n_features_in_ : int
        Values per row.

    Examples
    --------
    >>> import numpy as np
    >>> from tagore_ann.sklearn import TagoreTransformer
    >>> x = np.random.default_rng(0).standard_normal((100, 8))
    >>> graph = TagoreTransformer(n_neighbors=5).fit_transform(x)
    >>> graph.shape, graph.nnz, graph[7, 7]
    ((100, 100), 600, np.float32(0.0))
    """

    def __init__(
        self,
        *,
        n_neighbors: int = 5,
        mode: str = "distance",
        metric: str = "euclidean",
        kind: str = "cagra",
        beam: int | None = None,
        device: str = "auto",
        random_state: Any = None,
        n_jobs: int | None = None,
    ) -> None:
        self.n_neighbors = n_neighbors
        self.mode = mode
        self.metric = metric
        self.kind = kind
        self.beam = beam
        self.device = device
        self.random_state = random_state
        self.n_jobs = n_jobs

    def transform(self, X: Any) -> Any:
        """Finds the neighbours of X among the rows of the fit.

        Returns:
            A CSR matrix of float32, shape (rows of X, rows of the fit).

        Raises:
            ArgumentError: if there are fewer rows than neighbours.
        """
        X = self._checked(X)
        if np.array_equal(X, np.asarray(self._fitted.x)):
            return self._all()
        return self._matrix(*self._fitted.search(X, self._count(), self.beam), self.mode)

    def fit_transform(self, X: Any, y: Any = None) -> Any:
        """Finds the neighbours of the rows of X among themselves.

        Returns:
            A CSR matrix of float32, shape (n, n).

        Raises:
            ArgumentError: if there are fewer rows than neighbours.
        """
        return self.fit(X)._all()

    def _all(self) -> Any:
        return self._matrix(*self._fitted.self_first(self._count(), "n_neighbors"), self.mode)

    def _count(self) -> int:
        k = int(self.n_neighbors) + (self.mode == "distance")
        if not 1 <= k <= self.n_samples_fit_:
            expected = f"at most {self.n_samples_fit_ - (self.mode == 'distance')}, for {self.n_samples_fit_} rows"
            raise refused("n_neighbors", self.n_neighbors, expected)
        return k

    @property
    def _n_features_out(self) -> int:
        return self.n_samples_fit_

    def __sklearn_tags__(self) -> Any:
        """Distances are of float32, whatever the type of the rows."""
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float32"]
        return tags
