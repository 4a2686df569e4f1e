# Copyright (c) mmib contributors. All rights reserved.
"""The report of a comparison says what its cells say."""
import json

import numpy as np
import pandas as pd
import pytest

from benchmarks.camvid import report as camvid
from benchmarks.cifar10 import report as cifar10
from benchmarks.compare import paired, report


def make_cell(arm, seed, quality=50., iters=60, ratio=None, **changes):
    """A line of the results, whose evaluations climb to the last one."""
    evals = [
        dict(iter=i, accuracy=value, mIoU=value)
        for i, value in ((iters // 2, quality - 10), (iters, quality))
    ]
    cell = dict(
        arm=arm,
        seed=seed,
        config=f'{arm} {iters}',
        lr=0.1,
        versions=dict(torch='2.13'),
        device='cpu',
        threads=1,
        batch_size=4,
        num_images=40,
        iters=iters,
        virtual_epochs=6.,
        accuracy=quality,
        evals=evals)
    if ratio:
        cell['variance_ratio'] = [ratio, ratio - 0.1, ratio + 0.1]
        cell['variance_ratio_of_quarters'] = [None, 1.2, 1., 0.8]
    return {**cell, **changes}


CELLS = [
    cell for seed in range(3)
    for cell in (make_cell('tiers', seed, 63. + seed / 2, ratio=0.8),
                 make_cell('random', seed, 62. + seed / 2, ratio=1.),
                 make_cell('full', seed, 66. + seed / 2, iters=120),
                 make_cell('short', seed, 62. + seed / 2))
]
FULL = make_cell('full', 0)


def write(path, cells):
    path.write_text(''.join(json.dumps(cell) + '\n' for cell in cells))
    return str(path)


@pytest.mark.parametrize(
    'values, expected',
    [
        # 2 +- 4.302653 * 1 / sqrt(3).
        ([1, 2, 3], ('+2.00 [-0.48, +4.48]', 'undecided')),
        ([2, 2.5, 3], ('+2.50 [+1.26, +3.74]', 'above')),
        ([-2, -2.5, -3], ('-2.50 [-3.74, -1.26]', 'below')),
        ([0, 0], ('+0.00 [+0.00, +0.00]', 'undecided')),
        ([1.5], ('+1.50', '-')),
        ([], ('-', '-')),
    ])
def test_differences(values, expected):
    """Of the seeds that both arms have."""
    table = pd.DataFrame(
        dict(
            a=[10 + value for value in values] + [np.nan, 9.],
            b=[10.] * len(values) + [5., np.nan])).T
    assert paired.in_words(*paired.compare(table, 'a', 'b')) == expected


def test_interval_of_v():
    """It is wider than that of V in the recorded results, which has no width
    in three digits."""
    found = cifar10._with_interval(pd.Series([0.8, 0.9, 1.]))
    assert found == '0.900 [0.652, 1.148]'


@pytest.mark.parametrize('cells, said', [
    ([make_cell('short', 0)], 'no cell of full'),
    ([], 'no cell of full'),
    ([FULL, FULL], 'two lines for seed 0'),
    ([FULL, make_cell('full', 1, config='other')], 'full differ in `config`'),
    ([FULL, make_cell('short', 0, device='GPU')
      ], 'results differ in `device`'),
    ([FULL, make_cell('short', 0, num_images=9)], 'differ in `num_images`'),
    ([FULL, make_cell('short', 0, versions=dict(torch='2'))], 'in `versions`'),
])
def test_cells_that_make_no_comparison(tmp_path, cells, said):
    with pytest.raises(ValueError, match=said):
        report.load(write(tmp_path / 'x.jsonl', cells), camvid.TASK)


def test_the_evaluations_near_the_end_count():
    points = (1, 1), (899, 2), (900, 3), (1000, 5)
    cell = dict(iters=1000, evals=[dict(iter=i, mIoU=m) for i, m in points])
    assert report.final_quality(cell, camvid.TASK) == 4
    assert report.final_quality(cell, camvid.TASK._replace(last=0)) == 5


@pytest.mark.parametrize('cells', [CELLS, [FULL]])
def test_the_command(tmp_path, monkeypatch, capsys, cells):
    """Also with a first cell alone."""
    path = write(tmp_path / 'x.jsonl', cells)
    monkeypatch.setattr('sys.argv', ['report.py', path])
    camvid.main()
    said = capsys.readouterr().out
    assert ('What each part does' in said) == (cells is CELLS)


@pytest.mark.parametrize('command, said', [(camvid, 'results.jsonl'),
                                           (cifar10, 'has no results')])
def test_results_that_are_not_there(monkeypatch, capsys, command, said):
    monkeypatch.setattr('sys.argv', ['report.py', 'results.jsonl'])
    with pytest.raises(SystemExit):
        command.main()
    assert said in capsys.readouterr().err
