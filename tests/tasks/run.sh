#!/usr/bin/env bash
# Builds 60,000 x 32 in 15 clusters as tasks: by 1, 2 and 3 workers at the same time, by plain loops, with 20 kills at
# seeded moments, and with every task twice at the same time. Each must end in the bytes of the build on one machine.
# TAGORE names a program to use in place of a new one.
set -euo pipefail
cd "$(dirname "$0")/../.."
[ -n "${TAGORE:-}" ] || cargo build --release --locked --quiet
tagore=$(realpath "${TAGORE:-target/release/tagore}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

build=(--kind vamana --knn 32 --device cpu --cluster-size 12000 --host-memory 2GiB)
"$tagore" synth -o base.fbin --n 60000 --dim 32 --seed 1 2>log
"$tagore" build -i base.fbin -o one.tagore "${build[@]}" --no-report 2>log

plan() {
  rm -rf shared many.tagore
  "$tagore" task plan -i base.fbin -o many.tagore --dir shared "${build[@]}" --range-rows 8192 >log 2>&1
}

# Compares the index with that of one machine; no hidden file may be left.
same() {
  cmp one.tagore many.tagore
  [ -z "$(find . -name '.?*')" ]
  "$tagore" task status --dir shared --json 2>log | grep -q '"complete":true'
  echo "the same bytes: $1, $SECONDS s"
  SECONDS=0
}

names() { # The tasks of a stage.
  "$tagore" task plan -i base.fbin -o many.tagore --dir shared "${build[@]}" --range-rows 8192 --json 2>log |
    grep -o "{[^{]*\"stage\":\"$1\"[^}]*}" | grep -o '"tasks":[0-9]*' | cut -d: -f2 |
    while read -r count; do
      if [ "$count" = 1 ]; then echo "$1"; else seq -f "$1-%.0f" 0 $((count - 1)); fi
    done
}

stages='assign place write build merge assemble finish'

for workers in 1 2 3; do
  plan
  running=()
  for worker in $(seq "$workers"); do
    "$tagore" task run --dir shared --all --threads 1 2>"log$worker" &
    running+=($!)
  done
  for process in "${running[@]}"; do wait "$process"; done
  same "$workers workers"
done

plan
for stage in $stages; do
  names "$stage" | xargs -P 3 -n 1 "$tagore" task run --dir shared --threads 1 2>log
done
same 'plain loops, 3 at a time'

# Every task twice at the same time.
plan
for stage in $stages; do
  names "$stage" | sed 'p' | xargs -P 2 -n 1 "$tagore" task run --dir shared --threads 1 2>log
done
same 'every task twice'

# Two workers; one of them is killed at a seeded moment and started again.
plan
RANDOM=7
running=()
start() {
  "$tagore" task run --dir shared --all --threads 1 2>"log$1" &
  running[$1]=$!
}
start 0
start 1
for kill in $(seq 20); do
  sleep "0.$((RANDOM % 9))"
  victim=$((RANDOM % 2))
  kill -KILL "${running[$victim]}" 2>log || true
  wait "${running[$victim]}" 2>log || true
  start "$victim"
done
wait "${running[0]}"
wait "${running[1]}"
same "$kill kills"
