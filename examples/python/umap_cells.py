"""Neighbours of cells for UMAP, with a picture.

The cells are 50 principal components, as single-cell analysis has them, of made types that branch
into each other. Replace `cells` by yours: an array of float32, one row per cell.
"""

import argparse
import time

import numpy as np
import numpy.typing as npt
import umap
from tagore_ann.umap import precomputed_knn

Matrix = npt.NDArray[np.float32]


def cells(n: int, types: int, seed: int) -> tuple[Matrix, npt.NDArray[np.int64]]:
    """n cells on branches between types, and the type of each."""
    rng = np.random.default_rng(seed)
    scale = 5 / np.sqrt(1 + np.arange(50))
    centres = rng.standard_normal((types, 50)) * scale
    kind = rng.integers(0, types, n)
    parent = np.maximum(kind - 1 - rng.integers(0, 3, types)[kind], 0)
    along = rng.beta(1.5, 0.8, (n, 1))
    place = along * centres[kind] + (1 - along) * centres[parent]
    return (place + 0.5 * scale * rng.standard_normal((n, 50))).astype(np.float32), kind


def draw(points: Matrix, kind: npt.NDArray[np.int64], path: str) -> None:
    """Draws the embedding, a colour per type."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 6))
    size = max(0.05, 30_000 / len(points))
    x, y = points[:, 0], points[:, 1]
    axes.scatter(x, y, size, kind, cmap="tab20", linewidths=0, rasterized=True)
    axes.set_axis_off()
    figure.savefig(path, dpi=100, bbox_inches="tight")


def main() -> None:
    """Makes cells, finds neighbours, embeds, draws."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", type=int, default=1_000_000)
    parser.add_argument("--types", type=int, default=16)
    parser.add_argument("--neighbors", type=int, default=15)
    parser.add_argument("-o", "--output", default="cells.png")
    options = parser.parse_args()

    x, kind = cells(options.cells, options.types, seed=0)
    began = time.perf_counter()
    neighbors = precomputed_knn(x, options.neighbors)
    print(f"{len(x):,} cells: neighbours in {time.perf_counter() - began:.1f} s")
    began = time.perf_counter()
    points = umap.UMAP(n_neighbors=options.neighbors, precomputed_knn=neighbors).fit_transform(x)
    print(f"layout by umap-learn in {time.perf_counter() - began:.1f} s")
    draw(points, kind, options.output)
    print(options.output)


if __name__ == "__main__":
    main()
