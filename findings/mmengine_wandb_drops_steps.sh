#!/usr/bin/env bash
# MMEngine's backend of W&B drops the step of each scalar.
#
# Version: onedl-mmengine 0.10.12, wandb 0.31.0 and torch 2.13.0, on a CPU,
# offline.
#
# All backends of MMEngine's visualizer have `add_scalar(name, value, step)`.
# `WandbVisBackend` logs the value without the step, so W&B counts the calls:
# the x-axis of a scalar that is written every 50 iterations is 0, 1, 2. Only
# lines of `LoggerHook` can be drawn over iterations, because they have a scalar
# `iter` among them. TensorBoard has the step of the same call.
#
# Output seen:
#
#     W&B has the loss of iterations 50, 100 and 150 at steps [0, 1, 2]
#     TensorBoard has it at steps [50, 100, 150]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q torch==2.13.0 onedl-mmengine==0.10.12 opencv-python-headless==4.13.0.92 wandb==0.31.0 tensorboard==2.21.0
cat > "$folder/finding.py" <<'END'
import os
import warnings

os.environ['WANDB_SILENT'] = 'true'
warnings.simplefilter('ignore')

import wandb  # noqa: E402
from mmengine.visualization import (  # noqa: E402
    TensorboardVisBackend, WandbVisBackend)
from tensorboard.backend.event_processing.event_accumulator import \
    EventAccumulator  # noqa: E402

weights_and_biases = WandbVisBackend(
    'wandb_files', init_kwargs=dict(mode='offline', dir='.'))
weights_and_biases.experiment
tensorboard = TensorboardVisBackend('tensorboard_files')
steps = []
for iteration in (50, 100, 150):
    steps.append(wandb.run.step)
    weights_and_biases.add_scalar('loss', 1 / iteration, step=iteration)
    tensorboard.add_scalar('loss', 1 / iteration, step=iteration)
tensorboard.close()
read = EventAccumulator('tensorboard_files')
read.Reload()
seen = [event.step for event in read.Scalars('loss')]
print('W&B has the loss of iterations 50, 100 and 150 at steps', steps)
print('TensorBoard has it at steps', seen)
assert steps == [0, 1, 2] and wandb.run.step == 3
assert seen == [50, 100, 150]
wandb.finish()
END
cd "$folder"
venv/bin/python finding.py
