"""Random bad calls raise an exception of this package: never another, never a crash."""

import os
import random

import numpy as np
import pytest
import tagore_ann

CALLS = int(os.environ.get("TAGORE_BAD_CALLS", "300"))


class Odd:
    """An object whose every question fails."""

    def __array__(self, *args, **options):
        raise RuntimeError("no array")

    def __dlpack__(self, **options):
        raise RuntimeError("no capsule")

    def __dlpack_device__(self):
        raise RuntimeError("no device")


class Liar:
    """An array interface at no address."""

    def __dlpack__(self, **options):
        return "capsule"

    def __dlpack_device__(self):
        return (1, 0)


def bad_arrays(rng):
    x = np.random.default_rng(rng.randrange(1 << 30)).standard_normal((60, 6), dtype=np.float32)
    infinite = x.copy()
    infinite[rng.randrange(60), rng.randrange(6)] = rng.choice([np.nan, np.inf, -np.inf])
    misaligned = np.frombuffer(bytes(60 * 6 * 4 + 1), np.uint8)[1:].view(np.float32).reshape(60, 6)
    return [
        x.astype(rng.choice(["f8", "i4", "i8", "u2", "u4", "c8", "c16", "?", "O", "U8", "S4", "M8[s]"])),
        x.astype(">f4"), x.T, x[:, ::-1], x[::-1], x[:, ::2], np.asfortranarray(x), x[0], x[None],
        np.zeros(rng.choice([(0, 0), (0, 6), (6, 0), (), (1, 5000), (2, 3, 4)]), np.float32),
        infinite, np.full((60, 6), 3e38, np.float32), np.broadcast_to(x[0, 0], (60, 6)), misaligned,
        np.broadcast_to(x[0], (60, 6)), None, "x", b"x" * 60, 7, 1.5, [[1.0, 2.0]], {"x": 1}, {1, 2},
        Odd(), Liar(), object(), np.float32(3), lambda: 1, iter([1]), np.ma.masked_array(x)[0],
        np.rec.fromrecords([(1, 2.0)]), [x, x], x[:1].astype(np.float64), memoryview(b"123456"),
    ]  # fmt: skip


OPTIONS = {
    "knn": [0, -1, 2**70, 1.5, "8", True, 10**9, None.__class__, float("nan")],
    "degree": [0, -3, 10**6, 2**64, 0.1, "x", [3]],
    "candidates": [0, -1, 10**9, "x"],
    "metric": ["L3", "", "l2 ", "manhattan", 3, None.__class__, "\0", "é" * 999],
    "kind": ["hnsw", "", 7, ["nsg"], "NSG\n"],
    "collect": ["3-hop", 1],
    "rule": ["none", 1],
    "filter": ["none", 1, "dist", [70], np.ones(3, bool)],
    "alpha": [-1, 0, float("nan"), float("inf"), 1e39, "x", True],
    "angle": [-1, 400, float("nan"), "x"],
    "threshold": [float("nan"), "x", -5],
    "strict_detours": ["yes", 3],
    "iterations": ["many", (1,), (1, 2, 3), (-1, 2), (10**9, 10**9), 5, ("a", "b")],
    "start": ["here", 1],
    "expand": [0, -1, 10**9, "x"],
    "probes": [0, 33, -1, "x"],
    "clusterings": [0, 17, "x"],
    "nodes_per_cell": [-1, "x"],
    "device": ["gpu", "cuda:99", "cuda:-1", "", 0, "cuda:0,1"],
    "seed": [-1, 2**64, 1.5, "x"],
    "threads": [0, -1, 10**6, "x", 1.5],
    "ids": [np.arange(3), np.arange(60.0), np.full(60, -1), "/no/such.npy", 3, [1, 2], np.zeros((60, 1), int)],
    "progress": [3, "x", [1]],
    "graph": ["/no/such", 3],
    "layers": ["x", 3],
    "verify": [-1, "x", 1.5],
}  # fmt: skip

SEARCH = {
    "k": [0, -1, 61, 2**70, 1.5, "x", None, True, [3]],
    "beam": [0, 1, -1, "x", 1.5],
    "filter": [
        np.ones(3, bool),
        [60],
        [-1],
        ["a"],
        [1.5],
        3,
        "x",
        np.ones((60, 1), bool),
        {"a": 1},
        Odd(),
    ],
    "radius": [float("nan"), "x", [1]],
    "device": ["gpu", "cuda:99", 3, "cuda:0,0", "cpu,emulated", ["emulated", 3], []],
    "width": [0, -1, 99, "x"],
    "threads": [0, 5000, "x"],
    "output": ["torch", 3],
    "progress": ["x"],
}


def test_bad_calls_raise_our_exceptions(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    seed = int(os.environ.get("TAGORE_TEST_SEED", "20"))
    rng = random.Random(seed)
    x = np.random.default_rng(0).standard_normal((60, 6), dtype=np.float32)
    index = tagore_ann.build(x, "nsg")
    (tmp_path / "text.fbin").write_bytes(b"text")

    def bad_array():
        bad = rng.choice(bad_arrays(rng))
        call = rng.choice(
            [tagore_ann.build, lambda x: tagore_ann.knn_graph(x, 3), lambda x: tagore_ann.exact(x, x, 3),
             index.search, lambda q: tagore_ann.write(tmp_path / "y.fbin", q) or tagore_ann.build(q),
             lambda b: tagore_ann.Index.open(path, base=b), lambda t: index.evaluate(x, t)]
        )  # fmt: skip
        return lambda: call(bad)

    path = tmp_path / "x.tagore"
    index.save(path)

    def bad_option():
        name = rng.choice(list(OPTIONS))
        value = rng.choice(OPTIONS[name])
        kind = {"angle": "nssg", "alpha": "vamana"}.get(name, "nsg")
        return lambda: tagore_ann.build(x, **{"kind": kind, name: value})

    def bad_search():
        name = rng.choice(list(SEARCH))
        value = rng.choice(SEARCH[name])
        q = x[rng.randrange(60)] if rng.random() < 0.5 else x
        return lambda: index.search(q, **{"k": 3, name: value})

    def bad_file():
        name = rng.choice([tmp_path / "text.fbin", tmp_path / "no.fbin", tmp_path, "a\0b", 3, None, "x", b"\xff"])
        call = rng.choice(
            [tagore_ann.read, tagore_ann.Index.open, tagore_ann.read_truth, index.save,
             lambda path: index.to("hnswlib", path), lambda path: tagore_ann.build_file(path, tmp_path / "z"),
             lambda path: tagore_ann.write(path, x)]
        )  # fmt: skip
        return lambda: call(name)

    # Values that a call may take: equal rows, zeros where 0 means a default.
    harmless = 0
    for number in range(CALLS):
        call = rng.choice([bad_array, bad_option, bad_option, bad_search, bad_file])()
        try:
            call()
            harmless += 1
        except tagore_ann.Error as error:
            text = str(error)
            assert text and "\n" not in text and len(text) < 1000, (seed, number, text)
            assert "panic" not in text and "internal error" not in text, (seed, number, text)
        except Exception as error:
            pytest.fail(f"seed {seed}, call {number}: {type(error).__name__}: {error}")
    assert harmless < CALLS / 4, harmless
    ids, _ = index.search(x, k=1)
    assert ids.ravel().tolist() == list(range(60))
