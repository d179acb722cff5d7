#!/usr/bin/env bash
# Compares tagore with faiss, hnswlib, usearch, pynndescent and, where there is a GPU, cuVS: same data, same truth, one table.
# Usage: benches/peers/run.sh [options of peers.py], such as --base base.fbin --queries query.fbin.
# Needs Python 3.10 or later (as PYTHON, else python3) and PyPI; without a wheel of tagore-ann (as WHEEL) also
# Rust, to make one. The environment is target/peers.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
venv=$root/target/peers
test -x "$venv/bin/python" || "${PYTHON:-python3}" -m venv "$venv"
install() { "$venv/bin/pip" install --quiet --disable-pip-version-check "$@"; }

install numpy h5py faiss-cpu hnswlib usearch pynndescent scikit-learn
if nvidia-smi >/dev/null 2>&1; then
  # Without it the others are compared all the same.
  install cuvs-cu12 cupy-cuda12x || echo "warning: cuVS could not be installed" >&2
fi
install --force-reinstall --no-deps "${WHEEL:-$("$root/python/wheel.sh")}"
exec "$venv/bin/python" "$root/benches/peers/peers.py" "$@"
