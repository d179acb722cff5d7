"""Graph indexes for approximate nearest-neighbour search, built on a GPU or a CPU.

>>> import numpy as np, tagore_ann
>>> x = np.random.default_rng(0).standard_normal((10_000, 32), dtype=np.float32)
>>> index = tagore_ann.build(x, "nsg")
>>> ids, distances = index.search(x[:100], k=10)
>>> ids.shape
(100, 10)

The logger ``tagore_ann`` gets the events of the library: stages with their times at DEBUG.
"""

import os as _os

from . import _tagore
from ._build import Kind, build, build_file, exact, knn_graph, plan
from ._errors import (
    ArgumentError,
    DeviceError,
    Error,
    FileError,
    MissingFileError,
    OutOfMemoryError,
)
from ._files import read, read_truth, write, write_truth
from ._foreign import IndexFormat
from ._index import Index
from ._live import LiveIndex
from ._merge import merge
from ._metric import Metric
from ._progress import Update
from ._results import Found, Report

__version__: str = _tagore.__version__

DeviceArray = _tagore.DeviceArray

MISSING: int = _tagore.MISSING
"""The id of an empty slot: 2**32 - 1."""

if hasattr(_os, "register_at_fork"):
    _os.register_at_fork(after_in_child=_tagore.forked)

__all__ = [
    "MISSING",
    "ArgumentError",
    "DeviceArray",
    "DeviceError",
    "Error",
    "FileError",
    "Found",
    "Index",
    "IndexFormat",
    "Kind",
    "LiveIndex",
    "Metric",
    "MissingFileError",
    "OutOfMemoryError",
    "Report",
    "Update",
    "__version__",
    "build",
    "build_file",
    "exact",
    "knn_graph",
    "merge",
    "plan",
    "read",
    "read_truth",
    "write",
    "write_truth",
]
