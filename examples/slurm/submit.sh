#!/usr/bin/env bash
# Builds an index on a Slurm cluster: plans, then submits an array of jobs for each stage, each after the one before it.
# Usage: submit.sh BASE INDEX DIR [flags of `tagore task plan`, such as --kind vamana --cluster-size 1000000]
# DIR is on a file system that all nodes share. Sizes by the environment:
#   WORKERS  jobs of each array (4)        CPUS  cores of a job (8)
#   GPUS     GPUs of a job that assigns or builds (0)
#   OPTIONS  further options of sbatch, such as '--partition=long --account=me'
set -euo pipefail
[ $# -ge 3 ] || { echo "error: usage: submit.sh BASE INDEX DIR [flags of tagore task plan]" >&2; exit 2; }
base=$1 index=$2 dir=$3
shift 3
workers=${WORKERS:-4} cpus=${CPUS:-8} gpus=${GPUS:-0}
read -ra options <<<"${OPTIONS:-}"
mkdir -p "$dir.log"

# Memory of a task of a stage in MiB, with room for the program.
memory() { echo $(($(grep -o "\"$1\":[0-9]*" "$dir/plan.json" | tail -n 1 | grep -o '[0-9]*$') / 1048576 + 512)); }

# submit NAME COUNT MEMORY AFTER GPUS COMMAND..: prints the number of the job.
submit() {
  local name=$1 count=$2 memory=$3 after=$4 gpu=$5
  shift 5
  local flags=(--parsable --job-name="tagore-$name" --array="0-$((count - 1))" --cpus-per-task="$cpus")
  flags+=(--mem="${memory}M" --requeue --output="$dir.log/$name-%a")
  [ -z "$after" ] || flags+=(--dependency="afterany:$after")
  [ "$gpu" = 0 ] || flags+=(--gpus="$gpu")
  sbatch "${flags[@]}" "${options[@]}" --wrap "$(printf '%q ' "$@")"
}

# The plan needs a GPU of the workers' kind if they have one.
device=()
[ "$gpus" = 0 ] || device=(srun --gpus=1 "${options[@]}")
"${device[@]}" tagore task plan -i "$base" -o "$index" --dir "$dir" "$@"

# A stage ends when all of its objects exist, whichever jobs of its array survive. So `afterany`; a stage whose inputs
# are missing stops with an error that names them.
after=''
for stage in assign place write build merge assemble finish; do
  count=$workers gpu=0
  case $stage in
    place | finish) count=1 ;;
    assign | build) gpu=$gpus ;;
  esac
  after=$(submit "$stage" "$count" "$(memory "$stage")" "$after" "$gpu" \
    tagore task run --dir "$dir" --stage "$stage" --threads "$cpus")
  after=${after%%;*}
  echo "$stage: job $after"
done
