"""scikit-learn's own checks and contract, and scanpy."""

import pickle
import warnings

import numpy as np
import pytest
from conftest import recall

pytest.importorskip("sklearn")

import sklearn.neighbors
from scipy.sparse import csr_matrix
from sklearn.manifold import Isomap
from sklearn.neighbors import KNeighborsTransformer
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks
from tagore_ann.sklearn import NearestNeighbors, TagoreTransformer


@parametrize_with_checks(
    [TagoreTransformer(), TagoreTransformer(mode="connectivity", n_neighbors=3), NearestNeighbors(n_neighbors=3)]
)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.mark.parametrize("mode", ["distance", "connectivity"])
@pytest.mark.parametrize("metric", ["euclidean", "sqeuclidean", "cosine"])
def test_the_graph_is_that_of_scikit_learn(x, q, mode, metric):
    ours = TagoreTransformer(n_neighbors=7, mode=mode, metric=metric)
    theirs = KNeighborsTransformer(n_neighbors=7, mode=mode, metric=metric, algorithm="brute")
    for transform in ["fit_transform", "transform"]:
        a = getattr(ours, transform)(x if transform == "fit_transform" else q)
        b = getattr(theirs, transform)(x if transform == "fit_transform" else q)
        assert isinstance(a, csr_matrix) and a.shape == b.shape and a.nnz == b.nnz
        assert np.array_equal(np.diff(a.indptr), np.diff(b.indptr))
        same = [
            len(np.intersect1d(a.indices[i:j], b.indices[i:j]))
            for i, j in zip(a.indptr[:-1], a.indptr[1:], strict=True)
        ]
        assert sum(same) > 0.99 * a.nnz
        if mode == "distance":
            assert np.allclose(np.sort(a.data), np.sort(b.data), rtol=0.02, atol=0.02)
    if mode == "distance":
        graph = ours.fit_transform(x)
        diagonal = [i in graph.indices[graph.indptr[i] : graph.indptr[i + 1]] for i in range(50)]
        assert all(diagonal) and not graph.diagonal().any()


@pytest.mark.parametrize("metric", ["euclidean", "sqeuclidean", "cosine"])
def test_neighbours_are_those_of_scikit_learn(x, q, metric):
    x = x[:1000]
    theirs = sklearn.neighbors.NearestNeighbors(n_neighbors=7, metric=metric, algorithm="brute").fit(x)
    ours = NearestNeighbors(n_neighbors=7, metric=metric, random_state=np.random.RandomState(1)).fit(x)
    for queries, k in [(q, None), (None, None), (q, 3), (None, 3), (x[:5], 1)]:
        far, ids = ours.kneighbors(queries, k)
        expected, true = theirs.kneighbors(queries, k)
        assert ids.shape == true.shape and ids.dtype == true.dtype and recall(ids, true) > 0.99
        assert np.allclose(far, expected, rtol=0.02, atol=0.02)
        assert np.array_equal(ours.kneighbors(queries, k, return_distance=False), ids)
        for mode in ["connectivity", "distance"]:
            a, b = ours.kneighbors_graph(queries, k, mode), theirs.kneighbors_graph(queries, k, mode)
            assert a.shape == b.shape and a.nnz == b.nnz and abs(a - b).sum() < 0.02 * b.sum() + 0.1
    again = pickle.loads(pickle.dumps(ours))
    assert np.array_equal(again.kneighbors(q)[1], ours.kneighbors(q)[1])
    for k in [0, 1000, "x", True]:
        with pytest.raises(ValueError, match=rf"n_neighbors: found {k!r}, expected a whole number from 1 to 999"):
            ours.kneighbors(n_neighbors=k)
    with pytest.raises(ValueError, match="random_state: found -1"):
        NearestNeighbors(random_state=-1).fit(x)


def test_it_is_a_step_of_a_pipeline():
    steps = make_pipeline(TagoreTransformer(n_neighbors=10), Isomap(n_neighbors=10, metric="precomputed"))
    one_cluster = np.random.default_rng(0).standard_normal((500, 5))
    assert steps.fit_transform(one_cluster).shape == (500, 2)


def test_parameters_count_from_the_next_fit_on(x, q):
    fitted = TagoreTransformer(n_neighbors=4).fit(x)
    before = fitted.transform(q)
    fitted.set_params(metric="cosine")
    assert (fitted.transform(q) != before).nnz == 0


def test_it_is_pickled(x, q):
    fitted = TagoreTransformer(n_neighbors=4).fit(x)
    again = pickle.loads(pickle.dumps(fitted))
    assert (again.transform(q) != fitted.transform(q)).nnz == 0


def test_wrong_parameters_are_named(x):
    for wrong, text in [
        ({"metric": "manhattan"}, "metric: found 'manhattan'"),
        ({"mode": "x"}, "mode: found 'x'"),
        ({"n_neighbors": 3000}, "n_neighbors: found 3000, expected at most 2999"),
        ({"random_state": "x"}, "random_state: found 'x'"),
        ({"device": "gpu"}, "device: found gpu"),
    ]:
        with pytest.raises(ValueError, match=text):
            TagoreTransformer(**wrong).fit_transform(x)


def test_scanpy_takes_it(x):
    scanpy = pytest.importorskip("scanpy")
    from anndata import AnnData

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours, theirs = AnnData(x), AnnData(x)
        scanpy.pp.neighbors(ours, n_neighbors=15, use_rep="X", transformer=TagoreTransformer(n_neighbors=15))
        scanpy.pp.neighbors(theirs, n_neighbors=15, use_rep="X")
    a, b = ours.obsp["connectivities"], theirs.obsp["connectivities"]
    assert a.shape == b.shape and abs(a - b).sum() < 0.01 * b.sum()
