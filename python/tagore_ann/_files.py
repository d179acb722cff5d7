"""Files of vectors and of ground truths."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from . import _tagore
from ._arrays import Array, bfloat16, matrix, rows
from ._errors import refused
from ._index import Path, _path, given
from ._progress import Progress, reporting

Format = Literal["fvecs", "bvecs", "fbin", "f16bin", "bf16bin", "u8bin", "i8bin", "b1bin", "npy"]


def read(path: Path, format: Format | None = None) -> Array:
    """Maps a file of vectors: fvecs, bvecs, fbin, f16bin, bf16bin, u8bin, i8bin, b1bin or npy.

    Args:
        path: the file. It must not change while the array is used.
        format: its format; by the extension unless given.

    Returns:
        The rows in place, shape (n, dim), read only. Rows of fvecs and bvecs are strided. bf16 is
        `ml_dtypes.bfloat16` if that package is installed, else plain values of 2 bytes (`V2`), as
        NumPy loads it. Bits are bytes of eight, as of ``numpy.packbits(bitorder="little")``.

    Raises:
        FileError: if the file cannot be read, or its size contradicts its header.

    >>> import os, tempfile, numpy as np, tagore_ann
    >>> path = os.path.join(tempfile.mkdtemp(), "x.fvecs")
    >>> tagore_ann.write(path, np.eye(3, dtype=np.float32))
    >>> x = tagore_ann.read(path)
    >>> x.shape, x.strides, x[1].tolist()
    ((3, 3), (16, 4), [0.0, 1.0, 0.0])
    """
    array = _tagore.read(_path(path, "path"), given(format=format))
    # The native module gives bf16, and nothing else, as its bits.
    return array.view(bfloat16()) if array.dtype == np.uint16 else array


def write(
    path: Path,
    x: Any,
    format: Format | None = None,
    *,
    convert: bool = True,
    progress: Progress = None,
) -> None:
    """Writes vectors to a file. It appears when it is complete.

    Args:
        path: the file.
        x: vectors, shape (n, dim). They are converted to the type of the format if every value
            fits.
        format: the format; by the extension unless given.
        convert: False refuses what needs a copy.
        progress: True for a bar, or a callable that takes each `Update`.

    Raises:
        ArgumentError: if a value does not fit the format.
        FileError: if the file cannot be written.
    """
    _path(path, "path")
    array = rows(x, "x", convert)
    with reporting(progress) as callback:
        _tagore.write(path, array, given(format=format, progress=callback))


def read_truth(path: Path) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.float32] | None]:
    """Reads a ground truth: ivecs, ibin, npy, or ids and distances as big-ann-benchmarks has them.

    Returns:
        Rows of the true neighbours, shape (m, k), and their distances in the same order, or None.

    Raises:
        FileError: if the file cannot be read, or its size contradicts its header.
    """
    return _tagore.read_truth(_path(path, "path"), {})


def write_truth(path: Path, ids: Any, distances: Any = None) -> None:
    """Writes a ground truth: ids and distances in the layout of big-ann-benchmarks.

    Args:
        path: the file. Its extension may be ivecs, ibin or npy for ids alone.
        ids: rows of the true neighbours, nearest first, shape (m, k).
        distances: their distances, shape (m, k).

    Raises:
        ArgumentError: if the shapes differ.
        FileError: if the file cannot be written.

    >>> import os, tempfile, numpy as np, tagore_ann
    >>> path = os.path.join(tempfile.mkdtemp(), "truth.bin")
    >>> x = np.eye(5, dtype=np.float32)
    >>> tagore_ann.write_truth(path, *tagore_ann.exact(x, x, k=3))
    >>> tagore_ann.read_truth(path)[0].shape
    (5, 3)
    """
    rows_of = matrix(ids, "ids", "iu", "rows of ids, shape (m, k)")
    if rows_of.size > 0 and (rows_of.min() < 0 or rows_of.max() > _tagore.MISSING):
        wrong = rows_of.min() if rows_of.min() < 0 else rows_of.max()
        raise refused("ids", f"the id {wrong}", f"rows of the base, 0 to {_tagore.MISSING}")
    far = None
    if distances is not None:
        far = matrix(distances, "distances", "f", f"floats of shape {rows_of.shape}")
        if far.shape != rows_of.shape:
            raise refused("distances", f"{far.dtype} of shape {far.shape}", f"floats of shape {rows_of.shape}")
        far = far.astype(np.float32)
    _tagore.write_truth(_path(path, "path"), rows_of.astype(np.uint32), far)
