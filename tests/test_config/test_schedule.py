# Copyright (c) mmib contributors. All rights reserved.
import copy
import math

import mmengine.optim.scheduler as schedulers
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mmengine.config import Config
from mmengine.hooks import CheckpointHook
from mmengine.registry import PARAM_SCHEDULERS, DefaultScope
from mmseg.registry import PARAM_SCHEDULERS as MMSEG_SCHEDULERS

from mmib import convert, shorten
from mmib.errors import Refusal
from mmib.openmmlab.config.schedule import IterMap
from mmib.pruning import Neyman
from tests.helpers.segmentors import EagerTrainLoop


def baseline(max_iters=1000, **changes):
    """A config of the baseline, with entries replaced."""
    cfg = dict(
        train_cfg=dict(
            type='IterBasedTrainLoop', max_iters=max_iters, val_interval=100),
        param_scheduler=[dict(type='PolyLR', by_epoch=False)],
        train_dataloader=dict(
            batch_size=2, sampler=dict(type='InfiniteSampler', shuffle=True)),
        default_hooks=dict(
            logger=dict(type='LoggerHook', interval=50),
            checkpoint=dict(
                type='CheckpointHook', by_epoch=False, interval=100)))
    return Config(dict(cfg, **changes))


EPOCHS = baseline(
    train_cfg=dict(by_epoch=True, max_epochs=9),
    param_scheduler=None,
    train_dataloader=dict(sampler=dict(type='DefaultSampler')))


def convert_scheduler(entry, ratio=0.6):
    cfg = baseline(param_scheduler=[dict(dict(by_epoch=False), **entry)])
    return convert(cfg, ratio).param_scheduler[0]


def test_convert_is_shorten_and_infobatch():
    cfg = baseline(custom_hooks=[dict(type='EMAHook', begin_iter=500)])
    before = copy.deepcopy(cfg.to_dict())
    short = shorten(cfg, 0.3)
    assert short.train_cfg == dict(
        type='IterBasedTrainLoop', max_iters=300, val_interval=30)
    assert short.default_hooks.checkpoint.interval == 30
    assert short.default_hooks.logger.interval == 50
    assert short.custom_hooks[0].begin_iter == 150
    for name in cfg.keys() - {'train_cfg', 'default_hooks', 'custom_hooks'}:
        assert short[name] == cfg[name]
    after = short.to_dict()
    after['train_dataloader']['sampler']['type'] = 'InfoBatchSampler'
    after['custom_hooks'].append(
        dict(
            type='InfoBatchHook',
            policy=dict(type='Neyman', ratio=0.3),
            delta=0.85))
    after['custom_imports'] = dict(
        allow_failed_imports=False, imports=['mmib'])
    assert convert(cfg, 0.3).to_dict() == after
    assert cfg.to_dict() == before


@pytest.mark.parametrize('loop', [
    dict(max_iters=500),
    dict(max_iters=1000, val_interval=300, val_begin=7),
])
def test_shorten_by_nothing(loop):
    """Also where the training has no interval of its own, with any sampler."""
    cfg = baseline(
        train_cfg=dict(type='IterBasedTrainLoop', **loop),
        train_dataloader=dict(sampler=dict(type='WeirdSampler', shuffle=True)),
        custom_hooks=[dict(type='EMAHook', begin_iter=500)])
    assert shorten(cfg, 1).to_dict() == cfg.to_dict()


# Time


@st.composite
def iter_maps(draw):
    old = draw(st.integers(1, 400_000))
    new = draw(st.integers(1, old))
    return IterMap(old, new, draw(st.integers(0, min(old // 4, new // 2))))


@given(iter_maps(), st.data())
def test_points_keep_their_order_and_stay_inside(iter_map, data):
    old, new, warmup, _ = iter_map
    points = sorted(data.draw(st.lists(st.integers(0, old), min_size=1)))
    mapped = [iter_map.point(point) for point in points]
    assert mapped == sorted(mapped)
    for point, target in zip(points, mapped):
        assert 0 <= target <= new
        assert (target == new) == (point == old)
        if point <= warmup:
            assert target == point
        else:
            share = (point - warmup) / (old - warmup)
            assert abs(target - warmup - share * (new - warmup)) <= 1


@given(iter_maps(), st.integers(1, 50))
def test_an_interval_runs_as_often_as_before(iter_map, rounds):
    old, new, _, _ = iter_map
    interval = iter_map.interval(max(1, old // rounds))
    assert 1 <= interval <= new
    if old % rounds == 0 and new % rounds == 0:
        assert interval * rounds == new
    # What is never done stays.
    assert iter_map.interval(old + 1) == old + 1


@pytest.mark.parametrize(
    'entry, ratio, changes',
    [
        # What a warm-up is, which stays.
        (dict(type='LinearLR', start_factor=0.1, end=100), 0.6, {}),
        (dict(type='LinearLR', end=250), 0.6, {}),
        (dict(type='mmengine.LinearMomentum', begin=0, end=100), 0.6, {}),
        (dict(type='ConstantLR', end=100), 0.6, {}),
        (dict(type='LinearLR'), 0.6, {}),
        # What is none.
        (dict(type='LinearLR', end=251), 0.6, dict(end=151)),
        (dict(type='LinearLR', begin=1, end=100), 0.6, dict(end=60)),
        (dict(type='LinearLR', start_factor=1, end_factor=0.1,
              end=100), 0.6, dict(end=60)),
        (dict(type='ConstantLR', factor=1, end=100), 0.6, dict(end=60)),
        (dict(type='PolyLR', end=100), 0.6, dict(end=60)),
        # A warm-up is shortened if it is longer than half of the training.
        (dict(type='LinearLR', end=200), 0.4, {}),
        (dict(type='LinearLR', end=200), 0.399, dict(end=80)),
        # Periods fill the training, and the last milestone is never lost.
        (dict(type='CosineRestartLR',
              periods=[333, 333, 334]), 0.5, dict(periods=[166, 167, 167])),
        (dict(type='MultiStepLR', milestones=[999
                                              ]), 0.05, dict(milestones=[49])),
    ])
def test_warmups_and_edges_of_schedulers(entry, ratio, changes):
    after = convert_scheduler(entry, ratio)
    assert after == dict(entry, by_epoch=False) | changes


# Schedulers


@pytest.mark.parametrize(
    'type_name',
    sorted({*schedulers.__all__, 'PolyLRRatio'} - {'_ParamScheduler'}))
def test_every_scheduler_of_the_stack_is_known(type_name):
    entry = dict(type=f'mmengine.{type_name}', end=1000, gamma=0.9)
    after = convert_scheduler(entry)
    # It counts validations.
    assert after.end == (1000 if 'Plateau' in type_name else 600)
    if type_name.startswith('Exponential'):
        assert after.gamma == pytest.approx(0.9**(999 / 599))


@st.composite
def schedules(draw):
    """A schedule of each kind, with or without a warm-up."""
    old = draw(st.integers(200, 500))
    warmup = draw(st.sampled_from([0, 10, old // 8]))
    kind = draw(
        st.sampled_from([
            dict(type='PolyLR', power=0.9, eta_min=1e-3),
            dict(type='PolyLRRatio', power=0.9, eta_min_ratio=0.03),
            dict(type='CosineAnnealingLR', eta_min=1e-3),
            dict(type='CosineAnnealingLR', T_max=old - warmup, eta_min=1e-3),
            dict(type='ExponentialLR', gamma=0.99),
            dict(type='LinearLR', start_factor=1, end_factor=0.01),
            dict(type='OneCycleLR', eta_max=1.),
            dict(type='OneCycleLR', eta_max=1., total_steps=old - warmup),
            dict(type='StepLR', step_size=(old - warmup) // 3 + 9),
            dict(
                type='MultiStepLR',
                milestones=[(old - warmup) // 2, (old - warmup) // 4 * 3]),
            dict(
                type='CosineRestartLR',
                periods=[old // 3, old - warmup - old // 3],
                restart_weights=[1, 0.5],
                eta_min=1e-3),
        ]))
    # Some have no end of their own.
    end = draw(st.sampled_from([{}, dict(end=old)]))
    entries = [dict(kind, begin=warmup, by_epoch=False, **end)]
    if warmup:
        entries.insert(
            0,
            dict(
                type='LinearLR', start_factor=0.1, end=warmup, by_epoch=False))
    return baseline(old, param_scheduler=entries)


def learning_rates(cfg):
    """What MMEngine's schedulers make of a config, iteration by
    iteration."""
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.)
    # A training before may have left another scope.
    with DefaultScope.overwrite_default_scope('mmseg'):
        entries = [
            MMSEG_SCHEDULERS.build(
                dict(dict(end=cfg.train_cfg.max_iters), **entry),
                default_args=dict(optimizer=optimizer))
            for entry in cfg.param_scheduler.copy()
        ]
    rates = []
    for _ in range(cfg.train_cfg.max_iters):
        rates.append(optimizer.param_groups[0]['lr'])
        optimizer.step()
        for entry in entries:
            entry.step()
    return rates


@settings(max_examples=60)
@given(schedules(), st.floats(0.4, 1))
def test_learning_rates_of_real_schedulers(cfg, ratio):
    """At each iteration, the learning rate of the short schedule is that of
    the long one nearby."""
    after = convert(cfg, ratio, policy=dict(type='MeanThreshold'))
    long, short = learning_rates(cfg), learning_rates(after)
    warmup = cfg.param_scheduler[-1].begin
    assert short[:warmup] == pytest.approx(long[:warmup])
    iter_map = IterMap(len(long), len(short), warmup)
    # Two iterations of the short schedule. The peak of a cycle may lie
    # between two iterations.
    reach = math.ceil(2 / iter_map.scale)
    for t in range(len(long)):
        near = long[max(0, t - reach):t + reach + 1]
        rate = short[iter_map.point(t)]
        assert min(near) - 1e-3 <= rate <= max(near) + 1e-3, t
    name = cfg.param_scheduler[-1].type
    if name not in ('CosineAnnealingLR', 'CosineRestartLR'):
        assert short[-1] == pytest.approx(long[-1], abs=1e-9)


@pytest.mark.parametrize('node', [
    dict(type='PolyLR', by_epoch=False, end=1000),
    [dict(type='PolyLR', by_epoch=False, end=1000)],
    dict(
        backbone=[dict(type='PolyLR', by_epoch=False, end=1000)],
        head=dict(type='PolyLR', by_epoch=False, end=500)),
    dict(type='ReduceOnPlateauLR', monitor='mIoU', patience=3),
    None,
    [],
])
def test_param_scheduler_in_each_form(node):
    after = convert(baseline(param_scheduler=node)).param_scheduler
    text = str(Config(dict(node=after)).to_dict())
    assert text == str(dict(node=node)).replace('1000',
                                                '600').replace('500', '300')


def built_scheduler():
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.)
    return PARAM_SCHEDULERS.build(
        dict(type='PolyLR', optimizer=optimizer, end=10))


UNKNOWN = dict(type='OtherLR', by_epoch=False, end=500, hold_iters=20, power=2)


@pytest.mark.parametrize('node, match', [
    ([dict(type='PolyLR', by_epoch=False),
      dict(type='PolyLR')], r'`param_scheduler\[1\]\.by_epoch` is True'),
    (dict(type='PolyLR',
          by_epoch=True), r'`param_scheduler\.by_epoch` is True'),
    (dict(head=[UNKNOWN]), r'`param_scheduler.head\[0\]` .* OtherLR, .* by '
     r'hand .*end=500, hold_iters=20\.'),
    ([dict(type='PolyLR', by_epoch=False, begin=500, end=503)
      ], r'`param_scheduler\[0\]` has 3 iter'),
    ([built_scheduler()], r'`param_scheduler\[0\]` must be a'),
])
def test_schedulers_that_are_refused(node, match):
    with pytest.raises(Refusal, match=match):
        convert(baseline(param_scheduler=node), 0.1)


# Loop, hooks and data

LOOP = dict(type='IterBasedTrainLoop', max_iters=1000)
PIPELINE = [dict(type='CachedMixUp', start_iter=15)]


@pytest.mark.parametrize(
    'before, changes',
    [
        (dict(LOOP, val_interval=300), dict(val_interval=180)),
        (LOOP, dict(val_interval=600)),
        (dict(LOOP, val_interval=100,
              val_begin=500), dict(val_interval=60, val_begin=300)),
        (dict(LOOP, dynamic_intervals=[
            (800, 100), (950, 10)
        ]), dict(val_interval=600, dynamic_intervals=[(480, 60), (570, 6)])),
        # Other names of iteration-based training.
        (dict(by_epoch=False, max_iters=1000), dict(val_interval=600)),
        (dict(LOOP, type=EagerTrainLoop), dict(val_interval=600)),
        (dict(LOOP, type='EagerTrainLoop'), dict(val_interval=600)),
    ])
def test_the_loop(before, changes):
    after = convert(baseline(train_cfg=before)).train_cfg
    assert after == dict(before, max_iters=600) | changes
    # MMEngine insists on tuples.
    for pair in after.get('dynamic_intervals', []):
        assert isinstance(pair, tuple)


@pytest.mark.parametrize(
    'before, changes',
    [
        (dict(type='EMAHook', begin_iter=500,
              interval=10), dict(begin_iter=300)),
        (dict(
            type='CheckpointHook',
            by_epoch=False,
            interval=250,
            save_begin=500), dict(interval=150, save_begin=300)),
        (dict(type='mmengine.CheckpointHook', by_epoch=False,
              interval=-1), {}),
        (dict(type='CheckpointHook', interval=100), {}),
        (dict(type='CheckpointHook', by_epoch=False), {}),
        (dict(type='SwitchHook', schedule=[dict(action_iter=500, at=5)]),
         dict(schedule=[dict(action_iter=300, at=5)])),
        (dict(type='SwitchHook',
              switch_iters=(100, 1000)), dict(switch_iters=(60, 600))),
        # Transforms have iterations of their own.
        (dict(type='SwitchHook', schedule=dict(iter=500, pipeline=PIPELINE)),
         dict(schedule=dict(iter=300, pipeline=PIPELINE))),
        # A number of iterations isn't one of them, nor is a flag.
        (dict(
            type='SomeHook',
            warmup_iters=500,
            num_iters=500,
            profile_iters=1,
            after_iter=True,
            interval_iters=500,
            stop_iters=500), dict(stop_iters=300)),
        # The last iterations, and the end of a schedule of the hook's own.
        (dict(
            type='SomeHook',
            num_last_iters=100,
            max_iters=1000,
            max_keep_iters=7), dict(num_last_iters=60, max_iters=600)),
    ])
def test_hooks(before, changes):
    # Those that are no configs stay.
    built = CheckpointHook(interval=100, by_epoch=False)
    hooks = convert(baseline(custom_hooks=[before, built])).custom_hooks
    assert hooks[0] == dict(before, **changes)
    assert hooks[0].get('after_iter', True) is True
    assert hooks[1].interval == 100


@pytest.mark.parametrize(
    'before, changes',
    [
        (dict(type='EMAHook', begin_iter=5000), dict(begin_iter=3000)),
        (dict(type='EMAHook', begin_iter=0), {}),
        # Rounded down, or else the last point may be the end.
        (dict(type='EMAHook', begin_iter=5998), dict(begin_iter=3598)),
        # Within the warm-up and just after it.
        (dict(type='EMAHook', begin_iter=100), {}),
        (dict(type='EMAHook', begin_iter=101), dict(begin_iter=100)),
        (dict(type='SwitchHook', schedule=[dict(action_iter=500, epoch=5)]),
         dict(schedule=[dict(action_iter=300, epoch=3)])),
        (dict(type='SomeHook', num_last_iters=101), dict(num_last_iters=61)),
        (dict(
            type='CheckpointHook',
            by_epoch=False,
            interval=500,
            save_begin=5000), dict(interval=300, save_begin=3000)),
        (dict(type='CheckpointHook', by_epoch=False, interval=-1), {}),
    ])
def test_hooks_that_count_iterations_in_a_run_by_epochs(before, changes):
    """They do what they do at the same part of the run."""
    warmup = dict(type='LinearLR', by_epoch=False, end=100)
    cfg = baseline(
        train_cfg=dict(by_epoch=True, max_epochs=300),
        param_scheduler=[warmup],
        custom_hooks=[before])
    assert shorten(cfg).custom_hooks[0] == dict(before, **changes)
    # How many iterations such a warm-up has isn't known.
    warmup.update(by_epoch=True, end=5)
    cfg.param_scheduler = [warmup]
    assert shorten(cfg, 1).to_dict() == cfg.to_dict()
    point = before.get('begin_iter', before.get('save_begin'))
    if point:
        with pytest.raises(Refusal, match=f'{point}, .* the 5 epochs'):
            shorten(cfg)


@pytest.mark.parametrize(
    'before, changes',
    [
        (dict(type='EMAHook', begin_iter=5000), dict(begin_iter=3000)),
        (dict(type='EMAHook', begin_iter=100), {}),
        # The last epochs are full.
        (dict(type='SomeHook', num_last_iters=100), {}),
        (dict(type='EMAHook', begin_epoch=5), {}),
        (dict(type='YOLOXModeSwitchHook', num_last_epochs=15), {}),
        (dict(type='YOLOXModeSwitchHook'), {}),
        (dict(type='CheckpointHook', interval=10), {}),
        (dict(type='CheckpointHook', by_epoch=False,
              interval=500), dict(interval=300)),
    ])
def test_hooks_that_count_iterations_where_epochs_become_shorter(
        before, changes):
    """An average that begins in the last third would else never begin."""
    cfg = Config(
        dict(
            EPOCHS,
            train_cfg=dict(by_epoch=True, max_epochs=100),
            param_scheduler=[dict(type='LinearLR', by_epoch=False, end=100)],
            custom_hooks=[before]))
    assert convert(cfg).custom_hooks[0] == dict(before, **changes)
    assert cfg.custom_hooks == [before]


@pytest.mark.parametrize('hook, is_refused', [
    (dict(type='EMAHook', begin_iter=5000), True),
    (dict(type='SomeHook', num_last_iters=100), False),
    (dict(type='EMAHook', begin_iter=0), False),
    (dict(type='CheckpointHook', by_epoch=False, interval=500), False),
])
def test_hooks_that_count_iterations_where_epochs_have_unknown_lengths(
        hook, is_refused):
    """How many images score below the mean depends on the losses."""
    cfg = Config(dict(EPOCHS, custom_hooks=[hook]))
    policy = dict(type='MeanThreshold')
    if is_refused:
        with pytest.raises(Refusal, match='the losses.*`begin_epoch`'):
            convert(cfg, policy=policy)
    else:
        assert convert(cfg, policy=policy).custom_hooks[0] == hook


def test_hooks_stay_where_nothing_is_pruned():
    hook = dict(type='EMAHook', begin_iter=5000)
    cfg = Config(dict(EPOCHS, custom_hooks=[hook]))
    after = convert(cfg, policy=dict(type='ScoreOnly'))
    assert after.custom_hooks[0] == hook


def test_a_scheduler_without_an_end_is_no_warmup():
    """The iterations of hooks move as without the scheduler."""
    cfg = Config(
        dict(
            EPOCHS,
            param_scheduler=[
                dict(type='ConstantLR', factor=0.5, by_epoch=False)
            ],
            custom_hooks=[dict(type='EMAHook', begin_iter=5000)]))
    assert convert(cfg).custom_hooks[0].begin_iter < 5000


def test_hooks_that_count_epochs_in_a_run_by_iterations():
    """To MMEngine it is one epoch, so these points never come."""
    hook = dict(type='EMAHook', begin_epoch=5)
    cfg = baseline(custom_hooks=[hook])
    assert shorten(cfg).custom_hooks == [hook]


@pytest.mark.parametrize('ratio', [0.6, 1])
@pytest.mark.parametrize(
    'hook',
    [dict(num_last_epochs=15),
     dict(),
     dict(stages=[dict(last_epochs=15)])])
def test_the_last_stage_has_one_begin(hook, ratio):
    """Hooks that count it from the end move with the schedulers, also by
    their default."""
    cfg = baseline(
        train_cfg=dict(by_epoch=True, max_epochs=300),
        param_scheduler=[
            dict(type='LinearLR', end=20),
            dict(type='ConstantLR', factor=1, begin=285, end=300)
        ],
        custom_hooks=[dict(hook, type='YOLOXModeSwitchHook')])
    after = shorten(cfg, ratio)
    last = after.train_cfg.max_epochs - after.param_scheduler[1].begin
    found = after.custom_hooks[0]
    found = found.get('stages', [found])[0]
    assert found.get('last_epochs', found.get('num_last_epochs', 15)) == last
    if ratio == 1:
        assert after.to_dict() == cfg.to_dict()


@pytest.mark.parametrize('sampler', [
    dict(type='InfiniteSampler', shuffle=False),
    dict(type='mmengine.InfiniteSampler', seed=3),
    dict(type='DefaultSampler', shuffle=True),
])
def test_samplers(sampler):
    loader = dict(sampler=dict(sampler, round_up=True))
    after = convert(baseline(train_dataloader=loader)).train_dataloader
    assert after == dict(sampler=dict(sampler, type='InfoBatchSampler'))


@pytest.mark.parametrize('imports, expected', [
    (None, dict(imports=['mmib'], allow_failed_imports=False)),
    (dict(imports='a.b'), dict(imports=['a.b', 'mmib'])),
    (dict(imports=['a', 'mmib']), dict(imports=['a', 'mmib'])),
])
def test_custom_imports(imports, expected):
    assert convert(baseline(custom_imports=imports)).custom_imports == expected


# The ratio


@pytest.mark.parametrize(
    'ratio, policy, expected',
    [
        (None, dict(type='Neyman'), 0.6),
        (None, dict(type='Neyman', ratio=None), 0.6),
        (None, dict(type='Neyman', ratio=0.3), 0.3),
        (0.3, dict(type='Neyman'), 0.3),
        (0.3, dict(type='Neyman', ratio=0.3), 0.3),
        (0.3, dict(type=Neyman), 0.3),
        # Others have no ratio of the training.
        (None, dict(type='MeanThreshold', ratio=0.3), 0.8),
        (0.6, dict(type='MeanThreshold'), 0.6),
    ])
def test_one_ratio(ratio, policy, expected):
    """Of the conversion and of its policy."""
    to_budget = policy['type'] in ('Neyman', Neyman)
    written = dict(policy, ratio=expected) if to_budget else dict(policy)
    for cfg in (baseline(), EPOCHS):
        if cfg is EPOCHS and ratio and not to_budget:
            with pytest.raises(Refusal, match='changes nothing for Mean'):
                convert(cfg, ratio, policy=policy)
            continue
        before = dict(policy)
        after = convert(cfg, ratio, policy=policy)
        assert policy == before
        assert after.custom_hooks[-1].policy == written
        if cfg is not EPOCHS:
            assert after.train_cfg.max_iters == 1000 * expected


# What is refused

PRUNES = 'already: convert or shorten'


@pytest.mark.parametrize('changes, match', [
    (dict(train_cfg=None), 'add `train_cfg = '),
    (dict(train_cfg=dict(type='EpochBasedTrainLoop', max_iters=3)),
     r'IterBasedTrainLoop.*instead of `train_cfg = .*EpochBased'),
    (dict(train_cfg=dict(by_epoch=True, max_epochs=3, max_iters=3)),
     'max_epochs'),
    (dict(train_cfg=dict(type='IterBasedTrainLoop')), 'max_iters=...'),
    (dict(train_cfg=dict(type='NoLoop', max_iters=3)), 'NoLoop'),
    (dict(train_cfg=dict(by_epoch=False, max_iters='abc')),
     "`train_cfg.max_iters` must.*'abc'"),
    (dict(train_cfg=[dict(max_iters=3)]), r'`train_cfg` is a list.*= dict\('),
    (dict(train_dataloader=None), 'add `train_dataloader = '),
    (dict(train_dataloader=[]), '`train_dataloader` is a list'),
    (dict(default_hooks=[]), '`default_hooks` is a list'),
    (dict(custom_hooks=dict(type='EMAHook')),
     r'`custom_hooks` is a .*Dict.*write `custom_hooks = \[dict\(type='),
    (dict(custom_imports='mmib'),
     r'`custom_imports` is a str.*= dict\(imports=\[...\]\)'),
    (dict(custom_hooks=[dict(type='InfoBatchHook')]), PRUNES),
    (dict(train_dataloader=dict(sampler=dict(type='InfoBatchSampler'))),
     PRUNES),
])
def test_configs_that_are_neither_converted_nor_shortened(changes, match):
    for change in (shorten, convert):
        with pytest.raises(Refusal, match=match):
            change(baseline(**changes))


@pytest.mark.parametrize('loader, match', [
    (dict(sampler=dict(type='WeirdSampler')),
     'not of WeirdSampler, .* shares .* lost: set `train_dataloader.sampler'),
    (dict(), 'not of None: set `train_dataloader.sampler = '),
    (dict(
        sampler=dict(
            type='mmdet.MultiSourceSampler', batch_size=5,
            source_ratio=[1, 4])), 'by `source_ratio`.*shares would be lost'),
    (dict(sampler=dict(type='ClassAwareSampler')), 'shares would be lost'),
    (dict(batch_sampler=dict(type='WeirdBatchSampler')),
     'remove `train_dataloader.batch_sampler`'),
])
def test_loaders_that_are_not_converted(loader, match):
    with pytest.raises(Refusal, match=match):
        convert(baseline(train_dataloader=loader))


NOTHING = 'would leave nothing out'


@pytest.mark.parametrize('arguments, match', [
    (dict(ratio=0), '`ratio`'),
    (dict(ratio=1.01), '`ratio`'),
    (dict(ratio=float('nan')), '`ratio`'),
    (dict(policy='Neyman'), r"dict\(type='Neyman'\), but got"),
    (dict(policy=dict(type='MeanThreshold', ratio=2)),
     '`ratio`.*outside|must'),
    (dict(ratio=0.6, policy=dict(type='Neyman', ratio=0.3)),
     '`ratio=0.6` and the `ratio=0.3` of Neyman .* one number'),
    (dict(ratio=1), rf'Neyman\(.*\) {NOTHING}: lower `ratio`'),
    (dict(policy=dict(type='MeanThreshold', ratio=0)), NOTHING),
    (dict(policy=dict(type='RandomPruning', ratio=0)), NOTHING),
    (dict(delta=1e-4, policy=dict(type='QuantileTiers')),
     f'`delta=0.0001` QuantileTiers.* {NOTHING}'),
    (dict(delta=1.1), '`delta`'),
    (dict(ema=1), '`ema`'),
    (dict(emma=0.8), '`emma` .* mean `ema`'),
])
def test_arguments_out_of_range(arguments, match):
    with pytest.raises(Refusal, match=match):
        convert(baseline(), **arguments)


def test_the_name_of_a_config_is_none():
    with pytest.raises(Refusal, match=r"Config.fromfile\('own.py'\)"):
        convert('own.py')
