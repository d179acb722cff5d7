#!/usr/bin/env python3
"""Builds indexes of data sets and prints recall@10 and distances per query as a table.

Every folder needs base.fbin and queries.fbin; each gt-METRIC.bin in it is a row of the table per kind of index.
"""

import argparse
import json
import subprocess
import tempfile
from pathlib import Path

KINDS = "cagra,nsg,nssg,vamana,dpg"


def run(tagore, *arguments):
    """Runs the command and returns its JSON lines."""
    try:
        done = subprocess.run([tagore, *arguments, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    except OSError as error:
        raise SystemExit(f"error: --tagore: {error}") from None
    if done.returncode != 0:
        raise SystemExit(done.stderr.strip() or f"{tagore} {arguments[0]}: exit code {done.returncode}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def evaluate(args, folder, metric, kind, index):
    """Builds and searches one index; returns recall@10 and distances per query for each beam."""
    base, queries, truth = (str(folder / name) for name in ("base.fbin", "queries.fbin", f"gt-{metric}.bin"))
    run(args.tagore, "build", "-i", base, "-o", index, "--kind", kind, "--metric", metric,
        "--device", args.device, *args.build)
    lines = run(args.tagore, "eval", "--index", index, "--base", base, "--queries", queries, "--groundtruth", truth,
                "-k", "10", "--beams", args.beams, "--device", args.device)
    return [(line["recall"], line["distances"]) for line in lines]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", metavar="FOLDER", nargs="+", type=Path, help="data sets, or folders of data sets")
    parser.add_argument("--kinds", default=KINDS, metavar="KIND,..", help=f"kinds of index [default: {KINDS}]")
    parser.add_argument("--beams", default="32,100", metavar="L,..", help="beam widths [default: 32,100]")
    parser.add_argument("--build", default="", metavar="FLAGS", type=str.split,
                        help="more flags of tagore build, such as --build='--knn 64'")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--tagore", default="tagore", metavar="PATH", help="the command [default: tagore]")
    args = parser.parse_args()

    truths = sorted(path for folder in args.folders for path in [*folder.glob("gt-*.bin"), *folder.glob("*/gt-*.bin")])
    if not truths:
        parser.error("FOLDER: found no gt-METRIC.bin, expected the output of sets.sh")
    beams = args.beams.split(",")
    print("recall@10 / distances per query", end="\n\n")
    print("| data | metric | index |" + "".join(f" beam {beam} |" for beam in beams))
    print("| --- | --- | --- |" + " --- |" * len(beams))
    with tempfile.TemporaryDirectory() as work:
        for truth in truths:
            folder, metric = truth.parent, truth.stem.removeprefix("gt-")
            for kind in args.kinds.split(","):
                found = evaluate(args, folder, metric, kind, str(Path(work) / "index.tagore"))
                cells = "".join(f" {recall:.4f} / {distances:.0f} |" for recall, distances in found)
                print(f"| {folder.name} | {metric} | {kind} |{cells}", flush=True)


if __name__ == "__main__":
    main()
