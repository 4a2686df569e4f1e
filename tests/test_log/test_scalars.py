# Copyright (c) mmib contributors. All rights reserved.
"""Scalars of a training, as the libraries' tools and backends read them."""
import sys
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from mmengine.registry import VISBACKENDS
from mmengine.visualization.vis_backend import BaseVisBackend
from tensorboard.backend.event_processing.event_accumulator import \
    EventAccumulator

from tests.helpers.pages import code_of
from tests.helpers.segmentors import VALIDATION, read_lines, small_runner


@VISBACKENDS.register_module()
class Remembers(BaseVisBackend):
    """A backend that isn't a file of MMEngine, such as TensorBoard."""

    def __init__(self, save_dir=None):
        self.lines = []

    def _init_env(self):
        pass

    experiment = None

    def add_scalars(self, scalar_dict, step=0, file_path=None, **kwargs):
        self.lines.append((step, {**scalar_dict}))


def test_lines_are_of_training_or_of_validation(tmp_path):
    """MMPretrain's analyze_logs takes a line without `lr` for one of a
    validation, and each of these must have the metric."""
    backends = [dict(type='LocalVisBackend'), dict(type='Remembers')]
    runner = small_runner(
        tmp_path, **{
            **VALIDATION,
            'train_cfg': dict(max_iters=30, val_interval=10),
            'default_hooks.logger.interval': 5,
            'visualizer.vis_backends': backends,
        })
    runner.train()
    lines = read_lines(next(tmp_path.glob('*/vis_data/scalars.json')))
    training = [line for line in lines if 'lr' in line]
    validation = [line for line in lines if 'lr' not in line]
    assert all('loss' in line for line in training)
    assert [('mIoU' in line) for line in validation] == 3 * [True]
    assert not any('infobatch' in name for line in lines for name in line)
    # All else has them.
    backend = runner.visualizer.get_backend('Remembers')
    steps = [
        step for step, line in backend.lines if 'infobatch/saved_iters' in line
    ]
    plans = [
        line for line in read_lines(next(tmp_path.glob('*/infobatch.*')))
        if 'kept' in line
    ]
    assert steps == [int(plan['iter']) for plan in plans] + [30]
    thresholds = [
        line['infobatch/threshold'] for _, line in backend.lines
        if 'infobatch/threshold' in line
    ]
    assert thresholds == [
        plan['threshold'] for plan in plans if plan['threshold']
    ]
    assert 0 < len(thresholds) < len(plans)


def test_other_ranks_write_no_scalars(tmp_path, monkeypatch):
    """A backend of theirs would begin a run of its own."""
    monkeypatch.setattr('mmib.openmmlab.console.reporter.is_main_process',
                        lambda: False)
    backends = [dict(type='LocalVisBackend'), dict(type='Remembers')]
    runner = small_runner(tmp_path, **{'visualizer.vis_backends': backends})
    runner.train()
    lines = runner.visualizer.get_backend('Remembers').lines
    assert not any('infobatch' in name for _, line in lines for name in line)
    assert runner.message_hub.log_scalars['infobatch/kept_share']


def scalars_of(lines):
    """The names of the scalars of a plan, by the iterations of the lines."""
    return {
        line['iter']: {name
                       for name in line if name.startswith('infobatch')}
        for line in lines if 'infobatch/kept_share' in line
    }


def test_wandb_gets_the_iterations(tmp_path, monkeypatch):
    """MMEngine's backend drops the step, so that W&B knows iterations only as
    a scalar."""
    rows = []
    wandb = SimpleNamespace(
        init=MagicMock(),
        config=MagicMock(),
        run=MagicMock(),
        join=MagicMock(),
        log=lambda row, commit: rows.append({**row}))
    monkeypatch.setitem(sys.modules, 'wandb', wandb)
    runner = small_runner(
        tmp_path, **{
            'default_hooks.logger.interval': 5,
            'visualizer.vis_backends': [dict(type='WandbVisBackend')],
            'custom_hooks': [
                dict(type='InfoBatchHook', policy=dict(type='Neyman'))
            ],
        })
    runner.train()
    plans = [
        line for line in read_lines(next(tmp_path.glob('*/infobatch.*')))
        if 'kept' in line
    ]
    iterations = [row['iter'] for row in rows]
    assert iterations == sorted(iterations) and iterations[-1] == 30
    assert {5, 10} <= {row['iter'] for row in rows if 'loss' in row}
    scalars = scalars_of(rows)
    assert [*scalars] == [int(plan['iter']) for plan in plans]
    # Neyman has no threshold, and V isn't known at first.
    first = {'kept_share', 'mean_score', 'saved_iters'}
    assert scalars[0] == {f'infobatch/{name}' for name in first}
    assert set().union(*scalars.values()) - scalars[0] == {
        'infobatch/variance_ratio'
    }


def test_tensorboard_reads_the_iterations(tmp_path):
    backends = [dict(type='TensorboardVisBackend')]
    runner = small_runner(tmp_path, **{'visualizer.vis_backends': backends})
    runner.train()
    accumulator = EventAccumulator(str(next(tmp_path.glob('*/vis_data'))))
    accumulator.Reload()
    plans = [
        line for line in read_lines(next(tmp_path.glob('*/infobatch.*')))
        if 'kept' in line
    ]
    for name, expected in (('kept_share', [x['kept'] / 11 for x in plans]),
                           ('mean_score', [x['mean_score'] for x in plans])):
        events = accumulator.Scalars(f'infobatch/{name}')
        assert [event.step
                for event in events] == [int(plan['iter']) for plan in plans]
        assert [event.value for event in events] == pytest.approx(expected)
    # A line in which each value is its step, as MMEngine's own `iter`.
    assert all(event.value == event.step
               for event in accumulator.Scalars('iter'))


def test_the_backends_of_the_page_exist():
    (code, ), given = code_of('visualizers.md', '## Choose the backends'), {}
    exec(code, given)
    for backend in given['visualizer']['vis_backends']:
        VISBACKENDS.build(dict(backend, save_dir='unused'))
