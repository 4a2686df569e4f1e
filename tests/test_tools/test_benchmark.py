# Copyright (c) mmib contributors. All rights reserved.
"""The benchmarks run. Their figures are no business of tests."""
import os.path as osp
import subprocess
import sys

import numpy as np
from make_demo_data import make_demo_data

ROOT = osp.dirname(osp.dirname(osp.dirname(osp.abspath(__file__))))
sys.path.append(osp.join(ROOT, 'tools', 'benchmark'))
import time_arms  # noqa: E402


def run(script, *args):
    result = subprocess.run(
        [sys.executable,
         osp.join(ROOT, 'tools', 'benchmark', script), *args],
        capture_output=True,
        text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def rows_of(output):
    """The cells of a printed table, without its head. The stack may have
    printed before it."""
    lines = [line for line in output.splitlines() if line.startswith('|')]
    return [line.split('|')[1:-1] for line in lines[2:]]


def test_step(tmp_path):
    make_demo_data(str(tmp_path), num_training=16, num_validation=1)
    output = run(
        'step.py',
        osp.join(ROOT, 'configs', 'upernet',
                 'upernet_r18_1xb8-300-infobatch_demo-64x64.py'), '--iters',
        '3', '--warmup', '1', '--cfg-options',
        f'train_dataloader.dataset.data_root={tmp_path}')
    assert 'iterations of each: 3' in output
    assert float(output.split('ratio of the medians: ')[1].split()[0]) > 0


def test_time_arms(tmp_path):
    make_demo_data(str(tmp_path), num_training=16, num_validation=1)
    rows = rows_of(
        run(
            'time_arms.py',
            osp.join(ROOT, 'configs', 'upernet',
                     'upernet_r18-w32_1xb8-2k_camvid-72x96.py'), '--only',
            'tiers', 'short_80', '--iters', '2', '--warmup', '3',
            '--cfg-options', 'train_dataloader.dataset.img_suffix=.jpg',
            f'train_dataloader.dataset.data_root={tmp_path}'))
    # In the order of the file of arms.
    assert [row[0].strip() for row in rows] == ['full', 'short_80', 'tiers']
    assert [row[2].strip() for row in rows] == ['0.0%', '20.0%', '40.0%']
    assert rows[0][4].strip() == '1.000' and rows[0][7].strip() == '0.0%'


def test_rows_of_time_arms():
    times = dict(
        full=np.array([0.1, 0.2, 0.1, 0.1]),
        # The last of them draws a plan.
        tiers=np.array([0.11, 0.22, 0.12, 0.15]))
    iters = dict(full=100, tiers=60)
    assert time_arms.rows_of(iters, times, 'full')[1:] == [
        [
            'full', '100', '0.0%', '100.0', '1.000', '1.000 to 1.000', '1.000',
            '0.0%'
        ],
        # Ratios of 1.1, 1.1, 1.2 and 1.5, and 0.6 / 0.5 of all.
        [
            'tiers', '60', '40.0%', '135.0', '1.150', '1.100 to 1.275',
            '1.200', '28.0%'
        ]
    ]
