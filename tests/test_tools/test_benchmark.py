# Copyright (c) mmib contributors. All rights reserved.
"""The benchmarks run. Their figures are no business of tests."""
import os.path as osp
import subprocess
import sys

from make_demo_data import make_demo_data

ROOT = osp.dirname(osp.dirname(osp.dirname(osp.abspath(__file__))))


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


def test_plan():
    rows = rows_of(run('plan.py', '--sizes', '1000', '2000', '--seconds', '0'))
    assert [row[0].strip() for row in rows] == ['1000'] * 3 + ['2000'] * 3
    assert all(float(cell) > 0 for row in rows for cell in row[2:])


def test_budget():
    rows = rows_of(
        run('budget.py', '--images', '300', '--slots-per-iter', '4',
            '--max-iters', '1200', '--full-iters', '2000'))
    assert len(rows) == 21
    assert [row[1].strip() for row in rows[:3]
            ] == ['Budget', 'QuantileTiers', 'MeanThreshold']
    assert {float(row[3]) for row in rows} == {26.67}


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
