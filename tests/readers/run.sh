#!/usr/bin/env bash
# Files of ours in the libraries that they are for: each is loaded by the released package and searched, and must find
# what `tagore eval` finds at the same beam. And files of theirs in `tagore`. Needs
# Python 3 with venv, a C++ compiler (hnswlib's package), and PyPI.
set -euo pipefail
cd "$(dirname "$0")/../.."

[ -n "${TAGORE:-}" ] || cargo build --release --locked --quiet
tagore=${TAGORE:-$PWD/target/release/tagore}
venv=target/readers
test -x "$venv/bin/python" || python3 -m venv "$venv"
"$venv/bin/pip" install --quiet --disable-pip-version-check --requirement tests/readers/requirements.txt

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
data="--n 20000 --dim 32"
"$tagore" synth -o "$work/base.fbin" $data
"$tagore" synth -o "$work/query.fbin" $data --queries 1000

convert() { "$tagore" convert "$work/$1.tagore" "$work/$2" --base "$work/base.fbin" "${@:3}"; }
eval_beams() {
  "$tagore" eval --index "$work/$1.tagore" --base "$work/base.fbin" --queries "$work/query.fbin" \
    --groundtruth "$work/$2.gt" --beams $3 --device cpu --json
}
for metric in l2 ip cosine; do
  "$tagore" groundtruth --base "$work/base.fbin" --queries "$work/query.fbin" --metric $metric -k 10 -o "$work/$metric.gt"
  "$tagore" build -i "$work/base.fbin" -o "$work/$metric.tagore" --kind nsg --knn 48 --metric $metric --device cpu
  eval_beams $metric $metric 20,50,100 > "$work/$metric.jsonl"
  for format in hnswlib faiss-nsg faiss-hnsw; do convert $metric $metric.$format --to $format; done
  for format in hnswlib faiss-hnsw; do convert $metric $metric-layers.$format --to $format --layers; done
done
"$tagore" build -i "$work/base.fbin" -o "$work/cagra.tagore" --kind cagra --knn 48 --device cpu
convert cagra cagra.npy
convert cagra cagra.csr

"$venv/bin/python" tests/readers/build.py "$work"
for format in hnswlib faiss-nsg faiss-hnsw; do
  "$tagore" convert "$work/theirs.$format" "$work/read.tagore" --base "$work/base.fbin"
  eval_beams read l2 50 > "$work/read.$format.jsonl"
done

"$venv/bin/python" tests/readers/search.py "$work"
tests/readers/diskann.sh "$tagore" "$work"
