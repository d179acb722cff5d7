"""Arrays of other libraries, without a copy: in host memory as arrays of NumPy, or on a GPU."""

import importlib
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from . import _tagore
from ._errors import ArgumentError, Error, refused

# The device types of DLPack whose memory the CPU reads.
_HOST = (1, 3)

Array = npt.NDArray[Any]


def bfloat16() -> np.dtype[Any]:
    """The type of bf16 in NumPy: that of ml_dtypes, else plain values of its size."""
    try:
        found: np.dtype[Any] = np.dtype(importlib.import_module("ml_dtypes").bfloat16)
        return found
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


# The device type of DLPack of CUDA memory.
_CUDA = 2

Rows = Array | _tagore.DeviceArray

Output = Literal["numpy", "device"]

# A device, or several: their names separated by commas, or a list of them.
Devices = str | Sequence[str]


def _detached(x: Any) -> Any:
    """A tensor without its gradient, which other libraries would refuse to read."""
    return x.detach() if getattr(x, "requires_grad", False) is True else x


def device_array(x: Any, name: str) -> _tagore.DeviceArray | None:
    """The array ``x`` in the memory of a CUDA device, or None if it is elsewhere."""
    if isinstance(x, _tagore.DeviceArray):
        return x
    if isinstance(x, np.ndarray):
        return None
    try:
        x = _detached(x)
        found = _tagore.array_of_type(x, name)
        if found is not None:
            return found
        place = getattr(x, "__dlpack_device__", None)
        if place is not None:
            if int(place()[0]) != _CUDA:
                return None
            # The default stream waits for the work that writes x.
            return _tagore.array_of_capsule(x.__dlpack__(stream=1), name)
        if hasattr(x, "__array_interface__"):
            return None
        interface = getattr(x, "__cuda_array_interface__", None)
        if interface is None:
            return None
        if not isinstance(interface, dict):
            raise TypeError(f"__cuda_array_interface__ is a {type(interface).__name__}")
        return _tagore.array_of_interface(interface, x, name)
    except Error:
        raise
    except Exception as error:
        remedy = f"one that DLPack can lend: call {name}.float() for another type"
        raise refused(name, f"a {type(x).__name__} ({error})", remedy) from error


def _joined(device: Devices) -> str:
    """The names of devices as one text."""
    if isinstance(device, str):
        return device
    try:
        return ",".join(device)
    except TypeError:
        expected = 'a device, such as "cuda:1", or several, such as "cuda:0,1" or a list'
        raise refused("device", repr(device), expected) from None


def on(device: Devices, **arrays: Any) -> str:
    """``device`` as one text; for ``auto``, the device of the arrays that lie on one.

    Raises:
        ArgumentError: if it is another GPU than that of an array.
    """
    device = _joined(device)
    for name, array in arrays.items():
        if not isinstance(array, _tagore.DeviceArray):
            continue
        if device == "auto":
            device = array.device
        named = "cuda:0" if device == "cuda" else device
        if named.startswith("cuda") and named != array.device:
            expected = f"{array.device}, whose memory holds {name}, or cpu"
            raise refused("device", repr(device), expected)
    return device


def leaves_on(device: str, output: str) -> bool:
    """Whether results stay on the device, which must then be a GPU.

    Raises:
        ArgumentError: if it may be the CPU, or the output is unknown.
    """
    if output == "numpy":
        return False
    if output != "device":
        raise refused("output", repr(output), '"numpy" or "device"')
    if device in ("auto", "cpu"):
        raise refused("device", f'{device!r} with output="device"', 'a GPU, such as "cuda"')
    if "," in device:
        raise refused("device", f'{device!r} with output="device"', 'one GPU, such as "cuda"')
    return True


def host_array(x: Any, name: str, kind: str = "float32") -> Array:
    """The array ``x`` in host memory, as an array of NumPy that shares its memory.

    ``kind`` is the type that errors recommend.
    """
    if isinstance(x, np.ndarray):
        return x
    try:
        x = _detached(x)
        where = _device(x)
    except Exception as error:
        raise refused(name, f"an array whose device is unknown ({error})", f"numpy.asarray({name})") from error
    if where is not None:
        call = f"{name}.get()" if type(x).__module__.startswith("cupy") else f"{name}.cpu()"
        raise refused(name, f"an array on {where}", f"one in host memory: call {call}")
    found = type(x).__name__
    try:
        if hasattr(x, "__array_interface__"):
            return np.asarray(x)
        if hasattr(x, "__dlpack__"):
            return np.from_dlpack(x)
    except Exception as error:
        remedy = f"one that NumPy can read: call {name}.float() for another type"
        raise refused(name, f"a {found} ({error})", remedy) from error
    expected = f"an array: call numpy.asarray({name}, dtype=numpy.{kind})"
    if hasattr(x, "to_numpy"):
        expected = f'an array: call {name}.to_numpy(dtype="{kind}")'
    raise refused(name, f"a {found}", expected)


def rows(x: Any, name: str, convert: bool = False) -> Rows:
    """The rows of ``x``, shape (n, dim), as the native module takes them.

    With ``convert`` other types become float32, and other orders are copied. Arrays on a GPU stay
    as they are.
    """
    there = device_array(x, name)
    if there is not None:
        return there
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


def own_ids(ids: Any) -> tuple[Array, Array]:
    """Own ids as uint64, and a copy in their own type, which is that of results."""
    array = host_array(ids, "ids", "uint64")
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise refused("ids", f"{array.ndim}-D {array.dtype}", "a 1-D array of integers")
    if array.dtype.kind == "i" and array.size > 0 and array.min() < 0:
        raise refused("ids", f"the id {array.min()}", "ids of at least 0")
    kept = array.astype(array.dtype.newbyteorder("="))
    kept.flags.writeable = False
    return array.astype(np.uint64), kept


def passing(rows: Any, name: str = "filter") -> Array:
    """A set of rows as the native module takes it: bools, or ids of uint64."""
    if isinstance(rows, (set, frozenset, list, tuple, range)):
        values = list(rows)
        try:
            array = np.asarray(values, dtype=None if values else np.int64)
        except Exception as error:
            raise refused(name, f"a {type(rows).__name__}", "ids") from error
    else:
        array = host_array(rows, name, "uint64")
    if array.ndim != 1 or array.dtype.kind not in "biu":
        raise refused(name, f"{array.ndim}-D {array.dtype}", "a 1-D array of bools or of ids")
    if array.dtype.kind == "b":
        return array
    if array.dtype.kind == "i" and array.size > 0 and array.min() < 0:
        raise refused(name, f"the id {array.min()}", "ids of at least 0")
    return array.astype(np.uint64)


def whole(value: Any, name: str) -> int:
    """A whole number from 0."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 0:
        raise refused(name, repr(value), "a whole number from 0")
    if value >= 1 << 63:
        raise refused(name, repr(value), "a smaller number")
    return int(value)
