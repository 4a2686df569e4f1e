# Copyright (c) mmib contributors. All rights reserved.
"""Configs with which pruning could not work stop before the first step."""
from importlib.metadata import PackageNotFoundError
from itertools import islice

import pytest
import torch
from mmengine.dataset import pseudo_collate
from mmengine.hooks import Hook
from mmengine.registry import DATA_SAMPLERS, FUNCTIONS, HOOKS
from mmseg.models import EncoderDecoder
from torch.utils.data import BatchSampler

from mmib import InfoBatchSampler
from mmib.errors import Refusal
from mmib.runner import checks
from mmib.runner.checks import check_batch
from tests.system.epoch_training import by_epoch
from tests.system.small_training import small_head, small_runner


@pytest.fixture(autouse=True)
def no_step(monkeypatch):

    def train_step(*args, **kwargs):
        raise AssertionError('a training step ran')

    monkeypatch.setattr(EncoderDecoder, 'train_step', train_step)


def with_hook(**kwargs):
    return {'custom_hooks': [dict(type='InfoBatchHook', **kwargs)]}


@DATA_SAMPLERS.register_module()
class OtherBatchSampler(BatchSampler):

    def __init__(self, sampler, batch_size):
        super().__init__(sampler, batch_size, False)


@FUNCTIONS.register_module()
def collate_without_first(batch):
    return pseudo_collate(batch[1:])


NO_HOOK = r"none: add `custom_hooks = \[dict\(type='InfoBatchHook'\)\]`"
BAD_CONFIGS = {
    'no hook': ({
        'custom_hooks': []
    }, NO_HOOK),
    'no hook, eager': ({
        'custom_hooks': [],
        'train_dataloader.num_workers': 2,
        'train_cfg.type': 'EagerTrainLoop'
    }, NO_HOOK),
    'a typing error in the hook': (
        with_hook(dleta=0.8), '`dleta` in `custom_hooks` is no '
        'argument of InfoBatchHook, which has policy, .* mean `delta`'),
    'an argument of another hook': (with_hook(interval=5),
                                    '`interval` .* start, normalize.'),
    'a typing error in the sampler': ({
        'train_dataloader.sampler.shufle': False
    }, '`shufle` in `train_dataloader.sampler` .*mean `shuffle`'),
    'no sampler': ({
        'train_dataloader.sampler.type': 'InfiniteSampler'
    }, "set `train_dataloader.sampler.type = 'InfoBatchSampler'`"),
    'delta': (with_hook(delta=1.1), r'`delta`.* must be in \[0, 1\]'),
    'ema': (with_hook(ema=1),
            r'`ema`.* must be in \[0, 1\), but got 1: .*InfoBatchHook in'),
    'too short': ({
        'train_cfg.max_iters': 7
    }, r'`train_cfg.max_iters = 7`.*1.91 passes over 11 .*'
                  'at least 8 iterations'),
    'head': ({
        'model.decode_head': small_head(dict(type='UnknownLoss'))
    }, 'a loss per image.* none for UnknownLoss'),
    'batch sampler': ({
        'train_dataloader.batch_sampler': dict(type='OtherBatchSampler')
    }, 'remove `train_dataloader.batch_sampler`'),
    'order': ({
        'train_dataloader.in_order': False
    }, 'remove `in_order=False`'),
    'collate': ({
        'train_dataloader.collate_fn': dict(type='collate_without_first')
    }, 'check `train_dataloader.collate_fn`'),
    'empty': ({
        'train_dataloader.dataset.size': 0
    }, 'empty data set.*data_root'),
    'epochs, no sampler': ({
        **by_epoch(), 'train_dataloader.sampler.type': 'DefaultSampler'
    }, "sampler.type = 'InfoBatchSampler'"),
    'epochs, no hook': ({
        **by_epoch(), 'custom_hooks': []
    }, "InfoBatchSampler is read before .*to 'DefaultSampler'"),
    'epochs, too short': ({
        **by_epoch(), 'train_cfg.max_epochs': 1
    }, 'max_epochs.* needs 2 or more'),
    'epochs, drop_last': ({
        **by_epoch(), 'train_dataloader.batch_size': 50,
        'train_dataloader.drop_last': True
    }, '`drop_last` leaves them all'),
    'an argument of another policy': (
        with_hook(policy=dict(type='Neyman', quantile=0.2)),
        '`quantile` in the `policy` of InfoBatchHook .* no argument of Neyman'
    ),
    'priority': (with_hook(priority='LOWEST'),
                 'lack the scores of their last batch.* remove `priority`'),
    'two hooks': ({
        'custom_hooks': [dict(type='InfoBatchHook')] * 2
    }, 'keep one InfoBatchHook'),
}


@pytest.mark.parametrize('case', BAD_CONFIGS)
def test_bad_configs_stop_before_the_first_step(tmp_path, case):
    changes, message = BAD_CONFIGS[case]
    with pytest.raises(Refusal, match=message):
        small_runner(tmp_path, **changes).train()


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
    runner = small_runner(
        tmp_path, **{
            'train_cfg.type': loop,
            'train_dataloader.num_workers': num_workers
        })
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


def test_a_sampler_alone_after_other_trainings(tmp_path):
    """A training that stopped half-way leaves no trace."""
    runner = small_runner(tmp_path, custom_hooks=[])
    with pytest.raises(Refusal):
        runner.train()
    assert sorted(islice(InfoBatchSampler([0, 1]), 2)) == [0, 1]


def test_batches_of_several_modalities():
    """Images are counted by their samples, not by the entries of a dict."""
    inputs = dict(rgb=torch.zeros(3, 3, 8, 8), depth=torch.zeros(3, 1, 8, 8))
    check_batch(dict(inputs=inputs, data_samples=[None] * 3), 3)
    check_batch(dict(inputs=inputs['rgb']), 3)
    check_batch(dict(data=inputs, data_samples=None), 3)  # as in xtuner
    with pytest.raises(Refusal, match='has 3 images where 2 were asked'):
        check_batch(dict(inputs=inputs, data_samples=[None] * 3), 2)
