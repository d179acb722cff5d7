"""Builds indexes of base.fbin with hnswlib and FAISS, for tagore to read, and says what they find in a search."""

import json
import sys
from pathlib import Path

import faiss
import hnswlib
import numpy as np

from search import K, faiss_search, hnswlib_search, read_bin, recall_of

BEAM = 50


def main():
    folder = Path(sys.argv[1])
    base, queries = (read_bin(folder / name, np.float32) for name in ["base.fbin", "query.fbin"])

    index = hnswlib.Index(space="l2", dim=base.shape[1])
    index.init_index(max_elements=len(base) + 1000, M=16, ef_construction=100)
    # In no order: elements are numbered as they come, and labels say which rows they are.
    order = np.random.default_rng(0).permutation(len(base))
    index.add_items(base[order], order)
    index.save_index(str(folder / "theirs.hnswlib"))

    index = faiss.IndexHNSWFlat(base.shape[1], 16)
    index.add(base)
    faiss.write_index(index, str(folder / "theirs.faiss-hnsw"))

    index = faiss.IndexNSGFlat(base.shape[1], 32)
    index.add(base)
    faiss.write_index(index, str(folder / "theirs.faiss-nsg"))

    for name, search in [("hnswlib", hnswlib_search), ("faiss-hnsw", faiss_search), ("faiss-nsg", faiss_search)]:
        path = folder / f"theirs.{name}"
        (found,) = search(path, "l2", queries, [BEAM])
        line = {"beam": BEAM, "recall": recall_of(found, folder / "l2.gt")}
        (folder / f"theirs.{name}.jsonl").write_text(json.dumps(line))


if __name__ == "__main__":
    main()
