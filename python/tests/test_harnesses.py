"""The adapters of examples/harness, called as the harnesses do, beside stand-ins of these."""

import importlib.util
import os
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import tagore_ann
from conftest import nearest, recall

ADAPTERS = Path(os.environ.get("TAGORE_ADAPTERS", Path(__file__).parents[2] / "examples/harness"))
PARAMETERS = {"kind": "nsg", "degree": 32, "knn": 48}
BEAM, K = 100, 10

pytestmark = pytest.mark.skipif(not ADAPTERS.is_dir(), reason="the adapters are not beside the tests")


@pytest.fixture
def adapter(monkeypatch, tmp_path):
    """Loads an adapter beside stand-ins of modules, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def load(name, path, **stand_ins):
        for module, content in stand_ins.items():
            stand_in = types.ModuleType(module.replace("__", "."))
            vars(stand_in).update(content)
            monkeypatch.setitem(sys.modules, stand_in.__name__, stand_in)
        spec = importlib.util.spec_from_file_location(name, ADAPTERS / path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


class BaseANN:
    """What the adapters inherit."""


def test_ann_benchmarks_gets_single_queries_and_batches(adapter, x, q):
    pytest.importorskip("hnswlib")
    names = {"algorithms": {}, "algorithms__base": {}, "algorithms__tagore": {}}
    base = {"algorithms__base__module": {"BaseANN": BaseANN}}
    module = adapter("algorithms.tagore.module", "ann_benchmarks/module.py", **names, **base)
    truth = nearest(x, q, K)[0]
    for kind in [module.Tagore, module.TagoreHnswlib]:
        algorithm = kind("euclidean", PARAMETERS)
        assert algorithm.get_memory_usage() == 0
        algorithm.fit(x)
        algorithm.set_query_arguments(BEAM)
        assert f"beam {BEAM}" in algorithm.name
        assert recall(np.array([algorithm.query(row, K) for row in q]), truth) > 0.98
        algorithm.batch_query(q, K)
        assert recall(np.array(algorithm.get_batch_results()), truth) > 0.98
        assert algorithm.get_memory_usage() > 3000 * 24 * 4 / 1024
        if kind is module.Tagore:
            assert algorithm.get_additional()["dist_comps"] / len(q) > BEAM


def test_big_ann_benchmarks_gets_neighbours_and_ranges(adapter, x, q):
    tagore_ann.write("data.fbin", x)
    os.rename("data.fbin", "data_3000")

    class Folder:
        """A data set in a file without an extension."""

        dtype, nb = "float32", 3000

        def get_dataset_fn(self):
            return "data_3000"

        def short_name(self):
            return "Folder-3000"

    names = {"benchmark": {}, "benchmark__algorithms": {}, "benchmark__algorithms__base": {"BaseANN": BaseANN}}
    sets = {"benchmark__datasets": {"DATASETS": {"folder": Folder}}}
    module = adapter("tagore_of_big_ann", "big_ann_benchmarks/tagore.py", **names, **sets)
    algorithm = module.Tagore("euclidean", PARAMETERS)
    assert not algorithm.load_index("folder") and algorithm.get_memory_usage() == 0
    algorithm.fit("folder")
    assert algorithm.load_index("folder") and algorithm.get_memory_usage() > 3000 * 24 * 4 / 1024
    algorithm.set_query_arguments({"beam": BEAM})
    assert f"beam {BEAM}" in str(algorithm)
    algorithm.query(q, K)
    assert recall(algorithm.res, nearest(x, q, K)[0]) > 0.98
    assert algorithm.get_additional()["dist_comps"] / len(q) > BEAM

    exact = np.array([((x - row) ** 2).sum(1) for row in q])
    radius = np.partition(exact, 110, axis=1)[:, 110].mean()  # above the beam for some queries, below it for others
    algorithm.range_query(q, radius)
    lims, distances, ids = algorithm.res
    wanted = [np.flatnonzero(row < radius) for row in exact]
    sizes = [len(row) for row in wanted]
    assert min(sizes) < BEAM < max(sizes), sizes
    shared = [len(np.intersect1d(row, ids[lims[i] : lims[i + 1]])) for i, row in enumerate(wanted)]
    assert sum(shared) >= 0.98 * sum(sizes)
    assert lims[-1] == len(ids) == len(distances) and distances.max() < radius and ids.min() >= 0
