#!/usr/bin/env python3
"""Builds indexes of dirty data (`tagore synth --kind dirty`) and prints their recall as a table.

Per fault, share and kind: recall@10 of queries without the fault, recall@10 and recall@1 of rows with the fault as queries
(ties count), and seconds of the build. The first lines are those of clean data. `!`: the build or a search warned.
The kinds `hnswlib` and `faiss-hnsw` are the graphs of those libraries (M = 16, efConstruction = 200, ef the beam), by
their Python packages.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

KINDS = "cagra,nsg,nssg,vamana,dpg,tau-mng,alpha-cng"
PEERS = ["hnswlib", "faiss-hnsw"]
SHARES = {
    "zero": "0.001,0.009,0.1", "equal": "0.001,0.009,0.1,0.5", "signed-zero": "0.009,0.05", "multiples": "0.009,0.1",
    "near:1e-6": "0.009,0.1", "near:1e-3": "0.009,0.1", "ball:1e-3": "0.01,0.1,0.9", "ball:1e-2": "0.01,0.1,0.9",
    "lone": "0.0005,0.005", "sentinel": "0.0005,0.01,0.1", "tails": "0.1,1", "offset": "0.01,0.5,1", "grid": "0.1,1",
}


class Failed(Exception):
    """The command failed, or took too long."""


def run(args, *arguments):
    """Runs the command; returns its JSON lines, seconds, and whether it warned."""
    start = time.monotonic()
    command = [args.tagore, *map(str, arguments), "--json"]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=args.timeout)
    except OSError as error:
        raise SystemExit(f"error: --tagore: {error}") from None
    except subprocess.TimeoutExpired:
        raise Failed(f"over {args.timeout} s") from None
    if done.returncode != 0:
        raise Failed(done.stderr.strip().splitlines()[-1:] or f"exit code {done.returncode}")
    warnings = [line for line in done.stderr.splitlines() if line.startswith("warning")]
    for line in warnings if args.warnings else []:
        print(f"  {arguments[0]}: {line}", file=sys.stderr)
    return [json.loads(line) for line in done.stdout.splitlines()], time.monotonic() - start, bool(warnings)


def rows_of(path, dtype="<f4"):
    """The rows of a file of vectors or of the ids of a ground truth."""
    import numpy as np

    rows, columns = np.fromfile(path, "<u4", 2)
    return np.fromfile(path, dtype, rows * columns, offset=8).reshape(rows, columns)


def peer(args, kind, base):
    """Builds the graph of another library; returns a function that finds the ids of k rows per query."""
    import numpy as np

    if kind == "hnswlib":
        import hnswlib

        index = hnswlib.Index({"l2": "l2", "cosine": "cosine", "ip": "ip"}[args.metric], base.shape[1])
        index.init_index(len(base), ef_construction=200, M=16)
        index.add_items(base)
        index.set_ef(args.beam)
        return lambda queries, k: index.knn_query(queries, k)[0]
    import faiss

    def unit(rows):
        if args.metric != "cosine":
            return rows
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        return rows / np.where(lengths > 0, lengths, 1)

    index = faiss.IndexHNSWFlat(base.shape[1], 16, faiss.METRIC_L2 if args.metric == "l2" else faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction, index.hnsw.efSearch = 200, args.beam
    index.add(unit(base))
    return lambda queries, k: index.search(unit(queries), k)[1]


def distances(args, base, query, ids):
    """The distances of rows from a query, in double precision."""
    import numpy as np

    rows, query = base[ids].astype("f8"), query.astype("f8")
    if args.metric == "l2":
        return ((rows - query) ** 2).sum(1)
    products = rows @ query
    if args.metric == "cosine":
        lengths = np.linalg.norm(rows, axis=1) * np.linalg.norm(query)
        products = np.divide(products, lengths, out=np.zeros_like(products), where=lengths > 0)
    return -products


def measure_peer(args, work, kind, queries):
    """As `measure`, of another library."""
    base, start = rows_of(work / "base.fbin"), time.monotonic()
    search = peer(args, kind, base)
    seconds, cells = time.monotonic() - start, []
    for name, k in [("rows", 10)] + [("dirty", 10), ("dirty", 1)] * ("dirty" in queries):
        asked, truth, right = rows_of(work / f"{name}.fbin"), rows_of(work / f"{name}.bin", "<u4"), 0
        for query, found, nearest in zip(asked, search(asked, k), truth):
            last = distances(args, base, query, nearest[:k]).max()
            here = distances(args, base, query, found[found >= 0])
            right += (here <= last + 1e-6 * abs(last)).sum()
        cells.append(f"{right / (len(asked) * k):.3f}")
    return [*cells, *["-"] * (3 - len(cells)), f"{seconds:.1f}", ""]


def measure(args, work, kind, modes, queries):
    """Builds and searches one index; returns a table's cells."""
    if kind in PEERS:
        return measure_peer(args, work, kind, queries)
    build, search = modes
    index, base = work / "index.tagore", work / "base.fbin"
    _, seconds, warned = run(args, "build", "-i", base, "-o", index, "--kind", kind, "--metric", args.metric,
                             "--device", args.device, *build)
    cells = []
    for name, k in [("rows", 10)] + [("dirty", 10), ("dirty", 1)] * ("dirty" in queries):
        lines, _, searched = run(args, "eval", "--index", index, "--base", base, "--queries", work / f"{name}.fbin",
                                 "--groundtruth", work / f"{name}.bin", "-k", k, "--beams", args.beam,
                                 "--device", args.device, *search)
        cells.append(f"{lines[0]['recall']:.3f}")
        warned |= searched
    return [*cells, *["-"] * (3 - len(cells)), f"{seconds:.1f}", "!" if warned else ""]


def make(args, work, flags):
    """Makes a data set, its queries and their neighbours; returns the kinds of queries."""
    data = ["synth", "--n", args.n, "--dim", args.dim, "--seed", args.seed, *flags]
    run(args, *data, "-o", work / "base.fbin")
    kinds = ["rows", "dirty"] if flags else ["rows"]
    for kind in kinds:
        run(args, *data, "--queries", args.queries, "--query-kind", kind, "-o", work / f"{kind}.fbin")
        run(args, "groundtruth", "--base", work / "base.fbin", "--queries", work / f"{kind}.fbin", "-k", 10,
            "--metric", args.metric, "--device", args.device, "-o", work / f"{kind}.bin")
    return kinds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", default=",".join(SHARES), metavar="FAULT,..", help="faults [default: all]")
    parser.add_argument("--shares", metavar="X,..", help="shares of rows [default: several, by fault]")
    parser.add_argument("--kinds", default=KINDS, metavar="KIND,..", help=f"kinds of index [default: {KINDS}]")
    parser.add_argument("--mode", default="memory", choices=["memory", "codes", "clusters"],
                        help="codes: --vectors int8; clusters: of a fifth of the rows [default: memory]")
    parser.add_argument("--build", default=[], metavar="FLAGS", type=str.split, help="more flags of tagore build")
    parser.add_argument("--metric", default="l2", help="l2, cosine or ip [default: l2]")
    parser.add_argument("--n", type=int, default=20_000, help="rows [default: 20000]")
    parser.add_argument("--dim", type=int, default=32, help="components [default: 32]")
    parser.add_argument("--seed", type=int, default=0, help="seed of the data [default: 0]")
    parser.add_argument("--queries", type=int, default=500, help="queries of each kind [default: 500]")
    parser.add_argument("--beam", type=int, default=100, help="beam of searches [default: 100]")
    parser.add_argument("--device", default="auto", help="auto, cpu, emulated, cuda or cuda:N")
    parser.add_argument("--timeout", type=float, default=600, metavar="SECONDS", help="of one command [default: 600]")
    parser.add_argument("--warnings", action="store_true", help="print the warnings of the command")
    parser.add_argument("--tagore", default="tagore", metavar="PATH", help="the command [default: tagore]")
    args = parser.parse_args()

    build, search = {"memory": ([], []), "codes": (["--vectors", "int8"], ["--vectors", "int8"]),
                     "clusters": (["--cluster-size", max(args.n // 5, 1), "--no-work-files"], [])}[args.mode]
    cases = [("clean", "0")]
    for fault in args.faults.split(","):
        shares = args.shares or SHARES.get(fault) or SHARES.get(f"{fault}:1e-3", "0.01,0.1")
        cases += [(fault, share) for share in shares.split(",")]
    print(f"{args.n} x {args.dim}, {args.metric}, {args.mode}, {args.device}, beam {args.beam}", end="\n\n")
    print("| fault | share | index | clean queries | dirty rows | @1 | build s | |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        for fault, share in cases:
            flags = ["--kind", "dirty", "--fault", fault, "--share", share] if fault != "clean" else []
            try:
                queries = make(args, work, flags)
            except Failed as error:
                raise SystemExit(f"error: {fault}, {share}: {error}") from None
            for kind in args.kinds.split(","):
                try:
                    cells = measure(args, work, kind, (build + args.build, search), queries)
                except Failed as error:
                    cells = [str(error), "", "", "", "!"]
                print(f"| {fault} | {share} | {kind} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
