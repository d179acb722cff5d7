#!/bin/sh
# One graph of a billion vectors, file to file: seconds, memory, bytes moved and recall; then a
# build that is killed halfway and resumed.
#
#   benches/billion.sh TAGORE FOLDER [DEVICES]
#
# TAGORE is the command, built before: this script needs no toolchain. FOLDER holds the data,
# $ROWS (1000000000) x 96 u8 of `tagore synth`, made if missing, and gets the index: 96 and 132
# bytes a row, and the work files that the plan names. DEVICES are cuda unless given, $KIND is
# vamana, $FLAGS are more of `tagore build`. Needs Linux, a shell, GNU date, awk, sha256sum and
# nvidia-smi.
#
# Prints the plan; of each command its seconds by the shell, and the peaks of memory and the bytes
# read and written as the system counts them; recall of 10,000 queries by beam. Fails if the resumed
# build ends in other bytes.
set -eu

if [ $# -lt 2 ]; then
  sed -n '2,20s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
tagore=$1
folder=$2
device=${3:-cuda}
rows=${ROWS:-1000000000}
kind=${KIND:-vamana}
base=$folder/base-$rows.u8bin
queries=$folder/queries-$rows.u8bin
truth=$folder/truth-$rows.ibin
index=$folder/billion.tagore
data="--n $rows --dim 96 --type u8"
build="build -i $base -o $index --kind $kind --knn 64 --no-report --device $device ${FLAGS:-}"

# Peaks of process $1, written to $folder/peaks while it runs.
watch() {
  gpu=0
  while host=$(awk '/^VmHWM/ {printf "%.1f", $2 / 1048576}' "/proc/$1/status" 2>/dev/null) && [ "$host" ]; do
    moved=$(awk '{at[$1] = $2 / 1e9} END {printf "%.1f and %.1f", at["read_bytes:"], at["write_bytes:"]}' \
      "/proc/$1/io" 2>/dev/null) || break
    now=$(nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits 2>/dev/null | sort -n | tail -1) || true
    [ "${now:-0}" -le "$gpu" ] || gpu=$now
    echo "host $host GiB, device $gpu MiB, GB read and written $moved" > "$folder/peaks"
    sleep 0.2
  done
}

# Runs a command and prints what it took; kills it after $1 seconds, if that is not 0.
run() {
  limit=$1
  shift
  echo "too short to watch" > "$folder/peaks"
  began=$(date +%s%N)
  "$tagore" "$@" > "$folder/said" 2>&1 &
  pid=$!
  watch "$pid" &
  if [ "$limit" != 0 ]; then
    sleep "$limit"
    kill -9 "$pid"
  fi
  code=0
  wait "$pid" || code=$?
  took=$((($(date +%s%N) - began) / 1000000))
  wait
  echo "$1: $took ms, exit code $code; $(cat "$folder/peaks")"
  grep -E '^(time|warning|error|partition)|^ +[0-9]+ ' "$folder/said" || true
}

# shellcheck disable=SC2086 # Flags are words.
{
  [ -e "$base" ] || run 0 synth $data -o "$base"
  [ -e "$queries" ] || run 0 synth $data --queries 10000 -o "$queries"
  [ -e "$truth" ] || run 0 groundtruth --base "$base" --queries "$queries" -k 10 --device "$device" -o "$truth"
  "$tagore" plan -i "$base" --kind "$kind" --knn 64 --device "$device" ${FLAGS:-}
  rm -f "$index"
  run 0 $build
  half=$((took / 2000))
  whole=$(sha256sum < "$index")
  ls -l "$index"
  run 0 eval --index "$index" --base "$base" --queries "$queries" --groundtruth "$truth" -k 10 \
    --beams "${BEAMS:-100,200,400,512}" --device "$device"
  rm -f "$index"
  run "$half" $build
  run 0 $build --resume
}
[ "$whole" = "$(sha256sum < "$index")" ] || { echo "the resumed build ends in other bytes" >&2; exit 1; }
echo "the resumed build: the same bytes"
rm -f "$index" "$folder/said" "$folder/peaks"
