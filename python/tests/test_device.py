"""Arrays on a GPU: what is refused without one, and results that stay on a device.

The emulator's device memory is ordinary memory, so its arrays are read by NumPy.
"""

import gc
import pickle

import numpy as np
import pytest
import tagore_ann
from conftest import mixture


class Cuda:
    """An array with `__cuda_array_interface__` alone, as of numba."""

    def __init__(self, **fields):
        whole = {"shape": (4, 2), "typestr": "<f4", "data": (1 << 40, False), "strides": None, "version": 3}
        self.__cuda_array_interface__ = {k: v for k, v in (whole | fields).items() if v != "missing"}


class Tensor:
    """An array with DLPack, on a device that its capsule may not be of."""

    def __init__(self, array, device):
        self.array, self.device = array, device

    def __dlpack__(self, stream=None):
        return self.array.__dlpack__()

    def __dlpack_device__(self):
        return self.device


class Torn:
    """A tensor that refuses to be lent, as one that needs a gradient."""

    @property
    def __cuda_array_interface__(self):
        raise RuntimeError("a tensor of a lost device")


@pytest.mark.parametrize(
    "wrong, text",
    [
        (Cuda(), None),
        (Cuda(data=(0, False)), None),
        (Cuda(data=(1, True)), None),
        (Cuda(data=((1 << 64) - 4, True)), None),
        (Cuda(data=(1 << 80, True)), "without data"),
        (Cuda(data=None), "without data"),
        (Cuda(data="missing"), "without data"),
        (Cuda(shape="missing"), "without shape"),
        (Cuda(shape=(4.5, 2)), "without shape"),
        (Cuda(typestr=7), "without typestr"),
        (Cuda(typestr=""), "values of , expected float32, float16, uint8 or int8"),
        (Cuda(typestr="<f8"), "values of <f8, expected float32"),
        (Cuda(typestr=">f4"), "values of >f4"),
        (Cuda(strides="wide"), "without strides"),
        (Cuda(mask=Cuda()), "found a mask"),
        (Cuda(stream=0), "found stream 0, expected 1, 2 or the handle of a stream"),
        (Cuda(stream="first"), "stream"),
        (Tensor(np.zeros((4, 2), np.float32), (2, 0)), "found a capsule, expected one of DLPack"),
        (Tensor(np.zeros((4, 2), np.float32), (10, 0)), "found an array on device 0 of DLPack type 10"),
        (Torn(), "found a Torn (a tensor of a lost device), expected one that DLPack can lend"),
    ],
)  # fmt: skip
def test_arrays_that_no_gpu_holds_are_refused(wrong, text):
    calls = [
        lambda: tagore_ann.build(wrong),
        lambda: tagore_ann.build(wrong, convert=True),
        lambda: tagore_ann.knn_graph(wrong, k=1),
        lambda: tagore_ann.exact(np.zeros((4, 2), np.float32), wrong, k=1),
    ]
    for call in calls:
        with pytest.raises(tagore_ann.Error) as error:
            call()
        assert text is None or text in str(error.value), str(error.value)
        assert "\n" not in str(error.value)


@pytest.fixture(scope="module")
def small():
    return mixture(300, 8, seed=1)


def there(array):
    """A result as an array of NumPy: by DLPack, by the interface of arrays, and by a copy."""
    by_dlpack, by_interface, copied = np.from_dlpack(array), np.asarray(array), array.numpy()
    assert by_dlpack.dtype == array.dtype and by_dlpack.tolist() == by_interface.tolist() == copied.tolist()
    return by_dlpack


def test_results_stay_on_the_device(small):
    ids, distances = tagore_ann.knn_graph(small, k=4, device="emulated", output="device")
    expected = tagore_ann.knn_graph(small, k=4, device="emulated")
    assert isinstance(ids, tagore_ann.DeviceArray) and ids.device == "emulated" and len(ids) == 300
    assert (ids.shape, ids.dtype, distances.dtype) == ((300, 4), np.uint32, np.float32)
    assert there(ids).tolist() == expected[0].tolist() and there(distances).tolist() == expected[1].tolist()
    assert repr(ids) == "<tagore_ann.DeviceArray: 300 x 4 <u4 on emulated>"

    near = tagore_ann.exact(small, small[:3], k=2, device="emulated", output="device")
    assert there(near[0]).tolist() == tagore_ann.exact(small, small[:3], k=2)[0].tolist()

    index = tagore_ann.build(small, "nsg", device="cpu")
    found = index.search(small[:5], k=3, device="emulated", output="device")
    assert there(found.ids).tolist() == index.search(small[:5], k=3)[0].tolist() and found.computed is None


def test_an_array_on_a_device_is_taken_where_it_lies(small):
    # Distances are vectors as any others.
    _, vectors = tagore_ann.knn_graph(small, k=6, device="emulated", output="device")
    on_host = there(vectors).copy()
    expected = tagore_ann.knn_graph(on_host, k=3, device="emulated")
    ids, _ = tagore_ann.knn_graph(vectors, k=3)  # on its own device
    assert ids.tolist() == expected[0].tolist()
    index = tagore_ann.build(vectors, "cagra", degree=8, knn=12)
    assert index.search(on_host[:4], k=1, output="device").ids.device == "emulated"
    assert index.search(vectors, k=1, device="cpu")[0][:, 0].tolist() == index.search(on_host, k=1)[0][:, 0].tolist()
    assert index.base is vectors
    with pytest.raises(tagore_ann.Error, match="'cuda:1', expected emulated, whose memory holds x, or cpu"):
        tagore_ann.knn_graph(vectors, k=1, device="cuda:1")


def test_capsules_live_as_long_as_their_takers(small):
    ids, _ = tagore_ann.knn_graph(small, k=4, device="emulated", output="device")
    taken = [np.from_dlpack(ids) for _ in range(100)]
    dropped = [ids.__dlpack__() for _ in range(100)]
    del ids, dropped
    gc.collect()
    assert all(array.tolist() == taken[0].tolist() for array in taken)


def test_output_needs_a_gpu_and_rows(small):
    index = tagore_ann.build(small, ids=np.arange(300))
    wrong = [
        (lambda: tagore_ann.knn_graph(small, k=3, output="device"), "'auto' with output=\"device\""),
        (lambda: tagore_ann.exact(small, small, k=3, device="cpu", output="device"), "'cpu' with output"),
        (lambda: tagore_ann.knn_graph(small, k=3, output="gpu"), "output: found 'gpu', expected"),
        (lambda: index.search(small, k=3, device="emulated", output="device"), "own ids are in host memory"),
        (lambda: tagore_ann.knn_graph(small, k=300, device="emulated", output="device"), "k: found 300"),
        (lambda: tagore_ann.knn_graph(small, k=1 << 60, device="emulated", output="device"), ""),
    ]
    for call, text in wrong:
        with pytest.raises(tagore_ann.Error) as error:
            call()
        assert text in str(error.value), str(error.value)


def test_a_pickle_of_an_index_over_a_device_holds_its_vectors(small):
    _, vectors = tagore_ann.knn_graph(small, k=6, device="emulated", output="device")
    index = tagore_ann.build(vectors, degree=8, knn=12)
    again = pickle.loads(pickle.dumps(index))
    assert np.array_equal(again.base, there(vectors)) and np.array_equal(again.graph, index.graph)


def test_roots_and_bits_are_for_the_host(small):
    _, vectors = tagore_ann.knn_graph(small, k=6, device="emulated", output="device")
    with pytest.raises(tagore_ann.ArgumentError, match='metric: found "euclidean" with output="device", expected "l2"'):
        tagore_ann.knn_graph(vectors, 3, "euclidean", output="device")
    with pytest.raises(tagore_ann.ArgumentError, match="x: found an array on emulated, expected one in host memory"):
        tagore_ann.build(vectors, metric="hamming")
