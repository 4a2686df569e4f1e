# Copyright (c) mmib contributors. All rights reserved.
"""What a training may have besides: averaged weights, accumulated gradients,
mixed precision, other runners and ranks, validation. Compilation is in
``test_compile.py``.

Each mode is trained in one go, which writes checkpoints, and resumed from one
of these. What follows is the same to the last bit.
"""
import functools
import os
import os.path as osp

import numpy as np
import pytest
import torch
from mmengine.optim.optimizer import amp_optimizer_wrapper

from tests.system.epoch_training import by_epoch
from tests.system.processes import run_ranks
from tests.system.small_training import (BASELINE, MAX_ITERS, SAVED,
                                         VALIDATION, assert_equal,
                                         assert_pruned, build, check_resumed,
                                         column, distribute, infobatch_hook,
                                         load, state_of, train, weights_of)

RATIO_0 = dict(custom_hooks=[
    dict(type='InfoBatchHook', policy=dict(type='MeanThreshold', ratio=0))
])
SINGLE_DEVICE = dict(env_cfg={}, strategy=dict(type='SingleDeviceStrategy'))
# MMEngine writes no optimizer into `best_*`, so it must have no state.
STATELESS = {'optim_wrapper.optimizer.momentum': 0.}
VALIDATED = {
    **VALIDATION,
    **STATELESS,
    'default_hooks.checkpoint.save_best': 'mIoU',
    'default_hooks.checkpoint.interval': 1000,
    # So the best one is after the first plans.
    'train_cfg': dict(val_interval=7, val_begin=14),
}


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
    assert np.isfinite(infobatch_hook(runner).scores.numpy()).all()
    assert column(steps[:3], 'scores') != column(full[:3], 'scores')
    for name in ('scores', 'loss'):
        # The first pass, in which the trainings are still the same.
        np.testing.assert_allclose(
            column(steps[:3], name), column(full[:3], name), rtol=0.02)


@pytest.mark.parametrize('changes', [{}, by_epoch()], ids=['iters', 'epochs'])
def test_flexible_runner(tmp_path, changes):
    expected = train(build(tmp_path / 'runner', **changes))
    changes = {
        **changes,
        **SINGLE_DEVICE, 'default_hooks.checkpoint': dict(
            interval=SAVED, by_epoch=False)
    }
    runner = build(tmp_path, **changes)
    steps = train(runner)
    assert column(steps[:3], 'images') == column(expected[:3], 'images')
    assert max(map(max, column(steps, 'weights'))) > 1
    check_resumed(tmp_path, runner, steps, **changes)


def table_of(steps_of_ranks, size=11):
    """The scores that the steps of all ranks give."""
    table = np.ones(size)
    for steps in zip(*steps_of_ranks):
        last = {}
        for step in steps:
            for index, score in zip(step['images'], step.get('scores', [])):
                # The larger one counts where both ranks have the image.
                last[index] = max(score, last.get(index, -np.inf))
        for index, score in last.items():
            table[index] = score
    return table


def check_checkpoints(work_dir, best, steps_of_ranks):
    """All ranks' scores are in both files, as of their iterations."""
    for path in (best, osp.join(work_dir, f'iter_{MAX_ITERS}.pth')):
        checkpoint = load(path)
        number, state = checkpoint['meta']['iter'], checkpoint['infobatch']
        np.testing.assert_allclose(
            state['scores']['scores'],
            table_of([steps[:number] for steps in steps_of_ranks]),
            rtol=1e-6)
        assert state['sampler']['position'] == (3 * len(steps_of_ranks) *
                                                number)


def best_of(work_dir):
    best, = work_dir.glob('best_*')
    return str(best)


def test_validation(tmp_path):
    """It doesn't touch the training, also in the middle of a plan. That the
    best checkpoint can be resumed is in :func:`test_ranks`."""
    without = train(build(tmp_path / 'without', **STATELESS))
    runner = build(tmp_path, **VALIDATED)
    steps = train(runner)
    assert steps == without
    checkpoint = load(best_of(tmp_path))
    assert len(checkpoint['infobatch']['sampler']['indices']) > 0
    finished = build(tmp_path, resume=True, **VALIDATED)
    assert train(finished) == []
    np.testing.assert_array_equal(
        infobatch_hook(finished).scores.numpy(),
        infobatch_hook(runner).scores.numpy())


MODES_OF_RANKS = {
    'DDPStrategy': dict(
        env_cfg={},
        strategy=dict(
            type='DDPStrategy',
            model_wrapper=dict(
                type='MMDistributedDataParallel', device_ids=None))),
    'diff_rank_seed': dict(randomness=dict(seed=0, diff_rank_seed=True)),
    'no seed': dict(randomness=dict(seed=None)),
    'validation': VALIDATED,
}


def train_modes(folder, rank, results):
    """Run each mode, and resume it from the middle or the best checkpoint."""
    # As torchrun sets them.
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE='2')
    results[rank] = {}
    for name, changes in MODES_OF_RANKS.items():

        def train_on_ranks(work_dir, **resume):
            runner = build(work_dir, **changes, **resume)
            if 'strategy' not in changes:
                distribute(runner)
            steps = train(runner)
            # Until the first rank has written the last checkpoint.
            torch.distributed.barrier()
            return runner, steps

        work_dir = folder / name
        runner, steps = train_on_ranks(work_dir)
        checkpoint = (
            best_of(work_dir)
            if name == 'validation' else str(work_dir / f'iter_{SAVED}.pth'))
        resumed, resumed_steps = train_on_ranks(
            work_dir / 'resumed', resume=True, load_from=checkpoint)
        results[rank][name] = dict(
            steps=steps,
            resumed_steps=resumed_steps,
            weights=weights_of(runner),
            resumed_weights=weights_of(resumed),
            state=state_of(runner),
            best=checkpoint)


@pytest.fixture(scope='module')
def ranks(tmp_path_factory):
    """What two ranks did in each mode, and where."""
    folder = tmp_path_factory.mktemp('ranks')
    return folder, run_ranks(functools.partial(train_modes, folder), 2)


@pytest.mark.parametrize('mode', list(MODES_OF_RANKS))
def test_ranks(ranks, mode):
    folder, (one, two) = ranks[0], [results[mode] for results in ranks[1]]
    # The same plans, of which each rank has its slots.
    for part in ('state', 'weights', 'resumed_weights'):
        assert_equal(two[part], one[part])
    assert column(one['steps'], 'images') != column(two['steps'], 'images')
    for rank in (one, two):
        assert_pruned(rank['steps'])
        start = len(rank['steps']) - len(rank['resumed_steps'])
        assert start == load(rank['best'])['meta']['iter'] > 0
        assert rank['resumed_steps'] == rank['steps'][start:]
        assert_equal(rank['resumed_weights'], rank['weights'])
    check_checkpoints(folder / mode, one['best'], [one['steps'], two['steps']])
