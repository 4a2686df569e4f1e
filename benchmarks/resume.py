# Copyright (c) mmib contributors. All rights reserved.
"""Time from the start of a training to its first step, fresh and resumed.

The config is the flagship's, for one process, with a small network on images
that are made up, so that a CPU is enough and loading costs next to nothing.
The checkpoint comes from a real training of it. Each start is a process of its
own, and they take turns. What their workers load is counted, and how much of
it is skipped: loaded before the first step, but not trained on next. The
baseline resumes from the same checkpoint with ``InfiniteSampler``; it does so
once, as OpenMMLab loads all of the past.
"""
import argparse
import multiprocessing
import os
import os.path as osp
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from typing import List, Optional

import numpy as np
import torch
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from mmengine.structures import PixelData
from mmseg.registry import DATASETS, MODELS
from mmseg.structures import SegDataSample
from torch import Tensor, nn
from torch.utils.data import Dataset

FLAGSHIP = osp.join(
    osp.dirname(osp.abspath(__file__)), '..', 'configs', 'upernet',
    'upernet_r50_4xb4-48k-infobatch_ade20k-512x512.py')
STARTS = ('fresh', 'resumed', 'baseline resumed')
# The default of torch, which the flagship has too.
PREFETCH = 2


@DATASETS.register_module()
class CountingDataset(Dataset):
    """Images that cost nothing. It writes down what is asked of it, in all
    processes: the numbers of the images, 8 bytes each."""

    metainfo = dict(classes=('even', 'odd'), palette=[[0] * 3, [255] * 3])

    def __init__(self, size: int, path: str) -> None:
        self.size = size
        self.path = path
        # Workers inherit it, and append in one write.
        self._file = os.open(
            path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict:
        os.write(self._file, int(index).to_bytes(8, sys.byteorder))
        sample = SegDataSample(metainfo=dict(index=index))
        sample.gt_sem_seg = PixelData(data=torch.full((1, 8, 8), index % 2))
        return dict(
            inputs=torch.full((3, 8, 8), index % 31 / 31), data_samples=sample)

    def loaded(self) -> List[int]:
        """Numbers of the images in the order in which they were loaded."""
        return np.fromfile(self.path, np.int64).tolist()


@MODELS.register_module()
class TinyBackbone(nn.Module):
    """A backbone of one convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, x: Tensor) -> List[Tensor]:
        return [self.conv(x)]


@HOOKS.register_module()
class WatchStart(Hook):
    """Notes what was loaded before the first step, and what is trained on
    next. It ends the training after iterations in which all that was in flight
    at the first step is trained on."""

    priority = 'LOWEST'

    def __init__(self, iters: int) -> None:
        self.iters = iters
        self.loaded: Optional[List[int]] = None
        self.trained: List[int] = []

    def before_train_iter(self, runner, batch_idx, data_batch):
        if self.loaded is None:
            self.first_step = time.perf_counter()
            dataset, before = runner.train_dataloader.dataset, None
            self.loaded = dataset.loaded()
            # Let the workers load all that they were asked for.
            while before != self.loaded:
                time.sleep(0.2)
                before, self.loaded = self.loaded, dataset.loaded()
        self.trained += [s.index for s in data_batch['data_samples']]
        self.iters -= 1
        if self.iters == 0:
            runner.train_loop.stop_training = True


def checkpoint_of(args: argparse.Namespace) -> str:
    return osp.join(args.folder, f'iter_{args.iteration}.pth')


def make_config(args: argparse.Namespace, start: str) -> Config:
    """The flagship's config with a small network, for one of :data:`STARTS`,
    or for 'checkpoint', the training that writes it."""
    cfg = Config.fromfile(FLAGSHIP)
    cfg.model = dict(
        type='EncoderDecoder',
        data_preprocessor=dict(type='SegDataPreProcessor', size=(8, 8)),
        backbone=dict(type='TinyBackbone'),
        decode_head=dict(
            type='FCNHead',
            in_channels=4,
            channels=4,
            num_convs=1,
            in_index=0,
            concat_input=False,
            num_classes=2,
            loss_decode=dict(type='CrossEntropyLoss')))
    is_start = start in STARTS
    workers = args.workers if is_start else 0
    cfg.train_dataloader.dataset = dict(
        type='CountingDataset',
        size=args.images,
        path=osp.join(args.folder, 'loaded.bin'))
    # The last checkpoint of the flagship's 48k iterations before annealing.
    max_iters = round(1.2 * args.iteration)
    cfg.merge_from_dict({
        'work_dir': args.folder,
        'log_level': 'WARNING',
        'randomness': dict(seed=0),
        'train_dataloader.num_workers': workers,
        'train_dataloader.persistent_workers': workers > 0,
        'train_cfg.max_iters': max_iters,
        'param_scheduler.0.end': max_iters,
        'default_hooks.checkpoint.interval': args.iteration,
    })
    for split in ('val', 'test'):
        for part in ('cfg', 'dataloader', 'evaluator'):
            cfg[f'{split}_{part}'] = None
    if start == 'baseline resumed':
        cfg.train_dataloader.sampler.type = 'InfiniteSampler'
        cfg.custom_hooks = []
    if 'resumed' in start:
        cfg.load_from, cfg.resume = checkpoint_of(args), True
    iters = args.workers * PREFETCH + 1 if is_start else args.iteration
    cfg.custom_hooks += [dict(type='WatchStart', iters=iters)]
    return cfg


def train(args: argparse.Namespace, start: str) -> dict:
    """Train in this process, and say what was seen."""
    torch.set_num_threads(1)
    # The first optimizer of a process imports a lot.
    torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    runner = Runner.from_cfg(make_config(args, start))
    begin = time.perf_counter()
    runner.train()
    watch = next(hook for hook in runner.hooks if isinstance(hook, WatchStart))
    # Else they stop at the end of the process, where each may take seconds.
    if runner.train_dataloader.num_workers:
        runner.train_dataloader._iterator._shutdown_workers()
    skipped = Counter(watch.loaded) - Counter(watch.trained)
    return dict(
        start=start,
        seconds=watch.first_step - begin,
        loaded=len(watch.loaded),
        skipped=sum(skipped.values()))


def train_apart(args: argparse.Namespace, start: str) -> dict:
    """:func:`train` in a fresh process."""
    context = multiprocessing.get_context('spawn')
    with ProcessPoolExecutor(1, context) as executor:
        return executor.submit(train, args, start).result()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        '--iteration', type=int, default=40_000, help='of the checkpoint')
    parser.add_argument('--workers', type=int, default=4)
    parser.add_argument('--images', type=int, default=20_210)
    parser.add_argument('--repeats', type=int, default=5)
    args = parser.parse_args()
    # OpenMMLab's loader needs to be told that the checkpoint is its own.
    os.environ['TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD'] = '1'
    with tempfile.TemporaryDirectory() as args.folder:
        train_apart(args, 'checkpoint')
        size = osp.getsize(checkpoint_of(args))
        runs = [train_apart(args, start) for start in STARTS]
        for i in range(1, args.repeats):
            for start in STARTS[:2] if i % 2 == 0 else STARTS[1::-1]:
                runs.append(train_apart(args, start))
    print(f'Checkpoint of iteration {args.iteration}: {size / 1e6:.1f} MB\n'
          '| start | items loaded before the first step | of them skipped | '
          'median s | all s |\n|---|---|---|---|---|')
    for start in STARTS:
        of_start = [run for run in runs if run['start'] == start]
        seconds = [run['seconds'] for run in of_start]
        print(f'| {start} | {max(run["loaded"] for run in of_start)} | '
              f'{max(run["skipped"] for run in of_start)} | '
              f'{np.median(seconds):.3f} | '
              f'{" ".join(f"{s:.2f}" for s in seconds)} |')


if __name__ == '__main__':
    main()
