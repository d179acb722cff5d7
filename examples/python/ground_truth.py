"""The ground truth of a benchmark, and an index measured against it.

Vectors come from files of any format, mapped. Without files it makes some.
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import tagore_ann


def made(folder: Path) -> tuple[Path, Path]:
    """Files of a made base and of queries."""
    rng = np.random.default_rng(0)
    centres = 3 * rng.standard_normal((500, 64), dtype=np.float32)
    paths = folder / "base.fbin", folder / "query.fbin"
    for path, n in zip(paths, (50_000, 1000), strict=True):
        rows = centres[rng.integers(0, 500, n)] + rng.standard_normal((n, 64), dtype=np.float32)
        tagore_ann.write(path, rows)
    return paths


def main() -> None:
    """Finds the truth, writes it, and measures an index."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", type=Path, help="fvecs, bvecs, fbin, f16bin, bf16bin, u8bin, i8bin or npy")
    parser.add_argument("--queries", type=Path)
    parser.add_argument("--metric", choices=["l2", "ip", "cosine"], default="l2")
    parser.add_argument("-k", type=int, default=100)
    parser.add_argument("-o", "--output", type=Path, default=Path("truth.bin"))
    options = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        paths = (options.base, options.queries) if options.base else made(Path(folder))
        base, queries = map(tagore_ann.read, paths)
        began = time.perf_counter()
        ids, distances = tagore_ann.exact(base, queries, options.k, options.metric, progress=True)
        print(f"{len(queries):,} queries in {len(base):,} rows: {time.perf_counter() - began:.1f} s")
        tagore_ann.write_truth(options.output, ids, distances)
        index = tagore_ann.build(base, "nsg", options.metric, progress=True)
        for at in index.evaluate(queries, ids, k=10):
            print(f"beam {at['beam']:>4}: recall@10 {at['recall']:.4f}, {at['qps']:,.0f} QPS")


if __name__ == "__main__":
    main()
