# Copyright (c) mmib contributors. All rights reserved.
"""Train a classifier in Lightning with InfoBatch.

    python train.py [EPOCHS]

Run the script again, and it resumes from checkpoints/last.ckpt.
"""
import os
import sys

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset

import mmib
from mmib.integrations.lightning import InfoBatchCallback

EPOCHS = 20


def points_of(size, seed):
    """Points in the squares of a board, black and white."""
    points = torch.rand(size, 2, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(points, (3 * points).long().sum(1) % 2)


class Classifier(L.LightningModule):

    def __init__(self, session):
        super().__init__()
        self.session = session
        self.network = torch.nn.Sequential(
            torch.nn.Linear(2, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), 0.1, momentum=0.9)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(
            optimizer, EPOCHS)
        return [optimizer], [schedule]

    def training_step(self, batch, batch_idx):
        slots, (inputs, labels) = batch
        logits = self.network(inputs)
        losses = F.cross_entropy(logits, labels, reduction='none')
        return self.session.weigh(losses, slots, logits).mean()

    def validation_step(self, batch, batch_idx):
        inputs, labels = batch
        right = self.network(inputs).argmax(1) == labels
        self.log('accuracy', right.float().mean(), prog_bar=True)


class Printer(L.Callback):

    def on_train_epoch_end(self, trainer, pl_module):
        values = trainer.callback_metrics
        text = ', '.join(f'{name} {value:.3f}'
                         for name, value in sorted(values.items()))
        trainer.print(f'epoch {trainer.current_epoch + 1}: {text}')


def main():
    L.seed_everything(0)
    session = mmib.Session(points_of(4000, seed=0), epochs=EPOCHS, seed=0)
    last = 'checkpoints/last.ckpt'
    trainer = L.Trainer(
        max_epochs=int(sys.argv[1]) if sys.argv[1:] else EPOCHS,
        accelerator='cpu',
        logger=False,
        enable_progress_bar=False,
        callbacks=[
            InfoBatchCallback(session),
            ModelCheckpoint('checkpoints', save_last=True),
            Printer()
        ])
    trainer.fit(
        Classifier(session),
        session.loader(batch_size=50),
        DataLoader(points_of(1000, seed=1), 500),
        ckpt_path=last if os.path.exists(last) else None)


if __name__ == '__main__':
    main()
