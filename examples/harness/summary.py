"""Prints and checks exports of the harnesses: python summary.py TITLE CSV ROWS [TITLE CSV ROWS ..]

Fails if an export has another number of rows, if the widest beam of an index finds less than MIN_RECALL, or
if two exports disagree about the recall of `tagore` on the same data with the same parameters.
"""

import csv
import sys

MIN_RECALL = 0.95  # recall@10, or average precision of a range search
NEAR = 0.002  # how far two harnesses may differ: they treat equal distances differently


def read(path):
    """Rows of an export, by index and beam."""
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        row["recall"] = float(row.get("recall/ap") or row["k-nn"])
        row["index"], _, beam = row["parameters"].rpartition(" beam ")
        row["beam"] = int(beam)
    return sorted(rows, key=lambda row: (row["dataset"], row["algorithm"], row["index"], row["beam"]))


def faults_of(title, rows, expected):
    if len(rows) != expected:
        yield f"{title}: found {len(rows)} results, expected {expected}"
    widest = {(row["dataset"], row["algorithm"], row["index"]): row for row in rows}  # the last of each has the widest beam
    for row in widest.values():
        if row["recall"] < MIN_RECALL:
            yield f"{title}: {row['dataset']}, {row['parameters']}: found recall {row['recall']}, expected {MIN_RECALL}"


def main(arguments):
    faults, seen = [], {}
    print(f"{'harness':24} {'algorithm':16} {'data set':16} {'index':24} {'beam':>5} {'recall':>7} {'QPS':>9} {'build s':>8}")
    for title, path, expected in zip(*[iter(arguments)] * 3, strict=True):
        rows = read(path)
        faults += faults_of(title, rows, int(expected))
        for row in rows:
            place = f"{title:24} {row['algorithm']:16} {row['dataset']:16} {row['index']:24} {row['beam']:5}"
            print(f"{place} {row['recall']:7.4f} {float(row['qps']):9.0f} {float(row['build']):8.2f}")
            if row["algorithm"] == "tagore":
                key = row["dataset"], row["parameters"]
                other = seen.setdefault(key, row["recall"])
                if abs(other - row["recall"]) > NEAR:
                    faults.append(f"{title}: {', '.join(key)}: found recall {row['recall']}, elsewhere {other}")
    for fault in faults:
        print(fault, file=sys.stderr)
    sys.exit(1 if faults else 0)


main(sys.argv[1:])
