"""One vocabulary: metrics, kinds, defaults, and arguments by the names that errors have."""

import inspect
import typing

import numpy as np
import pytest
import tagore_ann


@pytest.mark.parametrize("name, of, change", [
    ("sqeuclidean", "l2", lambda d: d), ("euclidean", "l2", np.sqrt), ("inner_product", "ip", lambda d: d),
    ("L2", "l2", lambda d: d), ("Cosine", "cosine", lambda d: d),
])  # fmt: skip
def test_metrics_have_the_names_of_other_libraries(tmp_path, x, q, name, of, change):
    x, q = x[:300], q[:9]
    for call in [lambda metric: tagore_ann.exact(x, q, 5, metric), lambda metric: tagore_ann.knn_graph(x, 5, metric),
                 lambda metric: tagore_ann.build(x, "nsg", metric).search(q, 5)]:  # fmt: skip
        ids, distances = call(name)
        expected, far = call(of)
        assert np.array_equal(ids, expected) and np.allclose(distances, change(far))
    tagore_ann.write(tmp_path / "x.fbin", x)
    index = tagore_ann.build_file(tmp_path / "x.fbin", tmp_path / "x.tagore", "nsg", name)
    assert np.array_equal(index.search(q, 5)[1], tagore_ann.build(x, "nsg", name).search(q, 5)[1])
    assert tagore_ann.plan(1000, 8, metric=name)["host_bytes"] > 0


def test_euclidean_distances_are_roots_everywhere(tmp_path, x, q):
    index = tagore_ann.build(x[:300], "nsg", "euclidean")
    plain = tagore_ann.build(x[:300], "nsg")
    ids, far = index.search(q[0], 5)
    assert np.allclose(far, np.linalg.norm(x[ids] - q[0], axis=1), rtol=1e-4) and index.metric == "euclidean"
    radius = float(far[2])
    assert index.search(q, 5, radius=radius)[0].tolist() == plain.search(q, 5, radius=radius * radius)[0].tolist()
    index.save(tmp_path / "x.tagore")
    again = tagore_ann.Index.open(tmp_path / "x.tagore", base=x[:300], metric="euclidean")
    assert np.array_equal(again.search(q[0], 5)[1], far)
    assert tagore_ann.Index.open(tmp_path / "x.tagore", base=x[:300]).metric == "l2"
    with pytest.raises(
        tagore_ann.ArgumentError, match=r"metric: found ip for .*x.tagore, expected l2, that of the file"
    ):
        tagore_ann.Index.open(tmp_path / "x.tagore", base=x[:300], metric="ip")


def test_hamming_is_that_of_packed_bits(tmp_path):
    rng = np.random.default_rng(0)
    centres = rng.integers(0, 2, (20, 64))
    bits = (centres[rng.integers(0, 20, 600)] ^ (rng.random((600, 64)) < 0.1)).astype(bool)
    packed = np.packbits(bits, axis=1, bitorder="little")
    apart = (bits[:30, None] != bits[None]).sum(2)
    for base in [packed, bits, packed.view(np.int8), np.packbits(bits, axis=1)]:
        ids, distances = tagore_ann.exact(base, base[:30], 5, "hamming")
        assert np.array_equal(distances, np.sort(apart, axis=1)[:, :5])
        index = tagore_ann.build(base, "nsg", "hamming")
        assert (index.metric, index.dim, index.dtype) == ("hamming", 64, np.uint8)
        found, far = index.search(base[:30], 5)
        assert (far == distances).mean() > 0.95 and not far[:, 0].any()
        one, near = index.search(base[7], 5)
        assert one.tolist() == found[7].tolist() and near.tolist() == far[7].tolist()
        [at] = index.evaluate(base[:30], ids, beams=[100])
        assert at["recall"] > 0.7  # ties
    assert tagore_ann.knn_graph(packed, 3, "hamming")[1][0].tolist() == np.sort(apart[0])[1:4].tolist()
    # As the command has it.
    index.save(tmp_path / "x.tagore")
    opened = tagore_ann.Index.open(tmp_path / "x.tagore", base=np.packbits(bits, axis=1))
    assert np.array_equal(opened.search(base[:30], 5)[0], found)
    (tmp_path / "x.b1bin").write_bytes(np.array([600, 64], np.uint32).tobytes() + packed.tobytes())
    from_file = tagore_ann.build_file(tmp_path / "x.b1bin", tmp_path / "y.tagore", "nsg", "hamming")
    assert np.array_equal(
        from_file.search(packed[:30], 5)[1], tagore_ann.build(bits, "nsg", "hamming").search(bits[:30], 5)[1]
    )
    assert tagore_ann.plan(1000, 64, bool, metric="hamming")["host_bytes"] > 0
    # Bytes are values under other metrics, and values are no bits.
    assert tagore_ann.build(packed, "nsg").dim == 8
    with pytest.raises(
        tagore_ann.ArgumentError, match="x: found values of float32, expected uint8 of eight bits"
    ) as error:
        tagore_ann.build(bits.astype(np.float32), metric="hamming")
    call = str(error.value).partition("call ")[2]
    fitting = eval(call, {"numpy": np, "x": bits.astype(np.float32)})
    assert np.array_equal(fitting, packed)
    tagore_ann.write(tmp_path / "x.fbin", bits.astype(np.float32))
    with pytest.raises(tagore_ann.ArgumentError, match="metric: found hamming for f32 vectors"):
        tagore_ann.build_file(tmp_path / "x.fbin", tmp_path / "z.tagore", metric="hamming")
    tagore_ann.build(bits.astype(np.float32)).save(tmp_path / "f32.tagore")
    with pytest.raises(tagore_ann.ArgumentError, match="metric: found hamming for an index of f32 vectors"):
        tagore_ann.Index.open(tmp_path / "f32.tagore", metric="hamming")
    with pytest.raises(tagore_ann.ArgumentError, match="metric: found hamming for f32 vectors"):
        tagore_ann.plan(1000, 64, metric="hamming")


def test_an_unknown_metric_lists_all(x):
    with pytest.raises(tagore_ann.ArgumentError, match='metric: found \'manhattan\', expected "l2", .* or "hamming"'):
        tagore_ann.build(x, metric="manhattan")


def test_names_are_types():
    names = {kind: typing.get_args(getattr(tagore_ann, kind)) for kind in ("Kind", "Metric", "IndexFormat")}
    assert "nsg" in names["Kind"] and "euclidean" in names["Metric"] and "hnswlib" in names["IndexFormat"]
    x = np.random.default_rng(0).standard_normal((50, 4), dtype=np.float32)
    for kind in names["Kind"]:
        assert tagore_ann.build(x, kind).kind == kind


@pytest.mark.parametrize("n", [1, 2, 5, 11])
def test_defaults_fit_small_data(n):
    x = np.random.default_rng(0).standard_normal((n, 4), dtype=np.float32)
    ids, distances = tagore_ann.exact(x, x)
    assert ids.shape == distances.shape == (n, n)
    assert tagore_ann.knn_graph(x)[0].shape == (n, n - 1)
    index = tagore_ann.build(x)
    assert index.search(x)[0].shape == (n, min(n, 10)) and index.search(x[0])[0][0] == 0
    assert index.evaluate(x, ids)[0]["recall"] == 1
    with pytest.raises(tagore_ann.ArgumentError, match=f"k: found {n + 1}, expected 1 to the {n} rows"):
        index.search(x, k=n + 1)


WRONG = {
    "knn": -1, "degree": 0, "candidates": 0, "collect": "3-hop", "rule": "none", "alpha": -1.0, "angle": 400.0,
    "threshold": float("nan"), "strict_detours": "yes", "iterations": "many", "start": "here", "expand": 0,
    "nodes_per_cell": 0, "probes": 0, "clusterings": 0, "device": "gpu", "seed": -1, "threads": 0, "progress": 3,
    "layers": "x", "vectors": "f64", "verify": -1, "filter": [5000], "metric": "l3", "ids": [1.5], "kind": "hnsw",
    "graph": 3, "queries": [[1.0]],
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_errors_name_the_argument_as_it_was_passed(x, name):
    kind = {"angle": "nssg", "strict_detours": "cagra"}.get(name, "vamana")
    with pytest.raises(tagore_ann.ArgumentError) as error:
        tagore_ann.build(x[:200], **({"kind": kind} | {name: WRONG[name]}))
    assert str(error.value).startswith(f"{name}: "), str(error.value)


def test_every_argument_has_a_wrong_value():
    plain = {"x", "convert"}
    assert set(inspect.signature(tagore_ann.build).parameters) - plain == set(WRONG)
