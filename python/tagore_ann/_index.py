"""The index."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from . import _tagore
from ._arrays import Array, Devices, Output, bfloat16, leaves_on, matrix, on, own_ids, passing, rows, whole
from ._errors import Error, FileError, refused
from ._foreign import IndexFormat, recognised
from ._metric import Measure, Metric, measure
from ._progress import Progress, reporting
from ._results import Found, Report, found
from ._update import appended, ids_of_all, on_host

Path = str | os.PathLike[str]
Walked = Literal["full", "f16", "int8"]


def given(**options: Any) -> dict[str, Any]:
    """The options that are not None."""
    return {name: value for name, value in options.items() if value is not None}


class Index:
    """A graph index over n rows of dim values, with the rows themselves (`base`) if they are known.

    `build`, `build_file` and `Index.open` make one. It does not change: `update` makes another.
    Threads may search one at the same time. Ids are rows of the base, or the caller's own ids if
    they were given.

    >>> import numpy as np, tagore_ann
    >>> x = np.random.default_rng(0).standard_normal((2000, 16), dtype=np.float32)
    >>> index = tagore_ann.build(x, "nsg")
    >>> index
    <tagore_ann.Index: nsg of 2000 x 16 float32, l2, degree 50>
    >>> ids, distances = index.search(x[:3], k=5)
    >>> ids[:, 0].tolist()
    [0, 1, 2]
    """

    __slots__ = ("__weakref__", "_about", "_base", "_graph", "_ids", "_measure", "_native", "_path", "_report")
    _native: _tagore.Index
    _about: dict[str, Any]
    _base: Any
    _ids: Any
    _measure: Measure
    _path: str | None
    _report: Report | None
    _graph: npt.NDArray[np.uint32] | None

    def __init__(self) -> None:
        raise Error("Index: found a call, expected tagore_ann.build(x) or tagore_ann.Index.open(path)")

    @classmethod
    def _of(cls, native: _tagore.Index, base: Any, ids: Any, path: Path | None, measured: Measure) -> Index:
        self = object.__new__(cls)
        self._native = native
        self._about = json.loads(native.describe())
        self._base = base
        self._ids = ids
        self._measure = Measure(self._about["metric"], measured.is_root)
        self._path = None if path is None else os.path.abspath(path)
        self._report = None
        self._graph = None
        return self

    # --- Files

    @classmethod
    def open(
        cls,
        path: Path,
        base: Any = None,
        *,
        ids: Any = None,
        format: IndexFormat | None = None,
        metric: Metric | None = None,
        base_format: str | None = None,
        threads: int | None = None,
        progress: Progress = None,
        convert: bool = True,
    ) -> Index:
        """Opens an index file and maps it: nothing may write the file while the index is used.

        Args:
            path: a file of `Index.save` or of the command, or with ``base`` one of another system.
            base: the vectors of the index, shape (n, dim), or the path of their file. Without them
                there is a graph, but no searches.
            ids: the caller's own ids, n integers, or the path of a file of u64 (npy or u64bin).
                Unless given, those of a file of hnswlib or FAISS, if they are not 0 to n - 1.
            format: the format of ``path``; by its first bytes, else its extension, unless given.
            metric: the metric of a file of another system, which does not hold it, l2 unless given;
                or ``euclidean`` for the roots of l2.
            base_format: the format of the file ``base``; by its extension unless given.
            threads: threads of the call; one per core unless given.
            progress: True for a bar, or a callable that takes each `Update`.
            convert: False refuses a base that needs a copy.

        Raises:
            FileError: if a file cannot be read or is damaged.
            ArgumentError: if the base is not that of the index.

        >>> import os, tempfile, numpy as np, tagore_ann
        >>> x = np.random.default_rng(0).standard_normal((500, 8), dtype=np.float32)
        >>> path = os.path.join(tempfile.mkdtemp(), "x.tagore")
        >>> tagore_ann.build(x, "cagra").save(path)
        >>> tagore_ann.Index.open(path, base=x).search(x[7], k=1)[0].tolist()
        [7]
        """
        path = os.fspath(_path(path, "path"))
        is_file = isinstance(base, (str, os.PathLike))
        element = _tagore.index_element(path)
        measured = measure("l2" if metric is None else metric)
        if element is None:
            format = recognised(os.fspath(path)) if format is None else format
            if format is None and os.path.isfile(path):
                expected = 'those of an index, or its format, such as format="nsg"'
                raise FileError(f"{path}: found unknown first bytes and an unknown extension, expected {expected}")
            if base is None and format not in (None, "tagore"):
                raise refused("base", f"none for a file of {format}", "the vectors: Index.open(path, base=x)")
        of_bits = measured.of_bits if element is None else element == "b1"
        if measured.of_bits and not of_bits:
            raise refused("metric", f"hamming for an index of {element} vectors", "that of the file: leave it out")
        array = None if base is None or is_file else rows(base, "base", convert, bits=of_bits)
        own, kept = (ids, ids) if ids is None or isinstance(ids, (str, os.PathLike)) else own_ids(ids)
        with reporting(progress) as callback:
            options = given(
                base=base if is_file else None, base_format=base_format, format=format,
                metric=None if metric is None else measured.name, ids=own, threads=threads, progress=callback,
            )  # fmt: skip
            native = _tagore.open(path, array, options)
        if kept is None and element is None:
            kept = native.own_ids()
        return cls._of(native, os.path.abspath(base) if is_file else array, kept, path, measured)

    def save(self, path: Path) -> None:
        """Writes the index, without the vectors and ids. The file appears when it is complete.

        Raises:
            FileError: if the file cannot be written, or is that of the base or the ids.
        """
        path = os.fspath(_path(path, "path"))
        self._native.save(path, {})
        self._path = os.path.abspath(path)

    def to(
        self,
        format: IndexFormat,
        path: Path,
        *,
        layers: bool | None = None,
        pq_chunks: int | None = None,
        threads: int | None = None,
        progress: Progress = None,
    ) -> None:
        """Writes the index in the format of another system. `Index.open` reads it back.

        Ids in the file are rows of the base, not own ids.

        Args:
            format: ``hnswlib``, ``faiss-nsg``, ``faiss-hnsw``, ``diskann``, ``diskann-disk``,
                ``nsg``, ``nssg``, ``kgraph``, ``npy``, ``csr`` or ``ibin`` (docs/formats.md).
            path: the file.
            layers: build the layers of HNSW above the graph; True for hnswlib and faiss-hnsw unless
                given.
            pq_chunks: bytes per vector of the product quantizer of ``diskann-disk``.
            threads: threads of the call; one per core unless given.
            progress: True for a bar, or a callable that takes each `Update`.

        Raises:
            ArgumentError: if the format needs vectors and the index has none, or cannot hold them.
            FileError: if the file cannot be written, or is that of the base or the ids.
        """
        path = os.fspath(_path(path, "path"))
        if layers is None:
            layers = format in ("hnswlib", "faiss-hnsw")
        with reporting(progress) as callback:
            options = given(
                format=format,
                layers=layers,
                pq_chunks=pq_chunks,
                threads=threads,
                progress=callback,
            )
            self._native.export(path, options)

    def __reduce__(self) -> tuple[Any, ...]:
        """The graph, the vectors and the ids, whether they are in memory or in files."""
        with tempfile.TemporaryDirectory(prefix="tagore-") as folder:
            path = os.path.join(folder, "index.tagore")
            self._native.save(path, {})
            graph = np.fromfile(path, np.uint8)
        base, ids = self._rows(), self._ids
        if isinstance(ids, (str, os.PathLike)):
            ids = self._native.own_ids()
        return _unpickled, (graph, base, ids, self._measure.is_root, self._report)

    # --- Searches

    def search(
        self,
        q: Any,
        k: int | None = None,
        beam: int | None = None,
        *,
        filter: Any = None,
        radius: float | None = None,
        device: Devices = "auto",
        width: int | None = None,
        vectors: Walked = "full",
        rerank: int | None = None,
        threads: int | None = None,
        progress: Progress = None,
        convert: bool = True,
        output: Output = "numpy",
    ) -> Found:
        """Finds the k nearest rows of the base for each query.

        Args:
            q: queries, shape (m, dim), or one query, shape (dim,).
            k: neighbours per query, 1 to n; 10, or n if that is less, unless given.
            beam: nodes that the search expands, on average over queries, at least k: more find more
                and take longer. 100 unless given, or 2 k if that is more, up to 512.
            filter: rows that may be found: n bools, or ids.
            radius: only rows at this distance or nearer; still at most k.
            device: ``auto``, ``cpu``, ``cuda``, ``cuda:N``, or several that share the queries, as
                ``cuda:0,1`` or a list.
            width: nodes that a search on a GPU expands per step, 1 to 8.
            vectors: what the search walks on: ``full``, the vectors themselves, or their codes in
                ``f16`` or ``int8``, which the first such search makes and the index keeps.
            rerank: nodes of the beam that a search on codes compares by the vectors themselves; 128
                unless given, or 2 k if that is more.
            threads: threads of the call; one per core unless given.
            progress: True for a bar, or a callable that takes each `Update`.
            convert: False refuses what needs a copy.
            output: ``numpy``, or ``device`` for results in the memory of the device: one GPU, by
                name or by ``auto`` for queries or a base that lie on one.

        Returns:
            A pair of ids and distances, shape (m, k) each, nearest first. Distances are those of
            the metric: squared under l2, 1 - cos under cosine and minus the product under ip. Empty
            slots, after fewer
            than k rows found, have the id `MISSING` (of own ids: the largest of an unsigned type,
            -1 of a signed one) and the distance infinity. For one query: shape (found,) each,
            without empty slots. On a device: two `DeviceArray` of shape (m, k), for rows of
            queries; ids are rows of the base, so the index must have no own ids.

        Raises:
            ArgumentError: if an argument is out of its range, or q does not fit the base.
            DeviceError: if the device is missing or fails.

        >>> import numpy as np, tagore_ann
        >>> x = np.random.default_rng(0).standard_normal((1000, 8), dtype=np.float32)
        >>> index = tagore_ann.build(x, ids=np.arange(1000) + 5000)
        >>> ids, distances = index.search(x[:2], k=3, filter=[5000, 5001, 5007])
        >>> ids.shape, ids[:, 0].tolist()
        ((2, 3), [5000, 5001])
        """
        k = min(10, max(len(self), 1)) if k is None else whole(k, "k")
        array = rows(q, "q", convert, bits=self._measure.of_bits, single=True)
        device = on(device, q=array, base=self._base)
        to_device = leaves_on(device, output)
        options = given(
            beam=beam, filter=None if filter is None else passing(filter), radius=self._measure.radius(radius),
            device=device, width=width, vectors=vectors, rerank=rerank, threads=threads,
        )  # fmt: skip
        if to_device:
            measure(self.metric, output)
            if self._ids is not None:
                raise refused("output", repr(output), '"numpy": own ids are in host memory')
            left: Any
            if progress is None:
                left = _tagore.search_on_device(self._native, array, k, options)
            else:
                with reporting(progress) as callback:
                    left = _tagore.search_on_device(self._native, array, k, options | given(progress=callback))
            ids, distances = left
            return found(ids, distances, None, None)
        is_single = array.ndim == 1
        if isinstance(array, np.ndarray) and is_single:
            if not self._measure.of_bits:
                ids, distances, own = _tagore.search_one(self._native, _single(array), k, options)
                return self._found(ids, distances, own, None, int(len(ids) < k))
            array = array[None]
        with reporting(progress) as callback:
            (ids, distances), own, computed, short = _tagore.search(
                self._native, array, k, options | given(progress=callback)
            )
        if is_single:
            there = ids[0] != _tagore.MISSING
            ids, distances, own = ids[0, there], distances[0, there], None if own is None else own[there]
            return self._found(ids, distances, own, None, short)
        return self._found(ids, distances, own, computed, short)

    def _found(self, ids: Array, distances: Array, own: Array | None, computed: int | None, short: int) -> Found:
        """Results with own ids, and distances of the metric."""
        return found(self._named(ids, own), self._measure.distances(distances), computed, short)

    def _named(self, rows: npt.NDArray[np.uint32], own: npt.NDArray[np.uint64] | None) -> Array:
        if own is None:
            return rows
        own = own.reshape(rows.shape)
        dtype = getattr(self._ids, "dtype", own.dtype)
        # Both uint64's largest value and -1 are the same bits.
        return own.astype(dtype) if np.dtype(dtype).itemsize < 8 else own.view(dtype)

    def evaluate(
        self,
        q: Any,
        truth: Any,
        k: int | None = None,
        beams: Sequence[int] | None = None,
        *,
        filter: Any = None,
        device: Devices = "auto",
        vectors: Walked = "full",
        rerank: int | None = None,
        threads: int | None = None,
        progress: Progress = None,
        convert: bool = True,
    ) -> list[dict[str, Any]]:
        """Measures recall and throughput at several beams.

        Args:
            q: queries, shape (m, dim).
            truth: rows of their true neighbours, nearest first, shape (m, at least k), as of
                `exact`.
            k: neighbours that count; 10, or as many as the truth has, unless given.
            beams: the beams; 10, 20, 50, 100 and 200 unless given, from k on.
            filter: rows that may be found, as in `search`; others in the truth do not count.
            device: ``auto``, ``cpu``, ``cuda``, ``cuda:N``, or several that share the queries, as
                ``cuda:0,1`` or a list.
            vectors: what searches walk on, as in `search`.
            rerank: nodes that searches on codes rerank, as in `search`.
            threads: threads of the call; one per core unless given.
            progress: True for a bar, or a callable that takes each `Update`.
            convert: False refuses queries that need a copy.

        Returns:
            A dict per beam: ``beam``, ``recall``, ``qps`` and ``distances`` per query.

        >>> import numpy as np, tagore_ann
        >>> x = np.random.default_rng(0).standard_normal((3000, 8), dtype=np.float32)
        >>> truth, _ = tagore_ann.exact(x, x[:50], k=10)
        >>> [at] = tagore_ann.build(x, "vamana").evaluate(x[:50], truth, beams=[100])
        >>> at["recall"] > 0.95
        True
        """
        ids = matrix(truth, "truth", "iu", "rows of ids, shape (m, k)")
        if ids.size > 0 and (ids.min() < 0 or ids.max() >= len(self)):
            wrong = ids.min() if ids.min() < 0 else ids.max()
            raise refused("truth", f"the id {wrong}", f"rows of the base, 0 to {len(self) - 1}")
        if beams is None:
            least = min(10, ids.shape[1]) if k is None else whole(k, "k")
            beams = [beam for beam in (10, 20, 50, 100, 200) if beam >= least] or [least, 2 * least]
        beams = [whole(beam, "beams") for beam in beams]
        if not beams:
            raise refused("beams", "none", "at least one beam")
        with reporting(progress) as callback:
            options = given(
                k=None if k is None else whole(k, "k"),
                filter=None if filter is None else passing(filter),
                device=device,
                vectors=vectors,
                rerank=rerank,
                threads=threads,
                progress=callback,
            )
            array = rows(q, "q", convert, bits=self._measure.of_bits)
            options["device"] = on(device, q=array, base=self._base)
            figures = _tagore.evaluate(self._native, array, ids.astype(np.uint32), beams, options)
        return list(json.loads(figures))

    # --- Updates

    def update(
        self,
        base: Any,
        *,
        remove: Any = None,
        replace: Any = None,
        ids: Any = None,
        device: str = "auto",
        threads: int | None = None,
        progress: Progress = None,
        convert: bool = True,
    ) -> Index:
        """Makes the index of a base that has changed. This index stays as it is.

        Rows keep their numbers and their own ids. Removed rows are left out: no search returns
        them. If more rows come than stay, the index is built anew.

        Args:
            base: the vectors after the change, shape (n, dim), or the path of their file: first the
                rows of this index, then rows to insert. Arrays on a GPU are copied to the host.
            remove: rows to remove: a bool per row of this index, or ids.
            replace: rows with other vectors than before, or removed rows that come back: bools or
                ids.
            ids: own ids of the appended rows, or of all n rows; or the path of a file of n ids. An
                index with own ids needs them for appended rows.
            device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``. A GPU builds the index anew.
            threads: threads of the call; one per core unless given.
            progress: True for a bar, or a callable that takes each `Update`.
            convert: False refuses a base that needs a copy.

        Raises:
            ArgumentError: if the base has fewer rows than this index, or other vectors in rows that
                are not replaced; or if another system has built this index.
            FileError: if the file of this index is damaged.

        >>> import numpy as np, tagore_ann
        >>> x = np.random.default_rng(0).standard_normal((1200, 8), dtype=np.float32)
        >>> index = tagore_ann.build(x[:1000], "nsg")
        >>> index = index.update(x, remove=[3, 17])
        >>> len(index), index.search(x[1100], k=1)[0].tolist()
        (1200, [1100])
        >>> bool(np.isin([3, 17], index.search(x, k=5)[0]).any())
        False
        """
        is_file = isinstance(base, (str, os.PathLike))
        array = None if is_file else on_host(base, "base", convert, self._measure.of_bits)
        n = len(array) if array is not None else _tagore.shape(_path(base, "base"), {})[1]
        if n < len(self):
            raise refused("base", f"{n} rows", f"at least the {len(self)} of the index")
        options = given(
            base=os.path.abspath(base) if is_file else None, device=device, threads=threads,
            remove=None if remove is None else passing(remove, "remove"),
            replace=None if replace is None else passing(replace, "replace"),
        )  # fmt: skip
        return self._updated(array, n, ids, options, progress)

    def insert(
        self,
        x: Any,
        *,
        ids: Any = None,
        device: str = "auto",
        threads: int | None = None,
        progress: Progress = None,
        convert: bool = True,
    ) -> Index:
        """Makes the index of the base with the rows of x behind: `update` of a copy of all rows.

        Args:
            x: rows of the type of the base, shape (m, dim), or one row, shape (dim,).
            ids: their own ids; needed if the index has own ids.
            device: as of `update`.
            threads: as of `update`.
            progress: as of `update`.
            convert: False refuses rows that need a copy.

        Raises:
            ArgumentError: if the index has no base, or x does not fit it.

        >>> import numpy as np, tagore_ann
        >>> x = np.random.default_rng(0).standard_normal((1001, 8), dtype=np.float32)
        >>> index = tagore_ann.build(x[:1000], "nsg", ids=np.arange(1000) + 5000)
        >>> index.insert(x[1000], ids=[7]).search(x[1000], k=1)[0].tolist()
        [7]
        """
        base = self._rows()
        if base is None:
            raise refused("base", "none", "the vectors: Index.open(path, base=x)")
        every = appended(base, on_host(x, "x", convert, self._measure.of_bits))
        return self._updated(every, len(every), ids, given(device=device, threads=threads), progress)

    def remove(
        self,
        ids: Any,
        *,
        device: str = "auto",
        threads: int | None = None,
        progress: Progress = None,
    ) -> Index:
        """Makes the index without some rows. The others keep their numbers.

        Args:
            ids: rows to remove: a bool per row, or ids.
            device: as of `update`.
            threads: as of `update`.
            progress: as of `update`.

        Raises:
            ArgumentError: if the index has no base, or an id is not in it.

        >>> import numpy as np, tagore_ann
        >>> x = np.random.default_rng(0).standard_normal((1000, 8), dtype=np.float32)
        >>> index = tagore_ann.build(x, "nsg").remove([7])
        >>> 7 in index.search(x[7])[0]
        False
        """
        array = self._base.numpy() if isinstance(self._base, _tagore.DeviceArray) else None
        options = given(remove=passing(ids, "ids"), device=device, threads=threads)
        return self._updated(array, len(self), None, options, progress)

    def _rows(self) -> Any:
        """The base in host memory, or None."""
        if isinstance(self._base, _tagore.DeviceArray):
            return self._base.numpy()
        if not isinstance(self._base, str):
            return self._base
        base = self._native.rows()
        return base.view(bfloat16()) if base is not None and base.dtype == np.uint16 else base

    def _updated(self, array: Any, n: int, ids: Any, options: dict[str, Any], progress: Progress) -> Index:
        """The index of n rows: of an array, of the file ``base`` of the options, or its own."""
        of_known = self._native.own_ids()
        if of_known is not None:
            own, kept = ids_of_all(self._ids, of_known, ids, n)
        else:
            own, kept = (ids, ids) if ids is None or isinstance(ids, (str, os.PathLike)) else own_ids(ids)
        with reporting(progress) as callback:
            native = _tagore.update(self._native, array, options | given(ids=own, progress=callback))
        base = options.get("base", self._base) if array is None else array
        return Index._of(native, base, kept, None, self._measure)

    # --- What it holds

    @property
    def graph(self) -> npt.NDArray[np.uint32]:
        """The graph in place: rows of the neighbours of each node, shape (n, degree), read only.

        Slots after a node's last neighbour hold `MISSING`.
        """
        if self._graph is None:
            self._graph = self._native.graph()
        return self._graph

    def neighbors(self, node: int) -> npt.NDArray[np.uint32]:
        """The neighbours of a node, as rows of the base.

        Raises:
            ArgumentError: if the node is not 0 to n - 1.
        """
        if isinstance(node, bool) or not isinstance(node, (int, np.integer)):
            raise refused("node", repr(node), f"0 to {len(self) - 1}")
        return self._native.neighbors(min(int(node), 1 << 62))

    @property
    def report(self) -> Report:
        """Quality and build cost, measured by the first use; the keys are those of docs/report.md.

        >>> import numpy as np, tagore_ann
        >>> x = np.random.default_rng(0).standard_normal((2000, 8), dtype=np.float32)
        >>> report = tagore_ann.build(x, "nsg").report
        >>> report["search"]["recall"] > 0.95, report["unreachable"]
        (True, 0)
        """
        if self._report is None:
            values, html = self._native.report({})
            self._report = Report(json.loads(values), html)
        return self._report

    def verify(self) -> None:
        """Checks the whole index: checksums of its file, ids, degrees.

        Raises:
            FileError: if the file is damaged.
        """
        self._native.verify({})

    @property
    def base(self) -> Any:
        """The vectors: the array that was given, or the path of their file. None if unknown."""
        return self._base

    @property
    def ids(self) -> Any:
        """A copy of the caller's own ids, or the path of their file, or None."""
        return self._ids

    @property
    def path(self) -> str | None:
        """The file that the index was opened from or saved to last."""
        return self._path

    @property
    def kind(self) -> str:
        """The kind, such as ``nsg``."""
        return str(self._about["kind"])

    @property
    def metric(self) -> Metric:
        """The metric: ``l2``, ``euclidean``, ``ip``, ``cosine`` or ``hamming``."""
        return "euclidean" if self._measure.is_root else self._measure.name

    @property
    def dim(self) -> int:
        """Values per row."""
        return int(self._about["dim"])

    @property
    def degree(self) -> int:
        """The largest degree, R."""
        return int(self._about["degree"])

    @property
    def mean_degree(self) -> float:
        """The mean degree."""
        return self._native.mean_degree()

    @property
    def entries(self) -> list[int]:
        """Entry points of searches."""
        return list(self._about["entries"])

    @property
    def seed(self) -> int:
        """The seed of the build."""
        return int(self._about["seed"])

    @property
    def parameters(self) -> dict[str, str]:
        """The parameters of the build, named as in the command."""
        return dict(self._about["parameters"])

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the values; uint8 for packed bits, whose dimension is in bits."""
        names = {"f32": "float32", "f16": "float16", "u8": "uint8", "i8": "int8", "b1": "uint8"}
        element = self._about["dtype"]
        return bfloat16() if element == "bf16" else np.dtype(names[element])

    def __len__(self) -> int:
        """The number of rows, n."""
        return int(self._about["n"])

    def __repr__(self) -> str:
        about = f"{self.kind} of {len(self)} x {self.dim} {self.dtype}"
        return f"<tagore_ann.Index: {about}, {self.metric}, degree {self.degree}>"


def _unpickled(graph: Array, base: Any, ids: Any, is_root: bool, report: Report | None) -> Index:
    """The index of a pickle."""
    with tempfile.TemporaryDirectory(prefix="tagore-") as folder:
        path = os.path.join(folder, "index.tagore")
        graph.tofile(path)
        own, kept = (None, None) if ids is None else own_ids(ids)
        native = _tagore.open(path, base, given(ids=own, in_memory=True))
    index = Index._of(native, base, kept, None, Measure("l2", is_root))
    index._report = report
    return index


def _single(query: Array) -> npt.NDArray[np.float32]:
    """A query as float32."""
    if query.dtype.kind == "V":
        # Without ml_dtypes bf16 is its bits: the upper half of those of float32.
        return (query.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return np.ascontiguousarray(query, np.float32)


def _path(path: Any, name: str) -> Any:
    """A path, or an error."""
    if not isinstance(path, (str, os.PathLike)) or "\0" in str(path):
        raise refused(name, repr(path), "a path")
    return path
