# Copyright (c) mmib contributors. All rights reserved.
"""Its times are no business of tests, but what it makes of them is."""
import os.path as osp

import numpy as np
import pytest

from benchmarks import step
from tests.helpers.segmentors import write_images

from .utils import CAMVID, rows_of

PRUNED = osp.join(
    osp.dirname(CAMVID), 'upernet_r18_1xb8-600-infobatch_camvid-144x192.py')


def test_policies_take_turns(tmp_path, monkeypatch, capsys):
    write_images(tmp_path, 16, 'test', 'png')
    command = ('step.py --policies QuantileTiers MeanThreshold --iters 2 '
               '--warmup 3 --cfg-options '
               f'train_dataloader.dataset.data_root={tmp_path} -- {CAMVID}')
    monkeypatch.setattr('sys.argv', command.split())
    step.main()
    rows = rows_of(capsys.readouterr().out)
    assert [row[0]
            for row in rows] == ['full', 'QuantileTiers', 'MeanThreshold']
    assert [row[2] for row in rows] == ['0.0%', '40.0%', '20.0%']
    assert rows[0][4] == '1.000' and rows[0][7] == '0.0%'


def test_a_config_and_its_baseline(tmp_path, monkeypatch, capsys):
    """Without the trainings, which the test above has."""
    configs = {}

    def take_turns(cfgs, iters, warmup):
        configs.update(cfgs)
        return {name: np.full((3, iters), 0.1) for name in cfgs}

    monkeypatch.setattr(step, 'take_turns', take_turns)
    monkeypatch.setattr('sys.argv', ['step.py', PRUNED])
    step.main()
    assert [row[3]
            for row in rows_of(capsys.readouterr().out)] == ['100.0'] * 2
    assert configs['mmib'].custom_hooks[-1].type == 'InfoBatchHook'
    assert configs['baseline'].train_dataloader.sampler.type == (
        'InfiniteSampler')
    assert not any(hook.type == 'InfoBatchHook'
                   for hook in configs['baseline'].custom_hooks)


def test_annealing_is_not_timed(monkeypatch):
    """510 of 600 iterations prune."""
    monkeypatch.setattr('sys.argv', ['step.py', PRUNED, '--iters', '501'])
    with pytest.raises(SystemExit, match='begins at 510 iterations'):
        step.main()


def test_what_the_times_say():
    times = dict(
        full=np.array([0.1, 0.2, 0.1, 0.1]),
        # The last of them draws a plan.
        tiers=np.array([0.11, 0.22, 0.12, 0.15]))
    iters = dict(full=100, tiers=60)
    assert [' '.join(row) for row in step.rows_of(iters, times)[1:]] == [
        'full 100 0.0% 100.0 1.000 1.000 to 1.000 1.000 0.0%',
        # Ratios of 1.1, 1.1, 1.2 and 1.5, and 0.6 / 0.5 of all.
        'tiers 60 40.0% 135.0 1.150 1.100 to 1.275 1.200 28.0%'
    ]
