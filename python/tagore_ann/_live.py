"""Live indexes: rows come, go and change while searches run."""

from __future__ import annotations

import os
from types import TracebackType
from typing import Any

import numpy as np

from . import _tagore
from ._arrays import Array, own_ids, rows, whole
from ._build import Collect, Kind, Rule
from ._errors import Error, refused
from ._index import Path, given
from ._metric import Metric, measure
from ._progress import Progress, reporting
from ._results import Found, found
from ._update import on_host

_TYPES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "uint8": "u8", "int8": "i8"}


class LiveIndex:
    """An index in a folder, whose rows come, go and change while other threads search it.

    Rows have the caller's ids. A change that has returned is on disk: after a crash, `open` finds
    the index as the last change left it. Changes take turns; searches do not wait for them, and see
    the index as it was when they began. One process at a time has the folder open.

    >>> import os, tempfile, numpy as np, tagore_ann
    >>> x = np.random.default_rng(0).standard_normal((2000, 16), dtype=np.float32)
    >>> folder = os.path.join(tempfile.mkdtemp(), "products")
    >>> with tagore_ann.LiveIndex.create(folder, dim=16) as index:
    ...     index.insert(x, ids=np.arange(2000) + 7_000_000_000)
    ...     index.remove([7_000_000_003])
    ...     ids, distances = index.search(x[5], k=1)
    1
    >>> ids.tolist()
    [7000000005]
    >>> with tagore_ann.LiveIndex.open(folder) as index:
    ...     len(index), 7_000_000_003 in index
    (1999, False)
    """

    __slots__ = ("_folder", "_is_root", "_native")
    _native: _tagore.LiveIndex
    _folder: str
    _is_root: bool

    def __init__(self) -> None:
        raise Error("LiveIndex: found a call, expected LiveIndex.create(folder, dim=..) or LiveIndex.open(folder)")

    @classmethod
    def _of(cls, native: _tagore.LiveIndex, folder: Path) -> LiveIndex:
        self = object.__new__(cls)
        self._native = native
        self._folder = os.path.abspath(folder)
        return self

    @classmethod
    def create(
        cls,
        folder: Path,
        dim: int,
        kind: Kind = "cagra",
        metric: Metric = "l2",
        *,
        dtype: Any = np.float32,
        knn: int | None = None,
        degree: int | None = None,
        candidates: int | None = None,
        collect: Collect | None = None,
        rule: Rule | None = None,
        alpha: float | None = None,
        seed: int = 0,
        device: str = "auto",
        search_device: str = "cpu",
        synced: bool = True,
        automatic: bool = True,
    ) -> LiveIndex:
        """Makes an empty index in a new or empty folder.

        Args:
            folder: the folder.
            dim: components per row; of bits, eight times the bytes.
            kind: the kind of the graph.
            metric: ``l2``, ``ip``, ``cosine``, or ``hamming`` of packed bits.
            dtype: the type of rows: float32, float16, bfloat16, uint8 or int8.
            knn, degree, candidates, collect, rule, alpha, seed: as of `build`.
            device: what makes the graphs: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
            search_device: what searches: ``cpu``, ``auto``, ``cuda`` or ``cuda:N``. A GPU gets a
                copy of each new graph and its rows.
            synced: whether a change waits until it is on disk. False may lose the last changes in a
                crash of the system, but not of the process.
            automatic: whether changes bring the graph up to date now and then. If False, call
                `consolidate` from time to time, in a thread of its own: no change waits for it.

        Raises:
            FileError: if the folder holds files, or cannot be made.
            ArgumentError: if an argument is out of its range.
        """
        measured = measure(metric)
        if measured.is_root:
            raise refused("metric", repr(metric), '"l2", whose distances are squared')
        name = "b1" if measured.of_bits else _TYPES.get(np.dtype(dtype).name)
        if name is None:
            raise refused("dtype", str(np.dtype(dtype)), "float32, float16, bfloat16, uint8 or int8")
        options = given(
            kind=kind, metric=measured.name, dtype=name, knn=knn, degree=degree, candidates=candidates,
            collect=collect, rule=rule, alpha=alpha, seed=seed, device=device,
            search_device=search_device, synced=synced, automatic=automatic,
        )  # fmt: skip
        return cls._of(_tagore.LiveIndex.create(os.fspath(folder), whole(dim, "dim"), options), folder)

    @classmethod
    def open(
        cls,
        folder: Path,
        *,
        device: str = "auto",
        search_device: str = "cpu",
        synced: bool = True,
        automatic: bool = True,
    ) -> LiveIndex:
        """Opens the index in a folder, as its last change left it; arguments as of `create`.

        Raises:
            FileError: if there is none, it is open elsewhere, or a file is damaged.
        """
        options = given(device=device, search_device=search_device, synced=synced, automatic=automatic)
        return cls._of(_tagore.LiveIndex.open(os.fspath(folder), options), folder)

    @property
    def folder(self) -> str:
        """The folder."""
        return self._folder

    @property
    def kind(self) -> str:
        """The kind of the graph."""
        return self._native.about()[0]

    @property
    def metric(self) -> str:
        """The metric."""
        return self._native.about()[1]

    @property
    def dim(self) -> int:
        """Components per row."""
        return self._native.about()[2]

    @property
    def dtype(self) -> str:
        """The type of the components, such as ``f32``."""
        return self._native.about()[3]

    @property
    def recent(self) -> int:
        """Rows that searches compare one by one; the others are in the graph."""
        return self._native.about()[5]

    def __len__(self) -> int:
        return self._native.about()[4]

    def __contains__(self, id: int) -> bool:
        return 0 <= id < 1 << 64 and self._native.contains(id)

    def __repr__(self) -> str:
        try:
            kind, metric, dim, element, n, _ = self._native.about()
        except Error:
            return "<tagore_ann.LiveIndex: closed>"
        return f"<tagore_ann.LiveIndex: {kind} of {n} x {dim} {element}, {metric}>"

    def insert(
        self, x: Any, ids: Any, *, threads: int | None = None, progress: Progress = None, convert: bool = True
    ) -> None:
        """Inserts rows. One whose id is there already replaces that row.

        Now and then a call brings the graph up to date, and takes longer.

        Args:
            x: rows, shape (m, dim), or one row, shape (dim,), of the index's type.
            ids: the caller's ids, m integers from 0, or one for one row; each once.
            threads: threads of the call; one per core unless given.
            progress: True for a bar, or a callable that takes each `Update` of work on the graph.
            convert: False refuses what needs a copy.

        Raises:
            ArgumentError: if the rows do not fit the index, or an id is repeated.
            FileError: if the disk is full. Nothing is inserted then.
        """
        array = on_host(x, "x", convert, self.dtype == "b1")
        with reporting(progress) as callback:
            self._native.insert(_ids(ids), array, given(threads=threads, progress=callback))

    def remove(self, ids: Any, *, threads: int | None = None, progress: Progress = None) -> int:
        """Removes the rows of ids, or of one id, and returns how many there were."""
        with reporting(progress) as callback:
            return self._native.remove(_ids(ids), given(threads=threads, progress=callback))

    def consolidate(self, *, threads: int | None = None, progress: Progress = None) -> bool:
        """Brings the graph up to date with the rows of now; says whether there was anything to do.

        Changes do so now and then. A service may, when it has time: other threads insert, remove
        and search meanwhile.
        """
        with reporting(progress) as callback:
            return self._native.consolidate(given(threads=threads, progress=callback))

    def search(
        self,
        q: Any,
        k: int = 10,
        beam: int | None = None,
        *,
        filter: Any = None,
        radius: float | None = None,
        threads: int | None = None,
        convert: bool = True,
    ) -> Found:
        """Finds the k nearest rows for each query.

        Args:
            q: queries, shape (m, dim), or one query, shape (dim,).
            k: neighbours per query.
            beam: as of `Index.search`.
            filter: ids of the rows that may be found.
            radius: only rows at this distance or nearer; still at most k.
            threads: threads of the call; one per core unless given.
            convert: False refuses what needs a copy.

        Returns:
            A pair of ids and distances, shape (m, k) each, nearest first. Empty slots have the id
            2**64 - 1 and the distance infinity. For one query: shape (found,) each, without them.
        """
        array = rows(q, "q", convert, bits=self.dtype == "b1", single=True)
        is_one = isinstance(array, np.ndarray) and array.ndim == 1
        queries = array[None] if isinstance(array, np.ndarray) and is_one else array
        passing = None if filter is None else _ids(filter, "filter")
        options = given(beam=beam, filter=passing, radius=radius, threads=threads)
        ids, distances, computed, short = self._native.search(queries, whole(k, "k"), options)
        if is_one:
            count = int((distances[0] != np.inf).sum())
            return found(ids[0, :count], distances[0, :count], None, None)
        return found(ids, distances, computed, short)

    def close(self) -> None:
        """Closes the folder. Calls afterwards fail; those that run end first."""
        self._native.close()

    def __enter__(self) -> LiveIndex:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _ids(ids: Any, name: str = "ids") -> Array:
    """Ids as uint64; one integer is one id."""
    if isinstance(ids, (int, np.integer)) and not isinstance(ids, bool):
        ids = [ids]
    return own_ids(ids, name)[0]
