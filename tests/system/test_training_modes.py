# Copyright (c) mmib contributors. All rights reserved.
"""What a training may have besides: averaged weights, accumulated gradients,
mixed precision, compilation, other runners and ranks, validation.

Each mode is trained in one go, which writes checkpoints, and resumed from one
of these. What follows is the same to the last bit.
"""
import functools
import glob
import os
import os.path as osp

import numpy as np
import pytest
import torch
from mmengine.hooks import Hook
from mmengine.model import MMDistributedDataParallel, is_model_wrapper
from mmengine.optim.optimizer import amp_optimizer_wrapper
from mmengine.runner import FlexibleRunner, Runner
from torch._dynamo.utils import counters
from torch.utils._pytree import tree_flatten

from tests.system.processes import run_ranks
from tests.system.small_training import (BASELINE, infobatch_hook,
                                         scores_of_batch, small_config,
                                         weights_of_batch)

MAX_ITERS = 40
SAVED = 20
ANNEALING_ITER = 34

RATIO_0 = {
    'custom_hooks': [
        dict(type='InfoBatchHook', policy=dict(type='MeanThreshold', ratio=0))
    ]
}
SINGLE_DEVICE = {'env_cfg': {}, 'strategy': dict(type='SingleDeviceStrategy')}

VALIDATION = {
    'default_hooks.checkpoint.save_best': 'mIoU',
    'default_hooks.checkpoint.interval': 1000,
    'train_cfg.val_interval': 7,
    # So the best one is after the first plans.
    'train_cfg.val_begin': 14,
    'val_cfg': dict(type='ValLoop'),
    'val_dataloader': dict(
        batch_size=1,
        num_workers=0,
        sampler=dict(type='DefaultSampler', shuffle=False),
        dataset=dict(type='ValDataset', size=5)),
    'val_evaluator': dict(type='IoUMetric'),
    'model.test_cfg': dict(mode='whole'),
    # MMEngine writes no optimizer into `best_*`, so it must have no state.
    'optim_wrapper.optimizer.momentum': 0.,
}


class Spy(Hook):
    """Writes down what each step was trained on."""

    # Before InfoBatchHook takes weights and scores back.
    priority = 'HIGH'

    def __init__(self):
        self.steps = []

    def after_train_iter(self, runner, batch_idx, data_batch, outputs):
        indices = [int(image[0, 0, 0]) for image in data_batch['inputs']]
        step = dict(indices=indices, loss=outputs['loss'].item())
        weights = weights_of_batch(runner)
        if weights is not None:
            step['weights'] = weights.tolist()
            scores = scores_of_batch(runner)
            assert scores.dtype == torch.float32
            step['scores'] = scores.tolist()
        step['graphs'] = counters['stats']['unique_graphs']
        self.steps.append(step)


def build(work_dir, **changes):
    cfg = small_config(
        work_dir, **{
            'train_cfg.max_iters': MAX_ITERS,
            'default_hooks.checkpoint.interval': SAVED,
            'optim_wrapper.optimizer.momentum': 0.9,
            **changes
        })
    return (FlexibleRunner if 'strategy' in cfg else Runner).from_cfg(cfg)


def train(runner):
    spy = Spy()
    runner.register_hook(spy)
    runner.train()
    return spy.steps


def weights_of(runner):
    model = runner.model
    return (model.module if is_model_wrapper(model) else model).state_dict()


def column(steps, *names):
    return [tuple(step.get(name) for name in names) for step in steps]


def assert_same_training(steps, others):
    names = 'indices', 'weights', 'scores', 'loss'
    assert column(steps, *names) == column(others, *names)


def assert_pruned(steps):
    """The steps have weights, and the loss follows from them."""
    weights = [w for step in steps for w in step.get('weights', [])]
    assert max(weights) > 1
    for step in steps:
        if 'weights' in step:
            products = np.multiply(step['weights'], step['scores'])
            assert step['loss'] == pytest.approx(products.mean(), rel=1e-5)


def assert_equal(state, other):
    """Compare nested tensors and plain values."""
    leaves, structure = tree_flatten(state)
    other_leaves, other_structure = tree_flatten(other)
    assert structure == other_structure
    for leaf, other_leaf in zip(leaves, other_leaves):
        assert np.array_equal(leaf, other_leaf)


def check_resumed(tmp_path, runner, steps, **changes):
    """Resume from the checkpoint in the middle, and compare.

    Returns:
        Runner: The resumed one.
    """
    resumed = build(
        tmp_path / 'resumed',
        resume=True,
        load_from=str(tmp_path / f'iter_{SAVED}.pth'),
        **changes)
    assert_same_training(train(resumed), steps[SAVED:])
    assert_equal(weights_of(resumed), weights_of(runner))
    return resumed


def load(path):
    return torch.load(path, map_location='cpu', weights_only=False)


def test_accumulated_gradients(tmp_path):
    """Scores and losses aren't those of a part of a step."""
    accumulate = {'optim_wrapper.accumulative_counts': 2}
    runs = []
    for changes in ({
            **BASELINE,
            **accumulate
    }, {
            **RATIO_0,
            **accumulate
    }, BASELINE):
        runner = build(tmp_path / 'baseline', **changes)
        runs.append((train(runner), weights_of(runner)))
    (baseline, weights), (steps, ours), (not_accumulated, _) = runs
    assert column(steps, 'indices') == column(baseline, 'indices')
    np.testing.assert_allclose(
        column(steps, 'loss'), column(baseline, 'loss'), rtol=1e-6)
    torch.testing.assert_close(ours, weights)
    assert steps[0]['loss'] == pytest.approx(not_accumulated[0]['loss'])
    assert np.mean(steps[0]['scores']) == pytest.approx(steps[0]['loss'])

    runner = build(tmp_path, **accumulate)
    steps = train(runner)
    assert_pruned(steps)
    check_resumed(tmp_path, runner, steps, **accumulate)


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
        last = f'iter_{MAX_ITERS}.pth'
        runs.append((steps, load(osp.join(runner.work_dir, last))))
        assert_equal(
            load(osp.join(resumed.work_dir, last))['ema_state_dict'],
            runs[-1][1]['ema_state_dict'])
    assert_same_training(runs[0][0], runs[1][0])
    baseline = build(tmp_path / 'baseline',
                     **dict(BASELINE, custom_hooks=[ema]))
    train(baseline)
    baseline = load(osp.join(baseline.work_dir, last))
    for key in ('state_dict', 'ema_state_dict'):
        assert_equal(runs[0][1][key], runs[1][1][key])
        assert runs[0][1][key].keys() == baseline[key].keys()


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
    amp = {
        'optim_wrapper.type': 'AmpOptimWrapper',
        'optim_wrapper.dtype': dtype,
        'optim_wrapper.loss_scale': dict(init_scale=1024.),
    }
    runner = build(tmp_path, **amp)
    steps = train(runner)
    assert runner.optim_wrapper.loss_scaler.get_scale() == 1024
    assert_pruned(steps)
    assert np.isfinite(infobatch_hook(runner).scores.numpy()).all()
    assert column(steps[:3], 'scores') != column(full[:3], 'scores')
    for name in ('scores', 'loss'):
        # The first pass, in which the trainings are still the same.
        np.testing.assert_allclose(
            np.array(column(steps[:3], name)),
            np.array(column(full[:3], name)),
            rtol=0.02)
    check_resumed(tmp_path, runner, steps, **amp)


def test_compiled(tmp_path):
    """Weights change each step and are no part of what is compiled."""
    expected = train(build(tmp_path / 'eager'))
    torch._dynamo.reset()
    counters.clear()
    changes = dict(compile=dict(backend='aot_eager'))
    # Beyond a limit torch would silently go on without compilation.
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        runner = build(tmp_path, **changes)
        steps = train(runner)
        check_resumed(tmp_path, runner, steps, **changes)
    graphs = [step['graphs'] for step in steps]
    # MMEngine counts the steps, which torch notices in the second one.
    assert 0 < graphs[1] == graphs[ANNEALING_ITER - 1]
    # One for the loss without weights.
    assert graphs[ANNEALING_ITER] <= graphs[1] + 2
    assert graphs[ANNEALING_ITER] == graphs[-1]

    assert_pruned(steps)
    assert column(steps, 'indices',
                  'weights') == column(expected, 'indices', 'weights')
    for step, other in zip(steps, expected):
        assert step['loss'] == pytest.approx(other['loss'], rel=1e-5)
        assert step.get('scores', []) == pytest.approx(
            other.get('scores', []), rel=1e-5)


def test_flexible_runner(tmp_path):
    runner = build(tmp_path, **SINGLE_DEVICE)
    steps = train(runner)
    assert_pruned(steps)
    check_resumed(tmp_path, runner, steps, **SINGLE_DEVICE)
    assert column(steps[:3], 'indices') == column(
        train(build(tmp_path / 'runner'))[:3], 'indices')


def only(pattern):
    path, = glob.glob(str(pattern))
    return path


def table_of(steps_of_ranks, size=11):
    """The scores that the steps of all ranks give."""
    table = np.ones(size)
    for steps in zip(*steps_of_ranks):
        last = {}
        for step in steps:
            for index, score in zip(step['indices'], step.get('scores', [])):
                # The larger one counts where both ranks have the image.
                last[index] = max(score, last.get(index, -np.inf))
        for index, score in last.items():
            table[index] = score
    return table


def check_checkpoints(work_dir, best, steps_of_ranks):
    """All ranks' scores are in both files, as of their iterations."""
    for path in (best, osp.join(work_dir, f'iter_{MAX_ITERS}.pth')):
        checkpoint = load(path)
        num_steps = checkpoint['meta']['iter']
        np.testing.assert_allclose(
            checkpoint['infobatch']['scores']['scores'],
            table_of([steps[:num_steps] for steps in steps_of_ranks]),
            rtol=1e-6)
        batches = 3 * len(steps_of_ranks)
        assert (checkpoint['infobatch']['sampler']['position'] == batches *
                num_steps)


def test_validation(tmp_path):
    """It doesn't touch the training, also in the middle of a plan, and the
    best checkpoint can be resumed as any other."""
    without = train(
        build(tmp_path, **{'optim_wrapper.optimizer.momentum': 0.}))
    runner = build(tmp_path, **VALIDATION)
    steps = train(runner)
    assert_same_training(steps, without)
    best = only(tmp_path / 'best_*')
    check_checkpoints(tmp_path, best, [steps])
    checkpoint = load(best)
    assert len(checkpoint['infobatch']['sampler']['indices']) > 0
    resumed = build(
        tmp_path / 'resumed', resume=True, load_from=best, **VALIDATION)
    assert_same_training(train(resumed), steps[checkpoint['meta']['iter']:])
    assert_equal(weights_of(resumed), weights_of(runner))

    finished = build(tmp_path, resume=True, **VALIDATION)
    assert train(finished) == []
    np.testing.assert_array_equal(
        infobatch_hook(finished).scores.numpy(),
        infobatch_hook(runner).scores.numpy())


MODES_OF_RANKS = {
    'DDPStrategy': {
        'env_cfg': {},
        'strategy': dict(
            type='DDPStrategy',
            model_wrapper=dict(
                type='MMDistributedDataParallel', device_ids=None))
    },
    'diff_rank_seed': {
        'randomness': dict(seed=0, diff_rank_seed=True)
    },
    'no seed': {
        'randomness': dict(seed=None)
    },
    'validation': VALIDATION,
}


def train_modes(folder, rank, results):
    """Run each mode, and resume it from the middle or the best checkpoint."""
    # As torchrun sets them.
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE='2')

    def train_on_ranks(work_dir, **changes):
        runner = build(work_dir, **changes)
        if isinstance(runner, Runner):
            # MMEngine's launcher wraps models for GPUs alone.
            runner.model = MMDistributedDataParallel(runner.model)
        steps = train(runner)
        # Until the first rank has written the last checkpoint.
        torch.distributed.barrier()
        return runner, steps

    results_of_modes = {}
    for name, changes in MODES_OF_RANKS.items():
        work_dir = folder / name
        runner, steps = train_on_ranks(work_dir, **changes)
        checkpoint = (
            only(work_dir / 'best_*')
            if name == 'validation' else str(work_dir / f'iter_{SAVED}.pth'))
        resumed, resumed_steps = train_on_ranks(
            work_dir / 'resumed', resume=True, load_from=checkpoint, **changes)
        hook = infobatch_hook(runner)
        results_of_modes[name] = dict(
            steps=steps,
            resumed_steps=resumed_steps,
            weights=weights_of(runner),
            resumed_weights=weights_of(resumed),
            stream=hook.sampler.state_dict(),
            planner=hook.planner.state_dict(hook.sampler.position),
            best=checkpoint)
    results[rank] = results_of_modes


@pytest.fixture(scope='module')
def ranks(tmp_path_factory):
    """What two ranks did in each mode, and where."""
    folder = tmp_path_factory.mktemp('ranks')
    return folder, run_ranks(functools.partial(train_modes, folder), 2)


@pytest.mark.parametrize('mode', list(MODES_OF_RANKS))
def test_ranks(ranks, mode):
    folder, (one, two) = ranks[0], [results[mode] for results in ranks[1]]
    # The same plans, of which each rank has its slots.
    for part in ('stream', 'planner', 'weights', 'resumed_weights'):
        assert_equal(two[part], one[part])
    assert column(one['steps'], 'indices') != column(two['steps'], 'indices')
    for rank in (one, two):
        assert_pruned(rank['steps'])
        start = len(rank['steps']) - len(rank['resumed_steps'])
        assert start == load(rank['best'])['meta']['iter'] > 0
        assert_same_training(rank['resumed_steps'], rank['steps'][start:])
        assert_equal(rank['resumed_weights'], rank['weights'])
    check_checkpoints(folder / mode, one['best'], [one['steps'], two['steps']])
