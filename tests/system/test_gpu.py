# Copyright (c) mmib contributors. All rights reserved.
"""What only a GPU can show."""
import itertools
import shutil

import numpy as np
import pytest
import torch
import torch.distributed as dist
from mmengine.model import is_model_wrapper
from mmseg.models.losses import CrossEntropyLoss

from mmib import InfoBatchHook, InfoBatchLoss
from mmib.openmmlab.tasks import segmentation
from tests.helpers.segmentors import (SAVED, assert_pruned, build,
                                      check_resumed, column, infobatch_hook,
                                      load, train)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available(), reason='there is no GPU')
]


@pytest.fixture(autouse=True)
def same_arithmetic(monkeypatch):
    """One that can be repeated, and is close to a CPU's."""
    monkeypatch.setattr(torch.backends.cudnn, 'deterministic', True)
    monkeypatch.setattr(torch.backends.cudnn, 'benchmark', False)
    monkeypatch.setattr(torch.backends.cudnn, 'allow_tf32', False)


def scores_of(runner):
    return infobatch_hook(runner).run.table.scores


def check_steps(runner, steps):
    """Images were pruned, and the loss follows from scores and relative
    weights."""
    assert next(runner.model.parameters()).is_cuda
    scores = scores_of(runner)
    assert np.isfinite(scores).all() and (scores != 1).all()
    assert_pruned(steps, rtol=1e-4)


def train_and_resume(tmp_path, **changes):
    runner = build(tmp_path, **changes)
    steps = train(runner)
    check_steps(runner, steps)
    check_resumed(tmp_path, runner, steps, **changes)
    return runner, steps


def assert_same_first_pass(steps, expected, rtol):
    """In the first pass the trainings are still the same."""
    assert column(steps[:3], 'images') == column(expected[:3], 'images')
    np.testing.assert_allclose(
        column(steps[:3], 'scores'), column(expected[:3], 'scores'), rtol=rtol)


def amp(dtype):
    changes = dict(type='AmpOptimWrapper', dtype=dtype)
    return {} if dtype == 'float32' else dict(optim_wrapper=changes)


def guard(monkeypatch, owner, name, mode, applies=lambda self: True):
    """Run a method under ``torch.cuda.set_sync_debug_mode``, and list its
    calls."""
    method = getattr(owner, name)
    calls = []

    def guarded(self, *args, **kwargs):
        if not applies(self):
            return method(self, *args, **kwargs)
        calls.append(name)
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode(mode)
        try:
            return method(self, *args, **kwargs)
        finally:
            torch.cuda.set_sync_debug_mode(before)

    monkeypatch.setattr(owner, name, guarded)
    return calls


@pytest.mark.parametrize('dtype', ['float32', 'float16', 'bfloat16'])
@pytest.mark.parametrize(
    'loss', [{}, dict(avg_non_ignore=True),
             dict(class_weight=[1., 2.])],
    ids=str)
@pytest.mark.parametrize('score, hook', [
    ('gradient', {}),
    ('loss', {
        'custom_hooks.0.ema': 0.8,
        'train_dataloader.num_workers': 2
    }),
], ids=str)  # yapf: disable
def test_the_step_does_not_wait_for_the_gpu(tmp_path, monkeypatch, score, hook,
                                            loss, dtype):
    """Neither losses nor what the hook does with visits, in passes of 40
    iterations: they are packed every 32."""
    monkeypatch.setattr(segmentation.TASK, 'score', score)
    loss_config = dict(type='CrossEntropyLoss', **loss)
    runner = build(
        tmp_path, **{
            'train_cfg.max_iters': 100,
            'train_dataloader.dataset.size': 120,
            'model.decode_head.loss_decode': loss_config,
            **hook,
            **amp(dtype)
        })
    # Annealing calls the losses of the baseline, which read `avg_non_ignore`
    # back. And class weights are copied to the GPU once.
    warm = itertools.count()
    calls = guard(
        monkeypatch,
        InfoBatchLoss,
        'forward',
        'error',
        applies=lambda self: self.batch.weights is not None and next(warm) > 1)
    guard(monkeypatch, InfoBatchHook, 'begin_step', 'error')
    if 'class_weight' in loss:
        # The loss copies its class weights to the GPU in each call.
        guard(monkeypatch, CrossEntropyLoss, 'forward', 'default')
    records = guard(monkeypatch, InfoBatchHook, 'end_step', 'error')
    runner.train()
    assert len(calls) == 2 * 85 - 2
    assert len(records) == 100
    assert (scores_of(runner) != 1).all()


@pytest.mark.parametrize('dtype', ['float16', 'bfloat16'])
def test_mixed_precision(tmp_path, dtype):
    full = train(build(tmp_path / 'float32'))
    _, steps = train_and_resume(tmp_path, **amp(dtype))
    assert_same_first_pass(steps, full, rtol=0.03)


@pytest.mark.parametrize('saved_on, resumed_on', [('cpu', 'cuda'),
                                                  ('cuda', 'cpu')])
def test_resume_on_another_device(tmp_path, monkeypatch, saved_on, resumed_on):
    """The slots that were planned come with their weights. Later plans may
    differ by the rounding of scores."""
    monkeypatch.setattr('mmengine.device.utils.DEVICE', saved_on)
    steps = train(build(tmp_path))
    path = str(tmp_path / f'iter_{SAVED}.pth')
    num_planned = len(load(path)['infobatch']['stream']['indices'])

    monkeypatch.setattr('mmengine.device.utils.DEVICE', resumed_on)
    resumed = build(tmp_path / 'resumed', resume=True, load_from=path)
    resumed_steps = train(resumed)
    parameter = next(resumed.model.parameters())
    assert parameter.device.type == resumed_on
    assert num_planned > 0
    for name in ('images', 'weights'):
        np.testing.assert_array_equal(
            np.ravel(column(resumed_steps, name))[:num_planned],
            np.ravel(column(steps[SAVED:], name))[:num_planned])
    assert resumed_steps[0]['loss'] == pytest.approx(
        steps[SAVED]['loss'], rel=1e-4)


@pytest.fixture
def process_group(tmp_path, monkeypatch):
    """A group of one, as torchrun makes it."""
    for name, value in dict(RANK='0', LOCAL_RANK='0', WORLD_SIZE='1').items():
        monkeypatch.setenv(name, value)
    torch.cuda.set_device(0)
    dist.init_process_group(
        'nccl', init_method=f'file://{tmp_path}/store', rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_sync_bn_in_a_process_group(tmp_path, process_group):
    runner, _ = train_and_resume(
        tmp_path, **{
            'launcher': 'pytorch',
            'model.decode_head.norm_cfg': dict(_delete_=True, type='SyncBN'),
        })
    assert is_model_wrapper(runner.model)
    assert any(
        isinstance(module, torch.nn.SyncBatchNorm)
        for module in runner.model.modules())


def test_compiled(tmp_path):
    """By torch's default backend. Weights change each step."""
    pytest.importorskip('triton')
    if not (shutil.which('cc') or shutil.which('gcc')):
        pytest.skip('there is no C compiler')
    expected = train(build(tmp_path / 'eager'))
    torch._dynamo.reset()
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        runner = build(tmp_path, compile=True)
        steps = train(runner)
    check_steps(runner, steps)
    assert_same_first_pass(steps, expected, rtol=1e-4)
