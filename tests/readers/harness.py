"""Calls the adapters of examples/harness as the harnesses do, with stand-ins for the modules that they import.

python harness.py WORK: WORK holds base.fbin, query.fbin and l2.gt. Needs `tagore` on the path.
"""

import importlib.util
import os
import sys
import types
from pathlib import Path

import numpy as np

from search import K, read_bin, recall_of

ADAPTERS = Path(__file__).resolve().parents[2] / "examples/harness"
PARAMETERS = {"index": "nsg", "degree": 32, "knn": 48}
BEAM = 100
LEAST = 0.98


class BaseANN:
    """What the adapters inherit."""


class Folder:
    """A data set of big-ann-benchmarks, in files without an extension."""

    dtype, nb = "float32", 20000

    def get_dataset_fn(self):
        return "data_20000"

    def short_name(self):
        return "Folder-20000"


def stand_in(name, **content):
    module = sys.modules[name] = types.ModuleType(name)
    vars(module).update(content)


def adapter(name, path):
    spec = importlib.util.spec_from_file_location(name, ADAPTERS / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check_additional(algorithm, expected, queries):
    found = algorithm.get_additional()
    assert found.keys() == expected, f"{algorithm}: found {found}"
    assert found["dist_comps"] / len(queries) > BEAM, found
    assert algorithm.get_memory_usage() > 20000 * 32 * 4 / 1024, "the index and its base are larger"


def ann_benchmarks(base, queries):
    """Ids that the command and hnswlib find."""
    for name in ["algorithms", "algorithms.base", "algorithms.tagore"]:
        stand_in(name)
    stand_in("algorithms.base.module", BaseANN=BaseANN)
    module = adapter("algorithms.tagore.module", "ann_benchmarks/module.py")
    batches, single = (kind("euclidean", PARAMETERS) for kind in [module.Tagore, module.TagoreHnswlib])
    assert batches.get_memory_usage() == 0
    for algorithm in [batches, single]:
        algorithm.fit(base)
        algorithm.set_query_arguments(BEAM)
        assert f"beam {BEAM}" in algorithm.name
    batches.prepare_batch_query(queries, K)
    batches.run_batch_query()
    check_additional(batches, {"dist_comps"}, queries)
    assert len(batches.get_batch_latencies()) == len(queries)
    found = np.array(batches.get_batch_results()), np.array([single.query(query, K) for query in queries])
    for algorithm in [batches, single]:
        algorithm.done()
    return found


def big_ann_benchmarks(base, queries):
    """Ids that the command finds; checks a range search by an exact one."""
    for name in ["benchmark", "benchmark.algorithms"]:
        stand_in(name)
    stand_in("benchmark.algorithms.base", BaseANN=BaseANN)
    stand_in("benchmark.datasets", DATASETS={"folder": Folder})
    module = adapter("tagore_of_big_ann", "big_ann_benchmarks/tagore.py")
    os.symlink("base.fbin", Folder().get_dataset_fn())
    algorithm = module.Tagore("euclidean", PARAMETERS)
    assert not algorithm.load_index("folder") and algorithm.get_memory_usage() == 0
    algorithm.fit("folder")
    assert algorithm.load_index("folder")
    algorithm.set_query_arguments({"beam": BEAM})
    assert f"beam {BEAM}" in str(algorithm)
    algorithm.query(queries, K)
    check_additional(algorithm, {"best_search_time", "dist_comps"}, queries)
    found = algorithm.res

    few = queries[:100]
    exact = np.array([((base - query) ** 2).sum(1) for query in few])
    radius = np.partition(exact, 150, axis=1)[:, 150].mean()  # above the beam for some queries, below it for others
    algorithm.range_query(few, radius)
    lims, distances, ids = algorithm.res
    wanted = [np.flatnonzero(row < radius) for row in exact]
    sizes = [len(row) for row in wanted]
    assert min(sizes) < BEAM < max(sizes), sizes
    shared = [len(np.intersect1d(row, ids[lims[i] : lims[i + 1]])) for i, row in enumerate(wanted)]
    assert sum(shared) >= LEAST * sum(sizes), f"range: found {sum(shared)} of {sum(sizes)}"
    assert lims[-1] == len(ids) == len(distances) and distances.max() < radius and ids.min() >= 0
    return found


def main():
    folder = Path(sys.argv[1]).resolve()
    os.chdir(folder)
    base, queries = (read_bin(folder / name, np.float32) for name in ["base.fbin", "query.fbin"])
    batches, single = ann_benchmarks(base, queries)
    big = big_ann_benchmarks(base, queries)
    assert np.array_equal(batches, big), "the adapters build and search the same index"
    for name, ids in [("ann_benchmarks, batches", batches), ("ann_benchmarks, hnswlib", single), ("big_ann_benchmarks", big)]:
        recall = recall_of(ids, folder / "l2.gt")
        print(f"{name:24} beam {BEAM}: recall@{K} {recall:.4f}")
        assert recall >= LEAST, f"expected {LEAST}"


if __name__ == "__main__":
    main()
