"""Merges of indexes."""

import numpy as np
import pytest
import tagore_ann
from conftest import nearest, recall


def parts(x, kind="nsg", **options):
    return [tagore_ann.build(x[:1000], kind, **options), tagore_ann.build(x[1000:], kind, **options)]


@pytest.mark.parametrize("kind", ["nsg", "cagra"])
def test_a_merged_index_finds_the_rows_of_both(x, q, kind):
    both = parts(x, kind)
    graph = both[0].graph.copy()
    index = tagore_ann.merge(both, x)
    assert (len(index), index.kind, index.degree) == (len(x), kind, both[0].degree)
    assert recall(index.search(q, k=10)[0], nearest(x, q, 10)[0]) > 0.97
    assert index.base is x and np.array_equal(both[0].graph, graph)
    # Of the bases of both.
    again = tagore_ann.merge(tuple(both), threads=1)
    assert np.array_equal(again.graph, index.graph) and np.array_equal(again.base, x)


def test_own_ids_follow(x):
    one = tagore_ann.build(x[:1000], "nsg", ids=np.arange(1000) + 5000)
    other = tagore_ann.build(x[1000:], "nsg", ids=np.arange(len(x) - 1000))
    index = tagore_ann.merge([one, other])
    assert index.search(x[[7, 1007]], k=1)[0][:, 0].tolist() == [5007, 7]
    index = tagore_ann.merge([one, other], x, ids=np.arange(len(x)) + 10)
    assert index.search(x[1007], k=1)[0].tolist() == [1017]
    with pytest.raises(tagore_ann.ArgumentError, match="ids: found none, expected own ids of all rows"):
        tagore_ann.merge([one, tagore_ann.build(x[1000:], "nsg")])


def test_files_are_merged(x, tmp_path):
    paths = [tmp_path / "a.tagore", tmp_path / "b.tagore"]
    for index, path in zip(parts(x), paths, strict=True):
        index.save(path)
    tagore_ann.write(tmp_path / "x.npy", x)
    opened = [tagore_ann.Index.open(path) for path in paths]
    index = tagore_ann.merge(opened, tmp_path / "x.npy")
    assert index.search(x[2000], k=1)[0].tolist() == [2000]
    with pytest.raises(tagore_ann.ArgumentError, match="base: found none, expected the rows of all"):
        tagore_ann.merge(opened)


def test_wrong_merges_are_refused(x):
    both = parts(x)
    for indexes in [[], [x], None]:
        with pytest.raises((tagore_ann.ArgumentError, TypeError)):
            tagore_ann.merge(indexes, x)
    with pytest.raises(tagore_ann.ArgumentError, match=r"base: found 2999 rows, expected the 3000 of 2 indexes"):
        tagore_ann.merge(both, x[1:])
    with pytest.raises(tagore_ann.ArgumentError, match=r"found other values, expected the data set of index 1"):
        tagore_ann.merge(both, np.concatenate([x[:1000], x[1000:][::-1]]))
    vamana = tagore_ann.build(x[1000:], "vamana")
    with pytest.raises(tagore_ann.ArgumentError, match=r"index 1: found kind vamana, expected kind nsg as index 0"):
        tagore_ann.merge([both[0], vamana], x)
