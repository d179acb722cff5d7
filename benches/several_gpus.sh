#!/bin/sh
# One build in memory on one GPU and on several: whether the index is the same, and whole seconds,
# in fresh processes with the page cache warm.
#
#   benches/several_gpus.sh TAGORE FOLDER [DEVICES]
#
# TAGORE is the command, built before: this script needs no toolchain. FOLDER holds the data,
# $ROWS (20000000) x 96 of `tagore synth`, made if missing, and gets the index. DEVICES are
# cuda:0,1 unless given; the first builds alone too. Needs a shell, GNU date and sha256sum.
#
# For each kind of $KINDS (cagra vamana) and each of $RUNS (2) runs: the devices, seconds by the
# shell, the start of the hash of the index, and the stages. Fails if two indexes differ.
set -eu

if [ $# -lt 2 ]; then
  sed -n '2,20s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
tagore=$1
folder=$2
devices=${3:-cuda:0,1}
rows=${ROWS:-20000000}
base=$folder/base-$rows.fbin
index=$folder/several.tagore
[ -e "$base" ] || "$tagore" synth --n "$rows" --dim 96 --quiet -o "$base"

for kind in ${KINDS:-cagra vamana}; do
  first=
  run=0
  while [ "$run" -lt "${RUNS:-2}" ]; do
    run=$((run + 1))
    for device in "${devices%%,*}" "$devices"; do
      rm -f "$index"
      began=$(date +%s%N)
      stages=$("$tagore" build -i "$base" -o "$index" --kind "$kind" --knn 64 --no-report --device "$device" 2>&1)
      ended=$(date +%s%N)
      hash=$(sha256sum < "$index" | cut -c1-12)
      echo "$kind $device $(((ended - began) / 1000000)) ms $hash"
      echo "$stages" | grep -E '^(time|warning)'
      [ "${first:=$hash}" = "$hash" ] || { echo "$kind: the index of $device differs" >&2; exit 1; }
    done
  done
done
rm -f "$index"
