#!/usr/bin/env bash
# Makes the wheel of this checkout and prints its path, in target/python/wheels. Usage: python/wheel.sh [manylinux]. Needs
# Rust, Python 3.10 or later (as PYTHON, else python3), and PyPI the first time.
# `manylinux` makes it from the sdist, which lies beside it, for every Linux with glibc 2.28; otherwise it is for this
# machine.
set -euo pipefail
cd "$(dirname "$0")"
target=$(cd .. && pwd)/target
work=$target/python
if ! [ -x "$work/maturin/bin/maturin" ]; then
  "${PYTHON:-python3}" -m venv "$work/maturin"
  "$work/maturin/bin/pip" install --quiet --disable-pip-version-check "maturin>=1.7,<2" ziglang
fi
PATH=$work/maturin/bin:$PATH
rm -rf "$work/wheels"
options=(--compatibility linux --locked)
if [ "${1:-}" = manylinux ]; then
  rm -rf "$work/sdist"
  mkdir -p "$work/sdist"
  maturin sdist --out "$work/wheels" > "$work/sdist.log" 2>&1 || { cat "$work/sdist.log" >&2; exit 1; }
  # Files of an sdist have old times: cargo would take an earlier build for theirs.
  tar -xzm --strip-components 1 --directory "$work/sdist" --file "$work"/wheels/*.tar.gz
  cd "$work/sdist"
  # Not --locked: the lock file is that of the whole workspace, of which an sdist holds a part.
  options=(--compatibility manylinux_2_28 --zig)
fi
# The PTX is the checked-in one, whatever compiler this machine has.
CARGO_TARGET_DIR=$target TAGORE_PTX=checked-in maturin build --release "${options[@]}" --out "$work/wheels" --quiet >&2
echo "$work"/wheels/*.whl
