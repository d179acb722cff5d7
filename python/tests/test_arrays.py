"""Arrays are taken where they lie, or copied, or refused with the call that makes them fit."""

import gc
import importlib.util
import sys
import weakref

import numpy as np
import pytest
import tagore_ann


class Lent:
    """An array that gives DLPack alone, as torch does."""

    def __init__(self, array, device=(1, 0)):
        self.array, self.device = array, device

    def __dlpack__(self, **options):
        return self.array.__dlpack__()

    def __dlpack_device__(self):
        return self.device

    def cpu(self):
        return self.array


class Interface:
    """An array that gives `__array_interface__` alone."""

    def __init__(self, array):
        self.array = array
        self.__array_interface__ = array.__array_interface__


class Trained:
    """A tensor with a gradient: torch lends its values to nobody."""

    requires_grad = True

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        raise BufferError("Can't export tensors that require gradient")

    def __dlpack_device__(self):
        return (1, 0)

    def detach(self):
        return Lent(self.array)


def ids_of(x):
    return tagore_ann.build(x, "cagra").search(np.ascontiguousarray(x, np.float32)[:20], k=3)[0]


def test_arrays_of_other_libraries_are_taken(x):
    copy = x[:500].copy()  # DLPack lends no read-only array
    expected = ids_of(copy).tolist()
    for other in [Lent(copy), Interface(copy), Trained(copy)]:
        index = tagore_ann.build(other, "cagra")
        assert index.search(copy[:20], k=3)[0].tolist() == expected
        assert index.base.__array_interface__["data"][0] == copy.__array_interface__["data"][0]


def test_strided_rows_are_read_in_place(x):
    wide = np.zeros((500, 60), np.float32)
    wide[:, 10:34] = x[:500]
    part = wide[:, 10:34]
    assert tagore_ann.knn_graph(part, k=5)[0].tolist() == tagore_ann.knn_graph(x[:500], k=5)[0].tolist()
    every_third = x[::3]
    assert tagore_ann.build(every_third).search(x[30], k=1)[0].tolist() == [10]


def test_a_memmap_is_taken(tmp_path, x):
    np.save(tmp_path / "x.npy", x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert tagore_ann.knn_graph(mapped, k=3)[0].tolist() == tagore_ann.knn_graph(x, k=3)[0].tolist()


def test_an_array_lives_as_long_as_its_index():
    x = np.random.default_rng(0).standard_normal((500, 8), dtype=np.float32)
    alive = weakref.ref(x)
    index = tagore_ann.build(x)
    del x
    gc.collect()
    assert alive() is not None and index.search(alive()[3], k=1)[0].tolist() == [3]
    del index
    gc.collect()
    tagore_ann.plan(10, 4)  # a call frees what other threads have dropped
    assert alive() is None


def remedy(text):
    """The call that the text of an error recommends first."""
    call = text.partition(" call ")[2]
    for end in [" or numpy", ", or ", " for "]:
        first = call.partition(end)[0]
        try:
            return compile(first, text, "eval")
        except SyntaxError:
            pass
    raise AssertionError(text)


def follow(call, name, given):
    """Follows the remedies of errors on the object that was refused, until the call takes it."""
    for _ in range(3):
        try:
            return call(given)
        except tagore_ann.ArgumentError as error:
            assert str(error).startswith(f"{name}: found"), str(error)
            given = eval(remedy(str(error)), {"numpy": np, "tagore_ann": tagore_ann, name: given})
    return call(given)


REFUSED = {
    "complex": lambda x: x[:, :12].astype(np.float64) + 1j * x[:, 12:],
    "datetime": lambda x: (100 * x).astype("M8[s]"),
    "records": lambda x: np.rec.fromarrays(list(x.T)),
    "masked": lambda x: np.ma.masked_array(x, mask=x > 2),
    "one row": lambda x: x[0],
    "one list": lambda x: x[0].tolist(),
    "images": lambda x: x.reshape(-1, 4, 6),
    "a list of arrays on a device": lambda x: [Lent(row, (4, 1)) for row in x],
    "a dict": lambda x: dict(enumerate(x)),
    "a generator": lambda x: iter(x),
    "a sparse matrix": lambda x: pytest.importorskip("scipy").sparse.csr_matrix(x),
    "nulls": lambda x: pytest.importorskip("pyarrow").array([*x.tolist(), None]),
}  # fmt: skip

COPIES = {
    "float64": lambda x: x.astype(np.float64),
    "float64 by columns": lambda x: np.asfortranarray(x, np.float64),
    "columns": np.asfortranarray,
    "every other column": lambda x: x[:, ::2],
    "from the end": lambda x: x[::-1],
    "repeated": lambda x: np.broadcast_to(x[0], (50, 24)),
    "big-endian": lambda x: x.astype(">f4"),
    "misaligned": lambda x: np.frombuffer(b"0" + x.tobytes(), np.uint8)[1:].view(np.float32).reshape(x.shape),
    "float16 by columns": lambda x: np.asfortranarray(x, np.float16),
    "bfloat16 by columns": lambda x: np.asfortranarray(x, pytest.importorskip("ml_dtypes").bfloat16),
    "int64": lambda x: (100 * x).astype(np.int64),
    "int16": lambda x: (100 * x).astype(np.int16),
}  # fmt: skip


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("name", ["x", "q", "base"])
def test_the_remedy_of_a_refusal_works_on_what_was_refused(x, kind, name):
    calls = {
        "x": tagore_ann.knn_graph,
        "q": lambda given: tagore_ann.exact(x, given, 1),
        "base": lambda given: tagore_ann.exact(given, x[:3], 1),
    }
    ids, _ = follow(calls[name], name, REFUSED[kind](x[:60]))
    assert len(ids) == (3 if name == "base" else 1 if "one" in kind else 60)


@pytest.mark.parametrize("kind", COPIES)
def test_copies_are_made_unless_they_are_forbidden(x, kind):
    given = COPIES[kind](x[:60])
    expected = tagore_ann.knn_graph(np.array(given, np.float32, order="C"), 3)[0]
    assert np.array_equal(tagore_ann.knn_graph(given, 3)[0], expected)
    with pytest.raises(
        tagore_ann.ArgumentError, match="x: found .*, expected an array that needs no copy.* or leave out"
    ):
        tagore_ann.knn_graph(given, 3, convert=False)
    found = follow(lambda x: tagore_ann.knn_graph(x, 3, convert=False)[0], "x", given)
    assert np.array_equal(found, expected)


def held(x):
    """The rows in other holders, by name."""
    wide = x.astype(np.float64)
    yield "lists", wide.tolist()
    yield "tuples", tuple(map(tuple, wide.tolist()))
    yield "arrays in a list", list(x)
    yield "objects", np.array([*x, None], dtype=object)[:-1]
    yield "values of a dict", dict(enumerate(x)).values()
    yield "a buffer", memoryview(wide)
    if pandas := pytest.importorskip("pandas"):
        yield "a frame", pandas.DataFrame(wide)
        yield "a frame of nullable values", pandas.DataFrame(wide).astype("Float64")
        yield "a frame of one column of arrays", pandas.DataFrame({"v": list(x)})
        yield "a column of arrays", pandas.Series(list(x), index=range(7, 7 + len(x)))
        yield "a column of lists", pandas.Series(wide.tolist())
    if polars := pytest.importorskip("polars"):
        yield "a frame of polars", polars.DataFrame(x)
        yield "a frame of polars of one column of arrays", polars.DataFrame({"v": x})
        yield "a column of arrays of polars", polars.Series(x)
        yield "a column of lists of polars", polars.Series(wide.tolist())
    if arrow := pytest.importorskip("pyarrow"):
        lists = arrow.FixedSizeListArray.from_arrays(x.ravel(), x.shape[1])
        yield "fixed-size lists", lists
        yield "a slice of fixed-size lists", arrow.concat_arrays([lists[:3], lists])[3:]
        yield "chunks of fixed-size lists", arrow.chunked_array([lists[:20], lists[20:]])
        yield "a table of fixed-size lists", arrow.table({"v": lists})
        yield "a table of numbers", arrow.table({str(number): column for number, column in enumerate(x.T.copy())})
        yield "lists of any size", arrow.array(wide.tolist())
        yield "tensors", arrow.FixedShapeTensorArray.from_numpy_ndarray(x)


def test_what_people_hold_is_taken(x, q):
    expected = tagore_ann.exact(x[:100], q[:9], 3)
    for (name, base), (_, queries) in zip(held(x[:100]), held(q[:9]), strict=True):
        ids, distances = tagore_ann.exact(base, queries, 3)
        assert np.array_equal(ids, expected[0]) and np.array_equal(distances, expected[1]), name
        index = tagore_ann.build(base)
        assert np.array_equal(index.base, x[:100]) and index.search(queries, 1)[0].shape == (9, 1), name
    [lists] = [holder for name, holder in held(x[:100]) if name == "fixed-size lists"]
    assert tagore_ann.build(lists, convert=False).base.base is not None


def test_ragged_rows_and_holes_are_named(x):
    for wrong, text in [
        ([[1.0, 2.0], [3.0]], "x: found 1 values in row 1, expected 2 values as in row 0"),
        ([x[0], None], "x: found None in row 1"),
        (["a passage", "another"], "x: found a str in row 0, expected rows of numbers"),
        (np.array([["1", "x"]]), "x: found values of <U1, expected numbers"),
        (np.full((20, 4), np.nan), "x: row 0, dimension 0: found NaN"),
        (np.full((20, 4), 1e300), r"x: found 1e\+300 at \[0, 0\], expected numbers that float32 holds"),
        (np.zeros((3, 5000), np.float32), "x: found 5000 columns, expected 1 to 4096"),
        (np.zeros((3, 0), np.float32), "x: found 0 columns"),
        (Lent(x, (4, 1)), "found an array on device 1 of DLPack type 4, expected one in host memory: call x.cpu"),
        ([Lent(row, (4, 1)) for row in x], r"x: found rows on device 1 .*: call \[row.cpu\(\) for row in x\]"),
        ("x.fbin", r"x: found a str, expected an array: call tagore_ann.read\(x\)"),
    ]:
        with pytest.raises(tagore_ann.ArgumentError, match=text):
            tagore_ann.build(wrong)
    with pytest.raises(tagore_ann.ArgumentError, match="q: row 3, dimension 2: found NaN"):
        wrong = x[:5].copy()
        wrong[3, 2] = np.nan
        tagore_ann.exact(x, wrong, 1)


def test_bf16_of_any_library_is_taken(x, monkeypatch):
    x = x[:200]
    bits = (x.view(np.uint32) >> 16).astype(np.uint16)
    wide = (bits.astype(np.uint32) << 16).view(np.float32)
    expected = tagore_ann.exact(wide, wide[:5], 3)[0].tolist()
    holders = [bits.view("V2")]
    if ml_dtypes := sys.modules.get("ml_dtypes") or pytest.importorskip("ml_dtypes"):
        holders.append(bits.view(ml_dtypes.bfloat16))
    for library, make in [
        ("torch", lambda torch: torch.from_numpy(wide).bfloat16()),
        ("jax", lambda jax: jax.numpy.asarray(wide, jax.numpy.bfloat16)),
    ]:
        if importlib.util.find_spec(library):
            holders.append(make(importlib.import_module(library)))
    for holder in holders:
        index = tagore_ann.build(holder)
        assert tagore_ann.exact(holder, holder[:5], 3)[0].tolist() == expected
        assert index.dtype.itemsize == 2
        for row in range(5):
            assert index.search(holder[row], 3)[0].tolist() == expected[row]
    # Without ml_dtypes too.
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    assert tagore_ann.build(holders[0]).search(holders[0][3], 1)[0].tolist() == [3]


@pytest.mark.parametrize("hold", [list, tuple, lambda ids: ids.astype(np.uint32), lambda ids: range(100, 600),
                                  lambda ids: pytest.importorskip("pandas").Series(ids),
                                  lambda ids: pytest.importorskip("pandas").Index(ids),
                                  lambda ids: pytest.importorskip("pandas").array(ids, dtype="Int64"),
                                  lambda ids: pytest.importorskip("polars").Series(ids),
                                  lambda ids: pytest.importorskip("pyarrow").array(ids)])  # fmt: skip
def test_ids_are_taken_as_people_hold_them(x, hold):
    ids = np.arange(100, 600)
    index = tagore_ann.build(x[:500], ids=hold(ids))
    assert index.search(x[:5], 1)[0].ravel().tolist() == [100, 101, 102, 103, 104]
    found, _ = index.search(x[:5], 3, filter=hold(ids)[:2])
    assert set(found.ravel().tolist()) - {100, 101} == {np.iinfo(found.dtype).max if found.dtype.kind == "u" else -1}


def test_bools_are_taken_as_people_hold_them(x):
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    index = tagore_ann.build(x[:500])
    mask = x[:500, 0] > 0
    expected = index.search(x[:5], 4, filter=mask)[0].tolist()
    for held in [mask.tolist(), pandas.Series(mask), pandas.Series(mask, dtype="boolean"), polars.Series(mask)]:
        assert index.search(x[:5], 4, filter=held)[0].tolist() == expected
    found, _ = tagore_ann.build(x[:500], filter=pandas.Series(mask)).search(x[:50], 4)
    assert mask[found].all()


def test_remedies_of_ids_and_filters_work(x):
    x = x[:200]
    index = tagore_ann.build(x)
    mask = (x[:, 0] > 0).astype(int)
    expected = index.search(x[:5], 4, filter=mask == 1)[0].tolist()
    for wrong in [mask, mask.tolist(), mask[:, None] == 1, np.flatnonzero(mask) * 1.0, np.flatnonzero(mask)[:, None]]:
        assert follow(lambda f: index.search(x[:5], 4, filter=f), "filter", wrong)[0].tolist() == expected
    for wrong in [
        np.arange(200.0),
        np.arange(200)[:, None],
        np.arange(200.0).tolist(),
        {f"row {row}": row for row in range(200)},
    ]:
        assert follow(lambda ids: tagore_ann.build(x, ids=ids), "ids", wrong).ids.tolist() == list(range(200))
    for wrong, text in [
        (["a"] * 200, "1-D <U1"),
        ("ids", "'ids'"),
        ([True] * 200, "bools"),
        ([None] * 200, "1-D object"),
    ]:
        if wrong != "ids":  # the path of a file
            with pytest.raises(tagore_ann.ArgumentError, match=f"ids: found {text}, expected a 1-D array of integers"):
                tagore_ann.build(x, ids=wrong)
    for wrong in ["rows", 3, {"a": 1}, [1.5, np.nan], [None]]:
        with pytest.raises(tagore_ann.ArgumentError, match="^filter: found"):
            index.search(x[:5], filter=wrong)


def test_fortran_order_is_never_read_as_c_order():
    # One column and one row are in both orders.
    column = np.asfortranarray(np.arange(50, dtype=np.float32).reshape(50, 1))
    assert tagore_ann.knn_graph(column, k=1)[0][49].tolist() == [48]
    square = np.asfortranarray(np.arange(400, dtype=np.float32).reshape(20, 20))
    assert tagore_ann.knn_graph(square, k=1)[0].tolist() == tagore_ann.knn_graph(square.copy("C"), k=1)[0].tolist()


def test_an_array_in_use_is_not_resized():
    x = np.random.default_rng(0).standard_normal((500, 8), dtype=np.float32)
    wide = np.zeros((500, 16), np.float32)
    wide[:, 4:12] = x
    for owner, rows in [(x, x), (wide, wide[:, 4:12]), (wide, np.frombuffer(wide, np.float32).reshape(500, 16))]:
        index = tagore_ann.build(rows)
        with pytest.raises(ValueError, match="resize"):
            owner.resize((1 << 22, 16), refcheck=False)
        assert index.search(rows[3].copy(), k=1)[0].tolist() == [3]
        del index
    gc.collect()
    tagore_ann.plan(10, 4)  # a call frees what other threads have dropped
    x.resize((600, 8), refcheck=False)
