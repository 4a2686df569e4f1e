# Copyright (c) mmib contributors. All rights reserved.
"""What only a GPU can show."""
import itertools
import shutil

import numpy as np
import pytest
import torch
import torch.distributed as dist
from mmengine.hooks import Hook
from mmengine.model import is_model_wrapper
from mmengine.runner import Runner
from mmseg.models.losses import CrossEntropyLoss

from mmib import InfoBatchHook, InfoBatchLoss
from tests.system.small_training import (infobatch_hook, scores_of_batch,
                                         small_config, weights_of_batch)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available(), reason='there is no GPU')
]

MAX_ITERS = 40
SAVED = 20
# Iterations before annealing.
PRUNED = 34


class Spy(Hook):
    """Writes down what each step was trained on, without a copy to the
    host."""

    # Before InfoBatchHook takes weights and scores back.
    priority = 'HIGH'

    def __init__(self):
        self.indices, self.weights, self.scores = [], [], []
        self.losses = []

    def after_train_iter(self, runner, batch_idx, data_batch, outputs):
        self.indices.append(
            [int(image[0, 0, 0]) for image in data_batch['inputs']])
        self.losses.append(outputs['loss'].detach())
        weights = weights_of_batch(runner)
        if weights is not None:
            self.weights.append(weights)
            self.scores.append(scores_of_batch(runner))

    def numpy(self, name):
        return torch.stack(getattr(self, name)).cpu().numpy()


@pytest.fixture(autouse=True)
def same_arithmetic(monkeypatch):
    """One that can be repeated, and is close to a CPU's."""
    monkeypatch.setattr(torch.backends.cudnn, 'deterministic', True)
    monkeypatch.setattr(torch.backends.cudnn, 'benchmark', False)
    monkeypatch.setattr(torch.backends.cudnn, 'allow_tf32', False)


def build(work_dir, **changes):
    return Runner.from_cfg(
        small_config(
            work_dir, **{
                'train_cfg.max_iters': MAX_ITERS,
                'default_hooks.checkpoint.interval': SAVED,
                'optim_wrapper.optimizer.momentum': 0.9,
                **changes
            }))


def train(runner):
    spy = Spy()
    runner.register_hook(spy)
    runner.train()
    return spy


def weights_of(runner):
    model = runner.model
    model = model.module if is_model_wrapper(model) else model
    return {name: value.cpu() for name, value in model.state_dict().items()}


def check_steps(runner, spy):
    """Images were left out, and the loss follows from scores and weights."""
    table = infobatch_hook(runner).scores
    assert table._scores.device.type == 'cuda'
    assert np.isfinite(table.numpy()).all() and (table.numpy() != 1).all()
    weights, scores = spy.numpy('weights'), spy.numpy('scores')
    assert len(weights) == PRUNED and weights.max() > 1
    assert scores.dtype == np.float32
    np.testing.assert_allclose(
        spy.numpy('losses')[:PRUNED], (weights * scores).mean(1), rtol=1e-4)


def amp(dtype):
    if dtype == 'float32':
        return {}
    return {
        'optim_wrapper.type': 'AmpOptimWrapper',
        'optim_wrapper.dtype': dtype
    }


def loss_config(**loss):
    return {
        'model.decode_head.loss_decode': dict(type='CrossEntropyLoss', **loss)
    }


def guard(monkeypatch, owner, name, mode, applies=lambda self: True):
    """Run a method under ``torch.cuda.set_sync_debug_mode``.

    Returns:
        list: An item for each call so far.
    """
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
def test_the_step_does_not_wait_for_the_gpu(tmp_path, monkeypatch, loss,
                                            dtype):
    runner = build(tmp_path, **loss_config(**loss), **amp(dtype))
    # Annealing calls the losses of the baseline, which read `avg_non_ignore`
    # back. And class weights are copied to the GPU once.
    warm = itertools.count()
    calls = guard(
        monkeypatch,
        InfoBatchLoss,
        'forward',
        'error',
        applies=lambda self: self.batch.weights is not None and next(warm) > 1)
    guard(monkeypatch, InfoBatchHook, 'before_train_iter', 'error')
    if 'class_weight' in loss:
        # The loss copies its class weights to the GPU in each call.
        guard(monkeypatch, CrossEntropyLoss, 'forward', 'default')
    records = guard(monkeypatch, InfoBatchHook, 'after_train_iter', 'error')
    runner.train()
    assert len(calls) == 2 * PRUNED - 2
    assert len(records) == MAX_ITERS
    assert (infobatch_hook(runner).scores.numpy() != 1).all()


def test_what_the_guard_sees(monkeypatch):

    class Waits:

        def method(self):
            return torch.ones(1, device='cuda').item()

    guard(monkeypatch, Waits, 'method', 'error')
    with pytest.raises(RuntimeError, match='synchroniz'):
        Waits().method()
    assert torch.cuda.get_sync_debug_mode() == 0


@pytest.mark.parametrize('dtype', ['float16', 'bfloat16'])
def test_mixed_precision(tmp_path, dtype):
    full = train(build(tmp_path / 'float32'))
    runner = build(tmp_path, **amp(dtype))
    spy = train(runner)
    check_steps(runner, spy)
    assert spy.indices[:3] == full.indices[:3]
    # The first pass, in which the trainings are still the same.
    np.testing.assert_allclose(
        spy.numpy('scores')[:3], full.numpy('scores')[:3], rtol=0.03)
    check_resumed(tmp_path, runner, spy, **amp(dtype))


def check_resumed(tmp_path, runner, spy, **changes):
    """Resume from the checkpoint in the middle, and compare bit by bit."""
    resumed = build(
        tmp_path / 'resumed',
        resume=True,
        load_from=str(tmp_path / f'iter_{SAVED}.pth'),
        **changes)
    resumed_spy = train(resumed)
    assert resumed_spy.indices == spy.indices[SAVED:]
    for name in ('weights', 'scores', 'losses'):
        np.testing.assert_array_equal(
            resumed_spy.numpy(name),
            spy.numpy(name)[SAVED:])
    torch.testing.assert_close(
        weights_of(resumed), weights_of(runner), rtol=0, atol=0)


def test_resume(tmp_path):
    changes = {'train_dataloader.num_workers': 2}
    runner = build(tmp_path, **changes)
    spy = train(runner)
    check_steps(runner, spy)
    check_resumed(tmp_path, runner, spy, **changes)


@pytest.mark.parametrize('saved_on, resumed_on', [('cpu', 'cuda'),
                                                  ('cuda', 'cpu')])
def test_resume_on_another_device(tmp_path, monkeypatch, saved_on, resumed_on):
    """The slots that were planned come with their weights. Later plans may
    differ by the rounding of scores."""
    monkeypatch.setattr('mmengine.device.utils.DEVICE', saved_on)
    spy = train(build(tmp_path))
    path = str(tmp_path / f'iter_{SAVED}.pth')
    state = torch.load(path, map_location='cpu', weights_only=False)
    num_planned = len(state['infobatch']['sampler']['indices'])

    monkeypatch.setattr('mmengine.device.utils.DEVICE', resumed_on)
    resumed = build(tmp_path / 'resumed', resume=True, load_from=path)
    tables = []
    before_train = InfoBatchHook.before_train

    def read_scores(self, runner):
        before_train(self, runner)
        assert self.scores._scores.device.type == resumed_on
        tables.append(self.scores.numpy())

    monkeypatch.setattr(InfoBatchHook, 'before_train', read_scores)
    resumed_spy = train(resumed)
    np.testing.assert_array_equal(
        tables[0], state['infobatch']['scores']['scores'].numpy())
    assert num_planned > 0
    for name in ('indices', 'weights'):
        before, after = (
            np.concatenate([
                torch.as_tensor(batch).cpu().numpy()
                for batch in getattr(s, name)
            ]) for s in (spy, resumed_spy))
        np.testing.assert_array_equal(
            after[:num_planned], before[3 * SAVED:3 * SAVED + num_planned])
    np.testing.assert_allclose(
        resumed_spy.losses[0].item(), spy.losses[SAVED].item(), rtol=1e-4)


@pytest.fixture
def process_group(tmp_path, monkeypatch):
    """A group of one, as torchrun makes it."""
    for name, value in (('RANK', '0'), ('LOCAL_RANK', '0'), ('WORLD_SIZE',
                                                             '1')):
        monkeypatch.setenv(name, value)
    torch.cuda.set_device(0)
    dist.init_process_group(
        'nccl', init_method=f'file://{tmp_path}/store', rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_sync_bn_in_a_process_group(tmp_path, process_group):
    changes = {
        'launcher': 'pytorch',
        'model.decode_head.norm_cfg': dict(_delete_=True, type='SyncBN'),
    }
    runner = build(tmp_path, **changes)
    spy = train(runner)
    assert is_model_wrapper(runner.model)
    assert any(
        isinstance(module, torch.nn.SyncBatchNorm)
        for module in runner.model.modules())
    check_steps(runner, spy)
    check_resumed(tmp_path, runner, spy, **changes)


def test_compiled(tmp_path):
    """By torch's default backend. Weights change each step."""
    pytest.importorskip('triton')
    if not (shutil.which('cc') or shutil.which('gcc')):
        pytest.skip('there is no C compiler')
    expected = train(build(tmp_path / 'eager'))
    torch._dynamo.reset()
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        runner = build(tmp_path, compile=True)
        spy = train(runner)
    check_steps(runner, spy)
    assert spy.indices[:3] == expected.indices[:3]
    np.testing.assert_allclose(
        spy.numpy('scores')[:3], expected.numpy('scores')[:3], rtol=1e-4)
