"""Converts a data set of ann-benchmarks: python hdf5_to_bin.py IN.hdf5 FOLDER

Writes base.fbin, query.fbin and gt.bin (ids, then distances), and says which --metric they are for.
"""

import sys
from pathlib import Path

import h5py
import numpy as np

ROWS = 100_000  # read at a time

# The metric, and how its distances there become those of tagore.
METRICS = {
    "euclidean": ("l2", np.square),
    "angular": ("cosine", lambda distances: distances),
}


def write_fbin(path, rows):
    with open(path, "wb") as file:
        np.array(rows.shape, np.uint32).tofile(file)
        for begin in range(0, len(rows), ROWS):
            rows[begin : begin + ROWS].astype(np.float32).tofile(file)


def main(source, folder):
    with h5py.File(source) as data:
        kind, distance = data.attrs.get("type", "dense"), data.attrs["distance"]
        if kind != "dense" or distance not in METRICS:
            sys.exit(f"{source}: found {kind} vectors, {distance} distance, expected dense ones, {' or '.join(METRICS)}")
        metric, converted = METRICS[distance]
        folder.mkdir(parents=True, exist_ok=True)
        write_fbin(folder / "base.fbin", data["train"])
        write_fbin(folder / "query.fbin", data["test"])
        with open(folder / "gt.bin", "wb") as file:
            np.array(data["neighbors"].shape, np.uint32).tofile(file)
            data["neighbors"][:].astype(np.uint32).tofile(file)
            converted(data["distances"][:]).astype(np.float32).tofile(file)
    print(f"{folder}: --metric {metric}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(sys.argv[1], Path(sys.argv[2]))
