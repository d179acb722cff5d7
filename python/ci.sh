#!/usr/bin/env bash
# Makes the wheel and the sdist of tagore-ann, and tests the wheel in a clean environment.
# Usage: python/ci.sh. Needs Python 3.10 or later (as PYTHON, else python3), and PyPI.
# Environments and wheels are in target/python; what is there already is not fetched again.
set -euo pipefail
cd "$(dirname "$0")"
here=$PWD
work=$(cd .. && pwd)/target/python
mkdir -p "$work"

# Largest wheel in bytes.
LARGEST=10000000

parts=() part= began=$SECONDS
part() {
  [ -z "$part" ] || parts+=("$(printf '%5d s  %s' $((SECONDS - began)) "$part")")
  part=$1 began=$SECONDS
  [ -z "$1" ] || echo "-- $1"
}

# An environment NAME with packages, made once for their list.
environment() {
  local venv=$work/$1 list=$work/$1.txt
  shift
  if ! [ -x "$venv/bin/python" ] || [ "$(cat "$list" 2>/dev/null)" != "$*" ]; then
    "${PYTHON:-python3}" -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check "$@"
    echo "$*" > "$list"
  fi
}

part "tools"
environment tools "maturin>=1.7,<2" ziglang ruff
tools=$work/tools/bin

part "format and lints"
code=(. ../examples/python ../benches/peers)
"$tools/ruff" format --check --quiet --config pyproject.toml "${code[@]}"
"$tools/ruff" check --quiet --config pyproject.toml "${code[@]}"

part "wheel"
rm -rf "$work/wheels"
# The PTX is the checked-in one, whatever compiler this machine has.
PATH=$tools:$PATH TAGORE_PTX=checked-in maturin build --release --locked --zig --compatibility manylinux_2_28 \
  --out "$work/wheels" --quiet
wheel=$(echo "$work"/wheels/*.whl)
python3 - "$wheel" "$LARGEST" <<'PYTHON'
import os, re, sys, zipfile

wheel, largest = sys.argv[1], int(sys.argv[2])
size = os.path.getsize(wheel)
with zipfile.ZipFile(wheel) as file:
    native = [name for name in file.namelist() if name.endswith(".so")]
    data = file.read(native[0])
glibc = max(tuple(map(int, found.split(b"."))) for found in re.findall(rb"GLIBC_([0-9.]+)\0", data))
# Names of libraries, as the dynamic section refers to them.
needed = sorted(set(re.findall(rb"\0((?:lib|ld-)[\w+-]+\.so(?:\.\d+)*)\0", data)))
print(f"{os.path.basename(wheel)}: {size:,} bytes, glibc {glibc}, loads {b' '.join(needed).decode()}")
allowed = {b"libc.so.6", b"libm.so.6", b"libdl.so.2", b"libpthread.so.0", b"librt.so.1", b"libgcc_s.so.1"}
# The driver is opened where there is one; it is not needed.
foreign = set(needed) - allowed - {b"libcuda.so.1", b"libcuda.so"}
if size > largest or len(native) != 1 or glibc > (2, 28) or foreign or b"ld-linux" in data[:0]:
    sys.exit(f"expected one library within {largest:,} bytes, glibc 2.28 and the system's libraries; found {foreign}")
PYTHON

part "clean environment"
rm -rf "$work/clean"
"${PYTHON:-python3}" -m venv "$work/clean"
"$work/clean/bin/pip" install --quiet --disable-pip-version-check "$wheel"
env -u CUDA_PATH PATH="$work/clean/bin" "$work/clean/bin/python" - README.md <<'PYTHON'
import os, sys, tempfile

[block] = [block.split("```")[0] for block in open(sys.argv[1]).read().split("```python\n")[1:]]
os.chdir(tempfile.mkdtemp())
exec(block)
print(f"the README's lines: ids of shape {ids.shape}, {os.listdir()}")
PYTHON
"$work/clean/bin/tagore" --version

part "libraries that it serves"
environment tests --requirement tests/requirements.txt
"$work/tests/bin/pip" install --quiet --disable-pip-version-check --force-reinstall --no-deps "$wheel"
python=$work/tests/bin/python

part "types"
"$python" -m mypy --config-file pyproject.toml --cache-dir "$work/mypy" tagore_ann ../examples/python
"$python" -m mypy.stubtest tagore_ann._tagore

# Tests import the wheel, not the folder beside them.
part "tests"
cp -r tests pyproject.toml "$work/run/" 2>/dev/null || { mkdir -p "$work/run" && cp -r tests pyproject.toml "$work/run/"; }
(cd "$work/run" && PYTHONDONTWRITEBYTECODE=1 "$python" -m pytest --quiet -rP --durations=5 -p no:cacheprovider 2>&1 |
  grep -vE '^(_+ .* _+|-+ Captured std.* -+)$')

part "examples of docstrings and documents"
(cd .. && "$python" python/tests/doctests.py README.md docs/how-to-python.md docs/start.md)

part "sdist"
PATH=$tools:$PATH maturin sdist --out "$work/wheels" --quiet
# Built as pip builds it, in the folder of the release build: the crates of the registry are there.
MATURIN_PEP517_ARGS="--locked" CARGO_TARGET_DIR=$work/.. TAGORE_PTX=checked-in PATH=$tools:$PATH \
  "$tools/pip" wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation \
  --wheel-dir "$work/from-sdist" "$work"/wheels/*.tar.gz
ls "$work/from-sdist"

part ""
printf '%s\n' "${parts[@]}"
