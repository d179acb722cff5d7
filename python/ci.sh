#!/usr/bin/env bash
# Tests the wheel of this checkout in a clean environment, and that its sdist compiles. Usage: python/ci.sh. Needs
# Python 3.10 or later (as PYTHON, else python3), and PyPI. WHEEL names a wheel to test in place of a new one; of one for
# every Linux it checks the libraries that it needs.
# Environments and wheels are in target/python; what is there already is not fetched again.
set -euo pipefail
cd "$(dirname "$0")"
here=$PWD
target=$(cd .. && pwd)/target
work=$target/python
mkdir -p "$work"

# Largest wheel in bytes.
LARGEST=10500000

parts=() part= began=$SECONDS
part() {
  [ -z "$part" ] || parts+=("$(printf '%5d s  %s' $((SECONDS - began)) "$part")")
  part=$1 began=$SECONDS
  [ -z "$1" ] || echo "-- $1"
}
trap 'part ""; printf "%s\n" "${parts[@]}"' EXIT

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
environment tools ruff auditwheel
tools=$work/tools/bin

part "format and lints"
code=(. ../examples/python ../benches/peers ../benches/python)
"$tools/ruff" format --check --quiet --config pyproject.toml "${code[@]}"
"$tools/ruff" check --quiet --config pyproject.toml "${code[@]}"

part "wheel"
wheel=${WHEEL:-$(./wheel.sh)}
size=$(stat -c %s "$wheel")
echo "$(basename "$wheel"): $size bytes"
if [ "$size" -gt "$LARGEST" ]; then
  echo "$wheel: found $size bytes, expected at most $LARGEST" >&2
  exit 1
fi
report=$("$tools/auditwheel" show "$wheel" | tr '\n' ' ')
if [[ $wheel = *manylinux* && $report != *'consistent with the following platform tag: "manylinux_2_28_x86_64"'* ]]; then
  echo "$report" >&2
  exit 1
fi

if [ -z "${WHEEL:-}" ]; then
  part "sdist"
  rm -rf "$work/sdist"
  mkdir -p "$work/sdist"
  "$work/maturin/bin/maturin" sdist --out "$work/sdist" >/dev/null 2>&1
  tar -xzm --strip-components 1 --directory "$work/sdist" --file "$work"/sdist/*.tar.gz
  (cd "$work/sdist" && CARGO_TARGET_DIR=$target TAGORE_PTX=checked-in cargo check -p tagore-python --quiet)
fi

part "clean environment"
rm -rf "$work/clean"
"${PYTHON:-python3}" -m venv "$work/clean"
"$work/clean/bin/pip" install --quiet --disable-pip-version-check "$wheel"
# The README's lines, without a compiler and CUDA on the path.
for document in ../README.md README.md; do
  sed -n -e 's/^python -c "\(.*\)"$/\1/p' -e '/^```python$/,/^```$/{/^```/!p}' "$document" > "$work/lines.py"
  test -s "$work/lines.py"
  (cd "$work/clean" && env -i PATH="$work/clean/bin" HOME="$work/clean" python "$work/lines.py")
done
"$work/clean/bin/tagore" --version

part "libraries that it serves"
environment tests --requirement tests/requirements.txt
"$work/tests/bin/pip" install --quiet --disable-pip-version-check --force-reinstall --no-deps "$wheel"
python=$work/tests/bin/python

part "types"
"$python" -m mypy --config-file pyproject.toml --cache-dir "$work/mypy" tagore_ann ../examples/python
# Tests import the wheel, not the folder beside them.
(cd "$work" && "$python" -m mypy.stubtest --mypy-config-file "$here/pyproject.toml" tagore_ann._tagore)

# Tests of the installed wheel: pytest with arguments.
tests() {
  (cd "$work/run" && TAGORE_ADAPTERS=$here/../examples/harness PYTHONDONTWRITEBYTECODE=1 \
    "$python" -m pytest --quiet --durations=5 -p no:cacheprovider "$@" 2>&1 |
    grep -vE '^(_+ .* _+|-+ Captured std.* -+)$')
}

part "tests"
rm -rf "$work/run"
mkdir "$work/run"
cp -r tests pyproject.toml "$work/run/"
on_clusters=(tests/test_parts.py tests/test_ray.py tests/test_ray_failures.py)
tests -rP "${on_clusters[@]/#/--ignore=}"

part "builds on a Ray cluster"
tests "${on_clusters[@]}"

part "examples of docstrings and documents"
(cd .. && "$python" python/tests/doctests.py docs/how-to-python.md docs/how-to-cluster.md docs/start.md docs/updates.md)
