"""Filters, radii, own ids and single queries."""

import numpy as np
import pytest
import tagore_ann
from conftest import mixture, nearest


def test_a_filter_is_a_mask_or_ids(index, x, q):
    rows = np.arange(0, 3000, 7)
    mask = np.zeros(3000, bool)
    mask[rows] = True
    expected = rows[nearest(x[rows], q, 5)[0]].tolist()
    for filter in [mask, rows, rows.astype(np.uint32), set(rows.tolist()), rows.tolist()]:
        assert index.search(q, k=5, filter=filter)[0].tolist() == expected


def test_a_radius_leaves_empty_slots(index, q):
    ids, distances = index.search(q, k=10)
    radius = float(np.median(distances))
    within, near = index.search(q, k=10, radius=radius)
    assert (near[within != tagore_ann.MISSING] <= radius).all()
    empty = within == tagore_ann.MISSING
    assert empty.any() and np.isinf(near[empty]).all()
    assert np.array_equal(empty, distances > radius) and (ids[~empty] == within[~empty]).all()


@pytest.mark.parametrize("dtype", [np.int64, np.uint64, np.int32, ">i8", ">u4"])
def test_own_ids_come_back(x, q, dtype):
    own = (np.arange(3000) * 11 + 100).astype(dtype)
    plain = tagore_ann.build(x, "nsg").search(q, k=4)[0]
    given = own.copy()
    index = tagore_ann.build(x, "nsg", ids=given)
    given += 1  # The index has a copy.
    ids, _ = index.search(q, k=4)
    assert ids.dtype == own.dtype.newbyteorder("=") and np.array_equal(ids, own[plain])
    assert np.array_equal(index.ids, own)
    assert index.search(q[0], k=4)[0].tolist() == own[plain[0]].tolist()
    ids, _ = index.search(q, k=4, filter=own[:3])
    assert set(ids.ravel().tolist()) - set(own[:3].tolist()) == {
        -1 if own.dtype.kind == "i" else np.iinfo(own.dtype).max
    }
    with pytest.raises(tagore_ann.ArgumentError, match=r"filter: found the id 101, expected ids of the index"):
        index.search(q, filter=[101])


def test_one_query_is_a_row_of_many(index, q):
    ids, distances = index.search(q, k=6, beam=80)
    for row in range(5):
        one, near = index.search(q[row], k=6, beam=80)
        assert one.tolist() == ids[row].tolist() and near.tolist() == distances[row].tolist()
    few, _ = index.search(q[0], k=6, filter=[3, 4])
    assert sorted(few.tolist()) == [3, 4]


@pytest.mark.parametrize(
    "options, text",
    [
        ({"k": 0}, "k: found 0"),
        ({"k": 3001}, "k: found 3001, expected 1 to the 3000 rows"),
        ({"k": 10, "beam": 5}, "beam: found 5, expected at least k = 10"),
        ({"k": True}, "k: found True"),
        ({"k": "ten"}, "k: found 'ten'"),
        ({"k": -1}, "k: found -1"),
        ({"filter": np.ones(5, bool)}, "filter: found 5 bools, expected 3000"),
        ({"filter": [3000]}, "filter: found the id 3000"),
        ({"filter": [-1]}, "filter: found the id -1"),
        ({"filter": [0.5]}, "filter: found values of float64"),
        ({"radius": float("nan")}, "radius: found NaN"),
        ({"device": "gpu"}, "device: found gpu"),
        ({"device": "cuda:7"}, "cuda:7"),
        ({"output": "device"}, "device: found 'auto' with output"),
        ({"threads": 0}, "threads: found 0, expected 1 to 1024"),
        ({"progress": 3}, "progress: found 3"),
    ],
)
def test_wrong_options_are_named(index, q, options, text):
    with pytest.raises(tagore_ann.Error) as error:
        index.search(q, **options)
    assert text in str(error.value), str(error.value)


def test_queries_of_another_dimension_are_refused(index, q):
    for call in [
        lambda: index.search(q[:, :23]),
        lambda: index.search(q[0, :23]),
        lambda: tagore_ann.exact(index.base, q[:, :23], 5),
        lambda: index.evaluate(q[:, :23], np.zeros((len(q), 10), int)),
    ]:
        with pytest.raises(tagore_ann.ArgumentError, match="^q: found .*23.*, expected 24"):
            call()


def test_an_index_on_the_emulator_gives_the_same_answer(x, q):
    index = tagore_ann.build(x[:400], "cagra")
    cpu = index.search(q[:4], k=3, device="cpu")
    emulated = index.search(q[:4], k=3, device="emulated")
    assert np.array_equal(cpu[0], emulated[0]) and np.array_equal(cpu[1], emulated[1])


def test_several_devices_give_the_answer_of_one(x, q):
    index = tagore_ann.build(x[:400], "cagra", degree=16, knn=24)
    cpu = index.search(q[:5], k=3, device="cpu")
    for devices in ("emulated,emulated:9.0", ["emulated", "emulated:9.0", "emulated:8.9"]):
        found = index.search(q[:5], k=3, device=devices)
        assert np.array_equal(cpu[0], found[0]) and np.array_equal(cpu[1], found[1])
        one, _ = index.search(q[0], k=3, device=devices)
        assert one.tolist() == cpu[0][0].tolist()
    truth = tagore_ann.exact(x[:400], q[:5], k=3, device="cpu")
    shared = tagore_ann.exact(x[:400], q[:5], k=3, device="emulated,emulated:9.0")
    assert np.array_equal(truth[0], shared[0]) and np.array_equal(truth[1], shared[1])
    on_one, on_two = (
        index.evaluate(q[:5], truth[0], beams=[10], device=device)[0] for device in ("cpu", "emulated,emulated:9.0")
    )
    assert on_one["recall"] == on_two["recall"]
    with pytest.raises(tagore_ann.ArgumentError, match="found emulated twice, expected each device once"):
        index.search(q[:5], device="emulated,emulated")
    with pytest.raises(tagore_ann.ArgumentError, match="expected one GPU"):
        index.search(q[:5], device="emulated,emulated:9.0", output="device")


def test_rows_left_out_of_a_build_are_not_found():
    x = np.random.default_rng(5).standard_normal((500, 16), dtype=np.float32)
    deleted = np.arange(500) % 3 == 0
    index = tagore_ann.build(x, filter=~deleted, device="cpu")
    ids, _ = index.search(x[:50], k=10)
    assert len(index) == 500 and not deleted[ids].any()
    assert index.neighbors(0).size == 0 and index.neighbors(1).size > 0
    keys = np.arange(1000, 1500)
    named = tagore_ann.build(x, ids=keys, filter=keys[~deleted], device="cpu")
    assert (named.search(x[:50], k=10)[0] == ids + 1000).all()
    for filter, message in (
        (np.zeros(3, bool), "filter: found 3 bools"), ([9999], "filter: found the id 9999"),
        ("dist", "filter: found 'dist', expected rows, .* the rule of pruning is rule='dist'"),
    ):  # fmt: skip
        with pytest.raises(tagore_ann.Error, match=message):
            tagore_ann.build(x, filter=filter, device="cpu")
    with pytest.raises(TypeError, match=r"build\(\) got an unexpected keyword argument 'among', pass filter="):
        tagore_ann.build(x, among=~deleted)


def test_codes_find_nearly_the_same_rows_at_exact_distances():
    x = mixture(2000, 24)
    index, q = tagore_ann.build(x, "vamana", device="cpu"), x[:50] + np.float32(0.01)
    expected, _ = index.search(q, 10, device="cpu")
    for vectors in ["f16", "int8"]:
        ids, distances = index.search(q, 10, vectors=vectors, rerank=40, device="cpu")
        assert (ids[:, :, None] == expected[:, None, :]).any(2).mean() > 0.98
        np.testing.assert_allclose(distances, ((x[ids] - q[:, None]) ** 2).sum(2), rtol=1e-4, atol=1e-4)
        one, _ = index.search(q[3], 10, vectors=vectors, rerank=40, device="cpu")
        assert np.array_equal(one, ids[3])
    for device in ["emulated", "cpu"]:
        again, _ = index.search(q, 10, vectors="int8", rerank=40, device=device)
        assert np.array_equal(again, ids)
    [at] = index.evaluate(q, expected, beams=[64], vectors="int8", rerank=40, device="cpu")
    assert at["recall"] > 0.98
    with pytest.raises(tagore_ann.ArgumentError, match="vectors: found f32, expected full, f16, int8 or edges"):
        index.search(q, vectors="f32")
    small = tagore_ann.build(x.astype(np.int8), device="cpu")
    with pytest.raises(tagore_ann.ArgumentError, match="vectors: found int8 for a base of i8, expected full"):
        small.search(x[:2].astype(np.int8), vectors="int8", device="cpu")


def test_a_mask_of_any_bytes_is_read_as_numpy_reads_it(index, x, q):
    bytes_of = np.random.default_rng(0).integers(0, 4, 3000, dtype=np.uint8) * 85
    mask = bytes_of.view(bool)
    expected = index.search(q, k=5, filter=np.flatnonzero(bytes_of))[0].tolist()
    for filter in [mask, np.repeat(mask, 2)[::2], mask[::-1][::-1]]:
        assert index.search(q, k=5, filter=filter)[0].tolist() == expected
    built = tagore_ann.build(x, "cagra", filter=mask)
    assert set(built.search(q, k=5)[0].ravel().tolist()) <= set(np.flatnonzero(bytes_of).tolist())


@pytest.mark.parametrize("kind", [np.uint8, np.int64, list])
def test_a_mask_of_integers_is_refused(index, x, q, kind):
    mask = np.arange(3000) % 2
    mask = mask.tolist() if kind is list else mask.astype(kind)
    expected = "filter: found 3000 integers, one per row, all 0 or 1, expected a mask of bools or the ids of the rows"
    for call in [lambda: index.search(q, filter=mask), lambda: tagore_ann.build(x, filter=mask)]:
        with pytest.raises(tagore_ann.ArgumentError, match=expected):
            call()
    assert set(index.search(q, k=2, filter=[0, 1])[0].ravel().tolist()) == {0, 1}
