"""A backend for cuvs-bench, under the name ``tagore``.

>>> from tagore_ann import cuvs_bench  # doctest: +SKIP
>>> from cuvs_bench.orchestrator import BenchmarkOrchestrator  # doctest: +SKIP
>>> cuvs_bench.register()  # doctest: +SKIP
>>> BenchmarkOrchestrator("tagore").run_benchmark(  # doctest: +SKIP
...     dataset="sift-128-euclidean", dataset_path="datasets", algorithms="tagore_nsg", count=10
... )

Algorithms are ``tagore_`` and a kind of index. Build parameters are keyword arguments of
`tagore_ann.build`, search parameters those of `Index.search`. Files of ``algorithm_configuration``
replace the grids below, in the layout of cuvs-bench's own.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
from cuvs_bench.backends.base import BenchmarkBackend, BuildResult, Dataset, SearchResult
from cuvs_bench.backends.registry import get_registry, register_backend, register_config_loader
from cuvs_bench.orchestrator import config_loaders
from cuvs_bench.orchestrator.config_loaders import BenchmarkConfig, ConfigLoader, IndexConfig

from ._build import build
from ._errors import Error
from ._index import Index

_PREFIX = "tagore_"
_METRICS = {"euclidean": "l2", "inner_product": "ip", "cosine": "cosine", "angular": "cosine"}
_GRID = {
    "build": {"degree": [32, 64]},
    "search": {"beam": [10, 20, 40, 60, 80, 120, 200, 400, 600, 800]},
}


class TagoreConfigLoader(ConfigLoader):  # type: ignore[misc]
    """Reads data sets as cuvs-bench does, and makes the grids of parameters."""

    def __init__(self, config_path: str | None = None) -> None:
        self.config_path = config_path or str(Path(config_loaders.__file__).parents[1] / "config")

    @property
    def backend_type(self) -> str:
        """The name of the backend."""
        return "tagore"

    def _discover_algo_groups(
        self, dataset_conf: dict[str, Any], dataset: str, dataset_path: str, **options: Any
    ) -> list[tuple[str, str, dict[str, Any], dict[str, Any]]]:
        groups = {}
        for file in self.gather_algorithm_configs(self.config_path, options.get("algorithm_configuration")):
            conf = self.load_yaml_file(file)
            if conf.get("name", "").startswith(_PREFIX):
                groups[conf["name"]] = conf["groups"]
        names = options.get("algorithms") or ",".join(groups) or f"{_PREFIX}nsg"
        allowed = set(filter(None, (options.get("groups") or "").split(",")))
        return [
            (name, group, conf, {})
            for name in map(str.strip, names.split(","))
            for group, conf in groups.get(name, {"base": _GRID}).items()
            if not allowed or group in allowed
        ]

    def _build_benchmark_configs(
        self,
        dataset_config: Any,
        dataset_conf: dict[str, Any],
        dataset: str,
        dataset_path: str,
        expanded_groups: list[tuple[str, str, dict[str, Any], list[Any], list[Any], dict[str, Any]]],
        **options: Any,
    ) -> list[Any]:
        configs = []
        for name, group, _, builds, searches, _ in expanded_groups:
            for parameters in [options["_tune_build_params"]] if options.get("_tune_build_params") else builds:
                label = ".".join([f"{name}_{group}", *(f"{key}{value}" for key, value in parameters.items())])
                index = IndexConfig(
                    name=label,
                    algo=name,
                    build_param=parameters,
                    search_params=[options["_tune_search_params"]] if options.get("_tune_search_params") else searches,
                    file=str(Path(dataset_path, dataset, "index", f"{label}.tagore")),
                )
                settings = {"name": label, "algo": name, "device": options.get("device", "auto")}
                configs.append(BenchmarkConfig(indexes=[index], backend_config=settings))
        return configs


class TagoreBackend(BenchmarkBackend):  # type: ignore[misc]
    """Builds and searches in the process of the harness."""

    @property
    def algo(self) -> str:
        """The algorithm, such as ``tagore_nsg``."""
        return str(self.config["algo"])

    def build(
        self, dataset: Dataset, indexes: list[IndexConfig], force: bool = False, dry_run: bool = False
    ) -> BuildResult:
        """Builds and saves each index; the time is that of `tagore_ann.build`, without the file."""
        seconds, size, last = 0.0, 0, indexes[-1]
        try:
            for index in indexes:
                path = Path(index.file)
                if dry_run or (path.exists() and not force):
                    continue
                path.parent.mkdir(parents=True, exist_ok=True)
                kind: Any = index.algo.removeprefix(_PREFIX)
                metric: Any = _METRICS[dataset.distance_metric]
                rows = np.ascontiguousarray(dataset.training_vectors)
                began = time.perf_counter()
                built = build(rows, kind, metric, device=self.config["device"], **index.build_param)
                seconds += time.perf_counter() - began
                built.save(path)
                size += path.stat().st_size
        except (Error, KeyError) as error:
            return BuildResult(last.file, 0.0, 0, self.algo, last.build_param, success=False, error_message=str(error))
        return BuildResult(last.file, seconds, size, self.algo, last.build_param)

    def search(
        self,
        dataset: Dataset,
        indexes: list[IndexConfig],
        k: int,
        batch_size: int = 10000,
        mode: str = "latency",
        force: bool = False,
        search_threads: int | None = None,
        dry_run: bool = False,
    ) -> SearchResult:
        """Searches in batches with every parameter.

        ``per_search_param_results`` has the figures of each; the result has their means.
        """
        found: Any = (np.zeros((0, k), np.int64), np.zeros((0, k), np.float32))
        every: list[dict[str, Any]] = []
        try:
            for index in [] if dry_run else indexes:
                opened = Index.open(index.file, base=np.ascontiguousarray(dataset.training_vectors))
                queries = np.ascontiguousarray(dataset.query_vectors)
                options = {"device": self.config["device"], "threads": search_threads}
                opened.search(queries[:1], k, k, **options)
                for parameters in index.search_params:
                    given = parameters | {"beam": max(k, parameters.get("beam", k))}
                    parts, times = [], []
                    for first in range(0, len(queries), batch_size):
                        began = time.perf_counter()
                        parts.append(opened.search(queries[first : first + batch_size], k, **given, **options))
                        times.append(time.perf_counter() - began)
                    found = tuple(np.concatenate(part) for part in zip(*parts, strict=True))
                    every.append(
                        {
                            "search_params": parameters,
                            "search_time_ms": 1e3 * sum(times),
                            "queries_per_second": len(queries) / sum(times),
                            "recall": _recall(found[0], dataset.groundtruth_neighbors, k),
                            "batch_ms": 1e3 * statistics.median(times),
                        }
                    )
        except Error as error:
            return SearchResult(*found, 0.0, 0.0, 0.0, self.algo, [], success=False, error_message=str(error))
        if not every:
            return SearchResult(*found, 0.0, 0.0, 0.0, self.algo, [])
        mean = {key: float(np.mean([at[key] for at in every])) for key in ("queries_per_second", "recall")}
        return SearchResult(
            found[0].astype(np.int64),
            found[1],
            sum(at["search_time_ms"] for at in every),
            mean["queries_per_second"],
            mean["recall"],
            self.algo,
            [at["search_params"] for at in every],
            metadata={"batch_size": batch_size, "per_search_param_results": every},
        )


def _recall(found: Any, truth: Any, k: int) -> float:
    """The share of true neighbours found."""
    if truth is None:
        return 0.0
    true = np.asarray(truth)[:, :k].astype(np.int64)
    return float((found[:, :, None].astype(np.int64) == true[:, None, :]).any(axis=1).mean())


def register() -> None:
    """Adds the backend to cuvs-bench. Versions with entry points call it themselves."""
    if not get_registry().is_registered("tagore"):
        register_backend("tagore", TagoreBackend)
        register_config_loader("tagore", TagoreConfigLoader)
