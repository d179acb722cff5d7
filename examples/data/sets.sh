#!/usr/bin/env bash
# Makes the synthetic data sets and their exact neighbours: sets.sh FOLDER [ROWS [QUERIES [SET...]]]
#
# ROWS is 20,000 and QUERIES 2,000 unless given; without SET all of them are made. Each set is a
# folder with base.fbin, queries.fbin and gt-METRIC.bin. TAGORE names the command (tagore), DEVICE
# the place of exact search (auto).
set -euo pipefail

if [ $# -lt 1 ]; then
  sed -n '2,6s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
folder=$1 rows=${2:-20000} queries=${3:-2000}
shift $(($# < 3 ? $# : 3))
tagore=${TAGORE:-tagore} device=${DEVICE:-auto}
if [ "$rows" -lt 50 ]; then
  echo "error: ROWS: found $rows, expected at least 50" >&2
  exit 2
fi

# at_most A B: the smaller of two numbers.
at_most() { echo $(($1 < $2 ? $1 : $2)); }

sets=" clusters-2 clusters-100 clusters-10000 repeated-quarter repeated-10 repeated-50 lognormal sums
 uniform-2 uniform-16 uniform-64 tower-l2 tower-cosine tower-ip shifted "
sets=${sets//$'\n'/}
for name in "$@"; do
  if [[ $sets != *" $name "* ]]; then
    echo "error: SET: found $name, expected one of${sets% }" >&2
    exit 2
  fi
done
wanted=" $* "

# wants NAME: whether to make a set.
wants() { [ "$wanted" = "  " ] || [[ $wanted == *" $1 "* ]]; }

# truth NAME METRIC: the exact neighbours of a set's queries.
truth() {
  local set=$folder/$1
  "$tagore" groundtruth --base "$set/base.fbin" --queries "$set/queries.fbin" --metric "$2" -k 10 \
    --device "$device" -o "$set/gt-$2.bin"
}

# make NAME METRIC DIM QUERY-KIND FLAGS...: a set of one `tagore synth`.
make() {
  wants "$1" || return 0
  local name=$1 metric=$2 dim=$3 query_kind=$4
  shift 4
  mkdir -p "$folder/$name"
  "$tagore" synth --n "$rows" --dim "$dim" "$@" -o "$folder/$name/base.fbin"
  "$tagore" synth --n "$rows" --dim "$dim" "$@" --queries "$queries" --query-kind "$query_kind" \
    -o "$folder/$name/queries.fbin"
  truth "$name" "$metric"
}

# quarter: uniform rows, the last quarter of which repeats the first rows.
quarter() {
  wants repeated-quarter || return 0
  local set=$folder/repeated-quarter dim=32 repeats=$((rows / 4))
  local first=$((rows - repeats))
  mkdir -p "$set"
  "$tagore" synth --n "$rows" --dim $dim --kind uniform -o "$set/all.fbin"
  {
    head -c $((8 + 4 * dim * first)) "$set/all.fbin"
    head -c $((8 + 4 * dim * repeats)) "$set/all.fbin" | tail -c +9
  } >"$set/base.fbin"
  rm "$set/all.fbin"
  "$tagore" synth --n "$rows" --dim $dim --kind uniform --queries "$queries" -o "$set/queries.fbin"
  truth repeated-quarter l2
}

# elsewhere NAME METRIC DIM: a set of queries of the kind that NAME begins with, and a sample of
# others like them for `build --queries-sample`.
elsewhere() {
  wants "$1" || return 0
  local set=$folder/$1 dim=$3 sampled=$((rows / 10 + 100))
  local bytes=$((4 * dim * sampled))
  mkdir -p "$set"
  "$tagore" synth --n "$rows" --dim "$dim" -o "$set/base.fbin"
  "$tagore" synth --n "$rows" --dim "$dim" --queries $((sampled + queries)) --query-kind "${1%%-*}" -o "$set/all.fbin"
  # 32 bits, little-endian.
  word() { for shift in 0 8 16 24; do printf "\\x$(printf %02x $(($1 >> shift & 255)))"; done; }
  { word "$sampled"; word "$dim"; head -c $((8 + bytes)) "$set/all.fbin" | tail -c +9; } >"$set/sample.fbin"
  { word "$queries"; word "$dim"; tail -c +$((9 + bytes)) "$set/all.fbin"; } >"$set/queries.fbin"
  rm "$set/all.fbin"
  truth "$1" "$2"
}

for clusters in 2 100 10000; do
  # Where there are few rows, two to a cluster.
  make clusters-$clusters l2 64 rows --kind clusters --clusters "$(at_most $clusters $((rows / 2)))"
done
quarter
make repeated-10 l2 32 rows --kind repeated --copies 10
make repeated-50 l2 32 rows --kind repeated --copies 50
make lognormal ip 64 rows --kind lognormal
make sums l2 64 sums
for metric in l2 cosine ip; do
  elsewhere tower-$metric $metric 64
done
elsewhere shifted l2 64
for dim in 2 16 64; do
  make uniform-$dim l2 $dim rows --kind uniform
done
