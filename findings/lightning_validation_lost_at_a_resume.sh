#!/usr/bin/env bash
# Lightning leaves out a validation if a run is resumed from the last step.
#
# Version: lightning 2.6.6 with torch 2.13.0, on a CPU.
#
# `ModelCheckpoint(every_n_train_steps=N)` saves after a batch and before the
# validation of this epoch. If a run was interrupted between both, and is resumed
# from this checkpoint, Lightning begins the next epoch at once: the epoch that
# the checkpoint ends is never validated, and there is no warning. So a metric
# has a gap, and a `ModelCheckpoint` that monitors it may miss the best epoch.
# From a checkpoint in the middle of an epoch, that epoch is validated.
#
# Output seen (4 batches in each of 3 epochs):
#
#     whole run: epochs validated [0, 1, 2]
#     resumed from step 6: epochs validated [1, 2]
#     resumed from step 8: epochs validated [2]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q torch==2.13.0 lightning==2.6.6
cat > "$folder/finding.py" <<'END'
import logging
import tempfile
import warnings

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader

warnings.simplefilter('ignore')
logging.getLogger('lightning.pytorch').setLevel(logging.ERROR)


class Net(pl.LightningModule):

    def __init__(self):
        super().__init__()
        self.line, self.validated = torch.nn.Linear(1, 1), []

    def training_step(self, batch, batch_idx):
        return self.line(batch).square().mean()

    def validation_step(self, batch, batch_idx):
        self.validated.append(self.current_epoch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


def validated(folder, **arguments):
    model, loader = Net(), DataLoader(torch.ones(4, 1))
    saves = ModelCheckpoint(
        folder, '{step}', every_n_train_steps=2, save_top_k=-1)
    pl.Trainer(
        max_epochs=3,
        callbacks=[saves],
        accelerator='cpu',
        logger=False,
        num_sanity_val_steps=0,
        enable_progress_bar=False,
        enable_model_summary=False).fit(
            model, loader, DataLoader(torch.ones(1, 1)), **arguments)
    return model.validated


with tempfile.TemporaryDirectory() as folder:
    whole = validated(folder)
    print('whole run: epochs validated', whole)
    found = {}
    for step in (6, 8):
        found[step] = validated(folder, ckpt_path=f'{folder}/step={step}.ckpt')
        print(f'resumed from step {step}: epochs validated', found[step])
assert whole == [0, 1, 2]
assert found == {6: [1, 2], 8: [2]}
END
cd "$folder"
venv/bin/python finding.py
