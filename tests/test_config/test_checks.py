# Copyright (c) mmib contributors. All rights reserved.
"""Configs with which pruning could not work stop before the first step."""
from importlib.metadata import PackageNotFoundError
from itertools import islice

import pytest
import torch
from mmengine.dataset import InfiniteSampler, pseudo_collate
from mmengine.hooks import Hook
from mmengine.registry import DATA_SAMPLERS, FUNCTIONS, HOOKS
from mmseg.models import EncoderDecoder
from torch.utils.data import BatchSampler

from mmib import InfoBatchSampler
from mmib.errors import Refusal
from mmib.openmmlab.runner import checks
from mmib.openmmlab.runner.checks import check_batch
from tests.helpers.epochs import by_epoch
from tests.helpers.segmentors import small_head, small_runner


@pytest.fixture(autouse=True)
def no_step(monkeypatch):

    def train_step(*args, **kwargs):
        raise AssertionError('a training step ran')

    monkeypatch.setattr(EncoderDecoder, 'train_step', train_step)


@DATA_SAMPLERS.register_module()
class OtherBatchSampler(BatchSampler):

    def __init__(self, sampler, batch_size):
        super().__init__(sampler, batch_size, False)


@DATA_SAMPLERS.register_module()
class SharesSampler(InfiniteSampler):

    def __init__(self, dataset, source_ratio=None, seed=None):
        super().__init__(dataset, seed=seed)
        self.source_ratio = source_ratio


@FUNCTIONS.register_module()
def collate_without_first(batch):
    return pseudo_collate(batch[1:])


def with_hook(**kwargs):
    return dict(custom_hooks=[dict(type='InfoBatchHook', **kwargs)])


def with_loader(**kwargs):
    return {f'train_dataloader.{key}': value for key, value in kwargs.items()}


NO_HOOKS = dict(custom_hooks=[])
NO_HOOK = r"none: add `custom_hooks = \[dict\(type='InfoBatchHook'\)\]`"
EAGER = {'train_cfg.type': 'EagerTrainLoop', **with_loader(num_workers=2)}
# What is said of each, and what changes.
BAD_CONFIGS = [
    (NO_HOOK, NO_HOOKS),
    (NO_HOOK, {
        **NO_HOOKS,
        **EAGER
    }),
    ('`dleta` in `custom_hooks` is not an argument of InfoBatchHook, which '
     'has policy, .* mean `delta`', with_hook(dleta=0.8)),
    ('`interval` .* start, normalize.', with_hook(interval=5)),
    (r'`delta`.* must be in \[0, 1\]', with_hook(delta=1.1)),
    (r'`ema` of InfoBatchHook in .* must be in \[0, 1\), but got 1',
     with_hook(ema=1)),
    ('`quantile` in the `policy` of InfoBatchHook .* an argument of Neyman',
     with_hook(policy=dict(type='Neyman', quantile=0.2))),
    ('Keep one InfoBatchHook',
     dict(custom_hooks=[dict(type='InfoBatchHook')] * 2)),
    ('`shufle` in `train_dataloader.sampler` .*mean `shuffle`',
     with_loader(sampler=dict(shufle=False))),
    ('by `source_ratio`.*shares would be lost',
     with_loader(sampler=dict(type='SharesSampler', source_ratio=[1, 4]))),
    ('instead of SharesSampler, .* would be lost',
     with_loader(sampler=dict(type='SharesSampler'))),
    ("set `train_dataloader.sampler.type = 'InfoBatchSampler'` instead of "
     'InfiniteSampler.$', with_loader(sampler=dict(type='InfiniteSampler'))),
    ('remove `train_dataloader.batch_sampler`',
     with_loader(batch_sampler=dict(type='OtherBatchSampler'))),
    ('remove `in_order=False`', with_loader(in_order=False)),
    ('check `train_dataloader.collate_fn`',
     with_loader(collate_fn=dict(type='collate_without_first'))),
    ('empty dataset.*data_root', with_loader(dataset=dict(size=0))),
    ('`train_cfg.max_iters = 7`.*1.91 passes over 11 .*at least 8 iterations',
     dict(train_cfg=dict(max_iters=7))),
    ('a loss per image.* none for UnknownLoss', {
        'model.decode_head': small_head(dict(type='UnknownLoss'))
    }),
    ("sampler.type = 'InfoBatchSampler'",
     by_epoch(**with_loader(**{'sampler.type': 'DefaultSampler'}))),
    ("InfoBatchSampler is read before .*to 'DefaultSampler'",
     by_epoch(**NO_HOOKS)),
    ('max_epochs.* needs 2 or more', by_epoch(**{'train_cfg.max_epochs': 1})),
    ('`drop_last` leaves them all',
     by_epoch(**with_loader(batch_size=50, drop_last=True))),
]


@pytest.mark.parametrize('message, changes', BAD_CONFIGS)
def test_bad_configs_stop_before_the_first_step(tmp_path, message, changes):
    with pytest.raises(Refusal, match=message):
        small_runner(tmp_path, **changes).train()


def test_a_refusal_stays_the_same(tmp_path):
    """Where the cell of a notebook runs again."""
    runner = small_runner(tmp_path, **{'train_cfg.max_iters': 7})
    for _ in range(2):
        with pytest.raises(Refusal, match='`train_cfg.max_iters = 7`'):
            runner.train()


@HOOKS.register_module()
class PeekHook(Hook):
    """Looks at a batch, as hooks that plot or calibrate do."""

    def __init__(self, when):
        setattr(self, when, self.peek)

    def peek(self, runner):
        next(iter(runner.train_dataloader))


@pytest.mark.parametrize('loop', ['IterBasedTrainLoop', 'EagerTrainLoop'])
@pytest.mark.parametrize('num_workers', [0, 2])
@pytest.mark.parametrize('when', ['before_run', 'before_train'])
@pytest.mark.parametrize('priority', ['VERY_HIGH', 'VERY_LOW'])
def test_a_second_reader_of_the_loader(tmp_path, loop, when, num_workers,
                                       priority):
    """It would shift the weights of all batches that follow."""
    changes = with_loader(num_workers=num_workers)
    runner = small_runner(tmp_path, **{'train_cfg.type': loop, **changes})
    runner.register_hook(PeekHook(when), priority)
    # Where the hook has not begun yet, it may as well be missing.
    first = when == 'before_train' and priority == 'VERY_HIGH'
    message = ('If it has one: a hook before it reads'
               if first else 'let a hook that looks at the data build')
    with pytest.raises(Refusal, match=message):
        runner.train()


def test_a_batch_that_a_user_looks_at_before_the_training(tmp_path):
    """As in a notebook."""
    runner = small_runner(tmp_path)
    runner.train_loop
    next(iter(runner.train_dataloader))
    with pytest.raises(Refusal, match=r'[iI]n a notebook.*dataset\[0\]'):
        runner.train()


@pytest.mark.parametrize('names, mixed', [
    (('mmengine', 'mmcv', 'mmsegmentation'), False),
    (('onedl-mmengine', 'onedl-mmcv', 'onedl-mmsegmentation'), False),
    (('onedl-mmengine', 'onedl-mmcv', 'onedl-mmsegmentation', 'mmcv'), True),
    (('mmengine', 'onedl-mmsegmentation'), True),
])
def test_two_stacks_in_one_environment(tmp_path, monkeypatch, names, mixed):

    def distribution(name):
        if name not in names:
            raise PackageNotFoundError(name)

    monkeypatch.setattr(checks, 'distribution', distribution)
    error, message = ((Refusal, 'run `pip uninstall -y m') if mixed else
                      (AssertionError, 'a training step ran'))
    with pytest.raises(error, match=message):
        small_runner(tmp_path).train()


def test_a_sampler_alone_after_a_training_that_stopped(tmp_path):
    with pytest.raises(Refusal):
        small_runner(tmp_path, **NO_HOOKS).train()
    assert sorted(islice(InfoBatchSampler([0, 1]), 2)) == [0, 1]


def test_batches_of_several_modalities():
    """Images are counted by their samples, not by the entries of a dict."""
    inputs = dict(rgb=torch.zeros(3, 3, 8, 8), depth=torch.zeros(3, 1, 8, 8))
    check_batch(dict(inputs=inputs, data_samples=[None] * 3), 3)
    check_batch(dict(inputs=inputs['rgb']), 3)
    check_batch(dict(data=inputs, data_samples=None), 3)  # as in xtuner
    check_batch(inputs['rgb'], 3)
    check_batch(dict(inputs=dict(share=torch.tensor(0.5), **inputs)), 3)
    with pytest.raises(Refusal, match='has 3 images where 2 were asked'):
        check_batch(dict(inputs=inputs, data_samples=[None] * 3), 2)
