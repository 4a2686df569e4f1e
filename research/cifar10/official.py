# Copyright (c) mmib contributors. All rights reserved.
"""Train with the official InfoBatch package on CIFAR-10: five seeds of an arm.

``official.json`` has what the package costs beside mmib: the time of a step
and of a plan, and what a resumed training knows. It was measured once.

The package is no part of this project: name a checkout of
NUS-HPC-AI-Lab/InfoBatch. Network, images, augmentation, schedule, iterations
and seeds are those of the arm `mean`, whose policy the package has; the loop
is a plain one, as in its example.

The package needs one repair to run on torch 2.6 or later. Its sampler draws a
plan in each call of ``__iter__`` and returns itself, and torch's batch sampler
calls ``iter`` on what it is given for each batch. Here ``__iter__`` returns
the iterator over the plan that it has drawn. Nothing else is changed.
"""
import argparse
import copy
import json
import os.path as osp
import sys
import time
import uuid
from contextlib import contextmanager
from types import ModuleType
from typing import Iterator, List, Tuple

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from mmengine.config import Config
from mmengine.logging import MMLogger
from mmengine.optim import build_optim_wrapper
from mmengine.registry import (DATASETS, MODELS, PARAM_SCHEDULERS,
                               init_default_scope)
from mmengine.runner import set_random_seed
from mmengine.utils import import_modules_from_strings
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from benchmarks.cifar10.arms import ARMS, PASSES
from benchmarks.cifar10.run import best_rates, load_base, make_cell
from benchmarks.compare import run
from benchmarks.compare.paired import markdown
from benchmarks.compare.results import read_results

OUT = osp.dirname(osp.abspath(__file__))
COSTS = osp.join(OUT, 'official.json')
LIBRARIES = ('mmpretrain', )
SEEDS = 5
# Of the package's example and of the paper.
RATIO, DELTA = 0.5, 0.875


@contextmanager
def official_package(folder: str) -> Iterator[ModuleType]:
    """Import the package from a checkout, and repair its sampler.

    It changes torch's data loaders when it is imported, which are as before
    when this ends.
    """
    if not osp.isdir(osp.join(folder, 'infobatch')):
        raise FileNotFoundError(
            f'{folder} is no checkout of NUS-HPC-AI-Lab/InfoBatch.')
    original = _BaseDataLoaderIter.__next__
    sys.path.insert(0, folder)
    try:
        from infobatch import infobatch
        _BaseDataLoaderIter.__next__ = infobatch.info_hack_indices
        infobatch.IBSampler.__iter__ = _draw_and_iterate
        yield infobatch
    finally:
        sys.path.remove(folder)
        _BaseDataLoaderIter.__next__ = original


def _draw_and_iterate(self) -> Iterator[int]:
    self.reset()
    return self.iter_obj


class Pairs(Dataset):
    """Images with their labels, as the package's example has them."""

    def __init__(self, cfg: Config) -> None:
        self.images = DATASETS.build(cfg)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Tuple[Tensor, Tensor]:
        return tuple(self.images.images[column][index] for column in (0, 1))


class Loop:
    """What a plain training loop needs, built from the config of an arm."""

    def __init__(self, cfg: Config, seed: int) -> None:
        import_modules_from_strings(**cfg.custom_imports)
        init_default_scope(cfg.default_scope)
        MMLogger.get_instance(uuid.uuid4().hex, log_level='WARNING')
        set_random_seed(seed)
        device = 'cuda' if torch.cuda.is_available() else 'cpu'
        self.max_iters = cfg.train_cfg.get('max_iters')
        self.model = MODELS.build(copy.deepcopy(cfg.model)).to(device)
        self.model.init_weights()
        self.model.train()
        self.optim = build_optim_wrapper(self.model,
                                         copy.deepcopy(cfg.optim_wrapper))
        self.schedulers = [
            PARAM_SCHEDULERS.build(
                dict(scheduler, optimizer=self.optim.optimizer))
            for scheduler in cfg.param_scheduler
        ]
        self.step_seconds: List[float] = []

    def step(self, inputs: Tensor, labels: Tensor, reduce) -> None:
        """Train on a batch. ``reduce`` makes the loss of that of each
        image."""
        begin = time.perf_counter()
        batch = self.model.data_preprocessor(
            dict(inputs=inputs, labels=labels), True)
        with self.optim.optim_context(self.model):
            logits = self.model(batch['inputs'], mode='tensor')
            labels = labels.to(logits.device)
            loss = reduce(F.cross_entropy(logits, labels, reduction='none'))
        self.optim.update_params(loss)
        for scheduler in self.schedulers:
            if not scheduler.by_epoch:
                scheduler.step()
        self.step_seconds.append(time.perf_counter() - begin)


def train_cell(cfg: Config, seed: int, folder: str, num_epochs: int) -> dict:
    """Train a cell with the package in a folder, and return what its line
    has. The package seeds its plans with the number of the epoch, and leaves
    the last ones of ``num_epochs`` full."""
    with official_package(folder) as official:
        return _train(official, cfg, seed, num_epochs)


def _train(official: ModuleType, cfg: Config, seed: int,
           num_epochs: int) -> dict:
    # Here, so that the tables need no MMPretrain.
    from benchmarks.cifar10.cell import eval_iters, evaluate
    loop = Loop(cfg, seed)
    loader_cfg, data = cfg.train_dataloader, cfg.train_dataloader.dataset
    dataset = official.InfoBatch(Pairs(data), num_epochs, RATIO, DELTA)
    sampler = dataset.sampler
    loader = DataLoader(
        dataset, batch_size=loader_cfg.batch_size, sampler=sampler)
    kept, evals = [], []
    iters = annealed = 0
    # The schedule counts iterations, the package epochs.
    while iters < loop.max_iters:
        batches = iter(loader)
        kept.append(len(sampler.sample_indices) / len(dataset))
        is_annealing = sampler.iterations - 1 > sampler.stop_prune
        for inputs, labels in batches:
            loop.step(inputs, labels, dataset.update)
            iters += 1
            annealed += is_annealing
            if iters in eval_iters(loop.max_iters):
                accuracy = evaluate(loop.model, data.data_root, 'test')
                evals.append(dict(iter=iters, accuracy=accuracy))
            if iters == loop.max_iters:
                break
    # The last epoch was cut short.
    slots = iters * loader_cfg.batch_size / len(dataset)
    pruned = [share for share in kept if share < 1]
    return dict(
        iters=iters,
        batch_size=loader_cfg.batch_size,
        num_images=len(dataset),
        virtual_epochs=len(kept) - 1 + (slots - sum(kept[:-1])) / kept[-1],
        accuracy=evals[-1]['accuracy'],
        evals=evals,
        kept_share=round(float(np.mean(pruned)), 4) if pruned else 1.,
        annealed_iters=annealed,
        step_ms=round(1000 * float(np.median(loop.step_seconds)), 3))


def tables() -> str:
    """What the package costs beside mmib."""
    with open(COSTS, encoding='utf-8') as file:
        found = json.load(file)
    step, resumed = found['step_ms'], found['after_resume']
    costs = {
        'step without pruning': (step['plain loop'], step['MMEngine']),
        'step with pruning': (step['official'], step['mmib']),
        **{
            f'plan of {int(size):,} images': [
                1000 * seconds[name] for name in ('official', 'mmib')
            ]
            for size, seconds in found['plan_seconds'].items()
        }
    }
    known = pd.DataFrame(resumed)[['before', 'after']].map('{:g}'.format)
    known.columns = ['before', 'built again']
    known.index = known.index.str.replace('_', ' ')
    return '\n\n'.join([
        '### Cost beside the official package',
        'Milliseconds, of a step the median.',
        markdown(pd.DataFrame(costs, ['official package', 'mmib']).T, 'what'),
        'What the official package knows in the sixth epoch of a training, '
        'and when it is built again to go on from there:',
        markdown(known, 'what'),
    ])


def make_cells(args: argparse.Namespace, _: run.Comparison) -> list:
    """The cells of the arm `official`, at the tuned learning rate."""
    rate = best_rates(
        read_results(osp.join(args.out, 'learning-rates.jsonl')))['random']
    base, path = load_base(args.data), osp.join(args.out, 'passes-24.jsonl')
    cells = [
        make_cell(path, base, 'official', ARMS['official'], seed, rate)
        for seed in range(SEEDS)
    ]
    options = dict(folder=args.checkout, num_epochs=PASSES)
    return [
        cell._replace(module='research.cifar10.official', options=options)
        for cell in cells
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split('\n\n')[0])
    parser.add_argument('checkout', help='folder of the official package')
    parser.add_argument('--data', default='data/cifar10/cifar10.npz')
    parser.add_argument('--out', default=OUT, help='folder of the results')
    run.add_arguments(parser)
    run.run(parser, make_cells, LIBRARIES)


if __name__ == '__main__':
    main()
