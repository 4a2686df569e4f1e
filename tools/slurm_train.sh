#!/usr/bin/env bash
# Train on a cluster with Slurm, from any folder:
#   [GPUS=.. GPUS_PER_NODE=.. CPUS_PER_TASK=.. SRUN_ARGS=..] slurm_train.sh PARTITION JOB_NAME CONFIG [OPTIONS OF train.py]

if [[ $# -lt 3 || $3 == -* ]]; then
    echo "Error: give PARTITION, JOB_NAME and CONFIG:" \
        "$0 PARTITION JOB_NAME CONFIG [OPTIONS OF train.py]" >&2
    exit 2
fi

set -x

PARTITION=$1
JOB_NAME=$2
CONFIG=$3
GPUS=${GPUS:-4}
GPUS_PER_NODE=${GPUS_PER_NODE:-4}
CPUS_PER_TASK=${CPUS_PER_TASK:-5}
SRUN_ARGS=${SRUN_ARGS:-""}
TOOLS=$(dirname "$0")

export PYTHONPATH="$TOOLS/..${PYTHONPATH:+:$PYTHONPATH}"
# In place of the shell, so that a signal to it ends the training. SRUN_ARGS
# are several arguments, so they stay without quotes.
exec srun -p "$PARTITION" \
    --job-name="$JOB_NAME" \
    --gres=gpu:"$GPUS_PER_NODE" \
    --ntasks="$GPUS" \
    --ntasks-per-node="$GPUS_PER_NODE" \
    --cpus-per-task="$CPUS_PER_TASK" \
    --kill-on-bad-exit=1 \
    $SRUN_ARGS \
    python -u "$TOOLS/train.py" "$CONFIG" --launcher="slurm" "${@:4}"
