"""Arrays are taken where they lie, or refused with the call that makes them fit."""

import gc
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


@pytest.mark.parametrize(
    "wrong, text",
    [
        (lambda x: x.astype(np.float64), "call x.astype(numpy.float32), or pass convert=True"),
        (lambda x: np.asfortranarray(x), "call numpy.ascontiguousarray(x)"),
        (lambda x: x[:, ::2], "call numpy.ascontiguousarray(x)"),
        (lambda x: x[::-1], "call numpy.ascontiguousarray(x)"),
        (lambda x: x[0], "found 1 dimensions, expected 2"),
        (lambda x: x.astype(">f4"), "call x.astype"),
        (lambda x: x.astype(np.int32), "float32, float16, bfloat16, uint8 or int8: call x.astype"),
        (lambda x: x.tolist(), "numpy.asarray(x, dtype=numpy.float32)"),
        (lambda x: Lent(x, (4, 1)), "found an array on device 1 of DLPack type 4, expected one in host memory"),
        (lambda x: np.full((20, 4), np.nan, np.float32), "x: row 0, dimension 0: found NaN"),
        (lambda x: np.zeros((3, 5000), np.float32), "x: found 5000 columns, expected 1 to 4096"),
        (lambda x: np.zeros((3, 0), np.float32), "x: found 0 columns"),
        (lambda x: "x.fbin", "found a str, expected an array"),
    ],
)  # fmt: skip
def test_other_arrays_are_refused_with_a_remedy(x, wrong, text):
    with pytest.raises(tagore_ann.ArgumentError) as error:
        tagore_ann.build(wrong(x))
    assert text in str(error.value), str(error.value)


def test_conversion_is_asked_for(x, q):
    expected = tagore_ann.build(x).search(q)[0].tolist()
    for other in [x.astype(np.float64), np.asfortranarray(x), x.tolist(), x.astype(">f4")]:
        index = tagore_ann.build(other, convert=True)
        assert index.search(q.astype(np.float64), convert=True)[0].tolist() == expected


def test_fortran_order_is_never_read_as_c_order():
    # One column and one row are in both orders.
    column = np.asfortranarray(np.arange(50, dtype=np.float32).reshape(50, 1))
    assert tagore_ann.knn_graph(column, k=1)[0][49].tolist() == [48]
    square = np.asfortranarray(np.arange(400, dtype=np.float32).reshape(20, 20))
    with pytest.raises(tagore_ann.ArgumentError):
        tagore_ann.knn_graph(square, k=1)


def test_remedies_have_the_name_of_the_argument(x, q):
    index = tagore_ann.build(x)
    misaligned = np.zeros(q.nbytes + 1, np.uint8)[1:].view(np.float32).reshape(q.shape)
    for call, text in [
        (lambda: index.search(np.asfortranarray(q)), "call numpy.ascontiguousarray(q)"),
        (lambda: index.search(q.astype(">f4")), "call q.astype"),
        (lambda: index.search(misaligned), "q: found values at an address not aligned"),
        (lambda: tagore_ann.exact(x, q.tolist(), k=1), "call numpy.asarray(q, dtype=numpy.float32)"),
        (lambda: tagore_ann.build(x, ids=list(range(3000))), "call numpy.asarray(ids, dtype=numpy.uint64)"),
        (lambda: index.evaluate(q, [[1]]), "call numpy.asarray(truth, dtype=numpy.uint32)"),
    ]:
        with pytest.raises(tagore_ann.ArgumentError) as error:
            call()
        assert text in str(error.value)


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
