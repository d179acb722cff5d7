"""Arrays by the functions for C that their type offers (DLPack 1.3): a type made by ctypes."""

import ctypes
import gc

import numpy as np
import pytest
import tagore_ann
from tagore_ann import _tagore

CUDA = 2
FLOAT = 2


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]  # fmt: skip


class Managed(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", Tensor),
    ]  # fmt: skip


class Table(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("previous", ctypes.c_void_p),
        ("allocate", ctypes.c_void_p), ("managed_of", ctypes.c_void_p), ("object_of", ctypes.c_void_p),
        ("tensor_of", ctypes.c_void_p), ("stream", ctypes.c_void_p),
    ]  # fmt: skip


class Lender:
    """A type of arrays, by what it says of each; `freed` counts those given back."""

    def __init__(self, shape=(5, 4), device=CUDA, fails=False, major=1, code=FLOAT):
        self.freed, self.keep = 0, []
        numbers = (ctypes.c_int64 * 2)(*shape)
        strides = (ctypes.c_int64 * 2)(8, 1)

        @ctypes.CFUNCTYPE(None, ctypes.c_void_p)
        def delete(_):
            self.freed += 1

        @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(ctypes.c_void_p))
        def managed_of(_, out):
            if fails:
                return -1
            deleter = ctypes.cast(delete, ctypes.c_void_p)
            tensor = Tensor(0x10000, device, 3, 2, code, 32, 1, numbers, strides, 16)
            managed = Managed(1, 3, None, deleter, 0, tensor)
            self.keep.append(managed)
            out[0] = ctypes.addressof(managed)
            return 0

        @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))
        def stream(_kind, number, out):
            out[0] = 0x700 + number
            return 0

        functions = [ctypes.cast(of, ctypes.c_void_p).value for of in (managed_of, stream)]
        old = Table(1, 3, None, None, functions[0], None, None, functions[1])
        new = Table(major, 0, ctypes.addressof(old), None, functions[0], None, None, functions[1])
        self.keep += [delete, managed_of, stream, old, new, numbers, strides]
        make = ctypes.pythonapi.PyCapsule_New
        make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p] * 3
        name = ctypes.create_string_buffer(b"dlpack_exchange_api")
        self.keep.append(name)
        capsule = make(ctypes.addressof(new), ctypes.addressof(name), None)
        self.type = type("Array", (), {"__dlpack_c_exchange_api__": capsule})


@pytest.mark.parametrize("major", [1, 2])
def test_an_array_is_taken_and_given_back(major):
    lender = Lender(major=major)
    array = _tagore.array_of_type(lender.type(), "x")
    assert (array.shape, array.device) == ((5, 4), "cuda:3")
    interface = array.__cuda_array_interface__
    assert (interface["data"][0], interface["strides"], interface["typestr"]) == (0x10010, (32, 4), "<f4")
    assert lender.freed == 0
    del array
    gc.collect()
    assert lender.freed == 1


@pytest.mark.parametrize("lender", [Lender(device=1), Lender(fails=True)])
def test_arrays_elsewhere_take_the_slower_way(lender):
    assert _tagore.array_of_type(lender.type(), "x") is None
    assert lender.freed == len([one for one in lender.keep if isinstance(one, Managed)])


def test_types_without_functions_take_the_slower_way():
    wrong = type("Wrong", (), {"__dlpack_c_exchange_api__": 7})
    for x in [np.zeros((2, 2)), 3, None, wrong()]:
        assert _tagore.array_of_type(x, "x") is None


def test_values_that_are_no_vectors_are_refused():
    lender = Lender(code=4)
    with pytest.raises(tagore_ann.ArgumentError, match="x: found values of another type"):
        _tagore.array_of_type(lender.type(), "x")
    assert lender.freed == 1
