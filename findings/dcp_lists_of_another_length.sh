#!/usr/bin/env bash
# torch.distributed.checkpoint cuts a list of dicts to the length it has now.
#
# Version: torch 2.13.0, on a CPU, without a process group.
#
# `dcp.load` takes the state dict of the new objects as a template, and reads the
# entries that the template asks for. A list of plain values is one entry, and
# comes back whole. A list of dicts has an entry for each value in it, so a list
# that was longer when it was saved is loaded with the length of the template,
# such as the history that a new object has not begun yet. The rest is left in
# the checkpoint, and there is no error and no warning. (A list that was shorter
# raises an error.)
#
# Output seen:
#
#     saved: {'losses': [3, 2, 1], 'history': [{'loss': 3}, {'loss': 2}]}
#     loaded: {'losses': [3, 2, 1], 'history': [{'loss': 3}]}
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q torch==2.13.0 numpy
cat > "$folder/finding.py" <<'END'
import copy
import tempfile
import warnings

import torch.distributed.checkpoint as dcp

warnings.simplefilter('ignore')

saved = dict(losses=[3, 2, 1], history=[dict(loss=3), dict(loss=2)])
whole = copy.deepcopy(saved)
loaded = dict(losses=[0], history=[dict(loss=0)])
with tempfile.TemporaryDirectory() as folder:
    dcp.save(saved, checkpoint_id=folder, no_dist=True)
    dcp.load(loaded, checkpoint_id=folder, no_dist=True)
    same = copy.deepcopy(whole)
    dcp.load(same, checkpoint_id=folder, no_dist=True)
print('saved:', saved)
print('loaded:', loaded)
assert same == saved == whole
assert loaded == dict(losses=[3, 2, 1], history=[dict(loss=3)])
END
cd "$folder"
venv/bin/python finding.py
