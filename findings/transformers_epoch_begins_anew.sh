#!/usr/bin/env bash
# The epoch in the log of the Trainer begins anew with `ignore_data_skip`.
#
# Version: transformers 5.24.0, accelerate 1.15.0 and torch 2.13.0, on a CPU.
#
# With `ignore_data_skip=True` a resumed run doesn't skip the batches that were
# trained on, which the documentation offers for a faster resume. The Trainer
# then counts the batches of the epoch from 0 again, but `global_step` goes on.
# So the epoch in the log falls back at the resume, and a run that was
# interrupted in its only epoch ends at an epoch of a half, although all steps
# were made. Plots and searches that read `epoch` from the log order the lines
# wrongly.
#
# Output seen (step and epoch of each line):
#
#     whole run: [(2, 0.25), (4, 0.5), (6, 0.75), (8, 1.0)]
#     resumed from step 4: [(2, 0.25), (4, 0.5), (6, 0.25), (8, 0.5)]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q torch==2.13.0 transformers==5.24.0 accelerate==1.15.0
cat > "$folder/finding.py" <<'END'
import tempfile
import warnings

import torch
from transformers import Trainer, TrainingArguments, trainer_callback

warnings.simplefilter('ignore')
trainer_callback.PrinterCallback.on_log = lambda *args, **kwargs: None


class Net(torch.nn.Module):

    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(1, 1)

    def forward(self, x):
        return dict(loss=self.line(x).square().mean())


def lines(folder, **arguments):
    args = TrainingArguments(
        folder,
        per_device_train_batch_size=1,
        max_steps=8,
        logging_steps=2,
        save_steps=4,
        ignore_data_skip=True,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True)
    rows = [dict(x=torch.ones(1)) for _ in range(8)]
    trainer = Trainer(Net(), args, train_dataset=rows)
    trainer.train(**arguments)
    return [(each['step'], round(each['epoch'], 3))
            for each in trainer.state.log_history if 'loss' in each]


with tempfile.TemporaryDirectory() as folder:
    whole = lines(folder)
    resumed = lines(folder, resume_from_checkpoint=f'{folder}/checkpoint-4')
print('whole run:', whole)
print('resumed from step 4:', resumed)
assert whole == [(2, 0.25), (4, 0.5), (6, 0.75), (8, 1.0)]
assert resumed == [(2, 0.25), (4, 0.5), (6, 0.25), (8, 0.5)]
END
cd "$folder"
venv/bin/python finding.py
