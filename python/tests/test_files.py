"""Files: indexes, other systems, vectors, ground truths, builds out of core."""

import errno
import os

import numpy as np
import pytest
import tagore_ann


def test_an_index_comes_back_from_its_file(tmp_path, index, x, q):
    path = tmp_path / "x.tagore"
    index.save(path)
    opened = tagore_ann.Index.open(path, base=x)
    assert np.array_equal(opened.graph, index.graph)
    assert np.array_equal(opened.search(q)[0], index.search(q)[0])
    tagore_ann.write(tmp_path / "x.fbin", x)
    by_path = tagore_ann.Index.open(path, base=tmp_path / "x.fbin", ids=np.arange(3000) + 7)
    assert np.array_equal(by_path.search(q)[0], index.search(q)[0] + 7)
    by_path.verify()
    bare = tagore_ann.Index.open(path)
    assert np.array_equal(bare.graph, index.graph)
    with pytest.raises(tagore_ann.ArgumentError, match=r"base: found none, expected the vectors"):
        bare.search(q)
    with pytest.raises(tagore_ann.ArgumentError):
        tagore_ann.Index.open(path, base=x[::-1].copy())


@pytest.mark.parametrize("format", ["hnswlib", "faiss-nsg", "faiss-hnsw", "diskann", "nsg", "npy", "csr"])
def test_other_systems_take_the_graph_and_give_it_back(tmp_path, x, q, format):
    # npy holds rows of one degree alone.
    index = tagore_ann.build(x, "cagra" if format == "npy" else "nsg")
    path = tmp_path / f"x.{format}"
    index.to(format, path, layers=False)
    back = tagore_ann.Index.open(path, base=x, format=format)
    assert len(back) == 3000
    for node in range(0, 3000, 500):
        assert set(back.neighbors(node).tolist()) == set(index.neighbors(node).tolist())


def test_files_of_other_systems_are_known_by_their_first_bytes(tmp_path, x, q):
    hnswlib = pytest.importorskip("hnswlib")
    x = x[:500]
    index = tagore_ann.build(x)
    for format in ["hnswlib", "faiss-nsg", "faiss-hnsw", "diskann", "kgraph", "npy"]:
        path = tmp_path / format
        index.to(format, path, layers=False)
        back = tagore_ann.Index.open(path, base=x)
        assert back.kind == format and back.search(x[:20], 1)[0].ravel().tolist() == list(range(20))
        # The first bytes count, whatever the name.
        path.rename(tmp_path / "x.nsg")
        assert tagore_ann.Index.open(tmp_path / "x.nsg", base=x).kind == format
        with pytest.raises(
            tagore_ann.ArgumentError, match=f"base: found none for a file of {format}, expected the vec"
        ):
            tagore_ann.Index.open(tmp_path / "x.nsg")
    theirs = hnswlib.Index(space="l2", dim=24)
    theirs.init_index(max_elements=700, M=8)
    theirs.add_items(x, np.arange(500))
    theirs.save_index(str(tmp_path / "index.bin"))
    assert tagore_ann.Index.open(tmp_path / "index.bin", base=x).kind == "hnswlib"
    # Labels of its own come back, whatever the order in which threads inserted the rows.
    labels = np.arange(500)[::-1] * 7 + 2**40
    theirs = hnswlib.Index(space="l2", dim=24)
    theirs.init_index(max_elements=500, M=8)
    theirs.add_items(x, labels)
    theirs.save_index(str(tmp_path / "index.bin"))
    back = tagore_ann.Index.open(tmp_path / "index.bin", base=x)
    assert back.search(x[:20], 1)[0].ravel().tolist() == labels[:20].tolist()
    for format in ["nsg", "nssg", "csr", "ibin"]:
        index.to(format, tmp_path / f"y.{format}")
        assert tagore_ann.Index.open(tmp_path / f"y.{format}", base=x).kind == format
    (tmp_path / "unknown.bin").write_bytes(bytes(range(200)))
    with pytest.raises(tagore_ann.FileError, match=r"unknown\.bin: found unknown first bytes .* format="):
        tagore_ann.Index.open(tmp_path / "unknown.bin", base=x)


def test_hnswlib_searches_the_graph(tmp_path, x, q):
    hnswlib = pytest.importorskip("hnswlib")
    index = tagore_ann.build(x, "nsg")
    index.to("hnswlib", tmp_path / "x.hnswlib")
    theirs = hnswlib.Index(space="l2", dim=24)
    theirs.load_index(str(tmp_path / "x.hnswlib"))
    theirs.set_ef(100)
    ids, _ = theirs.knn_query(q, k=5)
    assert (ids == index.search(q, k=5, beam=100)[0]).mean() > 0.95


@pytest.mark.parametrize("clusters, sigma", [(500, 0.1), (50, 0.33), (100, 0.33)])
def test_hnswlib_finds_separate_clusters_and_takes_more_rows(tmp_path, clusters, sigma):
    hnswlib = pytest.importorskip("hnswlib")
    rng = np.random.default_rng(3)
    centres = rng.standard_normal((clusters, 24), dtype=np.float32)

    def near(n):
        return centres[rng.integers(0, clusters, n)] + rng.normal(0, sigma, (n, 24)).astype(np.float32)

    x, q, more = near(10_000), near(500), near(500)
    index = tagore_ann.build(x, "nsg", device="cpu")
    index.to("hnswlib", tmp_path / "x.hnswlib")
    theirs = hnswlib.Index(space="l2", dim=24)
    theirs.load_index(str(tmp_path / "x.hnswlib"), max_elements=10_500)
    theirs.set_ef(100)
    ids, _ = theirs.knn_query(q, k=10)
    truth, _ = tagore_ann.exact(x, q, 10)
    assert np.mean([len(set(a) & set(b)) for a, b in zip(ids, truth, strict=True)]) > 9.9
    theirs.add_items(more, np.arange(10_000, 10_500))
    ids, _ = theirs.knn_query(more, k=1)
    assert np.mean(ids[:, 0] == np.arange(10_000, 10_500)) > 0.9


@pytest.mark.parametrize(
    "name, dtype",
    [
        ("x.fvecs", np.float32),
        ("x.bvecs", np.uint8),
        ("x.fbin", np.float32),
        ("x.f16bin", np.float16),
        ("x.u8bin", np.uint8),
        ("x.i8bin", np.int8),
        ("x.npy", np.float16),
    ],
)
def test_vectors_are_mapped_in_every_format(tmp_path, name, dtype):
    x = np.random.default_rng(0).integers(0, 100, (50, 7)).astype(dtype)
    tagore_ann.write(tmp_path / name, x)
    read = tagore_ann.read(tmp_path / name)
    assert read.dtype == dtype and np.array_equal(read, x) and not read.flags.writeable
    assert np.array_equal(tagore_ann.knn_graph(read, 3)[0], tagore_ann.knn_graph(x, 3)[0])
    if name.endswith("npy"):
        assert np.array_equal(np.load(tmp_path / name), x)


def test_bf16_is_a_type_of_ml_dtypes_or_plain_values_of_two_bytes(tmp_path):
    x = np.random.default_rng(0).normal(size=(60, 7)).astype(np.float32)
    # The upper halves of float32 are bfloat16.
    bits = (x.view(np.uint32) >> 16).astype(np.uint16)
    wide = (bits.astype(np.uint32) << 16).view(np.float32)
    for name in ["x.bf16bin", "x.npy"]:
        tagore_ann.write(tmp_path / name, bits.view("V2"))
        read = tagore_ann.read(tmp_path / name)
        assert read.shape == (60, 7) and read.dtype.itemsize == 2 and not read.flags.writeable
        assert np.array_equal(read.view(np.uint16), bits)
        assert np.array_equal(tagore_ann.knn_graph(read, 3)[0], tagore_ann.knn_graph(wide, 3)[0])
    assert np.load(tmp_path / "x.npy").dtype == np.dtype("V2")
    assert tagore_ann.build(bits.view("V2")).dtype == read.dtype
    assert tagore_ann.plan(1000, 7, "bfloat16")["host_bytes"] > 0


def test_a_value_that_does_not_fit_is_refused(tmp_path):
    with pytest.raises(tagore_ann.Error, match="row 1, dimension 0"):
        tagore_ann.write(tmp_path / "x.u8bin", np.array([[1.0], [300.0]], np.float32))
    assert not os.listdir(tmp_path)


def test_a_ground_truth_comes_back(tmp_path, x, q):
    ids, distances = tagore_ann.exact(x, q, k=10)
    tagore_ann.write_truth(tmp_path / "t.bin", ids, distances)
    again = tagore_ann.read_truth(tmp_path / "t.bin")
    assert np.array_equal(again[0], ids) and np.array_equal(again[1], distances)
    tagore_ann.write_truth(tmp_path / "t.ivecs", ids)
    assert np.array_equal(tagore_ann.read_truth(tmp_path / "t.ivecs")[0], ids)
    with pytest.raises(tagore_ann.ArgumentError):
        tagore_ann.write_truth(tmp_path / "t.bin", ids, distances[:, :3])


def test_a_build_out_of_core_is_searched(tmp_path):
    x = np.random.default_rng(0).standard_normal((6000, 16), dtype=np.float32)
    tagore_ann.write(tmp_path / "x.fbin", x)
    index = tagore_ann.build_file(
        tmp_path / "x.fbin",
        tmp_path / "x.tagore",
        "nsg",
        cluster_size=2400,
        host_memory=1 << 30,
        knn=32,
    )
    assert index.report["build"]["clusters"] > 1
    truth, _ = tagore_ann.exact(x, x[:100], 10)
    [at] = index.evaluate(x[:100], truth, beams=[100])
    assert at["recall"] > 0.9
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        tagore_ann.build_file(tmp_path / "x.fbin", tmp_path / "y.tagore", colour=1)
    # What a build from file to file does not do is not ignored.
    for name in ["among", "filter", "graph"]:
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'"):
            tagore_ann.build_file(tmp_path / "x.fbin", tmp_path / "y.tagore", **{name: [1, 2]})


def test_errors_of_files_are_those_of_the_system(tmp_path, index):
    missing = tmp_path / "missing.tagore"
    with pytest.raises(FileNotFoundError) as error:
        tagore_ann.Index.open(missing)
    assert isinstance(error.value, tagore_ann.FileError) and error.value.errno == errno.ENOENT
    assert error.value.filename == str(missing) and "No such file" in error.value.strerror
    assert str(error.value).startswith(f"{missing}: No such file")
    (tmp_path / "text.tagore").write_text("text")
    with pytest.raises(OSError, match=r"text\.tagore"):
        tagore_ann.Index.open(tmp_path / "text.tagore")
    with pytest.raises(tagore_ann.FileError):
        index.save(tmp_path / "no" / "folder.tagore")
    with pytest.raises(tagore_ann.Error, match="path"):
        tagore_ann.read(3)


def test_no_input_is_overwritten(tmp_path, x):
    vectors, ids = tmp_path / "x.fbin", tmp_path / "ids.npy"
    tagore_ann.write(vectors, x)
    np.save(ids, np.arange(3000, dtype=np.uint64))
    (tmp_path / "link").symlink_to(vectors)
    content = vectors.read_bytes(), ids.read_bytes()
    index = tagore_ann.build_file(vectors, tmp_path / "x.tagore", ids=ids, device="cpu")
    for path in [vectors, tmp_path / "link", ids]:
        for call in [
            lambda path=path: tagore_ann.build_file(vectors, path, ids=ids, device="cpu"),
            lambda path=path: index.save(path),
            lambda path=path: index.to("hnswlib", path),
        ]:
            with pytest.raises(tagore_ann.FileError, match="found the input .*, expected a file that is not read"):
                call()
    assert content == (vectors.read_bytes(), ids.read_bytes())


def test_own_ids_are_read_before_the_build(tmp_path, x):
    tagore_ann.write(tmp_path / "x.fbin", x)
    np.save(tmp_path / "few.npy", np.arange(3, dtype=np.uint64))
    for ids, text in [("few.npy", "found 3 ids, expected 3000"), ("none.npy", "none.npy: No such file")]:
        with pytest.raises(tagore_ann.Error, match=text) as error:
            tagore_ann.build_file(tmp_path / "x.fbin", tmp_path / "x.tagore", ids=tmp_path / ids)
        assert str(error.value).count("\n") == 0
        assert not (tmp_path / "x.tagore").exists()
