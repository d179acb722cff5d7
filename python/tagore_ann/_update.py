"""Rows and own ids of an updated index."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _tagore
from ._arrays import Array, own_ids, rows
from ._errors import refused


def on_host(x: Any, name: str, convert: bool, bits: bool) -> Array:
    """The rows of ``x`` in host memory: an update reads them there."""
    array = rows(x, name, convert, bits=bits, single=name == "x")
    if isinstance(array, _tagore.DeviceArray):
        if not convert:
            raise refused(name, f"an array on {array.device}", "one in host memory, or leave out convert=False")
        array = array.numpy()
    return array if array.ndim == 2 else array[None]


def appended(base: Array, x: Array) -> Array:
    """A copy of ``base`` with the rows of ``x`` behind."""
    if x.shape[1] != base.shape[1]:
        raise refused("x", f"{x.shape[1]} values per row", f"{base.shape[1]} as in the base")
    if x.dtype != base.dtype:
        raise refused("x", f"values of {x.dtype}", f"{base.dtype} as in the base: call x.astype(index.dtype)")
    return np.concatenate([base, x])


def ids_of_all(known: Any, own: npt.NDArray[np.uint64], ids: Any, n: int) -> tuple[Any, Any]:
    """Own ids of ``n`` rows as the native module takes them, and as the index keeps them.

    ``known`` and ``own`` are those of the first rows: as the index keeps them, and as uint64.
    """
    new, is_file = n - len(own), isinstance(known, (str, os.PathLike))
    if ids is None:
        if new > 0:
            raise refused("ids", "none", f"own ids of the {new} appended rows: the others have some")
        return known if is_file else own, known
    if isinstance(ids, (str, os.PathLike)):
        return ids, ids
    given, kept = own_ids(ids)
    if len(given) == n:
        return given, kept
    if len(given) != new:
        raise refused("ids", f"{len(given)} ids", f"{new}, one per appended row, or {n}, one per row")
    every = np.concatenate([own, given])
    kept = every if is_file else every.astype(known.dtype)
    if not np.array_equal(kept.astype(np.uint64), every):
        raise refused("ids", f"the id {given.max()}", f"ids of {known.dtype} as those of the other rows")
    kept.flags.writeable = False
    return every, kept
