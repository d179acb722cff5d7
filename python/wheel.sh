#!/usr/bin/env bash
# Makes the wheel of this checkout and prints its path. Usage: python/wheel.sh. Needs Rust, Python 3.10 or later (as
# PYTHON, else python3), and PyPI the first time.
set -euo pipefail
cd "$(dirname "$0")"
work=$(cd .. && pwd)/target/python
if ! [ -x "$work/maturin/bin/maturin" ]; then
  "${PYTHON:-python3}" -m venv "$work/maturin"
  "$work/maturin/bin/pip" install --quiet --disable-pip-version-check "maturin>=1.7,<2" ziglang
fi
rm -rf "$work/wheels"
# The PTX is the checked-in one, whatever compiler this machine has.
PATH=$work/maturin/bin:$PATH TAGORE_PTX=checked-in maturin build --release --locked --zig \
  --compatibility manylinux_2_28 --out "$work/wheels" --quiet >&2
echo "$work"/wheels/*.whl
