"""Data sets of parts in a store, and copies of some of their rows."""

import numpy as np
import pytest
import tagore_ann

pytest.importorskip("obstore")

from tagore_ann import FileError
from tagore_ann._base import Base, find
from tagore_ann._store import PIECE, Store, split

TYPES = {"fvecs": "f4", "bvecs": "u1", "fbin": "f4", "f16bin": "f2", "u8bin": "u1", "i8bin": "i1", "npy": "f2"}


def rows_of(name, rows):
    """Rows of the type of a format."""
    return np.random.default_rng(len(name)).integers(0, 100, (rows, 7)).astype(TYPES[name])


@pytest.mark.parametrize("name", TYPES)
def test_files_are_one_data_set(tmp_path, name):
    x = rows_of(name, 100)
    urls = []
    for number, part in enumerate(np.split(x, [30, 31])):
        tagore_ann.write(tmp_path / f"{number}.{name}", part)
        urls.append(f"file://{tmp_path}/{number}.{name}")
    (tmp_path / "scratch").mkdir()
    base = find(urls, None, None, {}, tmp_path / "scratch")
    assert (base.rows, base.dim, base.local, base.column) == (100, 7, None, None)
    assert [part.rows for part in base.parts] == [30, 1, 69]
    again = Base.unpack(base.pack(b"rows"))
    assert again == (base, b"rows") and Base.unpack(base.pack(b"rows")[:-1]) is None
    path = tmp_path / "copy"
    base.create(path)
    base.fetch(path, [(0, 100)], {})
    whole = path.read_bytes()
    if name.endswith("vecs"):
        assert whole == b"".join((tmp_path / f"{number}.{name}").read_bytes() for number in range(3))
    else:
        assert np.array_equal(tagore_ann.read(path, base.format), x)
    # Some rows, over the boundaries of parts; the others are holes.
    base.create(path)
    base.fetch(path, [(5, 7), (29, 40), (99, 100)], {})
    values = np.frombuffer(path.read_bytes()[len(base.header) :], np.uint8).reshape(100, base.stride)
    full = np.frombuffer(whole[len(base.header) :], np.uint8).reshape(100, base.stride)
    there = [5, 6, *range(29, 40), 99]
    assert np.array_equal(values[there], full[there])
    assert not np.delete(values, there, axis=0).any()
    # Single rows come back.
    assert base.read_rows(path, [6, 99]) == full[[6, 99]].tobytes()
    base.create(path)
    base.write_rows(path, [6, 99], full[[6, 99]].tobytes())
    assert base.read_rows(path, [6, 7, 99]) == full[6].tobytes() + bytes(base.stride) + full[99].tobytes()


@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8", "int8"])
def test_parquet_files_are_one_data_set(tmp_path, dtype):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    x = np.random.default_rng(0).integers(0, 100, (500, 6)).astype(dtype)
    for number, part in enumerate(np.split(x, [123])):
        # A slice has rows before its first.
        vectors = pa.FixedSizeListArray.from_arrays(part.ravel(), 6)
        table = pa.table({"vector": vectors, "other": np.arange(len(part))})
        pq.write_table(table, tmp_path / f"part-{number}.parquet", row_group_size=50)
    base = find([f"{tmp_path}/"], None, "vector", {}, tmp_path)
    assert (base.rows, base.dim, base.column) == (500, 6, "vector")
    path = tmp_path / "copy"
    base.create(path)
    base.fetch(path, [(0, 500)], {})
    assert np.array_equal(tagore_ann.read(path, base.format), x)
    base.create(path)
    base.fetch(path, [(120, 130), (499, 500)], {})
    some = tagore_ann.read(path, base.format)
    assert np.array_equal(some[120:130], x[120:130]) and np.array_equal(some[499], x[499])
    assert not some[130:499].any()
    for column, text in [("none", "column: found none, expected one of vector, other"), (None, "column: found none")]:
        with pytest.raises(ValueError, match=text):
            find([f"{tmp_path}/part-0.parquet"], None, column, {}, tmp_path)
    with pytest.raises(FileError, match=r"found int64 in column other, expected a fixed-size list"):
        find([f"{tmp_path}/part-0.parquet"], None, "other", {}, tmp_path)


def test_parquet_with_nulls_or_of_damage_is_refused(tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    vectors = pa.array([[1.0, 2.0], None, [3.0, 4.0]], pa.list_(pa.float32(), 2))
    pq.write_table(pa.table({"vector": vectors}), tmp_path / "x.parquet")
    base = find([f"{tmp_path}/x.parquet"], None, None, {}, tmp_path)
    base.create(tmp_path / "copy")
    with pytest.raises(FileError, match=r"x.parquet: found nulls in column vector, expected vectors alone"):
        base.fetch(tmp_path / "copy", [(0, 3)], {})
    (tmp_path / "y.parquet").write_bytes(b"no parquet at all")
    with pytest.raises(FileError, match=r"y.parquet: found no sound Parquet"):
        find([f"{tmp_path}/y.parquet"], None, None, {}, tmp_path)


def test_a_wrong_file_is_named_by_its_url(tmp_path):
    (tmp_path / "x.fbin").write_bytes(bytes(100))
    (tmp_path / "scratch").mkdir()
    with pytest.raises(FileError, match=rf"^file://{tmp_path}/x.fbin: found"):
        find([f"file://{tmp_path}/x.fbin"], None, None, {}, tmp_path / "scratch")
    with pytest.raises(FileError, match=rf"{tmp_path}/none/: found no objects that end with .fbin"):
        (tmp_path / "none").mkdir()
        find([f"{tmp_path}/none/"], "fbin", None, {}, tmp_path / "scratch")


def test_ranges_are_read_in_pieces_of_one_version(tmp_path, s3):
    store, name = split("s3://data/pieces/large", "x", s3.options)
    content = np.random.default_rng(0).bytes(2 * PIECE + 12_345)
    assert store.put(name, content) and not store.put(name, b"other"), "an object stays"
    begin = store.begin(name, 100)
    assert begin.bytes == content[:100] and begin.size == len(content)
    copy = tmp_path / "copy"
    copy.write_bytes(bytes(50))
    ranges = [(7, PIECE + 9), (PIECE + 10, len(content))]
    store.copy(name, ranges, copy, at=3, tag=begin.tag)
    expected = bytearray(len(content) + 3)
    for start, end in ranges:
        expected[start + 3 : end + 3] = content[start:end]
    assert copy.read_bytes() == bytes(expected)
    assert store.put(name, b"other", replace=True)
    with pytest.raises(FileError, match="s3://data/pieces/large: found another version"):
        store.copy(name, [(0, 5)], copy, tag=begin.tag)
    with pytest.raises(FileError, match="found an end at 5 bytes, expected 9"):
        store.read(name, 0, 9)
    store.put("empty", b"")
    assert store.begin("empty", 10)[:2] == (b"", 0)
    assert store.list() == {"large": 5, "empty": 0}
    assert Store(str(tmp_path / "nowhere"), {}, make=True).list() == {}
