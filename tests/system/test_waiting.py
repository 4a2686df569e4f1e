# Copyright (c) mmib contributors. All rights reserved.
"""Nothing that mmib does in a step waits for a GPU, shown without one: the
operations of its part of a step are recorded, and those that would wait fail.
"""
import contextlib

import pytest
import torch
from mmseg.models import losses as mmseg_losses
from mmseg.registry import DATASETS
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from mmib.openmmlab.batch import BatchContext
from mmib.openmmlab.losses import InfoBatchLoss
from mmib.openmmlab.tasks import segmentation  # noqa: F401
from tests.helpers.segmentors import IndexDataset, build, infobatch_hook

# Operations whose result, or its size, the host must know to go on.
WAITING = ('local_scalar_dense', 'nonzero', 'masked_select', 'unique',
           'is_nonzero', 'equal', 'bincount', 'repeat_interleave')
TO_HOST = ('cpu', 'numpy', 'tolist', 'item', '__bool__', '__int__',
           '__float__')


class Operations(TorchDispatchMode):
    """Notes the names of operations, and which of them would wait."""

    def __init__(self, waiting):
        super().__init__()
        self.waiting, self.names = waiting, set()

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


@pytest.mark.parametrize(
    'loss', [
        mmseg_losses.CrossEntropyLoss(),
        mmseg_losses.CrossEntropyLoss(avg_non_ignore=True),
        mmseg_losses.CrossEntropyLoss(class_weight=[1., 2., 3.]),
        mmseg_losses.CrossEntropyLoss(use_sigmoid=True, avg_non_ignore=True),
        mmseg_losses.DiceLoss(),
        mmseg_losses.LovaszLoss(per_image=True, reduction='none'),
        mmseg_losses.OhemCrossEntropy(min_kept=5),
        mmseg_losses.TverskyLoss(),
    ],
    ids=lambda x: type(x).__name__)
def test_losses(loss):
    """Neither forward nor backward waits, unless the wrapped loss does in
    itself, which may be called once for each image."""
    waits, batch = [], BatchContext()
    batch.set_weights(*[torch.tensor([1., 2.])] * 2)
    labels = torch.arange(128).view(2, 8, 8) % 3
    for function in (loss, InfoBatchLoss(loss, batch=batch)):
        logits = torch.linspace(-1, 1, 384).view(2, 3, 8, 8).requires_grad_()
        # Predictions are no leaf of the graph.
        logits = logits * 1
        with Watch() as watch:
            total = function(logits, labels).mean()
            batch.watch_total(total)
            total.backward()
            if function is not loss:
                assert batch.norms is not None
        waits.append(watch.waiting)
    assert len(waits[1]) <= 2 * len(waits[0]), waits


def watched(method, watches):

    def call(*args, **kwargs):
        with Watch() as watch:
            method(*args, **kwargs)
        watches.append(watch)

    return call


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


LONG = {
    'train_cfg.max_iters': 170,
    'default_hooks.checkpoint.interval': 170,
}


@pytest.mark.parametrize('dataset, changes, operations', [
    ({}, {}, {'hypot', 'add'}),
    (dict(broken=(1, 4)), {}, {'hypot', 'add'}),
    (dict(size=240), LONG, {'hypot', 'add'}),
    (dict(type='LosesAnImage'), {}, {'index'}),
], ids=['plain', 'not finite', 'long', 'not delivered'])  # yapf: disable
def test_hook(tmp_path, dataset, changes, operations):
    """No step of a whole training waits: also where plans cross in a batch,
    where losses aren't finite, in several plans, and where another image was
    delivered."""
    runner, watches = build(
        tmp_path, train_dataloader=dict(dataset=dataset), **changes), []
    hook = infobatch_hook(runner)
    for name in ('begin_step', 'end_step'):
        setattr(hook, name, watched(getattr(hook, name), watches))
    runner.train()
    assert operations <= set().union(*(w.operations.names for w in watches))
    assert not sum([w.waiting for w in watches], [])
