"""A UMAP of our neighbours is as good as one of umap-learn's own."""

import os
import pickle
import warnings

import numpy as np
import pytest
from conftest import mixture, nearest, recall
from tagore_ann.umap import precomputed_knn

ROWS = int(os.environ.get("TAGORE_UMAP_ROWS", "2000"))


def test_trustworthiness_is_that_of_umap_learn():
    umap = pytest.importorskip("umap")
    from sklearn.manifold import trustworthiness

    x = mixture(ROWS, 50)
    sample = np.random.default_rng(0).permutation(ROWS)[:5000]

    def embedded(**options):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            mapped = umap.UMAP(n_neighbors=15, random_state=0, **options).fit_transform(x)
        return trustworthiness(x[sample], mapped[sample], n_neighbors=15)

    ours, theirs = embedded(precomputed_knn=precomputed_knn(x, 15)), embedded()
    print(f"{ROWS} rows: trustworthiness {ours:.4f}, of umap-learn's own neighbours {theirs:.4f}")
    assert abs(ours - theirs) <= 0.01 or ours > theirs


def test_umap_transforms_with_an_index():
    umap = pytest.importorskip("umap")
    from sklearn.neighbors import KNeighborsClassifier
    from tagore_ann.pynndescent import NNDescent

    rng = np.random.default_rng(0)
    kind = rng.integers(0, 8, 1200)
    x = (4 * rng.standard_normal((8, 20))[kind] + rng.standard_normal((1200, 20))).astype(np.float32)
    index = NNDescent(x[:1000], n_neighbors=15, random_state=1)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "precomputed_knn")
        mapper = umap.UMAP(n_neighbors=15, random_state=0, n_epochs=50, precomputed_knn=(*index.neighbor_graph, index))
        mapper = pickle.loads(pickle.dumps(mapper.fit(x[:1000])))
        mapped = mapper.transform(x[1000:])
    near = KNeighborsClassifier(5).fit(mapper.embedding_, kind[:1000])
    assert near.score(mapped, kind[1000:]) > 0.95
    # Ids and distances as pynndescent gives them.
    for (ids, far), queries in [(index.neighbor_graph, x[:1000]), (index.query(x[1000:], 15), x[1000:])]:
        true, squared = nearest(x[:1000], queries, 15)
        assert ids.dtype == np.int32 and recall(ids, true) > 0.97
        assert np.allclose(far, np.sqrt(np.maximum(squared, 0)), atol=0.05, rtol=0.05)
    index.update(xs_fresh=x[1000:])
    assert index.neighbor_graph[0].shape == (1200, 15) and index.query(x[1100:1101], 1)[0].tolist() == [[1100]]


def test_the_row_itself_is_first(x):
    ids, distances = precomputed_knn(x, 10)
    assert ids.shape == (3000, 10) and ids[:, 0].tolist() == list(range(3000))
    assert not distances[:, 0].any() and (np.diff(distances, axis=1) >= 0).all()
    apart = np.linalg.norm(x[7] - x[ids[7]], axis=1)
    assert np.allclose(apart, distances[7], atol=1e-4)
    assert precomputed_knn(x[:5], 1)[0].tolist() == [[0], [1], [2], [3], [4]]
    assert precomputed_knn(x[:5])[0].shape == (5, 5)
    with pytest.raises(ValueError, match="k: found 3001"):
        precomputed_knn(x, 3001)
    with pytest.raises(TypeError, match="unexpected keyword argument 'seed', pass random_state="):
        precomputed_knn(x, 3, seed=1)
