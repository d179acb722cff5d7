"""A UMAP of our neighbours is as good as one of umap-learn's own."""

import os
import warnings

import numpy as np
import pytest
from conftest import mixture
from tagore_ann.umap import precomputed_knn

ROWS = int(os.environ.get("TAGORE_UMAP_ROWS", "5000"))


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


def test_the_row_itself_is_first(x):
    ids, distances = precomputed_knn(x, 10)
    assert ids.shape == (3000, 10) and ids[:, 0].tolist() == list(range(3000))
    assert not distances[:, 0].any() and (np.diff(distances, axis=1) >= 0).all()
    apart = np.linalg.norm(x[7] - x[ids[7]], axis=1)
    assert np.allclose(apart, distances[7], atol=1e-4)
    assert precomputed_knn(x[:5], 1)[0].tolist() == [[0], [1], [2], [3], [4]]
    with pytest.raises(ValueError, match="k: found 3001"):
        precomputed_knn(x, 3001)
