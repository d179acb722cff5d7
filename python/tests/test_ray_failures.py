"""Failures of builds on a cluster: repaired, or one clear exception that names no key."""

import errno
import resource
import sys
import threading
import time

import numpy as np
import pytest
import tagore_ann
from cluster import KEYS, Denier, busy_workers, kill
from conftest import mixture

pytest.importorskip("ray")
obstore = pytest.importorskip("obstore")

import tagore_ann.ray  # noqa: E402
from tagore_ann import ArgumentError, Error, FileError, MissingFileError, _job, _tagore  # noqa: E402
from tagore_ann._store import Store  # noqa: E402

SMALL = {"knn": 24, "device": "cpu", "cluster_size": 600, "host_memory": 1 << 30, "range_rows": 1024}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A small data set, and the bytes of its index."""
    folder = tmp_path_factory.mktemp("small")
    tagore_ann.write(folder / "base.fbin", mixture(3000, 12))
    options = {name: value for name, value in SMALL.items() if name != "range_rows"}
    tagore_ann.build_file(folder / "base.fbin", folder / "one", "vamana", **options, verify=0)
    return folder / "base.fbin", (folder / "one").read_bytes()


@pytest.fixture
def build(connected, s3, base, tmp_path):
    """Builds from a copy of the data set in S3 to ``index`` below a prefix of its own."""
    prefix = f"s3://data/{tmp_path.name}"
    bucket = obstore.store.from_url(prefix, **s3.options)
    obstore.put(bucket, "base.fbin", base[0])

    def build(**options):
        every = SMALL | {"storage_options": s3.options, "scratch": str(tmp_path)}
        every |= options
        return tagore_ann.ray.build(every.pop("x", f"{prefix}/base.fbin"), f"{prefix}/index", "vamana", **every)

    build.bucket, build.prefix = bucket, prefix
    return build


def objects(bucket):
    listed = obstore.list_with_delimiter(bucket, "index.work")["objects"]
    return {entry["path"]: bytes(obstore.get(bucket, entry["path"]).bytes()) for entry in listed}


def index(bucket):
    return bytes(obstore.get(bucket, "index").bytes())


def test_missing_truncated_and_garbled_objects_are_made_again(build, base):
    first = build()
    assert index(build.bucket) == base[1]
    before = objects(build.bucket)
    names = {path.split("/")[1].split(".")[0]: path for path in before}

    def garbled(content):
        # All pieces; the head stays.
        return content[:1000] + bytes(byte ^ 0x55 for byte in content[1000:])

    obstore.delete(build.bucket, "index")
    for name, path in names.items():
        if name.startswith(("merge-", "assemble-", "finish")):
            obstore.delete(build.bucket, path)
    for name, change in [
        ("merge-0", lambda content: content[:-1]),
        ("merge-1", lambda content: content[:20]),
        ("write-2", lambda content: b""),
        ("build-0", garbled),
        ("build-1", lambda content: content[: len(content) // 2]),
    ]:
        obstore.put(build.bucket, names[name], change(before[names[name]]))
    again = build()
    assert index(build.bucket) == base[1] and objects(build.bucket) == before
    made = sum(name.startswith(("merge-", "assemble-", "finish")) for name in names)
    # Two merges were there; then five objects were made again.
    assert again.tasks == made - 2 + 5 < first.tasks


@pytest.mark.parametrize("damaged, later", [("assign-1", "place write-0 finish"), ("place", "merge-1 finish")])
def test_damage_before_the_step_over_all_rows_is_repaired(build, base, damaged, later):
    build()
    before = objects(build.bucket)
    names = {path.split("/")[1].split(".")[0]: path for path in before}
    for name in later.split():
        obstore.delete(build.bucket, names[name])
    content = before[names[damaged]]
    # The last piece is whole in both: counts, and the order of clusters.
    obstore.put(build.bucket, names[damaged], content[:-1] + bytes([content[-1] ^ 1]))
    assert build().tasks == len(later.split()) + 1
    assert index(build.bucket) == base[1] and objects(build.bucket) == before


def test_an_index_that_is_lost_or_replaced_is_written_again(build, base):
    build()
    obstore.put(build.bucket, "index", b"another")
    assert build().tasks == 1
    assert index(build.bucket) == base[1]


@pytest.mark.parametrize("name", ["plan.json", "plan.", "base."])
def test_damage_of_the_plan_is_an_error(build, name):
    build()
    path = next(path for path in objects(build.bucket) if path.split("/")[1].startswith(name))
    content = bytearray(obstore.get(build.bucket, path).bytes())
    content[len(content) // 2] ^= 1
    obstore.put(build.bucket, path, bytes(content))
    obstore.delete(build.bucket, next(path for path in objects(build.bucket) if "/finish" in path))
    with pytest.raises(FileError, match="damage") as error:
        build()
    assert "tagore-ray-" not in str(error.value)


def test_a_changed_data_set_is_refused(build, base, tmp_path):
    def stop(update):
        if update.stage == "assign":
            raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        build(progress=stop)
    changed = bytearray(base[0].read_bytes())
    changed[-1] ^= 1
    obstore.put(build.bucket, "base.fbin", bytes(changed))
    with pytest.raises(FileError, match=r"base.fbin: found another version than at the plan"):
        build()
    # A file by its path has no version: the fingerprint tells.
    local = tmp_path / "base.fbin"
    local.write_bytes(base[0].read_bytes())
    work = f"{build.prefix}/local.work"
    with pytest.raises(RuntimeError, match="enough"):
        build(x=local, work=work, progress=stop)
    local.write_bytes(changed)
    with pytest.raises(ArgumentError, match=r"base.fbin: found another data set, or other values"):
        build(x=local, work=work)


def test_a_stopped_call_goes_on(build, base):
    def stop(update):
        if update.stage == "build" and update.done == 2:
            raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        build(progress=stop)
    again = build()
    # Three ranges and two clusters were done.
    assert again.tasks <= sum("-" in path for path in objects(build.bucket)) + 2 - 3 - 1 - 3 - 2
    assert index(build.bucket) == base[1]


def test_another_call_on_the_same_objects_is_refused(build):
    build()
    with pytest.raises(ArgumentError, match="work: found .* of a call with another options, expected"):
        build(seed=1)


def test_what_is_not_there_is_named(build, s3, tmp_path):
    with pytest.raises(MissingFileError, match=rf"{tmp_path}/none/base.fbin: found no such folder"):
        build(x=f"{tmp_path}/none/base.fbin", work=f"{build.prefix}/w3")
    with pytest.raises(ArgumentError, match="workers: found 0, expected a whole number from 1"):
        build(workers=0)
    with pytest.raises(MissingFileError, match="nothing.fbin: found no such object"):
        build(x=f"{build.prefix}/nothing.fbin")
    with pytest.raises(MissingFileError, match="s3://no-bucket/w.*: found no such bucket"):
        build(work="s3://no-bucket/w")
    with pytest.raises(MissingFileError, match="s3://no-bucket/base.fbin: found no such bucket"):
        build(x="s3://no-bucket/base.fbin", work=f"{build.prefix}/w1")
    with pytest.raises(ArgumentError, match="storage_options: found .* expected options of obstore for s3"):
        build(storage_options=s3.options | {"acces_key": "x"})
    with pytest.raises(ArgumentError, match="x: found a URL with a query or a password"):
        build(x="s3://data/base.fbin?X-Amz-Signature=1")
    with pytest.raises(ArgumentError, match="fb: found|s4"):
        build(x="s4://data/base.fbin", work=f"{build.prefix}/w2")


@pytest.mark.parametrize("code", ["InvalidAccessKeyId", "ExpiredToken", "SignatureDoesNotMatch"])
def test_refused_credentials_are_an_error_without_them(s3, code):
    denier = Denier(code)
    try:
        with pytest.raises(FileError, match=rf"s3://data/w/\S+: found access denied \({code}\)") as error:
            tagore_ann.ray.build(
                "s3://data/base.fbin", "s3://data/index", work="s3://data/w",
                storage_options=s3.options | {"endpoint": denier.endpoint},
            )  # fmt: skip
    finally:
        denier.stop()
    shown = f"{error.value!r} {error.value.__cause__!r} {error.value.__context__!r}"
    assert not any(key in shown for key in KEYS.values())


@pytest.mark.parametrize("call", [
    lambda store: store.begin("x", 10), lambda store: store.get("x"), lambda store: store.read("x", 0, 10),
    lambda store: store.put("x", b"y"), lambda store: store.list(),
], ids=["begin", "get", "read", "put", "list"])  # fmt: skip
def test_every_request_names_why_it_was_denied(s3, call):
    denier = Denier("ExpiredToken")
    try:
        with pytest.raises(FileError, match=r"found access denied \(ExpiredToken\)"):
            call(Store("s3://data", s3.options | {"endpoint": denier.endpoint}))
    finally:
        denier.stop()


def test_credentials_that_expire_on_a_worker_are_an_error(build, s3):
    denier = Denier("ExpiredToken", after=12, server=s3.endpoint)
    try:
        with pytest.raises(FileError, match=r"found access denied \(ExpiredToken\)") as error:
            build(storage_options=s3.options | {"endpoint": denier.endpoint})
    finally:
        denier.stop()
    assert not any(key in repr(error.value) for key in KEYS.values())


def test_a_store_without_an_answer_is_an_error(s3):
    options = s3.options | {"endpoint": "http://127.0.0.1:9", "retry_config": {"max_retries": 1}}
    with pytest.raises(FileError, match="s3://data/w/.*: found no connection, expected an answer"):
        tagore_ann.ray.build("s3://data/x.fbin", "s3://data/y", work="s3://data/w", storage_options=options)


def job(base, tmp_path, **options):
    """A job on this machine, without Ray."""
    every = {"kind": "vamana"} | SMALL | options
    return _job.Job(Store(str(tmp_path / "work"), {}, make=True), str(tmp_path / "index"), [str(base[0])], every,
                    str(tmp_path), 1)  # fmt: skip


def run_all(job, options, most=None):
    """Runs the tasks of a planned job one after another. Returns the first fault."""
    written = job.work.get("plan.json")
    tasks = [task for _, tasks, _ in tasks_of(written, job).stages() for task in tasks]
    for task in tasks[:most]:
        ended = _job.run((job, written), task, options, False)
        assert ended.lost is None
        if ended.fault is not None:
            return task, ended.fault
    return None


def tasks_of(written, job):
    return _tagore.open_tasks(job.work.url)


def test_a_full_scratch_disk_is_an_error_and_leaves_nothing(base, tmp_path):
    small = job(base, tmp_path)
    assert _job.plan(small) == (None, None)
    remote = small._replace(base=[f"file://{base[0]}"], work=Store(str(tmp_path / "far"), {}, make=True))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    for what, limit in [(small, 20_000), (remote, 100_000)]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limits[1]))
        try:
            # An object, and a copy of the data set.
            fault = run_all(what, {"device": "cpu"})[1] if what is small else _job.plan(what).fault
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert isinstance(fault, FileError), fault
        assert f"{tmp_path}: found no space left, expected room for the files of" in str(fault)
    assert not list(tmp_path.glob("tagore-ray-*"))
    assert errno.EFBIG in _job._FULL
    assert run_all(small, {"device": "cpu"}) is None
    assert (tmp_path / "index").read_bytes() == base[1]


def test_long_heads_and_ranges_of_bytes_are_read(base, tmp_path, monkeypatch):
    monkeypatch.setattr(_job, "BEGIN", 41)
    far = job(base, tmp_path, layers=False)._replace(base=[f"file://{base[0]}"])
    assert _job.plan(far) == (None, None)
    assert run_all(far, {"device": "cpu"}) is None
    one = tmp_path / "one"
    options = {name: value for name, value in SMALL.items() if name != "range_rows"}
    tagore_ann.build_file(base[0], one, "vamana", **options, layers=False, verify=0)
    assert (tmp_path / "index").read_bytes() == one.read_bytes()


def test_folders_of_killed_workers_are_removed(base, tmp_path, monkeypatch):
    small = job(base, tmp_path)
    monkeypatch.setattr(_job, "_OLD", -1)
    left = tmp_path / "tagore-ray-left"
    left.mkdir()
    (left / ".lock").touch()
    with _job._scratch(small, "a task") as first, _job._scratch(small, "another") as second:
        assert first.exists() and second.exists() and not left.exists()
    assert not first.exists() and not second.exists()


def test_another_kind_of_device_is_refused_unless_allowed(base, tmp_path):
    tagore_ann.write(tmp_path / "tiny.fbin", mixture(1100, 4))
    emulated = job((tmp_path / "tiny.fbin",), tmp_path, device="emulated", cluster_size=500)
    assert _job.plan(emulated) == (None, None)
    task, fault = run_all(emulated, {"device": "cpu"})
    assert task == "assign-0" and isinstance(fault, ArgumentError)
    assert "device: found cpu, expected" in str(fault) and "any_device" in str(fault)
    assert run_all(emulated, {"device": "cpu", "any_device": True}) is None


def test_tasks_for_a_gpu_go_where_one_is(build, cluster, tmp_path):
    tagore_ann.write(tmp_path / "tiny.fbin", mixture(1100, 4))
    options = {"x": tmp_path / "tiny.fbin", "device": "emulated", "cluster_size": 500}
    with pytest.raises(ArgumentError, match="expected 1 CPU, 1 GPU for plan"):
        build(**options)
    node = cluster.add_node(num_cpus=1, num_gpus=1, object_store_memory=80 << 20)
    cluster.wait_for_nodes()
    try:
        built = build(**options)
    finally:
        cluster.remove_node(node)
    assert len(built.devices) == 1 and built.devices != ["cpu"]


def test_a_cluster_without_room_is_refused(build):
    with pytest.raises(ArgumentError, match="nodes with at most 1 CPU, expected 64 CPU for plan"):
        build(threads=64)
    with pytest.raises(ArgumentError, match="expected 1 CPU, 1 GPU for plan"):
        build(device="cuda", work=f"{build.prefix}/w")


def test_a_worker_that_dies_too_often_is_an_error(build, base):
    done = threading.Event()

    def kill_builds():
        while not done.is_set():
            for pid, task in busy_workers().items():
                if task.startswith("build"):
                    kill(pid)
            time.sleep(0.02)

    killer = threading.Thread(target=kill_builds)
    killer.start()
    try:
        with pytest.raises(Error, match=r"build-\d+: found \w+ of Ray, expected a worker that ends"):
            build(max_retries=0)
    finally:
        done.set()
        killer.join()
    build()
    assert index(build.bucket) == base[1]


def test_a_node_that_dies_gives_its_tasks_to_others(build, base, cluster):
    node = cluster.add_node(num_cpus=4, object_store_memory=80 << 20)
    cluster.wait_for_nodes()
    died = []

    def remove(update):
        if update.stage == "build" and not died:
            # Four of five tasks or so are there.
            died.append(update.done)
            cluster.remove_node(node, allow_graceful=False)

    build(threads=1, progress=remove)
    assert died and index(build.bucket) == base[1]


@pytest.mark.parametrize("name", ["ray", "obstore", "pyarrow.parquet"])
def test_an_absent_package_is_named(base, tmp_path, monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(Error, match=rf"{name.split('.')[0]}: found no such package, expected `pip install"):
        if name == "pyarrow.parquet":
            Store(str(tmp_path), {}).put("x.parquet", b"PAR1")
            raise _job.plan(job((tmp_path / "x.parquet", None), tmp_path)).fault
        tagore_ann.ray.build(base[0], tmp_path / "index")


def test_parts_must_agree(tmp_path):
    for name, rows in [("a.fbin", np.zeros((5, 3), np.float32)), ("b.fbin", np.zeros((5, 4), np.float32))]:
        tagore_ann.write(tmp_path / name, rows)
    wrong = job((tmp_path / "a.fbin", None), tmp_path)
    wrong = wrong._replace(base=[str(tmp_path / "a.fbin"), str(tmp_path / "b.fbin")])
    fault = _job.plan(wrong).fault
    assert isinstance(fault, FileError) and "b.fbin: found fbin with 4 values per row, expected fbin" in str(fault)
