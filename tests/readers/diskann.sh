#!/usr/bin/env bash
# diskann.sh TAGORE WORK: files for DiskANN, searched by its Python package (C++ underneath) and its Rust crates, of the
# indexes METRIC.tagore in WORK; beside them base.fbin, query.fbin, METRIC.gt and METRIC.jsonl, what `tagore eval --json` says.
# Needs Python 3.9 to 3.11 with venv (as PYTHON, else python3), PyPI and the Rust registry; the first run takes minutes.
set -euo pipefail
tagore=$1 work=$2
cd "$(dirname "$0")/../.."

# A virtual environment of its own: diskannpy takes one version of NumPy alone.
venv=target/readers-diskann
test -x "$venv/bin/python" || "${PYTHON:-python3}" -m venv "$venv"
"$venv/bin/pip" install --quiet --disable-pip-version-check --requirement tests/readers/diskann.txt

for metric in l2 ip cosine; do
  for target in "$metric.diskann --to diskann" "$metric --to diskann-disk"; do
    # shellcheck disable=SC2086 # a name and a flag
    "$tagore" convert "$work/$metric.tagore" --base "$work/base.fbin" "$work/"$target
  done
done
cargo run --release --quiet --manifest-path tests/readers/diskann_rs/Cargo.toml --target-dir target/readers-rust -- \
  "$work/l2.diskann" "$work/l2" "$work/query.fbin" "$work/l2.gt" 20 50 100 > "$work/l2.rust.jsonl"

"$venv/bin/python" tests/readers/diskann.py "$work"
