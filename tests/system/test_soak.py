# Copyright (c) mmib contributors. All rights reserved.
"""Train through many virtual epochs, as a training of weeks does, and check
the accounts and what grows.

The network is small, and so are the images, some of which arrive as NaN.
"""
import ctypes
import gc
import math
import os
import pickle
from typing import NamedTuple

import numpy as np
import pytest
import torch
from mmengine.hooks import Hook
from mmengine.optim import OptimWrapper
from mmengine.registry import OPTIM_WRAPPERS
from mmseg.registry import DATASETS

from tests.helpers.segmentors import IndexDataset, infobatch_hook, small_runner

DELTA = 0.85
WORKERS = 2
PREFETCHED = 2  # by each worker, torch's default
# What each policy keeps of the images, about, and at least.
KEPT_SHARES = dict(QuantileTiers=0.525, MeanThreshold=0.75, Neyman=0.525)
LEAST_SHARES = dict(QuantileTiers=0.525, MeanThreshold=0.5, Neyman=0.1)


class Soak(NamedTuple):
    """What a training is run with: virtual epochs it covers, about, and the
    probability that a visit gets an image of NaN."""

    policy: str = 'QuantileTiers'
    virtual_epochs: int = 200
    images: int = 2000
    batch_size: int = 16
    nan_share: float = 0.002

    @property
    def full_iters(self):
        return self.virtual_epochs * self.images / self.batch_size

    @property
    def max_iters(self):
        passes = self.images / self.batch_size
        share = KEPT_SHARES[self.policy]
        # The first pass is full, and so are those of annealing.
        return math.ceil(passes * (self.virtual_epochs + 1 / share - 1) /
                         (DELTA / share + 1 - DELTA))

    @property
    def annealing_iter(self):
        return round(DELTA * self.max_iters)


@DATASETS.register_module()
class SoakDataset(IndexDataset):
    """Images of noise, whose brightness tells the class more or less
    clearly."""

    def __init__(self, size, nan_share=0.):
        super().__init__(size)
        self.nan_share = nan_share

    def __getitem__(self, index):
        sample = super().__getitem__(index)
        noise = torch.randn(
            3, 8, 8, generator=torch.Generator().manual_seed(index))
        brightness = (1 - 2 * (index % 2)) * (index % 97) / 97
        # The backbone divides by 16.
        sample['inputs'] = 16 * (noise + brightness)
        if torch.rand(()) < self.nan_share:
            sample['inputs'].fill_(float('nan'))
        return sample


@OPTIM_WRAPPERS.register_module()
class FiniteOptimWrapper(OptimWrapper):
    """Leaves out a step whose gradients aren't finite, as the scaler of mixed
    precision does."""

    def step(self, **kwargs):
        if all(p.grad is None or p.grad.isfinite().all()
               for group in self.param_groups for p in group['params']):
            super().step(**kwargs)


class SoakLog(Hook):
    """Notes the images of NaN in each step, the virtual epochs that begin in
    it, and how much is saved."""

    # After InfoBatchHook, also where that one fills the checkpoint.
    priority = 'LOW'

    def __init__(self, soak):
        # In memory from the start, as it must not grow.
        self.num_nan = np.full(soak.max_iters, -1)
        self.epochs, self.memory, self.sizes = [], [], []

    def after_train_iter(self,
                         runner,
                         batch_idx,
                         data_batch=None,
                         outputs=None):
        epoch = infobatch_hook(runner).run.stream.current.record
        if not self.epochs or epoch.first_slot != self.epochs[-1].first_slot:
            self.epochs.append(epoch)
            self.memory.append(own_memory(runner))
        self.num_nan[runner.iter] = sum(
            bool(image.isnan().any()) for image in data_batch['inputs'])

    def before_save_checkpoint(self, runner, checkpoint):
        state = checkpoint['infobatch']
        self.sizes.append(
            (len(pickle.dumps(state)), len(state['stream']['indices']),
             len(state['records'])))


def own_memory(runner):
    """Resident bytes, without the history of MMEngine's logs, which grows in
    the baseline, too."""
    # What nothing refers to any more is no growth: give it back.
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open('/proc/self/statm') as file:
        pages = int(file.read().split()[1])
    history = sum(array.nbytes
                  for buffer in runner.message_hub.log_scalars.values()
                  for array in buffer.data)
    return pages * os.sysconf('SC_PAGE_SIZE') - history


def make_runner(soak, work_dir):
    policy = dict(type=soak.policy)
    if soak.policy == 'Neyman':
        policy['ratio'] = soak.max_iters / soak.full_iters
    return small_runner(
        work_dir,
        train_cfg=dict(max_iters=soak.max_iters),
        train_dataloader=dict(
            batch_size=soak.batch_size,
            num_workers=WORKERS,
            persistent_workers=True,
            dataset=dict(
                type='SoakDataset', size=soak.images,
                nan_share=soak.nan_share)),
        optim_wrapper=dict(type='FiniteOptimWrapper'),
        default_hooks=dict(
            logger=dict(interval=100),
            checkpoint=dict(
                interval=max(1, soak.max_iters // 40), max_keep_ckpts=3)),
        custom_hooks=[dict(type='InfoBatchHook', policy=policy, delta=DELTA)])


SHORT = Soak(virtual_epochs=8, images=100, batch_size=5, nan_share=0.03)


@pytest.fixture(
    scope='module',
    params=[pytest.param(SHORT, id='short')] + [
        pytest.param(Soak(policy), id=policy, marks=pytest.mark.slow)
        for policy in KEPT_SHARES
    ])
def trained(request, tmp_path_factory):
    """The soak, what was noted, and the Runner."""
    soak = request.param
    log = SoakLog(soak)
    runner = make_runner(soak, tmp_path_factory.mktemp('soak'))
    runner.register_hook(log)
    runner.train()
    return soak, log, runner


def test_accounts(trained, record_property):
    """mmib's accounts are those of what was trained on."""
    soak, log, runner = trained
    hook = infobatch_hook(runner)
    assert len(log.epochs) == hook.run.stream.current.record.epoch
    saved = runner.message_hub.get_scalar('infobatch/saved_iters').current()
    assert soak.max_iters + saved == pytest.approx(soak.full_iters, rel=0.25)
    num_nan = log.num_nan[:soak.annealing_iter].sum()
    assert num_nan == hook.run.table.non_finite > 3
    assert np.isfinite(hook.run.table.scores).all()
    assert all(p.isfinite().all() for p in runner.model.parameters())
    record_property(
        f'soak of {soak.policy}',
        f'{len(log.epochs)} virtual epochs in {soak.max_iters} iterations, '
        f'{saved:.0f} saved, {num_nan} images of NaN')


def test_growth(trained, record_property):
    """Memory and checkpoints stay as large as they are."""
    soak, log, _ = trained
    in_flight = (WORKERS * PREFETCHED + 1) * soak.batch_size
    least = LEAST_SHARES[soak.policy] * soak.images
    # Five tables, the scores of the last plan, and index, weight, tier and
    # relative weight of the slots that are left.
    bounds = [
        24 * soak.images + 18 * (soak.images + in_flight) + 20_000,
        soak.images + in_flight, 2 + math.ceil(in_flight / least)
    ]
    largest = np.max(log.sizes, 0)
    assert (largest <= bounds).all()
    text = f'`infobatch` of {largest[0]} bytes at most'
    # A few virtual epochs only warm up.
    if soak is not SHORT:
        growth = growth_of(log.memory)
        assert growth < 4 * soak.images  # a table of scores
        text += f', {growth:.0f} bytes a virtual epoch'
    record_property(f'growth with {soak.policy}', text)


def growth_of(memory):
    """Growth of the memory in bytes a virtual epoch, in the second half.

    It is the median over all pairs of samples: single steps, as of buffers
    that find their size, are none.
    """
    memory = np.array(memory[len(memory) // 2:], float)
    one, two = np.triu_indices(len(memory), 1)
    return np.median((memory[two] - memory[one]) / (two - one))
