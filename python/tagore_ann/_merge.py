"""Merges of indexes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from . import _tagore
from ._arrays import own_ids
from ._errors import refused
from ._index import Index, given
from ._progress import Progress, reporting
from ._update import on_host


def merge(
    indexes: Sequence[Index],
    base: Any = None,
    *,
    ids: Any = None,
    device: str = "auto",
    threads: int | None = None,
    progress: Progress = None,
    convert: bool = True,
) -> Index:
    """Makes one index of indexes over different rows. They stay as they are.

    On a CPU this takes less time than a build: the graph of the largest index stays, and the others
    join it. Rows that an index leaves out stay out. Parameters are those of the first index.

    Args:
        indexes: indexes of one kind, metric, dimension and type.
        base: the rows of all indexes, in their order, shape (n, dim), or the path of their file; a
            copy of the bases of the indexes unless given.
        ids: own ids of all n rows, or the path of a file of n ids; those of the indexes unless
            given.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``. A GPU builds the index anew.
        threads: threads of the call; one per core unless given.
        progress: True for a bar, or a callable that takes each `Update`.
        convert: False refuses a base that needs a copy.

    Raises:
        ArgumentError: if the indexes differ, the base has other rows, some of the indexes have own
            ids and some none, or another system has built them.
        FileError: if the file of an index is damaged.

    >>> import numpy as np, tagore_ann
    >>> x = np.random.default_rng(0).standard_normal((1200, 8), dtype=np.float32)
    >>> parts = [tagore_ann.build(x[:700], "nsg"), tagore_ann.build(x[700:], "nsg")]
    >>> index = tagore_ann.merge(parts, x)
    >>> len(index), index.search(x[1100], k=1)[0].tolist()
    (1200, [1100])
    """
    indexes = list(indexes)
    if not indexes or not all(isinstance(index, Index) for index in indexes):
        raise refused("indexes", repr(indexes)[:80], "a list of at least one Index")
    first = indexes[0]
    if base is None:
        base = _joined(indexes)
    is_file = isinstance(base, (str, os.PathLike))
    array = None if is_file else on_host(base, "base", convert, first._measure.of_bits)
    own = [index._native.own_ids() for index in indexes]
    if ids is None and any(one is not None for one in own):
        known = [one for one in own if one is not None]
        if len(known) < len(own):
            raise refused("ids", "none", "own ids of all rows: some of the indexes have none")
        ids = np.concatenate(known)
    given_ids, kept = (ids, ids) if ids is None or isinstance(ids, (str, os.PathLike)) else own_ids(ids)
    options = given(
        base=os.path.abspath(base) if is_file else None, device=device, threads=threads, ids=given_ids
    )  # fmt: skip
    with reporting(progress) as callback:
        natives = [index._native for index in indexes]
        native = _tagore.merge(natives, array, options | given(progress=callback))
    return Index._of(native, base if is_file else array, kept, None, first._measure)


def _joined(indexes: list[Index]) -> Any:
    """A copy of the bases of all indexes."""
    bases = [index._rows() for index in indexes]
    if any(base is None for base in bases):
        raise refused("base", "none", "the rows of all indexes: merge(indexes, x)")
    shapes = {(base.shape[1], base.dtype) for base in bases}
    if len(shapes) > 1:
        raise refused("indexes", "rows of several shapes or types", "one dimension and type")
    return np.concatenate(bases)
