# Copyright (c) mmib contributors. All rights reserved.
import json
import logging
import os.path as osp

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from mmseg.models import EncoderDecoder
from mmseg.registry import MODELS

from mmib import InfoBatchHook
from mmib.pruning import EpochPlan, MeanThreshold, Neyman
from mmib.tasks.segmentation import register_segmentor
from tests.system.small_training import (BASELINE, infobatch_hook,
                                         small_runner, write_images)

DEMO_CONFIG = osp.join(
    osp.dirname(__file__), '..', 'configs', 'upernet',
    'upernet_r18_1xb8-300-infobatch_demo-64x64.py')


class Spy(Hook):
    """Writes down what each training step really used."""

    priority = 'LOW'

    def __init__(self):
        self.losses = []
        self.tables = []
        self.drawn = []
        self.position = 0

    @property
    def epochs(self):
        """The virtual epochs that have begun."""
        return [
            epoch for epoch, _ in self.drawn if epoch.start < self.position
        ]

    def after_train_iter(self, runner, batch_idx, data_batch, outputs):
        self.losses.append(float(outputs['loss']))
        hook = infobatch_hook(runner)
        if hook is not None:
            self.tables.append(hook.scores.numpy().copy())
            self.position = hook.sampler.position


@MODELS.register_module()
class RecordingSegmentor(EncoderDecoder):
    """Writes down which images a step has, with which weights, and the raw
    loss of each, computed apart from mmib."""

    def loss(self, inputs, data_samples):
        label = torch.stack(
            [sample.gt_sem_seg.data for sample in data_samples]).squeeze(1)
        raw = 0
        with torch.no_grad():
            features = self.extract_feat(inputs)
            for head, loss_weight in ((self.decode_head, 1),
                                      (self.auxiliary_head, 0.4)):
                pixels = F.cross_entropy(
                    head(features), label, ignore_index=255, reduction='none')
                raw = raw + loss_weight * pixels.mean((1, 2))
        batch = getattr(self.decode_head.loss_decode, 'batch', None)
        weights = batch and batch.weights
        if not hasattr(self, 'steps'):
            self.steps = []
        self.steps.append(
            (inputs[:, 0, 0, 0].int().tolist(), raw.numpy(),
             np.ones(len(raw)) if weights is None else weights.numpy()))
        return super().loss(inputs, data_samples)


register_segmentor(RecordingSegmentor)


def recorder(work_dir, max_iters=30, hook={}, **changes):
    """A small training whose model records its steps."""
    return small_runner(
        work_dir, **{
            'model.type': 'RecordingSegmentor',
            'train_cfg.max_iters': max_iters,
            'custom_hooks': [dict(type='InfoBatchHook', **hook)],
            **changes
        })


def train(runner):
    spy = Spy()
    runner.register_hook(spy)
    hook = infobatch_hook(runner)
    if hook is not None:
        hook.plan_observers.append(lambda *drawn: spy.drawn.append(drawn))
    runner.train()
    return spy


@pytest.fixture
def plans(monkeypatch):
    """All plans that MeanThreshold draws, with the scores it saw."""
    drawn = []
    call = MeanThreshold.__call__

    def spy(self, scores, rng):
        plan = call(self, scores, rng)
        drawn.append((scores.copy(), plan))
        return plan

    monkeypatch.setattr(MeanThreshold, '__call__', spy)
    return drawn


@pytest.mark.parametrize('loop', ['IterBasedTrainLoop', 'EagerTrainLoop'])
@pytest.mark.parametrize(
    'loader', [
        dict(num_workers=0),
        dict(num_workers=4, persistent_workers=False),
        dict(num_workers=4, persistent_workers=True),
    ],
    ids=str)
def test_weights_and_scores_reach_the_right_images(tmp_path, plans, loader,
                                                   loop):
    runner = recorder(
        tmp_path, 40, **{
            'hook': dict(policy=dict(type='MeanThreshold')),
            'train_dataloader': loader,
            'train_cfg.type': loop
        })
    spy = train(runner)
    steps = runner.model.steps
    trained = [(i, float(w)) for indices, _, weights in steps
               for i, w in zip(indices, weights)]
    annealing_start = infobatch_hook(runner).clock.annealing_start
    assert annealing_start == 34 * 3

    # Every slot of every plan, in order, across the edges.
    pruned = iter([drawn for drawn in plans if len(drawn[1]) < 11])
    for epoch, following in zip(spy.epochs, spy.epochs[1:]):
        if epoch.start >= annealing_start:
            break
        slots = trained[epoch.start:following.start]
        if epoch.kept == 11:
            assert {w for _, w in slots} == {1}
            assert len({i for i, _ in slots}) == len(slots)
            continue
        scores, plan = next(pruned)
        expected = list(zip(plan.indices.tolist(), plan.weights.tolist()))
        assert slots == expected[:annealing_start - epoch.start]
        assert (plan.weights[scores[plan.indices] < scores.mean()] > 1).all()
        assert plan.weights.sum() == pytest.approx(11)
    assert sum(epoch.kept < 11 for epoch in spy.epochs) >= 5
    assert any(w > 1 for _, w in trained)
    # Annealing: everything again, with weight 1.
    rest = trained[annealing_start:]
    assert {w for _, w in rest} == {1}
    assert {i for i, _ in rest[:11]} == set(range(11))

    assert_scores(spy, steps, 34)
    losses = [(raw * weights).mean() for _, raw, weights in steps]
    np.testing.assert_allclose(spy.losses, losses, rtol=1e-5)


def assert_scores(spy, steps, annealing_iter, ema=0):
    """After each step, the score of an image is the average of the raw losses
    at its visits before annealing."""
    table = {}
    for step, (indices, raw, _) in enumerate(steps):
        if step < annealing_iter:
            # An image twice in a step: its last slot counts.
            for image, loss in dict(zip(indices, raw)).items():
                table[image] = ema * table.get(image, loss) + (1 - ema) * loss
        expected = [table.get(image, 1) for image in range(11)]
        np.testing.assert_allclose(spy.tables[step], expected, rtol=1e-5)


def test_smoothed_scores_reach_the_right_images(tmp_path):
    runner = recorder(
        tmp_path, hook=dict(ema=0.8), **{'train_dataloader.num_workers': 2})
    assert_scores(train(runner), runner.model.steps, 26, ema=0.8)


@pytest.mark.parametrize(
    'policy, num_same',
    [
        (dict(type='MeanThreshold', ratio=0), 30),
        (dict(type='QuantileTiers', ratios=(0, 0)), 30),
        # The first pass, of which 3 steps have 9 of 11 images.
        (dict(type='MeanThreshold'), 3),
    ],
    ids=str)
def test_what_prunes_nothing_is_baseline_training(tmp_path, policy, num_same):
    runs = []
    for changes in (BASELINE, dict(hook=dict(policy=policy))):
        runner = recorder(tmp_path, **changes)
        losses = train(runner).losses
        images = [images for images, _, _ in runner.model.steps]
        runs.append((images, losses, dict(runner.model.state_dict())))
    (images, losses, state), (our_images, our_losses, our_state) = runs
    assert our_images[:num_same] == images[:num_same]
    np.testing.assert_allclose(
        our_losses[:num_same], losses[:num_same], rtol=1e-6)
    if num_same == 30:
        torch.testing.assert_close(our_state, state)
    else:
        assert our_images != images


def test_ratio_0_is_baseline_training_of_upernet(tmp_path):
    """20 steps of a real network with a random pipeline."""
    write_images(tmp_path / 'data', 30)
    losses = []
    policy = dict(type='MeanThreshold', ratio=0)
    for sampler, hooks in (('InfiniteSampler', []),
                           ('InfoBatchSampler',
                            [dict(type='InfoBatchHook', policy=policy)])):
        cfg = Config.fromfile(DEMO_CONFIG)
        cfg.merge_from_dict({
            'work_dir': str(tmp_path),
            'experiment_name': sampler,
            'custom_hooks': hooks,
            'train_cfg.max_iters': 20,
            'train_cfg.val_interval': 1000,
            'default_hooks.checkpoint': None,
            'train_dataloader.sampler.type': sampler,
            'train_dataloader.dataset.data_root': str(tmp_path / 'data'),
            'val_cfg': None,
            'val_dataloader': None,
            'val_evaluator': None
        })
        losses.append(train(Runner.from_cfg(cfg)).losses)
    assert losses[0][0] != losses[0][-1]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)


def listen(runner, caplog):
    """MMEngine's loggers don't hand records on to the root logger."""
    caplog.handler.setLevel(logging.INFO)
    runner.logger.addHandler(caplog.handler)


def read_scalars(runner):
    path = osp.join(
        runner.visualizer.get_backend('LocalVisBackend')._save_dir,
        'scalars.json')
    with open(path) as file:
        return [json.loads(line) for line in file]


def check_plan_log(runner, epochs, saved):
    with open(osp.join(runner.log_dir, 'infobatch.jsonl')) as file:
        begins, *plans, ends = map(json.loads, file)
    assert begins['begins'] == dict(
        iter=0,
        unit='iteration',
        max_iters=40,
        annealing_at=34,
        annealing_iter=34,
        pass_length=11,
        slots_per_iter=3,
        policy=repr(infobatch_hook(runner).policy),
        run=runner.timestamp)
    assert [plan['epoch'] for plan in plans] == list(range(1, len(epochs) + 1))
    assert [plan['kept'] for plan in plans] == [e.kept for e in epochs]
    assert [plan['iter'] for plan in plans] == [e.start / 3 for e in epochs]
    for plan in plans:
        assert plan['saved_iters'] == pytest.approx(plan['full_equivalent'] -
                                                    plan['iter'])
        histogram = plan['histogram']
        assert (histogram is not None) == (plan['kept'] < 11)
        if histogram:
            sums = [sum(histogram[name]) for name in ('all', 'kept')]
            assert sums == [11, plan['kept']]
    ends = ends['ends']
    assert ends['iter'] == 40
    assert ends['visits'] - ends['pruned'] == 120 < ends['visits']
    assert ends['saved_iters'] == pytest.approx(saved)


def test_logs(tmp_path, caplog):
    runner = recorder(tmp_path, 40)
    listen(runner, caplog)
    entered = train(runner).epochs
    names = {
        f'infobatch/{name}'
        for name in ('kept_share', 'threshold', 'mean_score', 'saved_iters')
    }
    lines = [s for s in read_scalars(runner) if names <= s.keys()]
    assert len(lines) == len(entered) > 8
    assert [s['infobatch/kept_share']
            for s in lines] == [e.kept / 11 for e in entered]
    assert [s['step'] for s in lines] == [e.start // 3 for e in entered]
    assert lines[0]['infobatch/saved_iters'] == 0
    history, _ = runner.message_hub.get_scalar('infobatch/kept_share').data
    assert len(history) == len(entered)

    # What is saved in the end: virtual epochs of 11 images in 40 iterations.
    ends = [e.start for e in entered[1:]] + [120]
    covered = sum((end - e.start) / e.kept for e, end in zip(entered, ends))
    assert read_scalars(runner)[-1] == {
        'infobatch/saved_iters': pytest.approx(covered * 11 / 3 - 40),
        'step': 40
    }
    check_plan_log(runner, entered, saved=covered * 11 / 3 - 40)

    messages = [r.message for r in caplog.records if 'InfoBatch' in r.message]
    infos = [m for m in messages if 'virtual epoch ' in m]
    assert len(infos) == len(entered)
    assert ('virtual epoch 1, 34 iterations until annealing: 11 of 11 images '
            '(kept share 1.000), 0 iterations saved so far') in infos[0]
    assert ', annealing: 11 of 11 images' in infos[-1]
    assert f'as {covered * 11 / 3:.0f} iterations of the baseline' in (
        messages[-1])


def all_twice_as_heavy(scores, rng):
    return EpochPlan(
        rng.permutation(len(scores)), np.full(len(scores), 2, np.float32))


def test_policies_of_users(tmp_path):
    """A plan of all images, with weights, is not a full pass."""
    runner = recorder(tmp_path, custom_hooks=[])
    runner.register_hook(InfoBatchHook(policy=all_twice_as_heavy))
    train(runner)
    weights = [w for _, _, ws in runner.model.steps for w in ws]
    assert set(weights[11:26 * 3]) == {2}


@pytest.mark.parametrize('delta', [0.85, 1])
def test_budget_is_met(tmp_path, caplog, delta):
    """120 iterations cover the virtual epochs of 200, with real losses.
    Without annealing they prune to the end."""
    policy = dict(type='Budget', full_iters=200)
    runner = recorder(
        tmp_path, 120, dict(policy=policy, delta=delta), **{
            'train_dataloader.dataset.size': 40,
            'train_dataloader.num_workers': 2
        })
    listen(runner, caplog)
    spy = train(runner)
    assert spy.epochs[-1].covered_until(120 * 3) == pytest.approx(
        200 * 3 / 40, rel=0.01)
    last = [w for _, _, weights in runner.model.steps[-4:] for w in weights]
    assert (max(last) > 1) == (delta == 1)
    assert np.array_equal(*spy.tables[-2:]) is (delta < 1)
    messages = [r.message for r in caplog.records]
    assert not any('the budget' in message for message in messages)
    assert 'as 200 iterations of the base' in messages[-1]
    lines = [message for message in messages if 'virtual epoch ' in message]
    assert all((', no annealing: ' in line) is (delta == 1) for line in lines)


def test_budget_that_cannot_be_met(tmp_path, caplog):
    policy = dict(type='Budget', full_iters=4000)
    runner = recorder(tmp_path, 40, dict(policy=policy))
    listen(runner, caplog)
    epochs = train(runner).epochs
    noted = [epoch for epoch in epochs if epoch.note]
    assert len(noted) == sum(epoch.kept < 11 for epoch in epochs) > 2
    # As much as may be pruned: 75 % of two tiers of ten, rounded down.
    assert {epoch.kept for epoch in noted} <= {4, 5}
    warnings = [r for r in caplog.records if 'the budget' in r.message]
    assert len(warnings) == 1 and warnings[0].levelname == 'WARNING'


def test_plans_that_follow_soon_have_no_line(tmp_path):
    """With 2 workers that load 2 batches of 3 in advance."""
    runner = recorder(tmp_path, 100, **{'train_dataloader.num_workers': 2})
    epochs = train(runner).epochs
    starts = [epoch.start for epoch in epochs if epoch.logged]
    # That of annealing has a line in any case.
    assert starts[0] == 0 and 85 * 3 in starts
    gaps = [b - a for a, b in zip(starts, starts[1:]) if b != 85 * 3]
    assert 12 <= min(gaps) and max(gaps) < 12 + 11
    assert len(epochs) > 1.5 * len(starts)
    lines = [s for s in read_scalars(runner) if 'infobatch/kept_share' in s]
    assert len(lines) == len(starts)


def test_defaults():
    hook = HOOKS.build(dict(type='InfoBatchHook'))
    assert isinstance(hook.policy, Neyman) and hook.delta == 0.85


@pytest.mark.parametrize('hook, level, text', [
    (dict(policy=dict(type='Budget', ratio=1)), 'WARNING',
     'InfoBatch prunes nothing: Budget('),
    (dict(delta=0.1), 'WARNING', 'InfoBatch prunes nothing: annealing begins '
     'at iteration 3'),
    (dict(policy=dict(type='QuantileTiers')), 'INFO',
     ' prunes until iteration 26 of 30. It keeps about 0.525 of the images, '
     'with a mean weight of 1.90. It runs 30 iterations and covers 13.7 '
     'passes over the data, for which the baseline needs 50 iterations: 20 '
     'saved.'),
    (dict(normalize=True), 'INFO',
     ' about 0.528 of the images, with a mean weight of 1.00. It runs 30 '
     'iterations and covers 13.6 passes over the data, for which the baseline '
     'needs 50 iterations: 20 saved.'),
    (dict(policy=dict(type='MeanThreshold')), 'INFO',
     'MeanThreshold(ratio=0.5) prunes until iteration 26 of '
     '30. How much it keeps depends on the losses.'),
    (dict(policy=dict(type='RandomPruning', ratio=0)), 'WARNING',
     'InfoBatch prunes nothing: RandomPruning(ratio=0) keeps every image.'),
])
def test_what_is_said_before_the_first_step(tmp_path, caplog, monkeypatch,
                                            hook, level, text):

    def stop(*args, **kwargs):
        raise StopIteration

    monkeypatch.setattr(EncoderDecoder, 'train_step', stop)
    runner = recorder(tmp_path, hook=hook)
    listen(runner, caplog)
    with pytest.raises(StopIteration):
        runner.train()
    said, = (
        r for r in caplog.records if r.message.startswith('InfoBatch')
        and 'virtual epoch' not in r.message)
    assert text in said.message and said.levelname == level


def test_the_unweighted_loss_is_that_of_the_baseline(tmp_path, caplog):
    """Beside the trained one, also in annealing, and told of once."""
    runner = recorder(tmp_path, **{'default_hooks.logger.interval': 5})
    listen(runner, caplog)
    spy = train(runner)
    hub = runner.message_hub
    unweighted, trained = (
        hub.get_scalar(f'train/{name}').data[0]
        for name in ('unweighted_loss', 'loss'))
    raw = [raw.mean() for _, raw, _ in runner.model.steps]
    np.testing.assert_allclose(unweighted, raw, rtol=1e-5)
    np.testing.assert_allclose(trained, spy.losses, rtol=1e-5)
    assert not np.allclose(unweighted, trained)
    # As the log processor averages both over the same iterations.
    lines = [s for s in read_scalars(runner) if 'unweighted_loss' in s]
    # One more at the end of the first pass, of 4 iterations.
    assert len(lines) == 7 and lines[0]['unweighted_loss'] == pytest.approx(
        np.mean(raw[:4]), rel=1e-5)
    assert lines[-1]['unweighted_loss'] == pytest.approx(
        np.mean(raw[-10:]), rel=1e-5)
    told = [r.message for r in caplog.records if 'from here on' in r.message]
    assert len(told) == 1 and '`unweighted_loss`' in told[0]


def test_no_unweighted_loss_without_a_logger(tmp_path):
    runner = small_runner(tmp_path)
    runner._hooks = [h for h in runner.hooks if 'Logger' not in str(type(h))]
    train(runner)
    assert 'train/unweighted_loss' not in runner.message_hub.log_scalars
