# Copyright (c) mmib contributors. All rights reserved.
"""Controls with the steps of the pruned run that they are compared with."""
import numpy as np
import pytest
from mmengine.hooks import Hook
from mmengine.runner import Runner

from mmib import convert, shorten
from mmib.errors import Refusal
from mmib_cli.files import loadable
from tests.helpers.epochs import by_epoch
from tests.helpers.segmentors import BASELINE, small_config, train

DECAY = {'optim_wrapper.optimizer.weight_decay': 0.1}
RANDOM = dict(type='RandomPruning', ratio=0.5)


def baseline(work_dir, epochs=False):
    """Of 100 iterations of 3 of 11 images, or 20 epochs of 23."""
    changes = by_epoch(None) if epochs else BASELINE
    cfg = small_config(work_dir, **changes, **DECAY)
    cfg.train_cfg.update(
        dict(max_epochs=20) if epochs else dict(max_iters=100))
    cfg.param_scheduler = [
        dict(type='PolyLR', power=1, eta_min=1e-4, by_epoch=epochs)
    ]
    return cfg


class StepRates(Hook):
    """What the optimizer has in each step, and schedulers go on from."""

    priority = 'LOWEST'

    def __init__(self):
        self.steps, self.rest = [], []

    def values(self, runner):
        group, = runner.optim_wrapper.optimizer.param_groups
        return group['lr'], group['weight_decay']

    def before_train_iter(self, runner, **kwargs):
        self.steps.append(self.values(runner))

    def after_train_iter(self, runner, **kwargs):
        self.rest.append(self.values(runner))


def train_by(cfg, tmp_path, name, **changes):
    cfg.work_dir = str(tmp_path / name)
    cfg.merge_from_dict(changes)
    runner = Runner.from_cfg(cfg)
    rates = StepRates()
    runner.register_hook(rates)
    return train(runner), rates, runner


@pytest.mark.parametrize('policy', [None, RANDOM])
@pytest.mark.parametrize('epochs', [False, True])
def test_steps_are_those_of_the_pruned_run(epochs, policy, tmp_path):
    """In each iteration the learning rate is multiplied by the mean weight of
    its plan, as expected. Schedulers see nothing of this."""
    cfg = baseline(tmp_path, epochs)
    pruned, _, _ = train_by(convert(cfg, policy=policy), tmp_path, 'pruned')
    means = np.array([np.mean(step['weights']) for step in pruned])
    ratio = len(pruned) / (20 * 8 if epochs else 100)
    plain, long = (
        train_by(
            shorten(cfg, ratio, steps=steps, policy=policy), tmp_path,
            f'steps{steps}') for steps in (1, None))
    assert not any(
        type(hook).__name__ == 'StepScaleHook' for hook in plain[2].hooks)
    expected, found = (np.array(run[1].steps) for run in (plain, long))
    assert len(found) == pytest.approx(len(means), abs=8)
    scale = found[:, 0] / expected[:, 0]
    assert {*np.round(scale, 6)} == {1, round(scale.max(), 6)}
    # Weight decay stays as strong for each image.
    np.testing.assert_allclose(found[:, 1], expected[:, 1] / scale)
    longer, prunes = np.flatnonzero(scale > 1), np.flatnonzero(means > 1)
    # Epochs of the control are a little longer or shorter.
    assert longer[0] == pytest.approx(prunes[0], abs=1)
    assert longer[-1] == pytest.approx(prunes[-1], abs=6 if epochs else 1)
    assert scale.max() == pytest.approx(means[prunes].mean(), 0.1)
    np.testing.assert_allclose(long[1].rest, plain[1].rest)


def test_a_number_for_what_is_not_known(tmp_path):
    cfg, policy = baseline(tmp_path), dict(type='MeanThreshold')
    with pytest.raises(Refusal, match='depends on the losses'):
        shorten(cfg, steps=None, policy=policy)
    with pytest.raises(Refusal, match='must be a positive'):
        shorten(cfg, steps=-1)
    short = shorten(cfg, steps=1.6, policy=policy)
    path = tmp_path / 'config.py'
    path.write_text(loadable(short.pretty_text))
    _, rates, _ = train_by(
        short.fromfile(path), tmp_path, 'run', default_hooks=dict())
    values = np.array(rates.steps)[:, 1]
    assert {*np.round(values, 6)} == {0.1, round(0.1 / 1.6, 6)}


@pytest.mark.parametrize('changes', [
    {
        'optim_wrapper.optimizer': dict(_delete_=True, type='AdamW', lr=1e-3)
    },
    {
        'optim_wrapper.clip_grad': dict(max_norm=1.)
    },
])
def test_steps_of_other_optimizers_stay(changes, tmp_path):
    """There the mean weight of a plan is 1, also where an option changes the
    optimizer of the control later."""
    cfg = baseline(tmp_path)
    late = shorten(cfg, steps=None)
    assert late.custom_hooks[-1].type == 'StepScaleHook'
    for each in (cfg, late):
        each.merge_from_dict(changes)
    assert shorten(cfg, steps=None).to_dict() == shorten(cfg).to_dict()
    _, rates, _ = train_by(late, tmp_path, 'late')
    assert len({decay for _, decay in rates.steps}) == 1


def test_nothing_is_longer_in_a_full_run(tmp_path):
    cfg = baseline(tmp_path)
    assert shorten(cfg, 1, steps=None).to_dict() == cfg.to_dict()
