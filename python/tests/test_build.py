"""Builds find what a plain search finds, whatever the kind, metric and type."""

import numpy as np
import pytest
import tagore_ann
from conftest import nearest, recall


@pytest.mark.parametrize("kind", ["cagra", "nsg", "nssg", "vamana", "dpg", "tau-mng", "alpha-cng"])
def test_every_kind_finds_the_nearest(x, q, kind):
    index = tagore_ann.build(x, kind)
    ids, distances = index.search(q, k=10, beam=100)
    truth, far = nearest(x, q, 10)
    assert recall(ids, truth) > 0.95
    assert np.allclose(distances[:, 0], far[:, 0], rtol=1e-3, atol=1e-3)
    assert (index.kind, len(index), index.dim, index.dtype) == (kind, 3000, 24, np.float32)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.uint8, np.int8])
def test_every_type_is_built_and_searched(dtype):
    rng = np.random.default_rng(1)
    x = rng.integers(0, 100, (1000, 16)).astype(dtype)
    ids, distances = tagore_ann.build(x, "nsg").search(x[:50], k=5)
    assert ids[:, 0].tolist() == list(range(50)) and not distances[:, 0].any()
    one, _ = tagore_ann.build(x, "nsg").search(x[7], k=5)
    assert one.tolist() == ids[7].tolist()


def test_metrics_have_their_distances(x, q):
    for metric, distance in [
        ("ip", lambda x, q: -(q @ x.T)),
        (
            "cosine",
            lambda x, q: 1 - (q @ x.T) / np.linalg.norm(q, axis=1)[:, None] / np.linalg.norm(x, axis=1),
        ),
    ]:
        ids, distances = tagore_ann.exact(x, q, 5, metric)
        plain = np.sort(distance(x.astype(np.float64), q.astype(np.float64)), axis=1)[:, :5]
        assert np.allclose(distances, plain, atol=1e-3)
        found, _ = tagore_ann.build(x, "nsg", metric).search(q, k=5, beam=200)
        assert recall(found, ids) > 0.9


def test_the_same_seed_gives_the_same_graph_on_any_number_of_threads(x):
    first = tagore_ann.build(x, "cagra", seed=3, threads=1)
    second = tagore_ann.build(x, "cagra", seed=3, threads=4)
    assert np.array_equal(first.graph, second.graph)


def test_options_reach_the_library(x):
    index = tagore_ann.build(
        x, "vamana", degree=20, alpha=1.3, knn=40, candidates=50, iterations=(3, 2), start="random"
    )
    assert index.graph.shape == (3000, 20)
    parameters = index.report["build"]["parameters"]
    assert parameters["threshold"] == "1.3" and parameters["knn"] == "40", parameters
    assert (index.graph == tagore_ann.MISSING).any()


def test_a_graph_is_lent_and_read_only(index):
    graph = index.graph
    assert index.graph is graph
    assert graph.base is not None and not graph.flags.writeable
    assert index.graph.__array_interface__["data"] == graph.__array_interface__["data"]
    row = graph[17][graph[17] != tagore_ann.MISSING]
    assert index.neighbors(17).tolist() == row.tolist()


def test_the_log_warns_of_a_knn_graph_that_misses_many(x, caplog):
    poor = {"start": "random", "iterations": (0, 1)}
    with caplog.at_level("WARNING"):
        tagore_ann.knn_graph(x, k=8)
        tagore_ann.knn_graph(x, k=8, verify=0, **poor)
        assert not caplog.records
        tagore_ann.knn_graph(x, k=8, **poor)
    assert "all-pairs" in caplog.text


def test_a_knn_graph_is_exact_for_small_data(x):
    ids, distances = tagore_ann.knn_graph(x, k=8)
    truth, far = nearest(x, x, 9)
    assert recall(ids, truth[:, 1:]) > 0.999
    assert np.allclose(distances, far[:, 1:], rtol=1e-3, atol=1e-2)


def test_exact_search_is_that_of_numpy(x, q):
    ids, _ = tagore_ann.exact(x, q, k=20)
    assert recall(ids, nearest(x, q, 20)[0]) > 0.999


def test_exact_search_and_recall_know_a_filter(index, x, q):
    mask = np.arange(len(x)) % 3 == 0
    ids, _ = tagore_ann.exact(x, q, k=10, filter=mask)
    assert np.array_equal(ids, tagore_ann.exact(x, q, k=10, filter=np.flatnonzero(mask))[0])
    assert np.array_equal(ids, 3 * tagore_ann.exact(x[mask], q, k=10)[0])
    assert tagore_ann.exact(x, q, filter=[5, 9, 5])[0].shape == (len(q), 2)
    [at] = index.evaluate(q, ids, filter=mask, beams=[200])
    found = index.search(q, k=10, beam=200, filter=mask).ids
    assert at["recall_ids"] == pytest.approx(np.mean([np.isin(a, b).mean() for a, b in zip(ids, found, strict=True)]))
    assert at["recall"] > 0.95
    with pytest.raises(tagore_ann.ArgumentError, match="filter: "):
        tagore_ann.exact(x, q, filter=[len(x)])


def test_an_evaluation_measures_recall(index, x, q):
    truth, _ = tagore_ann.exact(x, q, k=10)
    low, high = index.evaluate(q, truth, beams=[10, 200])
    wide = tagore_ann.exact(x, q, k=100)[0]
    assert [at["beam"] for at in index.evaluate(q, wide, k=60)] == [100, 200]
    assert [at["beam"] for at in index.evaluate(q, tagore_ann.exact(x, q, k=300)[0], k=300)] == [300, 600]
    for wrong, found in [(truth.astype(np.int64) + 2**32, "the id 42949"), (np.full((100, 10), -1), "the id -1")]:
        with pytest.raises(tagore_ann.ArgumentError, match=f"truth: found {found}.*, expected rows of the base"):
            index.evaluate(q, wrong)
    assert low["beam"] == 10 and low["recall"] <= high["recall"] and high["recall"] > 0.99


def test_a_report_is_a_dict_and_a_page(index):
    report = index.report
    assert report["n"] == 3000 and report["search"]["recall"] > 0.95
    assert report["build"]["stages"] and report["knn"]["recall"]
    assert report.html.startswith("<!DOCTYPE html>") and "iframe" in report._repr_html_()
    assert index.report is report


def test_a_plan_needs_no_data():
    plan = tagore_ann.plan(1_000_000, 128, np.uint8, "nsg", device="cpu")
    assert plan["out_of_core"] is None and plan["host_bytes"] > 1 << 28 and plan["seconds"]["total"] > 0
    small = tagore_ann.plan(1_000_000, 128, "float32", device="cpu", host_memory=1 << 28)
    assert small["out_of_core"]["clusters"] > 1


def test_a_list_of_devices_names_each_once(tmp_path):
    with pytest.raises(tagore_ann.ArgumentError, match="found cpu twice, expected each device once"):
        tagore_ann.build_file("x.fbin", tmp_path / "x.tagore", device=["cpu", "cpu"])


def test_a_sample_of_queries_fits_the_index_to_others_like_them(tmp_path):
    rng = np.random.default_rng(5)
    z = rng.standard_normal((6000, 16)) + 2 * rng.standard_normal((60, 16))[rng.integers(0, 60, 6000)]
    ours, theirs = rng.standard_normal((2, 16, 48))
    x = (z @ ours).astype(np.float32)
    # Another map of the same things, moved away.
    moved = (z[:1200] @ (0.8 * ours + 0.6 * theirs) + 12 * rng.standard_normal(48)).astype(np.float32)
    sample, q = moved[:1000], moved[1000:]
    truth = tagore_ann.exact(x, q, k=10)[0]

    def found(index):
        return (index.search(q, k=10, beam=16)[0][:, :, None] == truth[:, None, :]).any(axis=1).mean()

    plain, fitted = (tagore_ann.build(x, "vamana", queries=given) for given in (None, sample))
    assert fitted.report["build"]["queries"]["edges"] > 0 and plain.report["build"]["queries"] is None
    assert 1 - found(fitted) < 0.5 * (1 - found(plain)), (found(plain), found(fitted))
    for name, rows in ("x", x), ("q", sample):
        tagore_ann.write(tmp_path / f"{name}.fbin", rows)
    paths = [tmp_path / name for name in ("x.fbin", "x.tagore", "q.fbin")]
    same = tagore_ann.build_file(paths[0], paths[1], "vamana", queries=paths[2])
    np.testing.assert_array_equal(same.graph, fitted.graph)
    for wrong, text in (sample[:9], "queries: found 9 queries"), (sample[:, 1:], "queries: found dimension 47"):
        with pytest.raises(tagore_ann.ArgumentError, match=text):
            tagore_ann.build(x, queries=wrong)
    sample[3, 4] = np.nan
    with pytest.raises(tagore_ann.ArgumentError, match="queries: row 3"):
        tagore_ann.build(x, queries=sample)
