# Copyright (c) mmib contributors. All rights reserved.
import copy
import random
from unittest import mock

import numpy as np
import pytest
import torch
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from mmseg.models import EncoderDecoder

from mmib.errors import Refusal
from mmib.pruning import Neyman
from tests.helpers.epochs import by_epoch
from tests.helpers.segmentors import (BASELINE, assert_equal, column,
                                      expected_loss, infobatch_hook,
                                      read_lines, read_log, small_config,
                                      small_runner, train, train_and_note,
                                      weights_of)


def observe(runner):
    """A list that gets of each plan its record, the plan, and the scores that
    plans are drawn from then."""
    drawn, hook = [], infobatch_hook(runner)
    hook.plan_observers.append(lambda record, plan: drawn.append(
        (record, plan, hook.run.reading.scores)))
    return drawn


def train_with_log(work_dir, **changes):
    """Train, and return the Runner, the steps and the records of the virtual
    epochs that have begun."""
    runner = small_runner(work_dir, **changes)
    drawn = observe(runner)
    steps = train(runner)
    position = infobatch_hook(runner).run.stream.position
    return runner, steps, [
        record for record, *_ in drawn if record.first_slot < position
    ]


def assert_scores(runner, steps, ema=0):
    """The score of an image is the average of the raw losses at its visits
    before annealing."""
    table = {}
    for step in steps:
        # An image twice in a step: its last slot counts.
        last = dict(zip(step['images'], step.get('scores', [])))
        for image, loss in last.items():
            table[image] = ema * table.get(image, loss) + (1 - ema) * loss
    expected = [table[image] for image in range(11)]
    scores = infobatch_hook(runner).run.table.scores
    np.testing.assert_allclose(scores, expected, rtol=1e-5)


def test_the_file_has_histograms(tmp_path):
    """Where nobody observes the plans, the report shows them all the same."""
    runner = small_runner(tmp_path)
    assert not infobatch_hook(runner).plan_observers
    train(runner)
    lines = read_lines(next(tmp_path.glob('*/infobatch.jsonl')))
    pruned = [line for line in lines if line.get('kept', 11) < 11]
    assert len(pruned) > 3
    for line in pruned:
        assert sum(line['histogram']['all']) == 11
        assert sum(line['histogram']['kept']) == line['kept']


@pytest.mark.parametrize('loop, loader', [
    ('IterBasedTrainLoop', dict(num_workers=0)),
    ('IterBasedTrainLoop', dict(num_workers=4)),
    ('EagerTrainLoop', dict(num_workers=4, persistent_workers=True)),
    ('SkippingTrainLoop', dict(num_workers=4)),
])
def test_weights_and_scores_reach_the_right_images(tmp_path, loop, loader):
    runner = small_runner(
        tmp_path, **{
            'train_cfg.max_iters': 40,
            'train_cfg.type': loop,
            'train_dataloader': loader
        })
    drawn = observe(runner)
    steps = train(runner)
    trained = [
        slot for step in steps for slot in zip(step['images'], step['weights'])
    ]
    # Every slot of every plan, in order, across the edges.
    annealing_start = 34 * 3
    assert annealing_start in [record.first_slot for record, *_ in drawn]
    num_whole = 0
    for record, plan, scores in drawn:
        slots = trained[record.first_slot:][:record.kept]
        if plan.is_full:
            assert {weight for _, weight in slots} <= {1}
            assert len({image for image, _ in slots}) == len(slots)
            continue
        assert record.first_slot < annealing_start
        expected = list(zip(plan.indices.tolist(), plan.weights.tolist()))
        assert slots[:len(plan)] == expected
        assert (plan.weights[scores[plan.indices] < scores.mean()] > 1).all()
        if len(plan) == record.kept:
            num_whole += 1
            assert plan.weights.sum() == pytest.approx(11)
    assert num_whole >= 5
    assert ['scores' in step for step in steps] == [True] * 34 + [False] * 6
    assert_scores(runner, steps)
    for step in steps[:34]:
        assert step['loss'] == pytest.approx(expected_loss(step), rel=1e-5)


def test_smoothed_scores_reach_the_right_images(tmp_path):
    runner = small_runner(
        tmp_path, **{
            'custom_hooks.0.ema': 0.8,
            'train_dataloader.num_workers': 2
        })
    assert_scores(runner, train(runner), ema=0.8)


def test_what_prunes_nothing_is_baseline_training(tmp_path):
    """Up to the next random numbers, which a pipeline or a network may use."""
    policy = dict(type='MeanThreshold', ratio=0)
    runs = []
    for changes in (BASELINE, {'custom_hooks.0.policy': policy}):
        runner = small_runner(tmp_path, **changes)
        steps = train(runner)
        runs.append([
            column(steps, 'images'),
            column(steps, 'loss'),
            weights_of(runner),
            torch.rand(()),
            np.random.random(),
            random.random()
        ])
    torch.testing.assert_close(*runs, rtol=1e-6, atol=1e-6)


def test_logs(tmp_path):
    """With 2 workers that load 2 batches of 3 in advance. Plans that follow
    soon have no line."""
    runner, _, entered = train_with_log(
        tmp_path, **{
            'train_cfg.max_iters': 100,
            'train_dataloader.num_workers': 2
        })
    logged = [epoch for epoch in entered if epoch.logged]
    assert 8 < len(logged) < len(entered) / 1.5
    # Virtual epochs before each plan, and in the end. Each is 11 images, and
    # an iteration has 3.
    ends = [epoch.first_slot for epoch in entered[1:]] + [300]
    passes = [(end - epoch.first_slot) / epoch.kept
              for epoch, end in zip(entered, ends)]
    before = np.cumsum([0, *passes])
    assert [epoch.covered_epochs
            for epoch in entered] == pytest.approx(before[:-1])
    covered = before[-1]
    iters = [epoch.first_slot / 3 for epoch in logged]
    saved_iters = [
        epoch.covered_epochs * 11 / 3 - epoch.first_slot / 3
        for epoch in logged
    ]
    saved = pytest.approx(covered * 11 / 3 - 100)

    scalars = runner.message_hub.log_scalars
    for name, expected in (('kept_share', [e.kept / 11 for e in logged]),
                           ('threshold',
                            [e.threshold for e in logged if e.threshold]),
                           ('mean_score', [e.mean_score for e in logged]),
                           ('saved_iters', [*saved_iters, saved])):
        history, _ = scalars[f'infobatch/{name}'].data
        assert history.tolist() == pytest.approx(expected)
    # Backends are in tests/test_log/test_scalars.py.
    lines = read_lines(next(tmp_path.glob('*/vis_data/scalars.json')))
    steps = [line['step'] for line in lines if 'loss' in line]

    lines = read_lines(next(tmp_path.glob('*/infobatch.jsonl')))
    times = [line.pop('time') for line in lines]
    assert times == sorted(times)
    losses = [line for line in lines if 'loss' in line]
    assert [line['iter'] for line in losses] == steps
    begins, *plans, ends = [line for line in lines if 'loss' not in line]
    assert begins['begins'] == dict(
        iter=0,
        unit='iteration',
        max_iters=100,
        annealing_at=85,
        pass_length=11,
        slots_per_iter=3,
        policy=repr(infobatch_hook(runner).policy),
        run=runner.timestamp)
    assert [line.pop('iter') for line in plans] == iters
    assert [line.pop('saved_iters')
            for line in plans] == pytest.approx(saved_iters)
    assert plans == [epoch.to_dict() for epoch in logged]
    ends = ends['ends']
    assert ends['iter'] == 100 and ends['saved_iters'] == saved
    assert ends['visits'] - ends['pruned'] == 300 < ends['visits']

    log = read_log(tmp_path)
    assert ('virtual epoch 1, 85 iterations until annealing: 11 of 11 images '
            '(100.0 %), 0 iterations ahead, mean score 1.0000') in log
    assert ', annealing: 11 of 11 images' in log
    assert log.count('virtual epoch ') == len(logged)
    assert f'as {covered * 11 / 3:.0f} iterations of the baseline' in log
    # With a threshold, which the default policy doesn't have.
    lines = [line for line in log.splitlines() if 'virtual epoch ' in line]
    assert max(len(line.partition('InfoBatch: ')[2]) for line in lines) <= 170


def test_budget_that_cannot_be_met(tmp_path):
    _, _, epochs = train_with_log(
        tmp_path, **{
            'train_cfg.max_iters': 40,
            'custom_hooks.0.policy': dict(type='Neyman', ratio=0.01)
        })
    noted = [epoch for epoch in epochs if epoch.note]
    assert len(noted) == sum(epoch.kept < 11 for epoch in epochs) > 2
    # As much as may be pruned: 90 % of 11 images, rounded down.
    assert {epoch.kept for epoch in noted} == {2}
    assert read_log(tmp_path).count('WARNING - InfoBatch: the budget') == 1


def test_defaults():
    hook = HOOKS.build(dict(type='InfoBatchHook'))
    assert isinstance(hook.policy, Neyman) and hook.delta == 0.85


@pytest.mark.parametrize('hook, text', [
    (dict(delta=0.1), 'WARNING - InfoBatch: nothing is pruned, because '
     'annealing begins at iteration 3'),
    (dict(policy=dict(type='RandomPruning', ratio=0)), 'WARNING - InfoBatch: '
     'nothing is pruned, because RandomPruning(ratio=0) keeps every image.'),
    (dict(normalize=True), ' about 0.528 of the images, with a mean weight of '
     '1.00. It runs 30 iterations and covers 13.6 passes over the data, for '
     'which the baseline needs 50 iterations: 20 saved if '),
])
def test_what_is_said_before_the_first_step(tmp_path, monkeypatch, hook, text):

    def stop(*args, **kwargs):
        raise StopIteration

    monkeypatch.setattr(EncoderDecoder, 'train_step', stop)
    hooks = [dict(type='InfoBatchHook', **hook)]
    runner = small_runner(tmp_path, custom_hooks=hooks)
    with pytest.raises(StopIteration):
        runner.train()
    log = read_log(tmp_path)
    assert text in log
    assert log.count('WARNING - InfoBatch') == text.startswith('WARNING')


def test_what_a_program_can_read(tmp_path):
    """V of the training, and what the plan in training keeps."""
    runner = small_runner(tmp_path)
    hook, shares = infobatch_hook(runner), []
    assert np.isnan(hook.worth.value) and hook.kept_share == 1
    drawn = observe(runner)
    train_and_note(runner, lambda *step: shares.append(hook.kept_share))
    kept = [record.kept / 11 for record, *_ in drawn]
    # Of each plan in the order of the stream.
    assert [*dict.fromkeys(shares)] == [*dict.fromkeys(kept)]
    assert shares[0] == hook.kept_share == 1 and min(shares) < 1
    assert 0 < hook.worth.low <= hook.worth.value <= hook.worth.high < 2


def test_a_step_without_scores_trains_nothing(tmp_path):
    """It is refused before the backward pass."""
    runner, before = small_runner(tmp_path), {}

    def loss(inputs, data_samples):
        """As of a segmentor that computes its loss by itself."""
        before.update(copy.deepcopy(weights_of(runner)))
        return dict(loss=sum(each.sum() for each in model.parameters()))

    model = runner.model
    model.loss = loss
    with pytest.raises(Refusal, match='No loss of an image was seen'):
        runner.train()
    assert runner.iter == 0
    assert_equal(weights_of(runner), before)
    assert all(each.grad is None for each in model.parameters())


@pytest.mark.parametrize(
    'loop', [{}, by_epoch()], ids=['by iterations', 'by epochs'])
@pytest.mark.parametrize('builds_before', [False, True])
def test_a_training_that_was_interrupted(tmp_path, monkeypatch, builds_before,
                                         loop):
    """As in a notebook. What it leaves behind doesn't hide that the next
    training has no hook, whose loader a user may build before its Runner."""
    first = small_runner(tmp_path / 'first', **loop)
    with monkeypatch.context() as patch:
        patch.setattr(EncoderDecoder, 'train_step',
                      mock.Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            first.train()
    cfg = small_config(tmp_path / 'next', **dict(loop, custom_hooks=[]))
    if builds_before:
        loader = first.build_dataloader(cfg.train_dataloader)
    runner = Runner.from_cfg(cfg)
    if builds_before:
        runner._train_dataloader = loader
    with pytest.raises(Refusal, match='before any InfoBatchHook'):
        runner.train()
    assert runner.iter == 0
