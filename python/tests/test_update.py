"""Updates: rows inserted, removed and replaced."""

import pickle

import numpy as np
import pytest
import tagore_ann
from conftest import mixture, nearest, recall


def first(index, x):
    """The nearest of each row of ``x``."""
    return index.search(x, k=1)[0][:, 0].tolist()


def test_appended_rows_are_found_and_removed_rows_are_not(x, q):
    old = tagore_ann.build(x[:2500], "nsg")
    graph, gone = old.graph.copy(), np.arange(0, 2500, 9)
    index = old.update(x, remove=gone)
    assert (len(index), len(old), index.kind, index.degree) == (3000, 2500, "nsg", old.degree)
    ids = index.search(q, k=10)[0]
    assert not np.isin(ids, gone).any()
    stay = np.setdiff1d(np.arange(3000), gone)
    assert recall(ids, stay[nearest(x[stay], q, 10)[0]]) > 0.97
    assert index.base is x and np.array_equal(old.graph, graph)
    mask = np.zeros(2500, bool)
    mask[gone] = True
    again = old.update(x, remove=mask, threads=1)
    assert np.array_equal(again.graph, index.graph)
    # Removed rows come back.
    assert first(index.update(x, replace=gone), x[gone]) == gone.tolist()


def test_replaced_rows_are_found_at_their_new_vectors(x):
    moved = x.copy()
    moved[[5, 70]] += 4
    index = tagore_ann.build(x, "vamana")
    with pytest.raises(tagore_ann.ArgumentError, match=r"base: found other values, expected the data set"):
        index.update(moved)
    assert first(index.update(moved, replace={5, 70}), moved[[5, 70]]) == [5, 70]


def test_rows_are_inserted_and_removed(x):
    index = tagore_ann.build(x[:1000], "nssg", "cosine")
    longer = index.insert(x[1000:1100]).insert(x[1100])
    assert len(longer) == 1101 and longer.metric == "cosine" and np.array_equal(longer.base, x[:1101])
    assert first(longer, x[1000:1101]) == list(range(1000, 1101))
    shorter = longer.remove([1000, 3])
    assert shorter.base is longer.base and not np.isin(shorter.search(x[[3, 1000]], k=20)[0], [3, 1000]).any()
    again = pickle.loads(pickle.dumps(shorter))
    assert np.array_equal(again.search(x[:50])[0], shorter.search(x[:50])[0])


@pytest.mark.parametrize("dtype", [np.int64, np.uint32, np.uint64])
def test_own_ids_stay_with_their_rows(x, dtype):
    own = (np.arange(1000) * 3 + 50).astype(dtype)
    index = tagore_ann.build(x[:1000], "nsg", ids=own)
    new = [7, 8]
    for ids in [new, np.array([*own, *new], dtype)]:
        longer = index.update(x[:1002], ids=ids, remove=own[:5])
        assert first(longer, x[1000:1002]) == new and longer.ids.dtype == dtype
        assert np.array_equal(longer.ids, [*own, *new]) and not longer.ids.flags.writeable
        assert not np.isin(longer.search(x[:5], k=9)[0], own[:5]).any()
    assert first(index.insert(x[1000], ids=[9]).remove([int(own[3])]), x[[1000, 4]]) == [9, int(own[4])]
    with pytest.raises(tagore_ann.ArgumentError, match=r"ids: found none, expected own ids of the 2 appended rows"):
        index.update(x[:1002])
    with pytest.raises(tagore_ann.ArgumentError, match=r"ids: found 3 ids, expected 2, one per appended row, or 1002"):
        index.update(x[:1002], ids=[1, 2, 3])
    with pytest.raises(tagore_ann.ArgumentError, match=r"remove: found the id 3, expected ids of the index"):
        index.remove([3])
    # Without new rows they need not be given.
    assert first(index.update(x[:1000], remove=own[:5]), x[5:9]) == own[5:9].tolist()


def test_own_ids_of_another_type_are_refused(x):
    index = tagore_ann.build(x[:500], ids=np.arange(500, dtype=np.uint16))
    with pytest.raises(tagore_ann.ArgumentError, match=r"ids: found the id 70000, expected ids of uint16"):
        index.insert(x[500], ids=[70000])


def test_files_are_updated(tmp_path, x):
    for name, rows in [("old.fbin", x[:1000]), ("new.fbin", x[:1100])]:
        tagore_ann.write(tmp_path / name, rows)
    keys = np.arange(1100, dtype=np.uint64) + 9
    np.save(tmp_path / "keys.npy", keys)
    np.save(tmp_path / "old-keys.npy", keys[:1000])
    built = tagore_ann.build_file(tmp_path / "old.fbin", tmp_path / "x.tagore", "nsg", ids=tmp_path / "old-keys.npy")
    for ids in [tmp_path / "keys.npy", keys[1000:]]:
        index = built.update(tmp_path / "new.fbin", ids=ids)
        assert index.base == str(tmp_path / "new.fbin") and first(index, x[1000:1100]) == keys[1000:].tolist()
    assert built.remove([9]).base == built.base and len(built.insert(x[1000:1002], ids=[1, 2])) == 1002
    index.save(built.path)
    again = tagore_ann.Index.open(built.path, base=x[:1100])
    assert first(again, x[1000:1100]) == list(range(1000, 1100))


def test_bits_and_halves_are_updated():
    bits = np.random.default_rng(3).integers(0, 2, (700, 128)).astype(bool)
    index = tagore_ann.build(bits[:600], "nsg", "hamming").insert(bits[600:])
    assert first(index, bits[600:]) == list(range(600, 700))
    halves = mixture(700, 16).astype(np.float16)
    index = tagore_ann.build(halves[:600], "nsg")
    assert first(index.update(halves), halves[600:]) == list(range(600, 700))
    with pytest.raises(tagore_ann.ArgumentError, match=r"x: found values of float32, expected float16 as in the base"):
        index.insert(halves[600:].astype(np.float32))


def test_the_distances_of_a_metric_stay(x):
    index = tagore_ann.build(x[:300], "nsg", "euclidean")
    longer = index.update(x[:320])
    assert longer.metric == "euclidean"
    assert np.allclose(longer.search(x[0], k=2)[1], np.sqrt(nearest(x[:320], x[:1], 2)[1][0]), atol=1e-3)


def test_wrong_calls_are_named(tmp_path, x):
    index = tagore_ann.build(x[:500], "nsg")
    index.save(tmp_path / "x.tagore")
    alone = tagore_ann.Index.open(tmp_path / "x.tagore")
    tagore_ann.build(x[:500], "nsg").to("nsg", tmp_path / "x.nsg")
    foreign = tagore_ann.Index.open(tmp_path / "x.nsg", base=x[:500])
    for call, text in [
        (lambda: index.update(x[:400]), "base: found 400 rows, expected at least the 500 of the index"),
        (lambda: index.update(x[:600, :8].copy(), replace=[1]), "base: found rows of 8 f32, expected 24 f32 as in"),
        (lambda: index.update(None), "base: found None"),
        (lambda: index.update(x[500:1100]), "base: found other values"),
        (lambda: index.update(x.tolist(), convert=False), "base: found a list"),
        (lambda: index.update(x[:500], remove=[500]), "remove: found the id 500, expected ids below 500"),
        (lambda: index.update(x[:500], replace=[500]), "replace: found the id 500, expected ids below 500"),
        (lambda: index.update(x[:600], remove=np.ones(600, bool)), "remove: found 600 bools, expected 500"),
        (lambda: index.update(x[:500], remove=[1, 2], replace=[2]), "remove: found 2, expected a row that is not"),
        (lambda: index.update(x[:600], device="gpu"), "device: found gpu"),
        (lambda: index.update(x[:600], ids=[1]), "ids: "),
        (lambda: index.insert(x[:3, :7]), "x: found 7 values per row, expected 24 as in the base"),
        (lambda: index.remove(range(500)), "remove: found every row, expected at least one row that stays"),
        (lambda: index.remove("rows"), "ids: found 'rows'"),
        (lambda: alone.remove([1]), "base: found none, expected the vectors: Index.open(path, base=x)"),
        (lambda: alone.insert(x[:3]), "base: found none, expected the vectors: Index.open(path, base=x)"),
        (lambda: foreign.remove([1]), "index: found an index of nsg from another system"),
    ]:
        with pytest.raises(tagore_ann.ArgumentError) as error:
            call()
        assert str(error.value).startswith(text), str(error.value)
    # The base is given, so a file alone will do.
    assert len(alone.update(x[:520])) == 520


def test_progress_and_interrupts_reach_an_update(x):
    index, stages = tagore_ann.build(x[:2000], "nsg"), set()
    index.update(x, progress=lambda update: stages.add(update.stage))

    def stop(update):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tagore_ann.build(mixture(30_000, 32)[:20_000], "nsg").update(mixture(30_000, 32), progress=stop)
