"""The backend in cuvs-bench itself, where it is installed (or its folder is on PYTHONPATH)."""

import numpy as np
import pytest
import tagore_ann

pytest.importorskip("cuvs_bench")


def test_a_sweep_builds_and_searches(tmp_path, x, q):
    from cuvs_bench.orchestrator import BenchmarkOrchestrator
    from tagore_ann import cuvs_bench

    tagore_ann.write(tmp_path / "base.fbin", x)
    tagore_ann.write(tmp_path / "query.fbin", q)
    tagore_ann.write_truth(tmp_path / "truth.ibin", tagore_ann.exact(x, q, 10)[0])
    (tmp_path / "sets.yaml").write_text(
        "- {name: small, base_file: base.fbin, query_file: query.fbin, "
        "groundtruth_neighbors_file: truth.ibin, dims: 24, distance: euclidean}\n"
    )
    cuvs_bench.register()
    run = BenchmarkOrchestrator("tagore").run_benchmark
    options = {"dataset": "small", "dataset_path": str(tmp_path), "dataset_configuration": str(tmp_path / "sets.yaml")}
    results = run(**options, algorithms="tagore_nsg,tagore_cagra", count=10, batch_size=30)
    assert len(results) == 8 and all(result.success for result in results)
    for build, search in zip(results[::2], results[1::2], strict=True):
        assert build.build_time_seconds > 0 and build.index_size_bytes > 3000 * 32 * 4
        recalls = [at["recall"] for at in search.metadata["per_search_param_results"]]
        assert len(recalls) == 10 and recalls[-1] > 0.99 and recalls[0] < recalls[-1] + 1e-9
        assert np.array_equal(search.neighbors[:, 0], tagore_ann.exact(x, q, 1)[0][:, 0])
    wrong = run(**options, algorithms="tagore_hnsw", count=10)
    assert not wrong[0].success and "kind: found hnsw" in wrong[0].error_message
