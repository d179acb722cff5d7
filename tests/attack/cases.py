"""Small data of every kind that the command reads, and the runs that read each.

The command itself makes the data. All values are whole numbers: every element type holds them exactly.
"""

import random
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from process import Runner

ROWS, DIM, QUERIES = 120, 8, 10

# What is read beside a file under attack. Paths are absolute: runs have folders of their own.
BUILD = ["--device", "cpu", "--no-report", "--knn", "8"]


@dataclass
class Subject:
    """Files that are read together, and the runs that read them. In a run, `{file}` is their name, or what their names
    begin with, `{out}` a name that does not exist, and other names in braces are data."""

    name: str
    main: str
    files: list
    runs: list


@dataclass
class Data:
    """Data of one seed, all in one folder."""

    folder: Path
    vectors: list  # names of formats
    ids: list
    indexes: list
    subjects: list

    def path(self, name):
        return self.folder / name

    def names(self):
        names = ["base", "query", "truth", "index", "cagra", "graph"]
        extensions = {"base": "fbin", "query": "fbin", "truth": "gt", "index": "tagore", "cagra": "tagore", "graph": "gt"}
        return {name: str(self.path(f"{name}.{extensions[name]}")) for name in names}


def whole_numbers(rows, seed):
    draw = random.Random(seed)
    content = bytes(draw.randrange(120) for _ in range(rows * DIM))
    return rows.to_bytes(4, "little") + DIM.to_bytes(4, "little") + content


def formats(runner, folder):
    """The names of all formats, as the command lists them."""
    outcome = runner.run(["inspect", "x", "--from", "?"], folder)
    names = re.search(r"expected (?:one of )?([a-z0-9-]+(?:, [a-z0-9-]+)+)", outcome.stderr.decode())
    if not names:
        raise SystemExit(f"no names of formats in {outcome.stderr!r}")
    return names[1].split(", ")


def make(runner: Runner, folder: Path):
    """Makes data of all formats in `folder`."""
    folder.mkdir(parents=True)
    run = lambda *arguments: runner.succeeds(arguments, folder)
    for name, rows in [("rows", ROWS), ("queries", QUERIES)]:
        (folder / f"{name}.u8bin").write_bytes(whole_numbers(rows, name))
    run("convert", "queries.u8bin", "query.fbin")
    # Bits hold no such numbers.
    run("synth", "--n", str(ROWS), "--dim", str(DIM), "--type", "b1", "-o", "base.b1bin")
    vectors, ids, indexes = ["b1bin"], [], []
    for name in formats(runner, folder):
        if runner.run(["convert", "rows.u8bin", f"base.{name}", "--to", name], folder).code == 0:
            vectors.append(name)
    run("groundtruth", "--base", "base.fbin", "--queries", "query.fbin", "-k", "10", "-o", "truth.gt")
    run("build", "-i", "base.fbin", "-o", "index.tagore", "--kind", "nsg", *BUILD)
    run("build", "-i", "base.fbin", "-o", "cagra.tagore", "--kind", "cagra", "--degree", "8", *BUILD)
    before = names_in(folder)
    run("knn", "-i", "base.fbin", "-o", "graph.gt", "--knn", "8", "--device", "cpu")
    graph = sorted(names_in(folder) - before)
    exports = {"ids": ["truth.gt"], "indexes": ["index.tagore", "cagra.tagore"]}
    for kind, found in [("ids", ids), ("indexes", indexes)]:
        for name in formats(runner, folder):
            if name != "tagore" and export(runner, folder, exports[kind], name, folder / kind / name):
                found.append(name)
    left = set(formats(runner, folder)) - set(vectors) - set(ids) - set(indexes) - {"tagore"}
    if left:
        raise SystemExit(f"no case for the formats {left}: tests/attack/cases.py")
    long_header(folder / "base.fbin", folder / "long.fbin")
    data = Data(folder, vectors, ids, indexes, [])
    data.subjects = subjects(data, graph)
    return data


def export(runner, folder, sources, name, target):
    """Writes one of `sources` as `name` into a folder of its own, since it may be several files; whether that can be."""
    target.mkdir(parents=True)
    for source in sources:
        arguments = ["convert", folder / source, f"x.{name}", "--to", name]
        base = [] if source == "truth.gt" else ["--base", folder / "base.fbin"]
        if runner.run([*arguments, *base], target).code == 0:
            return True
    target.rmdir()
    return False


def long_header(file, longer):
    """The same vectors behind a header of 16 bytes."""
    content = file.read_bytes()
    longer.write_bytes(content[:4] + bytes(4) + content[4:8] + bytes(4) + content[8:])


def names_in(folder):
    return {entry.name for entry in folder.iterdir()}


def subjects(data, graph):
    def one(name, file, runs):
        return Subject(name, file, [data.path(file)], runs)

    found = [one(f"vectors {name}", f"base.{name}", of_vectors(name)) for name in data.vectors]
    found.append(one("vectors, header of 16 bytes", "long.fbin", of_vectors("fbin")))
    found.append(one("ground truth", "truth.gt", OF_IDS))
    found.append(Subject("k-NN graph", "graph.gt", [data.path(name) for name in graph], OF_GRAPHS))
    found += [one(f"native {kind}", f"{kind}.tagore", OF_NATIVE) for kind in ["index", "cagra"]]
    for name in data.ids:
        files = files_of(data, "ids", name)
        found.append(Subject(f"ids {name}", f"x.{name}", files, OF_IDS if len(files) == 1 else of_pairs(name)))
    for name in data.indexes:
        found.append(Subject(f"index {name}", f"x.{name}", files_of(data, "indexes", name), of_indexes(name)))
    return found


def files_of(data, kind, name):
    return sorted(data.path(f"{kind}/{name}").iterdir())


def of_vectors(name):
    other = {"fbin": "fvecs", "npy": "f16bin"}.get(name, "fbin")
    return [
        "inspect {file}",
        "inspect {file} --json",
        "convert {file} {out}." + other,
        "build -i {file} -o {out} --kind nsg --device cpu --no-report --knn 8",
        "build -i {file} -o {out} --kind cagra --degree 8 --device cpu --no-report --knn 8 --metric cosine",
        "knn -i {file} -o {out} --knn 8 --device cpu",
        "groundtruth --base {file} --queries {query} -k 5 -o {out}",
        "groundtruth --base {file} --queries {query} -k 5 -o {out} --metric ip",
        "groundtruth --base {base} --queries {file} -k 5 -o {out}",
        "search --index {index} --base {file} --queries {query} -k 5 -o {out}",
        "search --index {index} --base {base} --queries {file} -k 5 -o {out}",
        "eval --index {index} --base {base} --queries {file} --groundtruth {truth} --beams 20",
        "plan -i {file} --kind nsg --device cpu",
    ]


OF_IDS = [
    "inspect {file}",
    "convert {file} {out}.ivecs",
    "eval --index {index} --base {base} --queries {query} --groundtruth {file} --beams 20",
    "eval --index {index} --base {base} --queries {query} --groundtruth {file} --beams 20 --json",
]


def of_pairs(name):
    return [f"inspect {{file}} --from {name}", f"convert {{file}} {{out}}.gt --from {name} --to ibin"]


OF_GRAPHS = ["build -i {base} -o {out} --kind nsg --device cpu --no-report --graph {file}"]
OF_NATIVE = [
    "inspect {file}",
    "inspect {file} --json --base {base}",
    "convert {file} {out}.nsg",
    "convert {file} {out}.hnswlib --base {base} --layers",
    "search --index {file} --base {base} --queries {query} -k 5 -o {out}",
    "eval --index {file} --base {base} --queries {query} --groundtruth {truth} --beams 20",
]


def of_indexes(name):
    read = "{file} --base {base} --from " + name
    return [f"inspect {read}", f"inspect {read} --json", f"convert {read} {{out}}.tagore", f"convert {read} {{out}}.tagore"]
