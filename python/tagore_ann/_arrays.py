"""Arrays of other libraries: in host memory as arrays of NumPy, or on a GPU.

What lends its memory is taken without a copy. The rest is copied, unless the caller forbids it.
"""

import importlib
import logging
import os
import sys
from collections.abc import Iterator, KeysView, Mapping, Sequence, ValuesView
from numbers import Real
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from . import _tagore
from ._errors import Error, refused

# The device types of DLPack whose memory the CPU reads.
_HOST = (1, 3)

_LOGGER = logging.getLogger("tagore_ann")

Array = npt.NDArray[Any]


def bfloat16() -> np.dtype[Any]:
    """The type of bf16 in NumPy: that of ml_dtypes, else plain values of its size."""
    try:
        found: np.dtype[Any] = np.dtype(importlib.import_module("ml_dtypes").bfloat16)
        return found
    except ImportError:
        return np.dtype("V2")


def _is_bfloat16(dtype: np.dtype[Any]) -> bool:
    return dtype.name == "bfloat16" or (dtype.kind == "V" and dtype.itemsize == 2 and dtype.names is None)


def _device(x: Any) -> str | None:
    """The device of an array that is not in host memory."""
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


def _library(x: Any) -> str:
    """The package that the type of x is from."""
    return type(x).__module__.partition(".")[0]


def device_array(x: Any, name: str) -> _tagore.DeviceArray | None:
    """The array ``x`` in the memory of a CUDA device, or None if it is elsewhere."""
    if isinstance(x, _tagore.DeviceArray):
        return x
    if isinstance(x, np.ndarray) or _library(x) == "pyarrow":
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


# --- Any array as one of NumPy


def _to_host(x: Any) -> str:
    """The method of an array on a device that copies it to the host."""
    return {"cupy": "get()", "tagore_ann": "numpy()"}.get(_library(x), "cpu()")


def _lent(x: Any, name: str) -> Array | None:
    """The array of NumPy that shares the memory of ``x``, or None if it has to be copied."""
    if isinstance(x, np.ndarray):
        return x
    if _library(x) == "pyarrow":
        return _lent_of_arrow(x)
    try:
        x = _detached(x)
        where = _device(x)
    except Exception as error:
        raise refused(name, f"an array whose device is unknown ({error})", f"numpy.asarray({name})") from error
    if where is not None:
        raise refused(name, f"an array on {where}", f"one in host memory: call {name}.{_to_host(x)}")
    if hasattr(x, "__array_interface__"):
        try:
            return np.asarray(x)
        except Exception as error:
            raise refused(name, f"a {type(x).__name__} ({error})", "one that NumPy can read") from error
    if hasattr(x, "__dlpack__"):
        if str(getattr(x, "dtype", "")) == "torch.bfloat16" and str(getattr(x, "layout", "")) == "torch.strided":
            # NumPy's own types lack it, so its bits are lent.
            bits: Array = x.view(sys.modules["torch"].int16).numpy()
            return bits.view(bfloat16())
        try:
            return np.from_dlpack(x)
        except Exception:
            return None
    return None


def _lent_of_arrow(x: Any) -> Array | None:
    """The values of a fixed-size list of pyarrow, which holds no nulls."""
    if getattr(x, "num_chunks", 0) == 1:
        x = x.chunk(0)
    x = getattr(x, "storage", x)
    size = getattr(getattr(x, "type", None), "list_size", None)
    if not size or not hasattr(x, "flatten") or hasattr(x, "num_chunks") or x.null_count:
        return None
    values = x.flatten()
    if values.null_count or not hasattr(values, "to_numpy"):
        return None
    try:
        found: Array = values.to_numpy(zero_copy_only=True).reshape(len(x), size)
        return found
    except Exception:
        return None


def _from_arrow(x: Any, name: str) -> Array:
    """A copy of an array, a column or a table of pyarrow."""
    if hasattr(x, "columns"):
        columns = [_from_arrow(one, name) for one in x.columns]
        return columns[0] if len(columns) == 1 else np.column_stack(columns)
    if x.null_count:
        raise refused(name, f"{x.null_count} nulls", f"none: call {name}.drop_null()")
    if hasattr(x, "num_chunks") and x.num_chunks == 1:
        x = x.chunk(0)
    lent = _lent_of_arrow(x)
    if lent is not None:
        return lent
    if hasattr(x, "chunks"):
        return np.concatenate([_from_arrow(one, name) for one in x.chunks]) if x.num_chunks else np.empty(0)
    return np.asarray(getattr(x, "storage", x).to_numpy(zero_copy_only=False))


def _copied(x: Any, name: str) -> Array:
    """A copy of lists, frames, columns, and of whatever else NumPy reads; perhaps of objects."""
    if isinstance(x, (str, bytes, os.PathLike)):
        raise refused(name, f"a {type(x).__name__}", f"an array: call tagore_ann.read({name}) for a file of vectors")
    if isinstance(x, Mapping):
        raise refused(name, f"a {type(x).__name__}", f"an array: call list({name}.values())")
    if isinstance(x, (set, frozenset, Iterator)):
        raise refused(name, f"a {type(x).__name__} object", f"an array: call list({name})")
    if x is None:
        raise refused(name, "None", "an array of numbers")
    if isinstance(x, (KeysView, ValuesView)):
        x = list(x)
    if hasattr(x, "toarray"):
        raise refused(name, f"a sparse {type(x).__name__}", f"a dense array: call {name}.toarray()")
    if hasattr(x, "to_dense") and "sparse" in str(getattr(x, "layout", "")):
        raise refused(name, f"a sparse {type(x).__name__}", f"a dense array: call {name}.to_dense()")
    try:
        if _library(x) == "pyarrow":
            return _from_arrow(x, name)
        if isinstance(x, (list, tuple)) and len(x) > 0 and not isinstance(x[0], (list, tuple, Real)):
            return _stacked(x, name)
        if hasattr(x, "to_numpy"):
            return np.asarray(x.to_numpy())
        if _library(x) == "torch":
            x = x.float()  # a type that NumPy lacks
        return np.asarray(x)
    except Error:
        raise
    except Exception as error:
        if isinstance(x, (list, tuple)) and "inhomogeneous" in str(error):
            return _stacked(x, name)
        raise refused(name, f"a {type(x).__name__} ({error})", "an array of numbers") from error


def _stacked(cells: Sequence[Any] | Array, name: str) -> Array:
    """Rows that are arrays or lists each, as one array."""
    found: list[Array] = []
    for number, cell in enumerate(cells):
        if cell is None or isinstance(cell, (str, bytes, Real)):
            kind = "None" if cell is None else f"a {type(cell).__name__}"
            raise refused(name, f"{kind} in row {number}", "rows of numbers alone")
        if not isinstance(cell, np.ndarray) and _device(cell) is not None:
            call = f"[row.{_to_host(cell)} for row in {name}]"
            raise refused(name, f"rows on {_device(cell)}", f"rows in host memory: call {call}")
        lent = _lent(cell, name)
        row = _copied(cell, name) if lent is None else lent
        if found and row.shape != found[0].shape:
            expected = f"{_count(found[0])} as in row 0"
            raise refused(name, f"{_count(row)} in row {number}", expected)
        found.append(row)
    return np.stack(found)


def _count(row: Array) -> str:
    return f"{row.size} values" if row.ndim == 1 else f"an array of shape {row.shape}"


def _numbers(array: Array, name: str) -> Array:
    """An array of objects as one of numbers; others as they are, if they hold numbers."""
    if isinstance(array, np.ma.MaskedArray):
        if np.ma.is_masked(array):
            raise refused(name, "masked values", f"none: call {name}.filled(0), or leave their rows out")
        array = array.data
    if array.dtype.kind == "O" and array.size:
        if array.ndim == 2 and array.shape[1] == 1 and not isinstance(array[0, 0], Real):
            array = array[:, 0]
        if array.ndim == 1 and not isinstance(array[0], (Real, str, type(None))):
            array = _stacked(array, name)
        else:
            wrong = next((cell for cell in array.flat if not isinstance(cell, Real)), None)
            if wrong is not None:
                raise refused(name, f"the value {wrong!r}", "numbers alone")
            array = np.asarray(array.tolist())
    kind, dtype = array.dtype.kind, array.dtype
    if kind == "c":
        raise refused(name, f"values of {dtype}", f"real numbers: call {name}.view({name}.real.dtype) for both parts")
    if kind in "mM":
        raise refused(name, f"values of {dtype}", f"numbers: call {name}.astype(numpy.int64)")
    if dtype.names:
        raise refused(name, f"records of {dtype}", f"rows of numbers: call {name}.tolist()")
    if kind not in "biufV" or (kind == "V" and dtype.type is np.void and not _is_bfloat16(dtype)):
        raise refused(name, f"values of {dtype}", "numbers")
    return array


# Types of vectors; bf16 is another.
_TYPES = frozenset(map(np.dtype, ("float32", "float16", "uint8", "int8")))


def _has_type(array: Array) -> bool:
    return array.dtype.newbyteorder("=") in _TYPES or _is_bfloat16(array.dtype)


def _narrowed(array: Array, name: str) -> Array:
    """The values in a type of vectors: float32, or uint8 for bools."""
    if array.dtype.kind == "b":
        return array.astype(np.uint8)
    with np.errstate(over="ignore"):
        narrow = array.astype(np.float32, order="C")
    if array.dtype.kind == "f" and array.size and not np.isfinite([narrow.max(), narrow.min()]).all():
        lost = np.isinf(narrow) & np.isfinite(array)
        if lost.any():
            value, place = array[lost][0], np.argwhere(lost)[0].tolist()
            raise refused(
                name, f"{value} at {place}", f"numbers that float32 holds, at most {np.finfo(np.float32).max}"
            )
    _LOGGER.info("%s: %s is copied as float32", name, array.dtype)
    return narrow


def _packed(array: Array, name: str) -> Array:
    """Bits, eight to a byte: packed bools, or bytes as they are."""
    if array.dtype.kind == "b":
        return np.packbits(array, axis=-1, bitorder="little")
    if array.dtype not in (np.uint8, np.int8):
        call = f'numpy.packbits(numpy.asarray({name}) > 0, axis=-1, bitorder="little")'
        raise refused(name, f"values of {array.dtype}", f"uint8 of eight bits each for hamming: call {call}")
    return array.view(np.uint8)


def _are_rows(array: Array) -> bool:
    """Whether the native module reads these rows in place."""
    size = array.dtype.itemsize
    if not array.dtype.isnative or not array.flags.aligned:
        return False
    if array.ndim != 2:
        return array.flags.c_contiguous
    (count, dim), (stride, step) = array.shape, array.strides
    return (step == size or dim < 2) and (count < 2 or (stride >= dim * size and stride % size == 0))


def _in_place(array: Array, name: str, bits: bool) -> None:
    """Refuses an array that the native module would need a copy of."""
    if bits and array.dtype.kind == "b":
        found, call = "bools", f'numpy.packbits({name}, axis=-1, bitorder="little")'
    elif array.dtype.kind == "O":
        found, call = "objects", ""
    elif not _has_type(array):
        found, call = str(array.dtype), f'numpy.array({name}, dtype=numpy.float32, order="C")'
    elif not _are_rows(array):
        dtype = f"{name}.dtype" if _is_bfloat16(array.dtype) else f"numpy.{array.dtype.name}"
        found, call = "another order than rows one after another", f'numpy.array({name}, dtype={dtype}, order="C")'
    else:
        return
    remedy = f"call {call}, or leave out convert=False" if call else "leave out convert=False"
    raise refused(name, found, f"an array that needs no copy: {remedy}")


def rows(x: Any, name: str, convert: bool = True, *, bits: bool = False, single: bool = False) -> Rows:
    """The rows of ``x``, shape (n, dim), as the native module takes them.

    Other types become float32, and other orders are copied, if ``convert``. Arrays on a GPU stay as
    they are. ``bits`` takes bytes of eight bits, or bools. ``single`` takes a row too, shape
    (dim,).
    """
    # Most arrays, in a microsecond.
    is_plain = type(x) is np.ndarray and x.dtype in _TYPES and x.flags.c_contiguous and x.flags.aligned
    if is_plain and not bits and (x.ndim == 2 or (single and x.ndim == 1)):
        return x  # type: ignore[no-any-return]
    there = device_array(x, name)
    if there is not None:
        if bits:
            raise refused(
                name, f"an array on {there.device}", f"one in host memory for hamming: call {name}.{_to_host(x)}"
            )
        return there
    array = _lent(x, name)
    if array is None:
        array = _copied(x, name)
        if not convert:
            raise refused(name, f"a {type(x).__name__}", "an array that needs no copy: leave out convert=False")
    if not convert:
        _in_place(array, name, bits)
    array = _numbers(array, name)
    if array.ndim != 2 and not (single and array.ndim == 1):
        remedy = {
            0: "2: rows and columns",
            1: f"2: call numpy.reshape({name}, (1, -1)) for one row, or numpy.reshape({name}, (-1, 1)) for one column",
        }.get(array.ndim, f"2: call numpy.reshape({name}, (len({name}), -1))")
        raise refused(name, f"{array.ndim} dimensions", remedy)
    if bits:
        array = _packed(array, name)
    if not _has_type(array):
        array = _narrowed(array, name)
    return array if _are_rows(array) else np.array(array, dtype=array.dtype.newbyteorder("="), order="C")


def _column(x: Any, name: str, expected: str) -> Array:
    """The values of ``x``, whole numbers or bools."""
    if isinstance(x, (str, bytes, os.PathLike)):
        raise refused(name, repr(x), expected)
    if isinstance(x, (set, frozenset, KeysView, ValuesView)):
        x = list(x)
    if isinstance(x, (list, tuple)):
        array = _whole_numbers(x) if x else np.empty(0, np.int64)
    elif isinstance(x, range):
        array = np.arange(x.start, x.stop, x.step)
    else:
        lent = _lent(x, name)
        array = _copied(x, name) if lent is None else lent
    if array.dtype.kind == "O" and all(isinstance(value, (int, np.integer, np.bool_)) for value in array.flat):
        array = _whole_numbers(array.tolist())
    if array.dtype.kind == "f" and array.size and not np.isnan(array).any():
        raise refused(name, f"values of {array.dtype}", f"integers: call numpy.asarray({name}, dtype=numpy.int64)")
    if array.dtype.kind not in "biu":
        raise refused(name, f"{array.ndim}-D {array.dtype}", expected)
    if array.ndim != 1:
        raise refused(name, f"{array.ndim} dimensions", f"1: call numpy.ravel({name})")
    if array.dtype.kind == "i" and array.size > 0 and array.min() < 0:
        raise refused(name, f"the id {array.min()}", "ids of at least 0")
    return array


def _whole_numbers(values: Sequence[Any]) -> Array:
    """Values as an array: NumPy makes floats of integers on both sides of 2**63."""
    try:
        array = np.asarray(values)
        if array.dtype.kind in "fO" and all(isinstance(value, (int, np.integer)) for value in values):
            array = np.asarray(values, dtype=np.uint64)
        return array
    except (ValueError, TypeError, OverflowError):
        return np.asarray(values, dtype=object)


_IDS, _SETS = "a 1-D array of integers of at least 0", "a 1-D array of bools or of ids"


def own_ids(ids: Any, name: str = "ids") -> tuple[Array, Array]:
    """Own ids as uint64, and a copy in their own type, which is that of results."""
    array = _column(ids, name, _IDS)
    if array.dtype.kind == "b":
        raise refused(name, "bools", _IDS)
    kept = array.astype(array.dtype.newbyteorder("="))
    kept.flags.writeable = False
    return array.astype(np.uint64), kept


def passing(rows: Any, name: str = "filter") -> Array:
    """A set of rows as the native module takes it: bools, or ids of uint64."""
    array = _column(rows, name, _SETS)
    return array if array.dtype.kind == "b" else array.astype(np.uint64)


def matrix(x: Any, name: str, kinds: str, expected: str) -> Array:
    """The values of ``x``, shape (m, k), of one of the kinds of NumPy."""
    lent = _lent(x, name)
    array = _numbers(_copied(x, name) if lent is None else lent, name)
    if array.ndim != 2 or array.dtype.kind not in kinds:
        raise refused(name, f"{array.ndim}-D {array.dtype}", expected)
    return array


def whole(value: Any, name: str) -> int:
    """A whole number from 0."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 0:
        raise refused(name, repr(value), "a whole number from 0")
    if value >= 1 << 63:
        raise refused(name, repr(value), "a smaller number")
    return int(value)
