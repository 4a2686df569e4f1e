# Copyright (c) mmib contributors. All rights reserved.
"""Train a classifier of CIFAR-10 in Lightning with InfoBatch.

    python -m examples.lightning.train DATA_DIR OUTPUT_DIR

Run this in the root of the repository. With --resume the training goes on from
OUTPUT_DIR/last.ckpt, and --policy names the controls.
"""
import argparse

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import mmib
from examples.cifar10 import read
from mmib.integrations.lightning import InfoBatchCallback
from mmib.pruning import Neyman, RandomPruning, ScoreOnly

POLICIES = dict(
    infobatch=Neyman(), random=RandomPruning(0.5), plain=ScoreOnly())


def block(channels, width, stride=1):
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, stride, padding=1, bias=False),
        nn.BatchNorm2d(width), nn.ReLU())


class Classifier(L.LightningModule):

    def __init__(self, session):
        super().__init__()
        self.session = session
        self.network = nn.Sequential(
            block(3, 16), block(16, 32, 2), block(32, 32), block(32, 64, 2),
            block(64, 64), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
            nn.Linear(64, 10))

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(
            self.parameters(),
            0.1,
            momentum=0.9,
            nesterov=True,
            weight_decay=5e-4)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(
            optimizer, self.trainer.max_epochs)
        return [optimizer], [schedule]

    def forward(self, images):
        return self.network((images.float() - 120) / 64)

    def augment(self, images):
        """Flip half of the images, and crop each where chance decides."""
        flipped = torch.rand(len(images), 1, 1, 1, device=images.device) < 0.5
        images = torch.where(flipped, images.flip(3), images)
        padded = F.pad(images, (4, 4, 4, 4))
        size = images.shape[-1]
        return torch.stack([
            image[:, top:top + size, left:left + size] for image, (
                top, left) in zip(padded,
                                  torch.randint(9, (len(images), 2)).tolist())
        ])

    def training_step(self, batch, batch_idx):
        slots, (images, labels) = batch
        logits = self(self.augment(images))
        losses = F.cross_entropy(logits, labels, reduction='none')
        return self.session.weigh(losses, slots, logits).mean()

    def validation_step(self, batch, batch_idx):
        images, labels = batch
        right = self(images).argmax(1) == labels
        self.log('accuracy', right.float().mean(), prog_bar=True)


def parse_args(args=None):
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument('data_dir')
    parser.add_argument('output_dir')
    parser.add_argument('--policy', choices=POLICIES, default='infobatch')
    parser.add_argument('--epochs', type=int, default=20)
    parser.add_argument('--size', type=int, default=10000, help='images')
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--resume', action='store_true')
    return parser.parse_args(args)


def main(args):
    L.seed_everything(args.seed)
    dataset = TensorDataset(*read(f'{args.data_dir}/train', args.size))
    held_out = TensorDataset(*read(f'{args.data_dir}/test', args.size))
    session = mmib.Session(
        dataset, POLICIES[args.policy], epochs=args.epochs, seed=args.seed)
    trainer = L.Trainer(
        max_epochs=args.epochs,
        default_root_dir=args.output_dir,
        callbacks=[
            InfoBatchCallback(session),
            ModelCheckpoint(args.output_dir, save_last=True)
        ])
    trainer.fit(
        Classifier(session),
        session.loader(batch_size=64),
        DataLoader(held_out, batch_size=500),
        ckpt_path=f'{args.output_dir}/last.ckpt' if args.resume else None)
    print({name: float(x) for name, x in trainer.callback_metrics.items()})
    return trainer


if __name__ == '__main__':
    main(parse_args())
