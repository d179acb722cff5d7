#!/bin/sh
# What a user waits for: wall times of whole commands in fresh processes, with the page cache warm.
#
#   benches/first_second.sh TAGORE FOLDER [DEVICE]
#
# TAGORE is the command, built before: this script needs no toolchain. FOLDER holds the data and gets
# the output: base.fbin and query.fbin (or $BASE and $QUERIES), made by `tagore synth` if missing.
# DEVICE is cuda unless given. Needs a shell, GNU date, awk and sort.
#
# Each line is the median of $RUNS (5) runs in seconds, then all of them:
#   floor        opens the device and copies the base to it, and nothing else
#   first        `build` with its report, with empty caches: ours, and the driver's turned off
#   driver       the same with our cache off and the driver's full
#   cached       the same with our cache
#   no report    `build --no-report` with our cache
#   search       of all queries, with our cache
#   doctor       with our cache; `doctor first` with empty caches
#   doctor all   `doctor --all` with empty caches: compiles every kernel
# Then the stages of one first and of one cached build, by the clock, and their timelines as SVG.
set -eu

if [ $# -lt 2 ]; then
  sed -n '2,20s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
tagore=$1
folder=$2
device=${3:-cuda}
runs=${RUNS:-5}
base=${BASE:-$folder/base.fbin}
queries=${QUERIES:-$folder/query.fbin}
index=$folder/first_second.tagore
found=$folder/first_second.found.bin
log=$folder/first_second.log
cache=$folder/first_second.cache
mkdir -p "$folder"
: > "$log"

if [ ! -f "$base" ]; then
  "$tagore" synth --n 1000000 --dim 128 -o "$base" 2>> "$log"
fi
if [ ! -f "$queries" ]; then
  "$tagore" synth --n 1000000 --dim 128 --queries 10000 -o "$queries" 2>> "$log"
fi

# Runs the command with both caches apart from the user's.
private() {
  env TAGORE_CACHE_DIR="$cache" CUDA_CACHE_PATH="$cache.driver" "$@"
}

# Prints the seconds that a command takes from start to end.
seconds() {
  began=$(date +%s.%N)
  "$@" > /dev/null 2>> "$log" || {
    echo "failed: $* (see $log)" >&2
    exit 1
  }
  ended=$(date +%s.%N)
  awk "BEGIN { printf \"%.3f\\n\", $ended - $began }"
}

# `measure NAME PREPARE COMMAND..` runs PREPARE before each of the runs, and prints their median.
measure() {
  name=$1
  prepare=$2
  shift 2
  all=
  run=0
  while [ $run -lt "$runs" ]; do
    $prepare
    all="$all $(seconds "$@")"
    run=$((run + 1))
  done
  median=$(printf '%s\n' $all | sort -n | awk '{ a[NR] = $1 } END { print a[int((NR + 1) / 2)] }')
  printf '%-12s %8s    %s\n' "$name" "$median" "$all"
}

nothing() { :; }
empty() { rm -rf "$cache" "$cache.driver"; }
cagra() { "$@" --kind cagra -i "$base" -o "$index" --device "$device"; }
build() { cagra private "$tagore" build "$@"; }
first() { cagra private CUDA_CACHE_DISABLE=1 "$tagore" build "$@"; }
driver() { cagra private TAGORE_CACHE_DIR= "$tagore" build "$@"; }
search() {
  private "$tagore" search --index "$index" --base "$base" --queries "$queries" -k 10 \
    --device "$device" -o "$found"
}

cat "$base" "$queries" > /dev/null
"$tagore" --version
echo "device $device, $(getconf _NPROCESSORS_ONLN) cores, $base, medians of $runs in seconds"
measure floor nothing "$tagore" bench start -i "$base" --device "$device"
measure first empty first
driver 2>> "$log" > /dev/null
measure driver nothing driver
empty
build 2>> "$log" > /dev/null
measure cached nothing build
measure "no report" nothing build --no-report
search 2>> "$log" > /dev/null
measure search nothing search
private "$tagore" doctor >> "$log" 2>&1
measure doctor nothing private "$tagore" doctor
fresh_doctor() { private CUDA_CACHE_DISABLE=1 "$tagore" doctor "$@"; }
measure "doctor first" empty fresh_doctor
measure "doctor all" empty fresh_doctor --all

empty
echo "stages of a first build:"
first --timeline "$folder/first.svg" 2>&1 > /dev/null | tee -a "$log" | grep '^time ' || true
echo "stages of a cached build:"
build --timeline "$folder/cached.svg" 2>&1 > /dev/null | tee -a "$log" | grep '^time ' || true
echo "kernels of a first build, with their seconds: $folder/first.log"
empty
private CUDA_CACHE_DISABLE=1 "$tagore" --log debug build --kind cagra -i "$base" -o "$index" \
  --device "$device" > /dev/null 2> "$folder/first.log"
echo "timelines: $folder/first.svg, $folder/cached.svg"
