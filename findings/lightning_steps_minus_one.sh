#!/usr/bin/env bash
# Lightning estimates -1 steps for a loader without a length.
#
# Version: lightning 2.6.6 with torch 2.13.0, on a CPU.
#
# `Trainer.estimated_stepping_batches` is documented as the number of steps of
# the optimizer in a run, for schedulers that need a total. For an
# `IterableDataset` and `max_epochs`, the Trainer returns `max_steps`, which is
# -1 by default. Neither Lightning nor `CosineAnnealingLR` refuses the number.
# With `T_max=-1` the learning rate is zero in every second step, so half of the
# steps of such a run change nothing.
#
# Output seen:
#
#     estimated_stepping_batches: -1
#     rates: [0.1, 0.0, 0.1, 0.0, 0.1, 0.0]
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
from torch.utils.data import DataLoader, IterableDataset

warnings.simplefilter('ignore')
logging.getLogger('lightning.pytorch').setLevel(logging.ERROR)
estimates, rates = [], []


class Rows(IterableDataset):

    def __iter__(self):
        return iter(torch.ones(6, 1))


class Net(pl.LightningModule):

    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(1, 1)

    def training_step(self, batch, batch_idx):
        rates.append(round(self.optimizers().param_groups[0]['lr'], 6))
        return self.line(batch).square().mean()

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), 0.1)
        estimates.append(self.trainer.estimated_stepping_batches)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(
            optimizer, T_max=estimates[0])
        return [optimizer], [dict(scheduler=scheduler, interval='step')]


with tempfile.TemporaryDirectory() as folder:
    pl.Trainer(
        max_epochs=1,
        accelerator='cpu',
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder).fit(Net(), DataLoader(Rows()))
print('estimated_stepping_batches:', *estimates)
print('rates:', rates)
assert estimates == [-1]
assert rates == [0.1, 0.0] * 3
END
cd "$folder"
venv/bin/python finding.py
