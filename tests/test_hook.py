# Copyright (c) mmib contributors. All rights reserved.
import json
import logging
import os.path as osp
import tempfile

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.model import MMDistributedDataParallel
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from mmseg.models import EncoderDecoder
from mmseg.registry import MODELS
from torch.utils._python_dispatch import TorchDispatchMode

from mmib import InfoBatchHook, InfoBatchLoss, scores
from mmib.pruning import EpochPlan, MeanThreshold, QuantileTiers
from mmib.scores import ScoreTable
from mmib.tasks.segmentation import register_segmentor
from tests.system.processes import run_ranks
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
    runner = small_runner(
        tmp_path, **{
            'model.type': 'RecordingSegmentor',
            'train_dataloader': loader,
            'train_cfg.type': loop,
            'train_cfg.max_iters': 40
        })
    spy = train(runner)
    steps = runner.model.steps
    trained = [(i, float(w)) for indices, _, weights in steps
               for i, w in zip(indices, weights)]
    hook = infobatch_hook(runner)
    assert hook.planner.accounting.annealing_iter == 34

    # Every slot of every plan, in order, across the edges.
    starts = [epoch.start for epoch in spy.epochs]
    pruned = [(scores, plan) for scores, plan in plans if len(plan) < 11]
    assert len(pruned) >= 5
    seen = 0
    for start, end in zip(starts, starts[1:]):
        slots = trained[start:end]
        if start >= hook.planner.accounting.annealing_start:
            break
        kept = spy.epochs[starts.index(start)].size
        if kept == 11:
            assert {w for _, w in slots} == {1}
            assert len({i for i, _ in slots}) == len(slots)
            continue
        scores, plan = pruned[seen]
        seen += 1
        expected = list(zip(plan.indices.tolist(), plan.weights.tolist()))
        assert slots == expected[:len(slots)]
        assert len(slots) == min(
            len(plan), hook.planner.accounting.annealing_start - start)
        assert (plan.weights[scores[plan.indices] < scores.mean()] > 1).all()
    assert seen >= 5
    assert any(w > 1 for _, w in trained)
    # Annealing: everything again, with weight 1.
    rest = trained[hook.planner.accounting.annealing_start:]
    assert {w for _, w in rest} == {1}
    assert {i for i, _ in rest[:11]} == set(range(11))

    # The score of an image is its raw loss, of its last visit.
    table = np.ones(11, np.float32)
    for step, (indices, raw, _) in enumerate(steps):
        if step < hook.planner.accounting.annealing_iter:
            for index, value in zip(indices, raw):
                table[index] = value
        np.testing.assert_allclose(spy.tables[step], table, rtol=1e-5)
    # The sums of a virtual epoch's weights stand for the whole data set.
    for _, plan in pruned:
        assert plan.weights.sum() == pytest.approx(11)


def test_trained_loss_is_the_weighted_mean_of_the_raw_losses(tmp_path):
    runner = small_runner(tmp_path, **{'model.type': 'RecordingSegmentor'})
    spy = train(runner)
    losses = [(raw * weights).mean() for _, raw, weights in runner.model.steps]
    np.testing.assert_allclose(spy.losses, losses, rtol=1e-5)


@pytest.mark.parametrize(
    'policy', [
        dict(type='MeanThreshold', ratio=0),
        dict(type='QuantileTiers', ratios=(0, 0))
    ],
    ids=str)
def test_ratio_0_is_baseline_training(tmp_path, policy):
    runs = []
    for changes in (BASELINE, {
            'custom_hooks': [dict(type='InfoBatchHook', policy=policy)]
    }):
        runner = small_runner(
            tmp_path, **{
                'model.type': 'RecordingSegmentor',
                **changes
            })
        spy = train(runner)
        runs.append(([step[0] for step in runner.model.steps], spy.losses,
                     runner.model.state_dict()))
    assert runs[0][0] == runs[1][0]
    np.testing.assert_allclose(runs[1][1], runs[0][1], rtol=1e-6)
    for name, value in runs[0][2].items():
        torch.testing.assert_close(runs[1][2][name], value)


def test_ratio_0_is_baseline_training_of_upernet(tmp_path):
    """20 steps of a real network with a random pipeline."""
    write_images(tmp_path / 'data', 30)
    losses = []
    for sampler, hooks in (('InfiniteSampler', []), ('InfoBatchSampler', [
            dict(
                type='InfoBatchHook',
                policy=dict(type='MeanThreshold', ratio=0))
    ])):
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


def test_the_first_pass_is_baseline_training(tmp_path):
    runs = []
    for changes in (BASELINE, {}):
        runner = small_runner(
            tmp_path, **{
                'model.type': 'RecordingSegmentor',
                **changes
            })
        spy = train(runner)
        runs.append(([step[0] for step in runner.model.steps], spy.losses))
    assert runs[0][0][:3] == runs[1][0][:3]  # 9 of 11 images
    np.testing.assert_allclose(runs[1][1][:3], runs[0][1][:3], rtol=1e-6)
    assert runs[0][0] != runs[1][0]


def test_without_annealing_it_prunes_to_the_end(tmp_path, caplog):
    runner = small_runner(
        tmp_path, **{
            'model.type': 'RecordingSegmentor',
            'train_dataloader.num_workers': 2,
            'train_cfg.max_iters': 40,
            'custom_hooks': [dict(type='InfoBatchHook', delta=1)]
        })
    listen(runner, caplog)
    spy = train(runner)
    hook = infobatch_hook(runner)
    assert hook.planner.accounting.annealing_iter == 40
    assert spy.epochs[-1].size < 11
    last = [w for _, _, ws in runner.model.steps[-4:] for w in ws]
    assert max(last) > 1
    assert not np.array_equal(spy.tables[-1], spy.tables[-2])
    lines = [
        r.message for r in caplog.records if 'virtual epoch ' in r.message
    ]
    assert lines and all(line.endswith(', no annealing') for line in lines)
    assert 'InfoBatch: 40 iterations covered' in caplog.records[-1].message


def test_budget_is_met_without_annealing(tmp_path):
    runner = small_runner(
        tmp_path, **{
            'train_dataloader.dataset.size': 40,
            'train_cfg.max_iters': 120,
            'custom_hooks': [
                dict(
                    type='InfoBatchHook',
                    policy=dict(type='Budget', full_iters=200),
                    delta=1)
            ]
        })
    last = train(runner).epochs[-1]
    assert last.covered_until(120 * 3) == pytest.approx(200 * 3 / 40, rel=0.01)


def test_smoothed_scores_reach_the_right_images(tmp_path):
    runner = small_runner(
        tmp_path, **{
            'model.type': 'RecordingSegmentor',
            'train_dataloader.num_workers': 2,
            'custom_hooks': [dict(type='InfoBatchHook', ema=0.8)]
        })
    spy = train(runner)
    table = {}
    for step, (indices, raw, _) in enumerate(runner.model.steps):
        # An image twice in a step: its last slot counts.
        for index, loss in dict(zip(indices, raw)).items():
            if step < infobatch_hook(runner).planner.accounting.annealing_iter:
                table[index] = 0.8 * table.get(index, loss) + 0.2 * loss
        expected = [table.get(i, 1) for i in range(11)]
        np.testing.assert_allclose(spy.tables[step], expected, rtol=1e-5)


def test_annealing_calls_baseline_and_records_nothing(tmp_path, monkeypatch):
    runner = small_runner(tmp_path, **{'train_cfg.max_iters': 20})
    calls = []
    record = scores.ScoreTable.record
    monkeypatch.setattr(
        scores.ScoreTable, 'record', lambda self, indices, scores, iteration:
        (calls.append(iteration), record(self, indices, scores, iteration)))
    train(runner)
    assert calls == list(range(17))
    batch = infobatch_hook(runner).batch
    assert batch.weights is None and batch.scores is None


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


def test_logs(tmp_path, caplog):
    runner = small_runner(tmp_path, **{'train_cfg.max_iters': 40})
    listen(runner, caplog)
    entered = train(runner).epochs
    names = {
        f'infobatch/{name}'
        for name in ('kept_share', 'threshold', 'mean_score', 'saved_iters')
    }
    lines = [s for s in read_scalars(runner) if names <= s.keys()]
    assert len(lines) == len(entered) > 8
    assert [s['infobatch/kept_share']
            for s in lines] == [epoch.size / 11 for epoch in entered]
    steps = [s['step'] for s in lines]
    assert steps == [epoch.start // 3 for epoch in entered]
    assert lines[0]['infobatch/saved_iters'] == 0
    history, _ = runner.message_hub.get_scalar('infobatch/kept_share').data
    assert len(history) == len(entered)

    # What is saved in the end: virtual epochs of 11 images in 40 iterations.
    covered = 0
    ends = [e.start for e in entered[1:]] + [120]
    for epoch, end in zip(entered, ends):
        covered += (end - epoch.start) / epoch.size
    final = read_scalars(runner)[-1]
    assert final == {
        'infobatch/saved_iters': pytest.approx(covered * 11 / 3 - 40),
        'step': 40
    }
    messages = [r.message for r in caplog.records if 'InfoBatch' in r.message]
    infos = [m for m in messages if 'virtual epoch ' in m]
    assert len(infos) == len(entered)
    assert 'kept share 1.000 (11 of 11' in infos[0]
    assert '34 iterations until annealing' in infos[0]
    assert infos[-1].endswith(', annealing')
    assert f'as {covered * 11 / 3:.0f} iterations of the baseline' in (
        messages[-1])


def test_non_finite_losses(tmp_path, caplog):
    """Counted, logged and never scored; the images stay in the plans."""
    runner = small_runner(
        tmp_path,
        **{
            'train_dataloader.dataset.broken': (4, 7),
            'optim_wrapper.optimizer.lr': 0.,
            # The gradient of NaN would break the weights; lr 0 keeps 0 * NaN.
            'optim_wrapper.clip_grad': None
        })
    for parameter in runner.model.parameters():
        parameter.register_hook(torch.zeros_like)
    listen(runner, caplog)
    spy = train(runner)
    hook = infobatch_hook(runner)
    table = spy.tables[-1]
    assert np.isfinite(table).all()
    assert table[4] == table[7] == 1
    assert (np.delete(table, [4, 7]) != 1).all()
    assert hook.scores.num_non_finite() > 2
    warned = [
        r.message for r in caplog.records if 'NaN or infinite' in r.message
    ]
    total = sum(int(message.split()[1]) for message in warned)
    assert total == hook.scores.num_non_finite()
    assert any(epoch.size < 11 for epoch in spy.epochs)


def train_on_ranks(rank, results):
    merges, plans = [], []
    reduce, draw = scores.all_reduce, MeanThreshold.__call__
    scores.all_reduce = lambda data, op: (merges.append(len(data)),
                                          reduce(data, op))
    MeanThreshold.__call__ = lambda self, table, rng: (plans.append(
        1), draw(self, table, rng))[1]
    with tempfile.TemporaryDirectory() as work_dir:
        runner = small_runner(
            work_dir,
            **{
                'model.type': 'RecordingSegmentor',
                # Plans that are longer than the lookahead of 24 slots.
                'train_dataloader.dataset.size': 53,
                'train_dataloader.num_workers': 2,
                'train_cfg.max_iters': 60,
            })
        # MMEngine's launcher wraps models for GPUs alone.
        runner.model = MMDistributedDataParallel(runner.model)
        spy = train(runner)
    hook = infobatch_hook(runner)
    results[rank] = dict(
        steps=runner.model.module.steps,
        epochs=spy.epochs,
        state=runner.model.module.state_dict(),
        merges=len(merges),
        lookahead=hook.planner.lookahead,
        plans=len(plans),
        annealing_start=hook.planner.accounting.annealing_start)


def test_ranks_share_plans_and_scores():
    """One collective a plan and a checkpoint; together the ranks train on
    each slot of the common plans once."""
    one, two = run_ranks(train_on_ranks, 2)
    assert one['epochs'] == two['epochs']
    for name, value in one['state'].items():
        torch.testing.assert_close(two['state'][name], value)
    assert sum(e.size < 53 for e in one['epochs']) > 3
    # 2 workers with 2 batches of 3 images, on both ranks.
    assert one['lookahead'] == two['lookahead'] == 2 * 2 * 3 * 2
    # The last one is for the checkpoint.
    assert one['plans'] == two['plans'] > 3
    assert one['merges'] == two['merges'] == one['plans'] + 1
    together = [
        slot for steps in zip(one['steps'], two['steps'])
        for slot in zip(*(zip(s[0], s[2]) for s in steps)) for slot in slot
    ]
    starts = [e.start for e in one['epochs']]
    for epoch, end in zip(one['epochs'], starts[1:]):
        slots = together[epoch.start:end]
        assert len({index for index, _ in slots}) == len(slots)
        if len(slots) == epoch.size:
            assert sum(w for _, w in slots) == pytest.approx(53, rel=1e-5)
    # The mean of all scores at the last plan of the pruned part is that of
    # the last visits on both ranks, up to those in flight.
    table = np.ones(53)
    pruned = [e for e in one['epochs'] if e.start < one['annealing_start']]
    means = []
    for step in range(pruned[-1].start // 6):
        for rank in (one, two):
            indices, raw, _ = rank['steps'][step]
            table[indices] = raw
        means.append(table.mean())
    assert min(abs(np.array(means[-7:]) / pruned[-1].mean_score - 1)) < 1e-5


class NoReadBack(TorchDispatchMode):
    """What would make the host wait for a GPU, seen on a CPU."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func not in (torch.ops.aten._local_scalar_dense.default,
                            torch.ops.aten.nonzero.default,
                            torch.ops.aten.masked_select.default), func
        if func is torch.ops.aten.index.Tensor:
            assert all(i is None or i.dtype != torch.bool for i in args[1])
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize('ema', [0., 0.8])
@pytest.mark.parametrize(
    'loss', [
        dict(),
        dict(avg_non_ignore=True),
        dict(class_weight=[1., 2.]),
        dict(loss_weight=0.5)
    ],
    ids=str)
def test_the_step_reads_nothing_back(tmp_path, monkeypatch, loss, ema):
    calls = []

    def guard(owner, name):
        method = getattr(owner, name)

        def guarded(self, *args, **kwargs):
            if name == 'forward' and self.batch.weights is None:
                # Annealing: baseline reads `avg_non_ignore` back.
                return method(self, *args, **kwargs)
            calls.append(name)
            with NoReadBack():
                return method(self, *args, **kwargs)

        monkeypatch.setattr(owner, name, guarded)

    guard(InfoBatchHook, 'before_train_iter')
    guard(InfoBatchHook, 'after_train_iter')
    guard(InfoBatchLoss, 'forward')
    runner = small_runner(
        tmp_path, **{
            'model.decode_head.loss_decode': dict(
                type='CrossEntropyLoss', **loss),
            'custom_hooks': [dict(type='InfoBatchHook', ema=ema)]
        })
    train(runner)
    assert calls.count('forward') == 2 * round(0.85 * 30)
    # It does see what it is there for.
    with pytest.raises(AssertionError), NoReadBack():
        torch.ones(1).item()
    with pytest.raises(AssertionError), NoReadBack():
        torch.ones(2)[torch.tensor([True, False])]


def empty_policy(scores, rng):
    return EpochPlan(np.empty(0, np.int64), np.empty(0, np.float32))


def all_twice_as_heavy(scores, rng):
    return EpochPlan(
        rng.permutation(len(scores)), np.full(len(scores), 2, np.float32))


def test_policies_of_users(tmp_path):
    """A plan of all images, with weights, is not a full pass."""
    runners = [
        small_runner(
            tmp_path, **{
                'model.type': 'RecordingSegmentor',
                'custom_hooks': []
            }) for _ in range(2)
    ]
    hook = InfoBatchHook(policy=all_twice_as_heavy)
    runners[0].register_hook(hook)
    train(runners[0])
    weights = [w for _, _, ws in runners[0].model.steps for w in ws]
    assert set(weights[11:hook.planner.accounting.annealing_start]) == {2}
    runners[1].register_hook(InfoBatchHook(policy=empty_policy))
    with pytest.raises(ValueError, match='pruned every image'):
        runners[1].train()


def test_a_warning_when_annealing_begins_too_early(tmp_path, caplog):
    runner = small_runner(
        tmp_path, **{
            'custom_hooks': [dict(type='InfoBatchHook', delta=0.2)],
            'train_cfg.max_iters': 12
        })
    listen(runner, caplog)
    train(runner)
    assert any('prunes nothing' in r.message for r in caplog.records)


def test_budget_is_met(tmp_path, caplog):
    """120 iterations cover the virtual epochs of 200, with real losses."""
    runner = small_runner(
        tmp_path, **{
            'train_dataloader.dataset.size': 40,
            'train_dataloader.num_workers': 2,
            'train_cfg.max_iters': 120,
            'custom_hooks': [
                dict(
                    type='InfoBatchHook',
                    policy=dict(type='Budget', full_iters=200))
            ]
        })
    listen(runner, caplog)
    last = train(runner).epochs[-1]
    assert last.covered_until(120 * 3) == pytest.approx(200 * 3 / 40, rel=0.01)
    assert not any('the budget' in r.message for r in caplog.records)
    assert 'as 200 iterations of the base' in caplog.records[-1].message


def test_budget_that_cannot_be_met(tmp_path, caplog):
    runner = small_runner(
        tmp_path, **{
            'train_cfg.max_iters': 40,
            'custom_hooks': [
                dict(
                    type='InfoBatchHook',
                    policy=dict(type='Budget', full_iters=4000))
            ]
        })
    listen(runner, caplog)
    epochs = train(runner).epochs
    noted = [epoch for epoch in epochs if epoch.note]
    assert len(noted) == sum(epoch.size < 11 for epoch in epochs) > 2
    # As much as may be pruned: 75 % of two tiers of ten, rounded down.
    assert {epoch.size for epoch in noted} <= {4, 5}
    warnings = [r for r in caplog.records if 'the budget' in r.message]
    assert len(warnings) == 1 and warnings[0].levelname == 'WARNING'


@pytest.mark.parametrize(
    'num_workers, max_iters, least',
    [
        # 2 workers with 2 batches of 3: a little more than a pass over 11.
        (2, 100, 12),
        # 4 thousandths of the training are 4 batches.
        (0, 4000, 12),
    ])
def test_plans_that_follow_soon_share_scores(tmp_path, monkeypatch,
                                             num_workers, max_iters, least):
    """A data set of a few batches isn't read, merged and logged all the
    time."""
    reads = []
    read = ScoreTable.numpy
    monkeypatch.setattr(ScoreTable, 'numpy', lambda table:
                        (reads.append(1), read(table))[1])
    runner = small_runner(
        tmp_path, **{
            'train_dataloader.num_workers': num_workers,
            'train_cfg.max_iters': max_iters,
        })
    hook, drawn, at_read = infobatch_hook(runner), [], []

    def observe(epoch, plan):
        drawn.append((epoch, plan))
        at_read.append(len(reads))

    hook.plan_observers.append(observe)
    runner.train()
    begun = hook.sampler.position
    epochs = [epoch for epoch, _ in drawn if epoch.start < begun]
    logged = [epoch for epoch in epochs if epoch.logged]
    starts = [epoch.start for epoch in logged]
    annealing = round(0.85 * max_iters) * 3
    # That of annealing has a line in any case.
    assert starts[0] == 0 and annealing in starts
    gaps = [b - a for a, b in zip(starts, starts[1:]) if b != annealing]
    assert least <= min(gaps) and max(gaps) < least + 11
    assert len(epochs) > 1.5 * len(logged)
    lines = [s for s in read_scalars(runner) if 'infobatch/kept_share' in s]
    assert len(lines) == len(logged)

    # Plans of the same reading are drawn from the same scores.
    read_starts = [
        epoch.start
        for (epoch, _), before, now in zip(drawn[1:], at_read, at_read[1:])
        if now > before
    ]
    gaps = [b - a for a, b in zip(read_starts, read_starts[1:])]
    assert least <= min(gaps) and max(gaps) < least + 11
    assert max_iters * 3 / (least + 11) - 20 < len(reads) <= (
        max_iters * 3 / least)


def test_policy_object_and_defaults():
    hook = HOOKS.build(dict(type='InfoBatchHook'))
    assert isinstance(hook.policy, MeanThreshold) and hook.delta == 0.85
    policy = QuantileTiers()
    assert InfoBatchHook(policy=policy).policy is policy


@pytest.mark.parametrize('hook, level, text', [
    (dict(policy=dict(type='Budget', full_iters=30)), 'WARNING',
     '`full_iters = 30` is no more than the 30 iterations'),
    (dict(delta=0.1), 'WARNING', 'InfoBatch prunes nothing: annealing begins '
     'at iteration 3'),
    (dict(), 'INFO', 'MeanThreshold(ratio=0.5) prunes until iteration 26 of '
     '30. Passes become shorter by that, not the training'),
])
def test_what_is_said_before_the_first_step(tmp_path, caplog, monkeypatch,
                                            hook, level, text):

    def stop(*args, **kwargs):
        raise StopIteration

    monkeypatch.setattr(EncoderDecoder, 'train_step', stop)
    runner = small_runner(
        tmp_path, custom_hooks=[dict(type='InfoBatchHook', **hook)])
    listen(runner, caplog)
    with pytest.raises(StopIteration):
        runner.train()
    said, = (
        r for r in caplog.records if r.message.startswith('InfoBatch')
        and 'virtual epoch' not in r.message)
    assert text in said.message and said.levelname == level


def test_the_unweighted_loss_is_that_of_the_baseline(tmp_path, caplog):
    """Beside the trained one, also in annealing, and told of once."""
    runner = small_runner(
        tmp_path, **{
            'model.type': 'RecordingSegmentor',
            'default_hooks.logger.interval': 5
        })
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
