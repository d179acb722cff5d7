#!/usr/bin/env bash
# Attacks the command: README.md beside this. Arguments go to attack.py, such as --budget large. Needs Linux, Python 3
# and strace, which is installed where it is missing and can be.
set -euo pipefail
cd "$(dirname "$0")/../.."

if ! command -v strace >/dev/null && command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
  apt-get install -y -qq --no-install-recommends strace >/dev/null 2>&1 ||
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends strace >/dev/null; }
fi
[ -n "${TAGORE:-}" ] || cargo build --release --locked --quiet
python3 -B tests/attack/attack.py "${TAGORE:-target/release/tagore}" "$@"
