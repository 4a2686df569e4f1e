#!/usr/bin/env bash
# Train on the GPUs of one or several machines, from any folder:
#   [NNODES=.. NODE_RANK=.. PORT=.. MASTER_ADDR=..] dist_train.sh CONFIG GPUS [OPTIONS OF train.py]

if [[ $# -lt 2 || ! $2 =~ ^[0-9]+$ ]]; then
    echo "Error: give the number of GPUs after CONFIG:" \
        "$0 CONFIG GPUS [OPTIONS OF train.py]" >&2
    exit 2
fi

CONFIG=$1
GPUS=$2
NNODES=${NNODES:-1}
NODE_RANK=${NODE_RANK:-0}
PORT=${PORT:-29500}
MASTER_ADDR=${MASTER_ADDR:-"127.0.0.1"}
TOOLS=$(dirname "$0")

export PYTHONPATH="$TOOLS/..${PYTHONPATH:+:$PYTHONPATH}"
# In place of the shell, so that a signal to it ends the training.
exec python -m torch.distributed.run \
    --nnodes="$NNODES" \
    --node_rank="$NODE_RANK" \
    --master_addr="$MASTER_ADDR" \
    --nproc_per_node="$GPUS" \
    --master_port="$PORT" \
    "$TOOLS/train.py" \
    "$CONFIG" \
    --launcher pytorch "${@:3}"
