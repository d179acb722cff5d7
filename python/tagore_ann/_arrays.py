"""Arrays of other libraries as arrays of NumPy, without a copy."""

import importlib
from typing import Any

import numpy as np
import numpy.typing as npt

from ._errors import ArgumentError, refused

# The device types of DLPack whose memory the CPU reads.
_HOST = (1, 3)

Array = npt.NDArray[Any]


def bfloat16() -> np.dtype[Any]:
    """The type of bf16 in NumPy: that of ml_dtypes, else plain values of its size."""
    try:
        return np.dtype(importlib.import_module("ml_dtypes").bfloat16)
    except ImportError:
        return np.dtype("V2")


def _device(x: Any) -> str | None:
    """The device of an array that is not in host memory."""
    if isinstance(x, np.ndarray):
        return None
    if hasattr(x, "__cuda_array_interface__") and not hasattr(x, "__array_interface__"):
        return "a CUDA device"
    place = getattr(x, "__dlpack_device__", None)
    if place is None:
        return None
    kind, number = place()
    return None if int(kind) in _HOST else f"device {int(number)} of DLPack type {int(kind)}"


def host_array(x: Any, name: str) -> Array:
    """The array ``x`` in host memory, as an array of NumPy that shares its memory."""
    if isinstance(x, np.ndarray):
        return x
    try:
        where = _device(x)
    except Exception as error:
        raise refused(name, f"an array whose device is unknown ({error})", "numpy.asarray(x)") from error
    if where is not None:
        call = f"{name}.get()" if type(x).__module__.startswith("cupy") else f"{name}.cpu()"
        raise refused(name, f"an array on {where}", f"one in host memory: call {call}")
    kind = type(x).__name__
    try:
        if hasattr(x, "__array_interface__"):
            return np.asarray(x)
        if hasattr(x, "__dlpack__"):
            return np.from_dlpack(x)
    except Exception as error:
        remedy = "one that NumPy can read: call x.detach(), or x.float() for another type"
        raise refused(name, f"a {kind} ({error})", remedy) from error
    expected = "an array: call numpy.asarray(x, dtype=numpy.float32)"
    if hasattr(x, "to_numpy"):
        expected = 'an array: call x.to_numpy(dtype="float32")'
    raise refused(name, f"a {kind}", expected)


def rows(x: Any, name: str, convert: bool = False) -> Array:
    """The rows of ``x``, shape (n, dim), as the native module takes them.

    With ``convert`` other types become float32, and other orders are copied.
    """
    if convert:
        try:
            array = np.asarray(x if isinstance(x, np.ndarray) or not _device(x) else host_array(x, name))
            plain = array.dtype in (np.float32, np.float16, np.uint8, np.int8)
            if not plain and array.dtype not in (bfloat16(), np.dtype("V2")):
                with np.errstate(over="ignore"):
                    array = array.astype(np.float32)
            return np.ascontiguousarray(array) if array.ndim == 2 else array
        except ArgumentError:
            raise
        except Exception as error:
            raise refused(name, f"a {type(x).__name__} ({error})", "rows of numbers") from error
    array = host_array(x, name)
    if array.dtype == np.float64:
        raise refused(name, "float64", f"float32: call {name}.astype(numpy.float32), or pass convert=True")
    return array


def own_ids(ids: Any) -> Array:
    """Own ids as uint64. Their type is that of results."""
    array = host_array(ids, "ids")
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise refused("ids", f"{array.ndim}-D {array.dtype}", "a 1-D array of integers")
    if array.dtype.kind == "i" and array.size > 0 and array.min() < 0:
        raise refused("ids", f"the id {array.min()}", "ids of at least 0")
    return array.astype(np.uint64)


def passing(filter: Any) -> Array:
    """A filter as the native module takes it: bools, or ids of uint64."""
    if isinstance(filter, (set, frozenset, list, tuple, range)):
        values = list(filter)
        try:
            array = np.asarray(values, dtype=None if values else np.int64)
        except Exception as error:
            raise refused("filter", f"a {type(filter).__name__}", "ids") from error
    else:
        array = host_array(filter, "filter")
    if array.ndim != 1 or array.dtype.kind not in "biu":
        raise refused("filter", f"{array.ndim}-D {array.dtype}", "a 1-D array of bools or of ids")
    if array.dtype.kind == "b":
        return array
    if array.dtype.kind == "i" and array.size > 0 and array.min() < 0:
        raise refused("filter", f"the id {array.min()}", "ids of at least 0")
    return array.astype(np.uint64)


def whole(value: Any, name: str) -> int:
    """A whole number from 0."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 0:
        raise refused(name, repr(value), "a whole number from 0")
    if value >= 1 << 63:
        raise refused(name, repr(value), "a smaller number")
    return int(value)
