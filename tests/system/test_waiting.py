# Copyright (c) mmib contributors. All rights reserved.
"""Nothing that mmib does in a step waits for a GPU, shown without one: the
operations of its part of a step are recorded, and those that would wait fail.
"""
import contextlib

import pytest
import torch
from mmengine.hooks import Hook
from mmseg.models import losses as mmseg_losses
from mmseg.registry import DATASETS
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from mmib.batch import BatchContext
from mmib.losses import InfoBatchLoss
from mmib.tasks import segmentation  # noqa: F401
from tests.system.small_training import IndexDataset, build, infobatch_hook

# Operations whose result, or its size, the host must know to go on.
WAITING = ('local_scalar_dense', 'nonzero', 'masked_select', 'unique',
           'is_nonzero', 'equal', 'bincount', 'repeat_interleave')
TO_HOST = ('cpu', 'numpy', 'tolist', 'item', '__bool__', '__int__',
           '__float__')


class Operations(TorchDispatchMode):

    def __init__(self, waiting):
        super().__init__()
        self.waiting = waiting
        self.names = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__.lstrip('_')
        self.names.add(name)
        if name.startswith(WAITING):
            self.waiting.append(name)
        # An index by a mask asks how many are true.
        if name.startswith('index') and len(args) > 1:
            indices = args[1] if isinstance(args[1], (list, tuple)) else []
            if any(x is not None and x.dtype == torch.bool for x in indices):
                self.waiting.append(f'{name} by a mask')
        return func(*args, **kwargs or {})


class Copies(TorchFunctionMode):

    def __init__(self, waiting):
        super().__init__()
        self.waiting = waiting

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = getattr(func, '__name__', '')
        # The device of the training is 'cpu' here too, but no string.
        to_host = name == 'to' and any(
            isinstance(x, str) and x == 'cpu' for x in args[1:])
        if name in TO_HOST or to_host:
            self.waiting.append(name)
        return func(*args, **kwargs or {})


class Watch(contextlib.ExitStack):
    """Collects in ``waiting`` what would wait in its block."""

    def __init__(self):
        super().__init__()
        self.waiting = []
        self.operations = Operations(self.waiting)

    def __enter__(self):
        self.enter_context(Copies(self.waiting))
        self.enter_context(self.operations)
        return self


@pytest.mark.parametrize('wait', [
    lambda x: x.item(), lambda x: bool(x > 0), lambda x: x[None].tolist(),
    lambda x: x[None][x[None] > 0], lambda x: x[None].nonzero(),
    lambda x: x.cpu(), lambda x: x.numpy(), lambda x: x.to('cpu'),
    lambda x: torch.masked_select(x, x > 0), lambda x: torch.unique(x),
    lambda x: float(x)
])
def test_what_waits_is_seen(wait):
    with Watch() as watch:
        torch.ones(3).sum() * 2
    assert not watch.waiting and 'mul' in watch.operations.names
    x = torch.ones(())
    with Watch() as watch:
        wait(x)
    assert watch.waiting


LOSSES = [
    mmseg_losses.CrossEntropyLoss(),
    mmseg_losses.CrossEntropyLoss(avg_non_ignore=True),
    mmseg_losses.CrossEntropyLoss(class_weight=[1., 2., 3.]),
    mmseg_losses.CrossEntropyLoss(use_sigmoid=True, avg_non_ignore=True),
    mmseg_losses.DiceLoss(),
    mmseg_losses.LovaszLoss(per_image=True, reduction='none'),
    mmseg_losses.OhemCrossEntropy(min_kept=5),
    mmseg_losses.TverskyLoss(),
]


def step_of(loss, weights):
    """Logits of a step and its loss, ready for the backward pass."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 3, 8, 8, generator=generator, requires_grad=True)
    labels = torch.randint(3, (2, 8, 8), generator=generator)
    if weights is None:
        return logits * 1, labels, loss
    batch = BatchContext()
    batch.begin(weights)
    return logits * 1, labels, InfoBatchLoss(loss, batch=batch)


@pytest.mark.parametrize('loss', LOSSES, ids=lambda x: type(x).__name__)
def test_losses(loss):
    """Neither forward nor backward waits, unless the wrapped loss does in
    itself, which may be called once for each image."""
    waits = []
    for weights in (None, torch.tensor([1., 2.])):
        logits, labels, function = step_of(loss, weights)
        with Watch() as watch:
            value = function(logits, labels).mean()
            value.backward()
            if weights is not None:
                assert function.batch.norms is not None
                function.batch.norms * 1
        waits.append(watch.waiting)
    assert len(waits[1]) <= 2 * len(waits[0]), waits


def watched(method, watches):

    def call(*args, **kwargs):
        with Watch() as watch:
            result = method(*args, **kwargs)
        watches.append(watch)
        return result

    return call


class WatchHook(Hook):
    """Watches the two methods of InfoBatchHook that run in each step."""

    priority = 'HIGHEST'

    def __init__(self):
        self.watches = []

    def before_train(self, runner):
        hook = infobatch_hook(runner)
        for name in ('before_train_iter', 'after_train_iter'):
            setattr(hook, name, watched(getattr(hook, name), self.watches))


@DATASETS.register_module()
class LosesAnImage(IndexDataset):
    """Delivers the first image in the place of the second one."""

    def get_data_info(self, index):
        return dict(img_path=f'{index}.png')

    def __getitem__(self, index):
        index = 0 if index == 1 else index
        results = super().__getitem__(index)
        results['data_samples'].set_metainfo(self.get_data_info(index))
        return results


DATASET = 'train_dataloader.dataset'
PACKS = {
    f'{DATASET}.size': 120,
    'train_cfg.max_iters': 90,
    'default_hooks.checkpoint.interval': 90
}


@pytest.mark.parametrize(
    'changes, operations', [
        ({}, {'hypot', 'mean'}),
        ({
            f'{DATASET}.broken': (1, 4)
        }, {'hypot', 'mean'}),
        (PACKS, {'cat', 'stack'}),
        ({
            f'{DATASET}.type': 'LosesAnImage'
        }, {'where'}),
    ],
    ids=['plain', 'not finite', 'packs', 'not delivered'])
def test_hook(tmp_path, changes, operations):
    """No step of a whole training waits: also where plans cross in a batch,
    where losses aren't finite, where 32 steps are packed, and where another
    image was delivered."""
    watch = WatchHook()
    runner = build(tmp_path, **changes)
    runner.register_hook(watch)
    runner.train()
    names = set().union(*(w.operations.names for w in watch.watches))
    assert operations <= names
    # When LoggerHook writes, which waits itself.
    assert sum([w.waiting for w in watch.watches], []) == ['tolist']
