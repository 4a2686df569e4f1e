# Copyright (c) mmib contributors. All rights reserved.
"""Train through many virtual epochs, as a training of weeks does, and check
the accounts.

The network is small, and so are the images, some of which arrive as NaN. The
training is killed on the way and goes on from its last checkpoint. What is
trained on is counted apart from mmib, by what the data set marked on each
image and by the weights that the losses used.
"""
import copy
import ctypes
import gc
import math
import os
import os.path as osp
import pickle
import signal
import tempfile
from typing import NamedTuple

import numpy as np
import pytest
import torch
from mmengine.hooks import Hook
from mmengine.optim import OptimWrapper
from mmengine.registry import HOOKS, OPTIM_WRAPPERS
from mmseg.registry import DATASETS

from mmib.accounting import VirtualEpoch
from mmib.pruning import Tier
from tests.system.processes import log_of, start_ranks
from tests.system.small_training import (IndexDataset, infobatch_hook,
                                         small_runner, weights_of_batch)

DELTA = 0.85
WORKERS = 2
PREFETCHED = 2  # by each worker, torch's default
# What each policy keeps of the images, about, and what it keeps at least.
KEPT_SHARES = dict(QuantileTiers=0.525, MeanThreshold=0.75, Budget=0.525)
LEAST_SHARES = dict(QuantileTiers=0.525, MeanThreshold=0.5, Budget=0.25)


class Soak(NamedTuple):
    """What a training is run with: virtual epochs it covers, about, and the
    probability that a visit gets an image of NaN."""

    policy: str = 'QuantileTiers'
    virtual_epochs: int = 200
    images: int = 2000
    batch_size: int = 16
    nan_share: float = 0.002

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
        sample['data_samples'].set_metainfo(
            dict(index=index, ori_shape=(8, 8), img_shape=(8, 8)))
        return sample


@OPTIM_WRAPPERS.register_module()
class FiniteOptimWrapper(OptimWrapper):
    """Leaves out a step whose gradients aren't finite, as the scaler of mixed
    precision does."""

    def step(self, **kwargs):
        if all(p.grad is None or p.grad.isfinite().all()
               for group in self.param_groups for p in group['params']):
            super().step(**kwargs)


class Account:
    """What was trained on, counted apart from mmib."""

    def __init__(self, num_images):
        self.num_images = num_images
        self.num_epochs = self.slots = self.full_passes = 0
        self.covered = 0.
        # Of the virtual epoch in training.
        self.indices, self.weights = [], []
        # Of whole plans that leave images out.
        self.shares = []
        self.weight_sums = np.zeros(num_images)
        self.variance = 0.
        self.last_visits = np.zeros(num_images, int)
        self.max_gap = 0
        self.problems = []
        self.nan_pruning = self.weighted_annealing = 0
        # At each virtual epoch: its number, and bytes in memory.
        self.memory = []
        # Of each checkpoint: bytes, slots and virtual epochs of `infobatch`.
        self.states = []
        self.miou = []
        self.resumed_at = None

    def add(self, indices, weights):
        """Count trained slots of the virtual epoch in training."""
        self.slots += len(indices)
        self.indices += indices
        self.weights += weights

    def close(self, epoch, cut):
        """End a virtual epoch, which annealing or the end of the training may
        have cut short."""
        self.num_epochs += 1
        size = len(self.indices)
        indices = np.array(self.indices, int)
        weights = np.sort(np.array(self.weights, np.float32))
        self.covered += size / epoch.size
        if len(np.unique(indices)) < size:
            self._problem('trains on an image twice')
        if epoch.start != self.slots - size:
            self._problem(f'begins at {self.slots - size}, not {epoch.start}')
        if not cut or size == epoch.size:
            expected = np.concatenate([
                np.full(t.kept, t.size / max(t.kept, 1), np.float32)
                for t in epoch.tiers
            ])
            if size != epoch.size:
                self._problem(f'has {size} slots instead of {epoch.size}')
            elif not np.array_equal(weights, np.sort(expected)):
                self._problem('has other weights than its tiers')
            if epoch.size == self.num_images:
                self.full_passes += 1
            else:
                self.shares.append(epoch.size / self.num_images)
                np.add.at(self.weight_sums, self.indices, self.weights)
                # Of weight x kept, in the mean over all images.
                self.variance += sum(t.size * (t.size / max(t.kept, 1) - 1)
                                     for t in epoch.tiers) / self.num_images
        gaps = self.num_epochs - self.last_visits[indices]
        self.max_gap = max(self.max_gap, int(gaps.max(initial=0)))
        self.last_visits[indices] = self.num_epochs
        self.indices, self.weights = [], []

    def _problem(self, text):
        self.problems.append(f'virtual epoch {self.num_epochs} {text}')


@HOOKS.register_module()
class SoakHook(Hook):
    """Keeps the account, and kills the training after an iteration."""

    # After InfoBatchHook, also where that one fills the checkpoint.
    priority = 'LOW'

    def __init__(self, soak, kill_at=None):
        self.soak = Soak(*soak)
        self.kill_at = kill_at
        self.account = Account(self.soak.images)
        self.epoch = None

    def after_load_checkpoint(self, runner, checkpoint):
        self.account = checkpoint['soak']

    def before_train(self, runner):
        self.planner = infobatch_hook(runner).planner
        if runner.iter:
            self.epoch = self.planner.epoch
            self.account.resumed_at = runner.iter

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        account = self.account
        indices = [s.metainfo['index'] for s in data_batch['data_samples']]
        weights = weights_of_batch(runner, data_batch)
        epoch, edge = self.planner.epoch, 0
        if epoch != self.epoch:
            edge = epoch.start - account.slots
            account.add(indices[:edge], weights[:edge])
            if self.epoch is not None:
                account.close(
                    self.epoch,
                    cut=(epoch.start == self.soak.annealing_iter *
                         self.soak.batch_size))
            self.epoch = epoch
            account.memory.append([account.num_epochs, own_memory(runner)])
        account.add(indices[edge:], weights[edge:])
        if runner.iter >= self.soak.annealing_iter:
            account.weighted_annealing += sum(w != 1 for w in weights)
        else:
            account.nan_pruning += sum(
                bool(image.isnan().any()) for image in data_batch['inputs'])

    def after_train_iter(self, runner, batch_idx, data_batch, outputs):
        if runner.iter + 1 == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def before_save_checkpoint(self, runner, checkpoint):
        state = checkpoint['infobatch']
        self.account.states.append([
            len(pickle.dumps(state)),
            len(state['sampler']['indices']),
            len(state['planner']['epochs'])
        ])
        checkpoint['soak'] = copy.deepcopy(self.account)

    def after_val_epoch(self, runner, metrics=None):
        self.account.miou.append(float(metrics['mIoU']))

    def after_train(self, runner):
        account, hook = self.account, infobatch_hook(runner)
        account.close(self.epoch, cut=True)
        account.mmib = dict(
            virtual_epochs=self.planner.num_epochs,
            saved_iters=runner.message_hub.get_scalar(
                'infobatch/saved_iters').current(),
            nan=hook.scores.num_non_finite())
        account.is_finite = bool(
            np.isfinite(hook.scores.numpy()).all()
            and all(p.isfinite().all() for p in runner.model.parameters()))
        account.num_checkpoints = sum(
            name.endswith('.pth') for name in os.listdir(runner.work_dir))
        with open(osp.join(runner.work_dir, 'account.pkl'), 'wb') as file:
            pickle.dump(account, file)


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


def train(rank, soak, work_dir, resume):
    # What a killed process leaves behind goes with the folder.
    tempfile.tempdir = os.environ['TMPDIR'] = work_dir
    interval = max(1, soak.max_iters // 40)
    policy = dict(type=soak.policy)
    if soak.policy == 'Budget':
        policy['full_iters'] = round(soak.virtual_epochs * soak.images /
                                     soak.batch_size)
    # Between two checkpoints, at 40 %: the memory of the last half is then
    # that of one process.
    kill_at = None if resume else 16 * interval + interval // 2
    small_runner(
        work_dir,
        resume=resume,
        model=dict(test_cfg=dict(mode='whole')),
        train_cfg=dict(
            max_iters=soak.max_iters,
            val_interval=max(1, soak.max_iters // 20)),
        train_dataloader=dict(
            batch_size=soak.batch_size,
            num_workers=WORKERS,
            persistent_workers=True,
            dataset=dict(
                type='SoakDataset', size=soak.images,
                nan_share=soak.nan_share)),
        val_cfg=dict(type='ValLoop'),
        val_dataloader=dict(
            batch_size=1,
            num_workers=0,
            sampler=dict(type='DefaultSampler', shuffle=False),
            dataset=dict(type='SoakDataset', size=20)),
        val_evaluator=dict(type='IoUMetric', iou_metrics=['mIoU']),
        optim_wrapper=dict(type='FiniteOptimWrapper'),
        default_hooks=dict(
            logger=dict(interval=100),
            checkpoint=dict(interval=interval, max_keep_ckpts=3)),
        custom_hooks=[
            dict(type='InfoBatchHook', policy=policy, delta=DELTA),
            dict(type='SoakHook', soak=tuple(soak), kill_at=kill_at),
        ]).train()


SHORT = Soak(virtual_epochs=8, images=100, batch_size=5, nan_share=0.03)


@pytest.fixture(
    scope='module',
    params=[pytest.param(SHORT, id='short')] + [
        pytest.param(Soak(policy), id=policy, marks=pytest.mark.slow)
        for policy in KEPT_SHARES
    ])
def soak(request, tmp_path_factory):
    """The soak, and the account of it."""
    work_dir = str(tmp_path_factory.mktemp('soak'))
    for resume, status in ((False, -signal.SIGKILL), (True, 0)):
        prefix = osp.join(work_dir, f'resume_{resume}')
        with start_ranks(train, 1, prefix, request.param, work_dir,
                         resume) as (process, ):
            process.join()
            assert process.exitcode == status, log_of(prefix, 0)[-3000:]
    with open(osp.join(work_dir, 'account.pkl'), 'rb') as file:
        return request.param, pickle.load(file)


def test_accounts(soak, record_property):
    """mmib's accounts are those of what was trained on."""
    soak, account = soak
    assert 0 < account.resumed_at < soak.max_iters / 2
    assert account.slots == soak.max_iters * soak.batch_size
    assert account.num_epochs == account.mmib['virtual_epochs']
    assert account.covered == pytest.approx(soak.virtual_epochs, rel=0.25)
    full_equivalent = account.covered * soak.images / soak.batch_size
    assert account.mmib['saved_iters'] == pytest.approx(
        full_equivalent - soak.max_iters, abs=1e-6)
    assert account.nan_pruning == account.mmib['nan'] > 3
    assert account.is_finite
    assert len(account.miou) >= 20 and np.isfinite(account.miou).all()
    record_property(
        f'soak of {soak.policy}',
        f'{account.num_epochs} virtual epochs in {soak.max_iters} iterations,'
        f' {account.mmib["saved_iters"]:.0f} saved, {account.nan_pruning} '
        f'images of NaN, resumed at {account.resumed_at}')


def test_plans(soak, record_property):
    """Every slot of every plan is trained on once, with the weight of its
    tier, and the plans are what they should be."""
    soak, account = soak
    assert account.problems == []
    assert account.full_passes > 0 and (account.last_visits > 0).all()
    assert account.weighted_annealing == 0
    # No policy leaves out more than 75 % of a tier. A longer gap than this
    # has a probability of 1e-6 in the whole soak.
    assert account.max_gap <= math.ceil(
        math.log(1e-6 / (soak.images * account.num_epochs)) / math.log(0.75))
    # Counts of tiers round, and equal scores are in the tier above.
    assert min(account.shares) > LEAST_SHARES[soak.policy] - 2 / soak.images
    assert max(account.shares) < 1
    # Mean weight of each image, 0 where it was left out, and the variance of
    # that where chance alone decides.
    means = account.weight_sums / len(account.shares)
    assert means.mean() == pytest.approx(1, abs=1e-5)
    assert np.mean((means - 1)**2) == pytest.approx(
        account.variance / len(account.shares)**2,
        rel=5 * math.sqrt(2 / soak.images))
    record_property(
        f'plans of {soak.policy}',
        f'{len(account.shares)} that prune, kept share '
        f'{min(account.shares):.3f} to {max(account.shares):.3f}, longest gap '
        f'{account.max_gap}, mean weights {means.min():.2f} to '
        f'{means.max():.2f}')


def test_growth(soak, record_property):
    """Memory and checkpoints stay as large as they are."""
    soak, account = soak
    in_flight = (WORKERS * PREFETCHED + 1) * soak.batch_size
    least = LEAST_SHARES[soak.policy] * soak.images
    # Scores twice, and index and weight of the slots that are left.
    bounds = [
        20 * soak.images + 12 * in_flight + 20_000, soak.images + in_flight,
        2 + math.ceil(in_flight / least)
    ]
    largest = np.max(account.states, 0)
    assert (largest <= bounds).all()
    assert account.num_checkpoints <= 4
    text = f'`infobatch` of {largest[0]} bytes at most'
    # A few virtual epochs only warm up.
    if soak is not SHORT:
        slopes = growths(account.memory)
        assert max(slopes) < 4 * soak.images  # a table of scores
        text += ', {:.0f} and {:.0f} bytes a virtual epoch'.format(*slopes)
    record_property(f'growth with {soak.policy}', text)


def growths(memory):
    """Growth of the memory in bytes a virtual epoch, of the process that is
    killed and of the one that ends.

    It is the median over all pairs of samples: single steps, as of buffers
    that find their size, are none. A resumed process takes long to settle, in
    the baseline too.
    """
    slopes = []
    for begin, end in ((0.1, 0.4), (0.5, 1)):
        part = memory[int(begin * len(memory)):int(end * len(memory))]
        epochs, resident = np.array(part, float).T
        one, two = np.triu_indices(len(epochs), 1)
        growth = (resident[two] - resident[one]) / (epochs[two] - epochs[one])
        slopes.append(float(np.median(growth)))
    return slopes


# The checks themselves -----------------------------------------------------


@pytest.mark.parametrize('leak', [0, 4])
def test_memory_that_grows_is_seen(leak):
    """A table of scores that stays in each virtual epoch."""
    noise = np.random.default_rng(0).integers(0, 2**18, 200)
    memory = [[i, 5e8 + leak * 20_000 * i + noise[i]] for i in range(200)]
    assert growths(memory) == pytest.approx([leak * 20_000] * 2, abs=5_000)


@pytest.mark.parametrize('indices, weights, problem', [
    ([4, 0, 2], [1., 2., 2.], None),
    ([4, 0, 0], [1., 2., 2.], 'an image twice'),
    ([4, 0], [1., 2.], '2 slots instead of 3'),
    ([4, 0, 2], [1., 1., 2.], 'other weights'),
])
def test_account_of_a_plan(indices, weights, problem):
    account = Account(5)
    account.add(indices, weights)
    epoch = VirtualEpoch(0, 0., 3, 1., (Tier(4, 2), Tier(1, 1)), 1., 0, '',
                         True)
    account.close(epoch, cut=False)
    if problem is None:
        assert account.problems == []
        assert account.weight_sums.tolist() == [2, 0, 2, 0, 1]
        # 4 of 5 images have a weight of 2 or 0.
        assert account.variance == pytest.approx(4 / 5)
        assert account.covered == 1 and account.shares == [3 / 5]
        assert account.last_visits.tolist() == [1, 0, 1, 0, 1]
    else:
        found, = account.problems
        assert problem in found
