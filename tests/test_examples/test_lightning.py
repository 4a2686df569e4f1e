# Copyright (c) mmib contributors. All rights reserved.
import os.path as osp
import re
import subprocess
import sys

import pytest

pytest.importorskip('lightning')
ROOT = osp.dirname(osp.dirname(osp.dirname(osp.abspath(__file__))))
SCRIPT = osp.join(ROOT, 'examples', 'lightning', 'train.py')


def train(folder, *args):
    """Run the script, and return the epochs and accuracies that it prints."""
    process = subprocess.run([sys.executable, '-W', 'ignore', SCRIPT, *args],
                             cwd=folder,
                             env=dict(
                                 PYTHONPATH=ROOT, PATH='', HOME=str(folder)),
                             capture_output=True,
                             text=True)
    assert process.returncode == 0, process.stderr
    return [(int(epoch), float(accuracy)) for epoch, accuracy in re.findall(
        r'^epoch (\d+): accuracy ([\d.]+)', process.stdout, re.M)]


def test_the_example_goes_on_where_it_stopped(tmp_path):
    for name in ('whole', 'part'):
        (tmp_path / name).mkdir()
    whole = train(tmp_path / 'whole')
    assert [epoch for epoch, _ in whole] == [*range(1, 21)]
    assert whole[-1][1] > 0.7
    part = train(tmp_path / 'part', '4')
    assert part + train(tmp_path / 'part') == whole
