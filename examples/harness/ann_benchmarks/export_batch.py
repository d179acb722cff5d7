"""Writes recall and QPS of batches as CSV: python with_data.py FOLDER export_batch.py DATASET OUT.csv

data_export.py of ann-benchmarks writes the results of single queries alone.
"""

import csv
import sys

from ann_benchmarks.datasets import get_dataset
from ann_benchmarks.plotting.utils import compute_metrics_all_runs
from ann_benchmarks.results import load_all_results

name, out = sys.argv[1:]
data, _ = get_dataset(name)
runs = [run | {"dataset": name} for run in compute_metrics_all_runs(data, load_all_results(name, batch_mode=True))]
if not runs:
    sys.exit(f"results/{name}: found no results of batches, expected those of run.py --batch")
with open(out, "w", newline="") as file:
    writer = csv.DictWriter(file, runs[0])
    writer.writeheader()
    writer.writerows(runs)
