"""Runs a script of big-ann-benchmarks with one more data set: python with_data.py FOLDER SCRIPT [ARGUMENT ..]

FOLDER holds base.fbin, query.fbin and gt.bin (100 neighbours under L2) and gives the data set its name.
Run it in the folder of the harness.
"""

import multiprocessing
import os
import runpy
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, os.getcwd())
from benchmark.datasets import DATASETS, DatasetCompetitionFormat


class Folder(DatasetCompetitionFormat):
    def __init__(self):
        self.basedir = str(folder)
        self.ds_fn, self.qs_fn, self.gt_fn = "base.fbin", "query.fbin", "gt.bin"
        self.dtype = "float32"
        self.nb, self.d = self.shape(self.ds_fn)
        self.nq, _ = self.shape(self.qs_fn)

    def shape(self, name):
        return np.fromfile(folder / name, np.uint32, 2).tolist()

    def prepare(self, skip_data=False):
        pass

    def short_name(self):
        return folder.name

    def distance(self):
        return "euclidean"


folder = Path(sys.argv[1])
DATASETS[folder.name] = Folder
multiprocessing.set_start_method("fork")  # workers of the harness inherit the data set
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
