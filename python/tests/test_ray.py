"""Builds on a Ray cluster end in the bytes of one machine, whatever dies."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import tagore_ann
from cluster import busy_workers, kill

pytest.importorskip("ray")
obstore = pytest.importorskip("obstore")

import tagore_ann.ray  # noqa: E402
from tagore_ann import ArgumentError  # noqa: E402
from tagore_ann._driver import Driver  # noqa: E402

OPTIONS = {"knn": 24, "device": "cpu", "cluster_size": 12_000, "host_memory": 2 << 30}
RANGES = {"range_rows": 8192}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A data set and its index of one machine, 60,000 x 32 in 15 clusters."""
    folder = tmp_path_factory.mktemp("ray")
    base = folder / "base.fbin"
    synth = [sys.executable, "-m", "tagore_ann", "synth", "-o", base, "--n", "60000", "--dim", "32", "--seed", "1"]
    subprocess.run(synth, check=True, capture_output=True)
    tagore_ann.build_file(base, folder / "one.tagore", "vamana", **OPTIONS, verify=0)
    return folder


@pytest.fixture(scope="module")
def bucket(s3, folder):
    """The bucket with the data set: one file, three files, and two Parquet files."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    store = obstore.store.from_url("s3://data", **s3.options)
    obstore.put(store, "base.fbin", folder / "base.fbin")
    x = tagore_ann.read(folder / "base.fbin")
    # Neither a boundary of ranges nor of row groups.
    for number, part in enumerate(np.split(x, [10_001, 33_333])):
        tagore_ann.write(folder / "part.fbin", part)
        obstore.put(store, f"parts/{number}.fbin", folder / "part.fbin")
    for number, part in enumerate(np.split(x, [25_000])):
        vectors = pa.FixedSizeListArray.from_arrays(part.ravel(), 32)
        table = pa.table({"id": np.arange(len(part)), "vector": vectors})
        pq.write_table(table, folder / "part.parquet", row_group_size=7000)
        obstore.put(store, f"table/{number}.parquet", folder / "part.parquet")
    return store


def same(folder, bucket, name):
    assert bytes(obstore.get(bucket, name).bytes()) == (folder / "one.tagore").read_bytes(), "other bytes"
    assert not list((folder / "scratch").glob("*")), "scratch files left behind"


@pytest.fixture(scope="module")
def on_cluster(cluster, s3, folder):
    """The options of builds on the cluster."""
    (folder / "scratch").mkdir()
    return OPTIONS | RANGES | {
        "address": cluster.address, "storage_options": s3.options, "scratch": str(folder / "scratch"),
    }  # fmt: skip


@pytest.mark.parametrize(
    "workers, x",
    [
        (1, "s3://data/base.fbin"),
        (2, [f"s3://data/parts/{number}.fbin" for number in range(3)]),
        (3, "s3://data/table/"),
    ],
)
def test_any_number_of_workers_and_parts_makes_the_bytes_of_one_machine(folder, bucket, on_cluster, workers, x):
    name = f"by-{workers}.tagore"
    column = {"column": "vector"} if x[-1] == "/" else {}
    updates = []
    built = tagore_ann.ray.build(
        x, f"s3://data/{name}", "vamana", workers=workers, progress=updates.append, **on_cluster, **column
    )
    same(folder, bucket, name)
    tasks = 3 * 8 + 2 * 15 + 2
    assert built == (f"s3://data/{name}", 60_000, built.bytes, 0, 0, ["cpu"], tasks)
    fractions = [update.fraction for update in updates]
    assert fractions == sorted(fractions) and fractions[-1] == 1
    assert [update.stage for update in updates if update.done == update.total][-1] == "finish"
    # Nothing is left to do.
    again = tagore_ann.ray.build(x, f"s3://data/{name}", "vamana", workers=workers, **on_cluster, **column)
    assert again == built._replace(tasks=0)


def test_every_task_twice_at_the_same_time_makes_the_same_bytes(folder, bucket, on_cluster, monkeypatch):
    class Twice(Driver):
        def _run(self, tasks, again=False):
            return super()._run([task for task in tasks for _ in range(2)], again)

    monkeypatch.setattr(tagore_ann.ray, "Driver", Twice)
    built = tagore_ann.ray.build("s3://data/base.fbin", "s3://data/twice.tagore", "vamana", **on_cluster)
    same(folder, bucket, "twice.tagore")
    assert built.tasks == 2 * 56


PROGRAM = """
import json, sys, tagore_ann.ray
built = tagore_ann.ray.build("s3://data/base.fbin", "s3://data/killed.tagore", "vamana", **json.loads(sys.argv[1]))
print(json.dumps(built._asdict()))
"""


def test_killed_workers_and_a_killed_driver_cost_their_tasks_alone(folder, bucket, on_cluster):
    options = json.dumps(on_cluster | {"max_retries": -1})
    rng = random.Random(int(os.environ.get("TAGORE_TEST_SEED", "7")))
    log = (folder / "driver.log").open("wb")

    def start():
        return subprocess.Popen([sys.executable, "-c", PROGRAM, options], stdout=subprocess.PIPE, stderr=log)

    def objects():
        made = obstore.list_with_delimiter(bucket, "killed.tagore.work")["objects"]
        return {entry["path"].split("/")[-1] for entry in made if "-" in entry["path"] or "place" in entry["path"]}

    driver, kills, restarts = start(), 0, []
    while driver.poll() is None and (kills < 20 or not restarts):
        time.sleep(rng.uniform(0, 0.9))
        # A slow machine has finished no task after eight kills.
        if kills >= 8 and not restarts and objects():
            driver.send_signal(signal.SIGKILL)
            driver.wait()
            restarts.append(len(objects()))
            driver = start()
        tasks = busy_workers(within=os.getpid())
        if tasks and kills < 20:
            kills += kill(rng.choice(sorted(tasks)))
    output, _ = driver.communicate(timeout=300)
    assert driver.returncode == 0, (folder / "driver.log").read_text()
    assert kills == 20 and restarts, f"{kills} kills"
    built = json.loads(output.splitlines()[-1])
    print(f"{kills} kills; the second driver found {restarts[0]} objects and ran {built['tasks']} tasks of 56")
    # Tasks that ended while the driver was started again count for neither.
    assert 0 < restarts[0] and built["tasks"] <= 56 - restarts[0]
    assert bytes(obstore.get(bucket, "killed.tagore").bytes()) == (folder / "one.tagore").read_bytes()


@pytest.mark.parametrize("address", ["127.0.0.1:9", "nonsense", "ray://127.0.0.1:9"])
def test_a_wrong_address_is_refused(tmp_path, folder, address):
    with pytest.raises(ArgumentError, match=f"address: found {address} .* expected a running Ray cluster"):
        tagore_ann.ray.build(folder / "base.fbin", tmp_path / "index", address=address)
