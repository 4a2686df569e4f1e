# Copyright (c) mmib contributors. All rights reserved.
"""What a training may have besides: averaged weights, accumulated gradients,
mixed precision, validation, compilation. Another runner is in
``test_resume.py``, and what is spread over ranks in ``test_strategies.py``.

Most modes are trained in one go, which writes checkpoints, and resumed from
one of these. What follows is the same to the last bit.
"""
import functools
import os.path as osp

import numpy as np
import pytest
import torch
from mmengine.optim.optimizer import amp_optimizer_wrapper
from torch._dynamo.utils import counters

from tests.helpers.segmentors import (BASELINE, MAX_ITERS, Notes, assert_equal,
                                      assert_pruned, build, check_resumed,
                                      column, infobatch_hook, load, train,
                                      weights_of)
from tests.system.test_strategies import STATELESS, VALIDATED, best_of

RATIO_0 = dict(custom_hooks=[
    dict(type='InfoBatchHook', policy=dict(type='MeanThreshold', ratio=0))
])


def load_last(runner):
    return load(osp.join(runner.work_dir, f'iter_{MAX_ITERS}.pth'))


def train_and_resume(tmp_path, **changes):
    """Train in one go, resume, and return the Runner and its steps."""
    runner = build(tmp_path, **changes)
    steps = train(runner)
    assert_pruned(steps)
    check_resumed(tmp_path, runner, steps, **changes)
    return runner, steps


def test_accumulated_gradients(tmp_path):
    """Scores and losses aren't those of a part of a step."""
    accumulate = {'optim_wrapper.accumulative_counts': 2}
    one = build(tmp_path / 'baseline', **BASELINE, **accumulate)
    baseline = train(one)
    two = build(tmp_path / 'mmib', **RATIO_0, **accumulate)
    steps = train(two)
    assert column(steps, 'images') == column(baseline, 'images')
    np.testing.assert_allclose(
        column(steps, 'loss'), column(baseline, 'loss'), rtol=1e-6)
    torch.testing.assert_close(weights_of(two), weights_of(one))
    whole = train(build(tmp_path / 'whole', **BASELINE))[0]['loss']
    assert steps[0]['loss'] == pytest.approx(whole)
    assert np.mean(steps[0]['scores']) == pytest.approx(whole)
    train_and_resume(tmp_path, **accumulate)


def test_averaged_weights(tmp_path):
    """EMAHook copies the model before its losses are wrapped."""
    ema = dict(type='EMAHook', momentum=0.1)
    ours = dict(type='InfoBatchHook')
    runs = []
    for i, hooks in enumerate([[ours, ema], [ema, ours]]):
        runner = build(tmp_path / str(i), custom_hooks=hooks)
        steps = train(runner)
        assert_pruned(steps)
        resumed = check_resumed(
            tmp_path / str(i), runner, steps, custom_hooks=hooks)
        runs.append((steps, load_last(runner)))
        assert_equal(
            load_last(resumed)['ema_state_dict'], runs[i][1]['ema_state_dict'])
    assert runs[0][0] == runs[1][0]
    baseline = build(tmp_path / 'baseline', **{
        **BASELINE, 'custom_hooks': [ema]
    })
    train(baseline)
    for key in ('state_dict', 'ema_state_dict'):
        assert_equal(runs[0][1][key], runs[1][1][key])
        assert runs[0][1][key].keys() == load_last(baseline)[key].keys()


@pytest.mark.parametrize('dtype', ['bfloat16', 'float16'])
def test_mixed_precision(tmp_path, monkeypatch, dtype):
    """AmpOptimWrapper itself, which stops without a GPU (and MMEngine's
    autocast at float16), on what torch offers for a CPU."""
    monkeypatch.setattr(amp_optimizer_wrapper, 'is_cuda_available',
                        lambda: True)
    monkeypatch.setattr(amp_optimizer_wrapper, 'GradScaler',
                        functools.partial(torch.amp.GradScaler, 'cpu'))
    monkeypatch.setattr('mmengine.runner.amp.autocast',
                        functools.partial(torch.autocast, 'cpu'))
    full = train(build(tmp_path / 'float32'))
    runner, steps = train_and_resume(
        tmp_path, **{
            'optim_wrapper.type': 'AmpOptimWrapper',
            'optim_wrapper.dtype': dtype,
            'optim_wrapper.loss_scale': dict(init_scale=1024.),
        })
    assert runner.optim_wrapper.loss_scaler.get_scale() == 1024
    assert np.isfinite(infobatch_hook(runner).run.table.scores).all()
    assert column(steps[:3], 'scores') != column(full[:3], 'scores')
    for name in ('scores', 'loss'):
        # The first pass, in which the trainings are still the same.
        np.testing.assert_allclose(
            column(steps[:3], name), column(full[:3], name), rtol=0.02)


def test_nothing_is_compiled_again(tmp_path):
    """After the first steps, with plans of several lengths, and annealing.
    Backends that generate code need a compiler: ``test_gpu.py``."""
    expected = train(build(tmp_path / 'eager'))
    torch._dynamo.reset()
    counters.clear()
    runner = build(tmp_path, compile=dict(backend='aot_eager'))
    frames = Notes(lambda *step: counters['frames']['total'])
    runner.register_hook(frames)
    steps = train(runner)
    # The optimizer has no state in its first step.
    assert frames.steps[1] == frames.steps[MAX_ITERS - 1] > 0
    for name in ('images', 'weights', 'relative_weights', 'scores', 'norms',
                 'loss'):
        torch.testing.assert_close(
            torch.tensor(column(steps, name)),
            torch.tensor(column(expected, name)))


def test_validation(tmp_path):
    """It doesn't touch the training, also in the middle of a plan. That the
    best checkpoint can be resumed is in ``test_strategies.py``."""
    without = train(build(tmp_path / 'without', **STATELESS))
    runner = build(tmp_path, **VALIDATED)
    steps = train(runner)
    assert steps == without
    checkpoint = load(best_of(tmp_path))
    assert len(checkpoint['infobatch']['stream']['indices']) > 0
    finished = build(tmp_path, resume=True, **VALIDATED)
    assert train(finished) == []
    np.testing.assert_array_equal(
        infobatch_hook(finished).run.table.scores,
        infobatch_hook(runner).run.table.scores)
