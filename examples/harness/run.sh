#!/usr/bin/env bash
# Runs ann-benchmarks and big-ann-benchmarks with the adapters beside this file, without Docker and without downloads of
# data: ../../docs/how-to-harnesses.md. Prints recall and QPS; exits with 1 if a harness does not get to its end.
# Usage: run.sh [--ann-benchmarks DIR] [--big-ann DIR] [-o DIR]
# Needs Python 3.11 or later with venv (as PYTHON, else python3), a C++ compiler (hnswlib's package), and PyPI; without a
# wheel of tagore-ann (as WHEEL) also Rust, to make one.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

# Results of a run, as the files of settings have them: indexes x beams.
ANN_RESULTS=$((6 * 8)) # of each algorithm
BIG_RESULTS=$((2 * 4))
RUNS=3 # of each search, of which the harnesses take the best

usage() {
  echo "error: $1; usage: run.sh [--ann-benchmarks DIR] [--big-ann DIR] [-o DIR]" >&2
  exit 2
}

ann='' big='' out=harness-results
while [ $# -gt 0 ]; do
  [ $# -ge 2 ] || usage "$1: found no folder after it"
  case $1 in
    --ann-benchmarks) ann=$2 ;;
    --big-ann) big=$2 ;;
    -o) out=$2 ;;
    *) usage "found $1, expected --ann-benchmarks, --big-ann or -o" ;;
  esac
  shift 2
done
[ -n "$ann$big" ] || usage "no harness is given"
[ -z "$ann" ] || [ -d "$ann/ann_benchmarks/algorithms" ] || usage "$ann: found no ann_benchmarks/algorithms, expected a checkout of ann-benchmarks"
[ -z "$big" ] || [ -d "$big/neurips23/ood" ] || usage "$big: found no neurips23/ood, expected a checkout of big-ann-benchmarks"
mkdir -p "$out"
out=$(cd "$out" && pwd)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
venv=$here/../../target/harness
test -x "$venv/bin/python" || "${PYTHON:-python3}" -m venv "$venv"
"$venv/bin/pip" install --quiet --disable-pip-version-check --requirement "$here/requirements.txt"
"$venv/bin/pip" install --quiet --disable-pip-version-check --force-reinstall --no-deps "${WHEEL:-$("$here/../../python/wheel.sh")}"
python=$venv/bin/python tagore=$venv/bin/tagore

# A copy of a checkout, without its data and results.
copy_of() {
  mkdir "$work/$2"
  tar -C "$1" --exclude=./.git --exclude=./data --exclude=./results -cf - . | tar -C "$work/$2" -xf -
  cd "$work/$2"
  mkdir -p results
}

# logged LOG COMMAND ..: shows the log if the command fails.
logged() {
  local log=$out/$1
  shift
  "$@" >> "$log" 2>&1 || {
    tail -n 30 "$log" >&2
    echo "error: $* failed; the whole log is $log" >&2
    exit 1
  }
}

# run_harness LOG FOLDER COMMAND ..: runs until the folder holds results. A harness starts a worker, which ends at once if
# it looks at its queue before the first entry is there; and it exits with 0 whatever becomes of the worker.
run_harness() {
  local log=$1 folder=$2
  shift 2
  for _ in 1 2 3 4 5; do
    logged "$log" "$@"
    [ ! -d "$folder" ] || return 0
  done
  tail -n 30 "$out/$log" >&2
  echo "error: $folder: found no results after five runs; the whole log is $out/$log" >&2
  exit 1
}

data=$work/synth-20k
mkdir "$data"
sizes="--n 20000 --dim 32"
# shellcheck disable=SC2086 # flags
{
  "$tagore" synth -o "$data/base.fbin" $sizes
  "$tagore" synth -o "$data/query.fbin" $sizes --queries 1000
  "$tagore" groundtruth --base "$data/base.fbin" --queries "$data/query.fbin" -k 100 -o "$data/gt.bin"
}

exports=()
if [ -n "$ann" ]; then
  (
    copy_of "$ann" ann-benchmarks
    mkdir ann_benchmarks/algorithms/tagore
    cp "$here"/ann_benchmarks/{module.py,config.yml,Dockerfile} ann_benchmarks/algorithms/tagore/
    log=ann-benchmarks.log
    : > "$out/$log"
    with_data=("$python" "$here/ann_benchmarks/with_data.py" "$data")
    run=("${with_data[@]}" run.py --local --dataset synth-20k --runs "$RUNS")
    echo "ann-benchmarks: single queries"
    for algorithm in tagore tagore-hnswlib; do
      run_harness "$log" "results/synth-20k/10/$algorithm" "${run[@]}" --algorithm "$algorithm"
    done
    echo "ann-benchmarks: batches"
    run_harness "$log" results/synth-20k/10/tagore-batch "${run[@]}" --algorithm tagore --batch
    logged "$log" "${with_data[@]}" data_export.py --output "$out/ann-benchmarks.csv"
    logged "$log" "${with_data[@]}" "$here/ann_benchmarks/export_batch.py" synth-20k "$out/ann-benchmarks-batch.csv"
    plot=("${with_data[@]}" plot.py --dataset synth-20k --x-scale logit --y-scale log)
    logged "$log" "${plot[@]}" -o "$out/ann-benchmarks.png"
    logged "$log" "${plot[@]}" --batch -o "$out/ann-benchmarks-batch.png"
  )
  exports+=("ann-benchmarks" "$out/ann-benchmarks.csv" "$((2 * ANN_RESULTS))")
  exports+=("ann-benchmarks --batch" "$out/ann-benchmarks-batch.csv" "$ANN_RESULTS")
fi
if [ -n "$big" ]; then
  # random-xs and random-range-xs keep their ground truths in one file, so each has a copy of the harness.
  for name in synth-20k random-xs random-range-xs; do
    (
      copy_of "$big" "$name-big-ann"
      mkdir neurips23/ood/tagore
      cp "$here"/big_ann_benchmarks/{tagore.py,config.yaml,Dockerfile} neurips23/ood/tagore/
      log=big-ann-$name.log
      : > "$out/$log"
      with_data=("$python" "$here/big_ann_benchmarks/with_data.py" "$data")
      track=(--dataset "$name" --neurips23track ood)
      echo "big-ann-benchmarks: $name"
      run_harness "$log" "results/neurips23/ood/$name" "${with_data[@]}" run.py "${track[@]}" --algorithm tagore --nodocker --runs "$RUNS"
      logged "$log" "${with_data[@]}" data_export.py --search-times --output "$out/big-ann-$name.csv"
      logged "$log" "${with_data[@]}" plot.py "${track[@]}" --y-scale log -o "$out/big-ann-$name.png"
    )
    exports+=("big-ann-benchmarks" "$out/big-ann-$name.csv" "$BIG_RESULTS")
  done
fi
"$python" "$here/summary.py" "${exports[@]}"
echo "exports, plots and logs: $out"
