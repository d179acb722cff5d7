"""Neighbours for scikit-learn, and for scanpy's ``pp.neighbors(transformer=…)``."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import csr_matrix
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from ._arrays import Array
from ._build import build
from ._errors import refused
from ._index import Index
from ._neighbors import far, library_metric, self_first

try:
    from sklearn.utils.validation import validate_data
except ImportError:  # before scikit-learn 1.6

    def validate_data(estimator: Any, X: Any, **options: Any) -> Any:
        """The method of older estimators."""
        return estimator._validate_data(X, **options)


class _Fitted:
    """The rows of a fit, and their index once new rows are transformed."""

    def __init__(self, x: Array, metric: str, options: dict[str, Any]) -> None:
        self.x = x
        self.metric = metric
        self.options = options
        self._index: Index | None = None

    def index(self) -> Index:
        if self._index is None:
            self._index = build(self.x, **self.options)
        return self._index

    def __getstate__(self) -> tuple[Array, str, dict[str, Any]]:
        return self.x, self.metric, self.options

    def __setstate__(self, state: tuple[Array, str, dict[str, Any]]) -> None:
        self.x, self.metric, self.options = state
        self._index = None


class TagoreTransformer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
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
    random_state : int
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
        random_state: int = 0,
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

    def fit(self, X: Any, y: Any = None) -> TagoreTransformer:
        """Takes the rows that `transform` finds neighbours among.

        Raises:
            ArgumentError: if a parameter is out of its range.
        """
        X = validate_data(self, X, dtype=np.float32, order="C")
        if self.mode not in ("distance", "connectivity"):
            raise refused("mode", repr(self.mode), '"distance" or "connectivity"')
        options: dict[str, Any] = {
            "kind": self.kind,
            "metric": library_metric(self.metric),
            "device": self.device,
            "seed": self.random_state or 0,
            "threads": self._threads(),
        }
        self._fitted = _Fitted(X, self.metric, options)
        self.n_samples_fit_ = len(X)
        return self

    def transform(self, X: Any) -> Any:
        """Finds the neighbours of X among the rows of the fit.

        Returns:
            A CSR matrix of float32, shape (rows of X, rows of the fit).

        Raises:
            ArgumentError: if there are fewer rows than neighbours.
        """
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float32, order="C", reset=False)
        k = self._count()
        if np.array_equal(X, self._fitted.x):
            return self._all()
        beam = self.beam if self.beam is not None else max(100, 4 * k)
        ids, distances = self._fitted.index().search(X, k, max(beam, k), device=self.device, threads=self._threads())
        return self._graph(ids, far(distances, self._fitted.metric))

    def fit_transform(self, X: Any, y: Any = None) -> Any:
        """Finds the neighbours of the rows of X among themselves.

        Returns:
            A CSR matrix of float32, shape (n, n).

        Raises:
            ArgumentError: if there are fewer rows than neighbours.
        """
        return self.fit(X)._all()

    def _all(self) -> Any:
        options = self._fitted.options
        ids, distances = self_first(
            self._fitted.x, self._count(), self._fitted.metric,  # type: ignore[arg-type]
            device=options["device"], seed=options["seed"], threads=options["threads"],
        )  # fmt: skip
        return self._graph(ids, distances)

    def _count(self) -> int:
        k = int(self.n_neighbors) + (self.mode == "distance")
        if not 1 <= k <= self.n_samples_fit_:
            expected = f"at most {self.n_samples_fit_ - (self.mode == 'distance')}, for {self.n_samples_fit_} rows"
            raise refused("n_neighbors", self.n_neighbors, expected)
        return k

    def _threads(self) -> int | None:
        return None if self.n_jobs is None or self.n_jobs < 1 else self.n_jobs

    def _graph(self, ids: Array, distances: Array) -> Any:
        count, k = ids.shape
        values = np.ones_like(distances) if self.mode == "connectivity" else distances
        integer = np.int32 if max(ids.size, self.n_samples_fit_) < 1 << 31 else np.int64
        ends = np.arange(0, count * k + 1, k, dtype=integer)
        parts = (values.ravel(), ids.astype(integer, copy=False).ravel(), ends)
        return csr_matrix(parts, shape=(count, self.n_samples_fit_))

    @property
    def _n_features_out(self) -> int:
        return self.n_samples_fit_

    def __sklearn_tags__(self) -> Any:
        """Distances are of float32, whatever the type of the rows."""
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float32"]
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_fitted")
