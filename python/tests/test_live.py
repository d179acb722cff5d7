"""Live indexes from Python."""

import threading

import numpy as np
import pytest
from tagore_ann import ArgumentError, Error, FileError, LiveIndex


def rows(n, dim=16, seed=0):
    return np.random.default_rng(seed).standard_normal((n, dim), dtype=np.float32)


def exact(x, ids, q, k):
    distances = ((q[:, None, :] - x[None]) ** 2).sum(axis=2)
    return ids[np.argsort(distances, axis=1)[:, :k]]


def test_rows_come_go_and_change(tmp_path):
    x, ids = rows(3000), np.arange(3000) + 7_000_000_000
    with LiveIndex.create(tmp_path / "live", 16, "nsg") as index:
        index.insert(x[:500], ids[:500])
        assert index.recent == 500 and index.consolidate() and not index.consolidate()
        index.insert(x[500:2000], ids[500:2000])
        assert index.recent == 0
        index.insert(x[2000:], ids[2000:])
        assert index.remove(ids[:500]) == 500 and index.remove([1, 2]) == 0
        index.insert(x[:1], int(ids[-1]))
        assert len(index) == 2500 and int(ids[0]) not in index and int(ids[-1]) in index and -1 not in index
        q = rows(50, seed=1)
        now = np.vstack([x[500:2999], x[:1]])
        found = index.search(q, k=10, beam=200)
        assert found.ids.dtype == np.uint64 and found.short == 0 and found.computed > 0
        truth = exact(now, ids[500:], q, 10)
        assert np.mean([len(set(a) & set(b)) for a, b in zip(found.ids, truth, strict=True)]) > 9.8
        one = index.search(q[3], k=4)
        assert one.ids.tolist() == index.search(q[3:4], k=4).ids[0].tolist()
        some = index.search(q, k=3, filter=ids[600:604], radius=1e9)
        assert set(some.ids.ravel().tolist()) <= set(ids[600:604].tolist())
        before = index.search(q, k=10)
        assert repr(index) == "<tagore_ann.LiveIndex: nsg of 2500 x 16 f32, l2>"
        assert (index.kind, index.metric, index.dim, index.dtype) == ("nsg", "l2", 16, "f32")
    with LiveIndex.open(tmp_path / "live") as index:
        after = index.search(q, k=10)
        assert np.array_equal(before.ids, after.ids) and np.array_equal(before.distances, after.distances)


@pytest.mark.parametrize("dtype", [np.float16, np.uint8, np.int8])
@pytest.mark.parametrize("metric", ["l2", "cosine", "ip"])
def test_types_and_metrics(tmp_path, dtype, metric):
    x = (rows(1500) * 20 + 60).astype(dtype)
    with LiveIndex.create(tmp_path / "live", 16, "vamana", metric, dtype=dtype, synced=False) as index:
        index.insert(x, range(1500))
        index.remove(range(0, 1500, 3))
        ids, distances = index.search(x[1:100:3], k=5, beam=200)
        assert not (ids % 3 == 0).any() and np.isfinite(distances).all()
        if metric == "l2":
            assert (distances[:, 0] == 0).all()


def test_bits(tmp_path):
    x = np.random.default_rng(0).integers(0, 256, (1200, 8), dtype=np.uint8)
    with LiveIndex.create(tmp_path / "live", 64, "nsg", "hamming") as index:
        index.insert(x, range(1200))
        assert index.search(x[7], k=1).ids.tolist() == [7]


def test_threads_search_while_rows_change(tmp_path):
    x = rows(4000)
    with LiveIndex.create(tmp_path / "live", 16, synced=False) as index:
        index.insert(x[:500], range(500))
        done, failed = threading.Event(), []

        def search():
            while not done.is_set():
                ids, distances = index.search(x[:20], k=1, threads=1)
                if (ids[:, 0] != np.arange(20)).any() or distances.any():
                    failed.append(ids)

        threads = [threading.Thread(target=search) for _ in range(2)]
        for thread in threads:
            thread.start()
        for first in range(500, 4000, 100):
            index.insert(x[first : first + 100], np.arange(first, first + 100))
            index.remove(np.arange(first, first + 50))
        done.set()
        for thread in threads:
            thread.join()
        assert not failed and len(index) == 500 + 3500 // 2


def test_errors_say_what_fits(tmp_path):
    def text(call):
        with pytest.raises(Error) as raised:
            call()
        return str(raised.value)

    folder = tmp_path / "live"
    assert text(LiveIndex) == (
        "LiveIndex: found a call, expected LiveIndex.create(folder, dim=..) or LiveIndex.open(folder)"
    )
    assert text(lambda: LiveIndex.create(folder, 8, metric="euclidean")) == (
        "metric: found 'euclidean', expected \"l2\", whose distances are squared"
    )
    assert text(lambda: LiveIndex.create(folder, 8, dtype=int)) == (
        "dtype: found int64, expected float32, float16, bfloat16, uint8 or int8"
    )
    assert "dim: found 5000" in text(lambda: LiveIndex.create(folder, 5000))
    assert not folder.exists()
    index = LiveIndex.create(folder, 8)
    with pytest.raises(FileError, match="found an open live index"):
        LiveIndex.open(folder)
    with pytest.raises(FileError, match="found a folder with files"):
        LiveIndex.create(folder, 8)
    with pytest.raises(FileError, match="found no such folder"):
        LiveIndex.open(tmp_path / "none")
    assert text(lambda: index.insert(rows(2, 8), [1])) == "ids: found 1 ids, expected 2, one per row"
    assert text(lambda: index.insert(rows(2, 8), [1, 1])) == "ids: found 1 twice, expected each id once"
    assert text(lambda: index.insert(rows(2, 9), [1, 2])) == "x: found rows of 9 f32, expected 8 f32 as in the index"
    assert text(lambda: index.search(rows(2, 9))) == "q: found dimension 9, expected 8 as in the index"
    assert text(lambda: index.search(rows(2, 8), filter=[True])).startswith("filter: found bools")
    with pytest.raises(ArgumentError, match="x: row 1, dimension 0: found NaN"):
        index.insert(np.array([[0] * 8, [np.nan] * 8], np.float32), [1, 2])
    assert len(index) == 0
    found = index.search(rows(2, 8), k=3)
    assert (found.ids == 2**64 - 1).all() and np.isinf(found.distances).all() and found.short == 2
    index.close()
    index.close()
    assert text(lambda: index.search(rows(2, 8))) == (
        "index: found a closed index, expected an open one: LiveIndex.open(folder)"
    )
    assert repr(index) == "<tagore_ann.LiveIndex: closed>"


def test_a_cancelled_graph_leaves_the_change(tmp_path):
    class Stop(Exception):
        pass

    def stop(_):
        raise Stop

    with LiveIndex.create(tmp_path / "live", 16, synced=False) as index:
        index.insert(rows(900), range(900))
        with pytest.raises(Stop):
            index.consolidate(progress=stop)
        # The work may have ended before its first update was handed on.
        assert len(index) == 900 and index.recent in (0, 900)
        index.consolidate()
        assert len(index) == 900 and index.recent == 0
        assert index.search(rows(900)[:5], k=1).ids[:, 0].tolist() == [0, 1, 2, 3, 4]


def test_a_thread_makes_graphs_while_rows_change(tmp_path):
    x = rows(4000)
    with LiveIndex.create(tmp_path / "live", 16, synced=False, automatic=False) as index:
        index.insert(x[:3000], range(3000))
        assert index.recent == 3000
        done = threading.Event()

        def consolidate():
            while not done.is_set():
                index.consolidate()

        thread = threading.Thread(target=consolidate)
        thread.start()
        for first in range(3000, 4000, 50):
            index.insert(x[first : first + 50], range(first, first + 50))
            index.remove(range(first - 3000, first - 2990))
        done.set()
        thread.join()
        index.consolidate()
        assert len(index) == 4000 - 200 and index.recent == 0
        assert index.search(x[3990:], k=1).ids[:, 0].tolist() == list(range(3990, 4000))
    with LiveIndex.open(tmp_path / "live", automatic=False, search_device="auto") as index:
        assert len(index) == 3800
    with pytest.raises(ArgumentError, match="search_device: found 'gpu'|search_device: found gpu"):
        LiveIndex.open(tmp_path / "live", search_device="gpu")
