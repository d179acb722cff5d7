"""Arrays of torch, CuPy, Numba and JAX on a GPU; each is skipped where it is missing."""

import os

import numpy as np
import pytest
import tagore_ann
from conftest import mixture

# JAX takes most memory of the device otherwise.
os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"


def torch_array(x):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return torch.from_numpy(x.copy()).to("cuda:0")


def cupy_array(x):
    cupy = pytest.importorskip("cupy")
    try:
        return cupy.asarray(x)
    except cupy.cuda.runtime.CUDARuntimeError as error:
        pytest.skip(str(error))


def numba_array(x):
    cuda = pytest.importorskip("numba.cuda")
    if not cuda.is_available():
        pytest.skip("no CUDA device")
    return cuda.to_device(x)


def jax_array(x):
    jax = pytest.importorskip("jax")
    try:
        return jax.device_put(x, jax.devices("gpu")[0])
    except RuntimeError as error:
        pytest.skip(str(error))


ARRAYS = [torch_array, cupy_array, numba_array, jax_array]


@pytest.fixture(scope="module")
def vectors():
    return mixture(5000, 24, seed=2)


@pytest.mark.parametrize("make", ARRAYS)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.uint8])
def test_arrays_on_a_gpu_give_the_index_of_host_memory(make, dtype, vectors):
    x = (vectors * 10 + 100).clip(0, 255).astype(dtype)
    there = make(x)
    index, expected = tagore_ann.build(there, "nsg"), tagore_ann.build(x, "nsg", device="cuda:0")
    assert np.array_equal(index.graph, expected.graph)
    found, known = index.search(there, k=5), expected.search(x, k=5, device="cuda:0")
    assert np.array_equal(found.ids, known.ids) and np.array_equal(found.distances, known.distances)
    left = index.search(there, k=5, output="device")
    assert np.array_equal(left.ids.numpy(), known.ids) and np.array_equal(left.distances.numpy(), known.distances)
    assert np.array_equal(tagore_ann.knn_graph(there, k=6)[0], tagore_ann.knn_graph(x, k=6, device="cuda:0")[0])


def test_results_are_taken_where_they_lie(vectors):
    torch = pytest.importorskip("torch")
    there = torch_array(vectors)
    ids, distances = tagore_ann.knn_graph(there, k=6, output="device")
    taken = torch.from_dlpack(distances)
    assert taken.device.type == "cuda" and taken.data_ptr() == distances.__cuda_array_interface__["data"][0]
    del distances
    expected = tagore_ann.knn_graph(vectors, k=6, device="cuda:0")
    assert np.array_equal(taken.cpu().numpy(), expected[1]) and np.array_equal(ids.numpy(), expected[0])
    cupy = pytest.importorskip("cupy")
    assert np.array_equal(cupy.asarray(ids).get(), expected[0])


def test_work_of_a_stream_comes_first(vectors):
    torch = pytest.importorskip("torch")
    there = torch_array(vectors)
    expected = tagore_ann.knn_graph(there, k=3)[0]
    with torch.cuda.stream(torch.cuda.Stream()):
        moved = there * 0
        for _ in range(200):
            moved = moved + there / 200
        moved = there.clone()
        assert np.array_equal(tagore_ann.knn_graph(moved, k=3)[0], expected)


def test_pitched_rows_are_taken_and_others_refused(vectors):
    there = torch_array(vectors)
    wide = there.repeat(1, 2)
    part = wide[:, 5:29]
    expected = tagore_ann.knn_graph(part.cpu().numpy(), k=3, device="cuda:0")[0]
    assert np.array_equal(tagore_ann.knn_graph(part, k=3)[0], expected)
    with pytest.raises(tagore_ann.ArgumentError, match="rows one after another: call x.contiguous()"):
        tagore_ann.knn_graph(there.T, k=3)
    with pytest.raises(tagore_ann.ArgumentError, match="float32, float16, uint8 or int8"):
        tagore_ann.knn_graph(there.double(), k=3)


def test_tensors_with_gradients_are_read(vectors):
    there = torch_array(vectors[:500])
    expected = tagore_ann.knn_graph(there, k=3)[0]
    assert np.array_equal(tagore_ann.knn_graph(there.requires_grad_(), k=3)[0], expected)
    here = there.cpu().detach().requires_grad_()
    assert np.array_equal(tagore_ann.knn_graph(here, k=3, device="cuda")[0], expected)


def test_the_cpu_copies_once(vectors):
    there = torch_array(vectors[:500])
    found = tagore_ann.knn_graph(there, k=3, device="cpu")
    assert np.array_equal(found[0], tagore_ann.knn_graph(vectors[:500], k=3, device="cpu")[0])


def test_bad_addresses_are_refused(vectors):
    there = cupy_array(vectors)
    interface = dict(there.__cuda_array_interface__)
    for shape in [(1 << 30, 24), (1 << 31, 4096)]:
        wrong = type("Wrong", (), {"__cuda_array_interface__": interface | {"shape": shape, "strides": None}})()
        with pytest.raises(tagore_ann.ArgumentError, match="from byte"):
            tagore_ann.build(wrong)
    on_host = interface | {"data": (vectors.ctypes.data, True), "strides": None}
    with pytest.raises(tagore_ann.ArgumentError, match="the memory of a CUDA device"):
        tagore_ann.build(type("Wrong", (), {"__cuda_array_interface__": on_host})())
