"""A data set of one or more objects in stores, and copies of some of its rows."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from . import _tagore
from ._errors import Error, FileError, MissingFileError, refused
from ._index import given
from ._store import Store, split

HEADER = 1 << 16
"""First bytes of a file that hold its header."""

_ELEMENTS = {"f32": "fbin", "f16": "f16bin", "bf16": "bf16bin", "u8": "u8bin", "i8": "i8bin"}
"""The format of a copy, by the type of values."""

_COLUMNS = {"float": ("f32", 4), "halffloat": ("f16", 2), "uint8": ("u8", 1), "int8": ("i8", 1)}
"""Type and bytes of a value, by pyarrow's name."""


class Part(NamedTuple):
    """An object with adjacent rows of the data set."""

    url: str
    tag: str | None
    """Its version at the plan."""
    rows: int
    offset: int
    """Place of the first row; of no use in Parquet."""


class Base(NamedTuple):
    """A data set: its parts in order, as one."""

    parts: list[Part]
    format: str
    """The format of a copy."""
    dim: int
    stride: int
    """Bytes of a row, with the length that fvecs and bvecs have before it."""
    column: str | None
    """The column, if the parts are Parquet."""
    local: str | None = None
    """The format of the only part, if that is a file by its path: workers read it in place."""

    @property
    def rows(self) -> int:
        """Rows of all parts."""
        return sum(part.rows for part in self.parts)

    @property
    def header(self) -> bytes:
        """The header of a copy."""
        return b"" if self.format.endswith("vecs") else struct.pack("<II", self.rows, self.dim)

    def pack(self, rows: bytes) -> bytes:
        """The data set with rows of its fingerprint, as an object."""
        content = json.dumps(self._asdict()).encode() + b"\n" + rows
        return b"%08x\n%s" % (zlib.crc32(content), content)

    @staticmethod
    def unpack(packed: bytes) -> tuple[Base, bytes] | None:
        """The inverse of `pack`; None if the object is damaged."""
        checksum, _, content = packed.partition(b"\n")
        if checksum != b"%08x" % zlib.crc32(content):
            return None
        text, _, rows = content.partition(b"\n")
        fields = json.loads(text)
        return Base(**fields | {"parts": [Part(*part) for part in fields["parts"]]}), rows

    def create(self, path: Path) -> None:
        """Makes a file of the length of a copy, with the header and holes."""
        with path.open("wb") as file:
            file.write(self.header)
            file.truncate(len(self.header) + self.rows * self.stride)

    def fetch(self, path: Path, rows: list[tuple[int, int]], options: Mapping[str, Any] | None) -> None:
        """Copies ranges of rows to a file of `create`."""
        first = 0
        for part in self.parts:
            inside = [(max(0, start - first), min(part.rows, end - first)) for start, end in rows]
            inside = [(start, end) for start, end in inside if start < end]
            if inside:
                self._fetch(path, part, first, inside, options)
            first += part.rows

    def _fetch(
        self, path: Path, part: Part, first: int, rows: list[tuple[int, int]], options: Mapping[str, Any] | None
    ) -> None:
        store, name = split(part.url, "base", options)
        begin = len(self.header) + first * self.stride
        if self.column is None:
            ranges = [(part.offset + start * self.stride, part.offset + end * self.stride) for start, end in rows]
            store.copy(name, ranges, path, begin - part.offset, part.tag)
            return
        table = _opened(store, name, part.tag)
        with path.open("r+b") as file:
            for start, values in _groups(store, name, table, self.column, rows):
                file.seek(begin + start * self.stride)
                file.write(np.ascontiguousarray(values).tobytes())

    def write_rows(self, path: Path, rows: list[int], content: bytes) -> None:
        """Writes single rows, one after another in ``content``, to a file of `create`."""
        with path.open("r+b") as file:
            for place, row in enumerate(rows):
                file.seek(len(self.header) + row * self.stride)
                file.write(content[place * self.stride : (place + 1) * self.stride])

    def read_rows(self, path: Path, rows: list[int]) -> bytes:
        """The inverse of `write_rows`."""
        content = []
        with path.open("rb") as file:
            for row in rows:
                file.seek(len(self.header) + row * self.stride)
                content.append(file.read(self.stride))
        return b"".join(content)


def find(
    urls: list[str], format: str | None, column: str | None, options: Mapping[str, Any] | None, scratch: Path
) -> Base:
    """Reads the headers of the objects at ``urls``, or below a URL that ends with a slash.

    ``scratch`` is an empty folder.
    """
    urls = [one for url in urls for one in _listed(url, format, options)]
    if format == "parquet" or (format is None and urls[0].endswith(".parquet")):
        found = [_parquet(url, column, options) for url in urls]
    else:
        if column is not None:
            raise refused("column", column, "a column of Parquet files alone")
        found = [_file(url, format, options, scratch) for url in urls]
    first = found[0]
    for one in found[1:]:
        if one[1:] != first[1:]:
            expected = f"{first.format} with {first.dim} values per row as {urls[0]}"
            raise FileError(
                f"{one.parts[0].url}: found {one.format} with {one.dim} values per row, expected {expected}"
            )
    base = first._replace(parts=[one.parts[0] for one in found])
    if len(urls) == 1 and "://" not in urls[0] and base.column is None:
        base = base._replace(local=_tagore.shape(urls[0], given(format=format))[0])
    if base.rows >= _tagore.MISSING:
        raise refused("base", f"{base.rows} rows", f"fewer than {_tagore.MISSING}")
    return base


def _listed(url: str, format: str | None, options: Mapping[str, Any] | None) -> list[str]:
    if not url.endswith("/"):
        return [url]
    store = Store(url, options)
    end = f".{format or 'parquet'}"
    names = sorted(name for name in store.list() if name.endswith(end))
    if not names:
        raise MissingFileError(f"{url}: found no objects that end with {end}, expected parts of a data set")
    return [store.named(name) for name in names]


def _file(url: str, format: str | None, options: Mapping[str, Any] | None, scratch: Path) -> Base:
    """The data set of one file of vectors."""
    store, name = split(url, "base", options)
    begin = store.begin(name, HEADER)
    path = scratch / name
    try:
        with path.open("wb") as file:
            file.write(begin.bytes)
            file.truncate(begin.size)
        kind, rows, dim, size, element = _tagore.shape(path, given(format=format))
    except Error as error:
        fault = type(error)(str(error).replace(str(path), url))
    else:
        is_prefixed = kind.endswith("vecs")
        stride = dim * size + (4 if is_prefixed else 0)
        part = Part(url, begin.tag, rows, begin.size - rows * stride)
        return Base([part], kind if is_prefixed else _ELEMENTS[element], dim, stride, None)
    finally:
        path.unlink(missing_ok=True)
    raise fault


def _parquet(url: str, column: str | None, options: Mapping[str, Any] | None) -> Base:
    """The data set of a column of one Parquet file."""
    store, name = split(url, "base", options)
    tag = store.begin(name, 1).tag
    file = _opened(store, name, tag)
    schema = file.schema_arrow
    if column is None:
        if len(schema.names) != 1:
            raise refused("column", "none", f"the column of vectors, one of {', '.join(schema.names)}")
        column = schema.names[0]
    if column not in schema.names:
        raise refused("column", column, f"one of {', '.join(schema.names)} in {url}")
    kind = schema.field(column).type
    value = str(getattr(kind, "value_type", ""))
    dim = getattr(kind, "list_size", None)
    if not dim or value not in _COLUMNS:
        raise FileError(f"{url}: found {kind} in column {column}, expected a fixed-size list of {', '.join(_COLUMNS)}")
    element, size = _COLUMNS[value]
    return Base([Part(url, tag, file.metadata.num_rows, 0)], _ELEMENTS[element], dim, dim * size, column)


def _groups(store: Store, name: str, file: Any, column: str, rows: list[tuple[int, int]]) -> Any:
    """Rows of a column that lie in ``rows``, by row groups: the first row, and values."""
    first = 0
    for group in range(file.metadata.num_row_groups):
        count = file.metadata.row_group(group).num_rows
        inside = [(max(start, first), min(end, first + count)) for start, end in rows]
        inside = [(start, end) for start, end in inside if start < end]
        if inside:
            table = store.call(name, partial(file.read_row_group, group, columns=[column]))
            vectors = table.column(0).combine_chunks()
            if vectors.null_count or vectors.flatten().null_count:
                raise FileError(f"{store.named(name)}: found nulls in column {column}, expected vectors alone")
            values = vectors.flatten().to_numpy(zero_copy_only=False).reshape(count, -1)
            for start, end in inside:
                yield start, values[start - first : end - first]
        first += count


def _opened(store: Store, name: str, tag: str | None) -> Any:
    """A Parquet file."""
    try:
        import pyarrow.parquet
    except ImportError:
        raise Error("pyarrow: found no such package, expected `pip install pyarrow` for Parquet") from None
    reader = store.reader(name, store.begin(name, 1).size, tag)
    return store.call(name, lambda: pyarrow.parquet.ParquetFile(reader))
