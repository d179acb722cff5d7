"""Index files of other systems, by their first bytes."""

from __future__ import annotations

import os
import struct
from typing import Literal, get_args

IndexFormat = Literal[
    "tagore", "hnswlib", "faiss-nsg", "faiss-hnsw", "diskann", "diskann-disk", "nsg", "nssg", "kgraph",
    "npy", "csr", "ibin",
]  # fmt: skip
"""A format of index files (docs/formats.md)."""

# The first bytes of files of one format alone.
_MAGIC: dict[bytes, IndexFormat] = {
    b"INSf": "faiss-nsg", b"IHNf": "faiss-hnsw", b"KNNGRAPH": "kgraph", b"\x93NUMPY": "npy",
}  # fmt: skip

# FAISS's maps of ids, and the bytes before the index that they hold.
_ID_MAPS, _ID_MAP_BYTES = (b"IxMp", b"IxM2"), 37

# hnswlib's header: offset of the base layer, most elements, elements, bytes of an element, offsets
# of its label and its vector, highest layer, entry point, largest degrees above and in the base
# layer.
_HNSWLIB = struct.Struct("<QQQQQQiIQQ")


def recognised(path: str) -> IndexFormat | None:
    """The format of a file of another system, by its first bytes, else by its extension."""
    try:
        with open(path, "rb") as file:
            start, size = file.read(128), os.fstat(file.fileno()).st_size
    except OSError:
        start, size = b"", 0
    if start.startswith(_ID_MAPS):
        start = start[_ID_MAP_BYTES:]
    for magic, format in _MAGIC.items():
        if start.startswith(magic):
            return format
    if len(start) >= _HNSWLIB.size and _is_hnswlib(start, size):
        return "hnswlib"
    if len(start) >= 24 and struct.unpack_from("<Q", start)[0] == size:
        return "diskann"
    extension = os.path.splitext(path)[1][1:].lower()
    return next((format for format in get_args(IndexFormat) if format == extension), None)


def _is_hnswlib(start: bytes, size: int) -> bool:
    base, room, count, element, label, vector, _, entry, _, degree = _HNSWLIB.unpack_from(start)
    fits = vector == 4 + 4 * degree and label == element - 8 and vector < label
    return bool(base == 0 and fits and entry < count <= room and size > count * element)
