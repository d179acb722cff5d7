"""Runs a script of ann-benchmarks with one more data set: python with_data.py FOLDER SCRIPT [ARGUMENT ..]

FOLDER holds base.fbin and query.fbin and gives the data set its name. The harness finds the nearest
neighbours under L2 itself. Run it in the folder of the harness.
"""

import multiprocessing
import os
import runpy
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, os.getcwd())
from ann_benchmarks.datasets import DATASETS, get_dataset_fn, write_output


def read_fbin(path):
    rows, cols = np.fromfile(path, np.uint32, 2)
    return np.fromfile(path, np.float32, offset=8).reshape(rows, cols)


def write(file):
    write_output(read_fbin(folder / "base.fbin"), read_fbin(folder / "query.fbin"), file, "euclidean")


folder = Path(sys.argv[1])
DATASETS[folder.name] = write
file = Path(get_dataset_fn(folder.name))
if not file.exists():  # the harness would look for it on its site
    write(file)
multiprocessing.set_start_method("fork")  # workers of the harness inherit the data set
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
