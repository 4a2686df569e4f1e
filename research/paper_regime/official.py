# Copyright (c) mmib contributors. All rights reserved.
"""Train a cell with the official InfoBatch package by epochs, in parts.

The package keeps no state: its scores and weights and the number of its next
plan are saved here, beside network, optimizer and schedulers.
"""
import os
import os.path as osp
import shutil
from types import ModuleType
from typing import Any, Optional

import numpy as np
import torch
from mmengine.config import Config
from mmengine.registry import DATASETS
from torch.utils.data import DataLoader

from benchmarks.cifar10.cell import evaluate
from research.cifar10.official import Loop, official_package

from .cell import (LIBRARIES, eval_epochs, is_over, random_state,
                   set_random_state)

__all__ = ['LIBRARIES', 'train_cell']


class Training(Loop):
    """A training with the package, whose policy and annealing are those of the
    InfoBatchHook in the config."""

    def __init__(self, package: ModuleType, cfg: Config, seed: int) -> None:
        super().__init__(cfg, seed)
        hook, loader = cfg.custom_hooks[-1], cfg.train_dataloader
        self.images = DATASETS.build(loader.dataset)
        self.num_epochs = cfg.train_cfg.max_epochs
        if hook.delta * self.num_epochs % 1:
            raise ValueError(
                'The official package never resets its weights in annealing, '
                f'as {hook.delta} of {self.num_epochs} epochs is no whole '
                'number: give an --epochs with which it is, as 20, 100 or '
                '200.')
        # Its items are the numbers of the images, whose batches are made on
        # the training device.
        self.dataset = package.InfoBatch(
            range(len(self.images)), self.num_epochs, hook.policy.ratio,
            hook.delta)
        self.sampler = self.dataset.sampler
        self.loader = DataLoader(
            self.dataset, batch_size=loader.batch_size, sampler=self.sampler)
        self.figures: dict = dict(epochs=0, iters=0, kept=[], evals=[])

    def run_epoch(self) -> None:
        for numbers in self.loader:
            self.step(*self.images[numbers].values(), self.dataset.update)
            self.figures['iters'] += 1
        for scheduler in self.schedulers:
            scheduler.step()
        kept = len(self.sampler.sample_indices) / len(self.images)
        self.figures['kept'].append(kept)
        self.figures['epochs'] += 1

    def save(self, path: str) -> None:
        state = dict(
            parts=[part.state_dict() for part in self._parts()],
            package=[
                self.sampler.iterations, self.dataset.scores,
                self.dataset.weights
            ],
            figures=self.figures,
            random=random_state())
        os.makedirs(osp.dirname(path), exist_ok=True)
        torch.save(state, f'{path}.new')
        os.replace(f'{path}.new', path)

    def load(self, path: str) -> None:
        # The file is ours.
        state = torch.load(path, 'cpu', weights_only=False)
        for part, of_part in zip(self._parts(), state['parts']):
            part.load_state_dict(of_part)
        (self.sampler.iterations, self.dataset.scores,
         self.dataset.weights) = state['package']
        self.figures = state['figures']
        set_random_state(state['random'])

    def _parts(self) -> list:
        return [self.model, self.optim, *self.schedulers]


def train_cell(cfg: Config, seed: int, folder: str, deadline: float,
               **options: Any) -> Optional[dict]:
    """As that of ``cell.py``, with a ``checkout`` of the package."""
    if is_over(deadline):
        return None
    with official_package(options.pop('checkout')) as package:
        training = Training(package, cfg, seed)
        return _train(training, osp.join(folder, 'state.pth'), deadline,
                      **options)


def _train(training: Training,
           path: str,
           deadline: float,
           split: str = 'test') -> Optional[dict]:
    if osp.exists(path):
        training.load(path)
    figures, num_epochs = training.figures, training.num_epochs
    while figures['epochs'] < num_epochs:
        training.run_epoch()
        if figures['epochs'] in eval_epochs(num_epochs):
            accuracy = evaluate(training.model, training.images.data_root,
                                split)
            figures['evals'].append(
                dict(iter=figures['iters'], accuracy=accuracy))
        training.save(path)
        if is_over(deadline):
            break
    if figures['epochs'] < num_epochs:
        return None
    shutil.rmtree(osp.dirname(path))
    pruned = [share for share in figures.pop('kept') if share < 1]
    return dict(
        figures,
        batch_size=training.loader.batch_size,
        num_images=len(training.images),
        virtual_epochs=num_epochs,
        accuracy=figures['evals'][-1]['accuracy'],
        kept_share=float(np.mean(pruned)) if pruned else 1.,
        step_ms=round(1000 * float(np.median(training.step_seconds)), 3))
