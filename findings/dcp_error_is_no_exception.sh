#!/usr/bin/env bash
# `except Exception` doesn't catch an error of torch.distributed.checkpoint.
#
# Version: torch 2.13.0, on a CPU, without a process group.
#
# `dcp.load` raises a `CheckpointException`, for example if the checkpoint lacks
# an entry that the new state dict has. In spite of its name the class derives
# from `BaseException`, like `KeyboardInterrupt`. A loop that tries the newest
# checkpoint, catches `Exception` and falls back to an older one ends instead.
#
# Output seen:
#
#     bases of CheckpointException: ['BaseException', 'object']
#     not caught by `except Exception`
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q torch==2.13.0 numpy
cat > "$folder/finding.py" <<'END'
import tempfile
import warnings

import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

warnings.simplefilter('ignore')

bases = [each.__name__ for each in CheckpointException.__mro__[1:]]
print('bases of CheckpointException:', bases)
with tempfile.TemporaryDirectory() as folder:
    dcp.save(dict(step=3), checkpoint_id=folder, no_dist=True)
    try:
        try:
            dcp.load(
                dict(step=0, epoch=0), checkpoint_id=folder, no_dist=True)
            caught = 'no error'
        except Exception:
            caught = 'caught by `except Exception`'
    except CheckpointException:
        caught = 'not caught by `except Exception`'
print(caught)
assert bases == ['BaseException', 'object']
assert caught == 'not caught by `except Exception`'
END
cd "$folder"
venv/bin/python finding.py
