# Copyright (c) mmib contributors. All rights reserved.
"""The report of a comparison says what its cells say."""
import json

import numpy as np
import pandas as pd
import pytest
from camvid import paired, report


def make_cell(arm, seed, miou=50., iters=1200, pruned=False, **changes):
    """A line of the results, whose evaluations climb to the last mIoU."""
    evals = [
        dict(iter=i, mIoU=miou * i / iters)
        for i in range(iters // 20, iters + 1, iters // 20)
    ]
    evals[-2]['mIoU'], evals[-3]['mIoU'] = miou - 1, miou + 1
    plans = [
        dict(iter=0., kept_share=1., threshold=0., mean_score=1.),
        dict(iter=40.5, kept_share=0.5, threshold=2., mean_score=2.)
    ]
    histogram = dict(
        iter=40.5,
        edges=[0., 1., 4.],
        all=[10, 10],
        kept=[5, 10],
        weighted=[10., 10.])
    cell = dict(
        arm=arm, seed=seed, config=f'{arm} {iters}', iters=iters, evals=evals)
    cell.update(versions=dict(torch='2.13'), device='cpu', threads=1)
    cell.update(batch_size=8, num_images=400, virtual_epochs=40.)
    cell.update(saved_iters=0., step_seconds=0.1)
    cell.update(train_seconds=120., train_cpu_seconds=100.)
    cell.update(plans=plans if pruned else [])
    cell.update(histograms=[histogram] if pruned else [])
    return {**cell, **changes}


# One arm has a single seed so far.
RESULTS = [
    make_cell('tiers', 0, 51., iters=720, pruned=True),
    make_cell('full', 0, 50.),
    make_cell('full', 1, 52.),
    make_cell('short', 1, 49., iters=720),
    make_cell('short', 0, 48., iters=720),
]


@pytest.fixture
def path_of(tmp_path):
    """Write cells to a file."""

    def write(cells):
        path = tmp_path / 'results.jsonl'
        path.write_text(''.join(json.dumps(cell) + '\n' for cell in cells))
        return str(path)

    return write


@pytest.fixture
def load(path_of):
    return lambda cells: report.load(path_of(cells))


def test_the_evaluations_near_the_end_count():
    evals = [
        dict(iter=i, mIoU=m)
        for i, m in ((1, 1), (899, 2), (900, 3), (1000, 5))
    ]
    assert report.final_miou(dict(iters=1000, evals=evals)) == 4


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
    mious = pd.DataFrame(
        dict(
            a=[10 + value for value in values] + [np.nan, 9.],
            b=[10.] * len(values) + [5., np.nan])).T
    assert paired.in_words(*paired.compare(mious, 'a', 'b')) == expected


FULL = make_cell('full', 0)


@pytest.mark.parametrize('cells, said', [
    ([make_cell('short', 0)], 'no cell of full'),
    ([], 'no cell of full'),
    ([FULL, FULL], 'two lines for seed 0'),
    ([FULL, make_cell('full', 1, config='other')], 'full differ in `config`'),
    ([FULL, make_cell('short', 0, device='GPU')
      ], 'results differ in `device`'),
    ([FULL, make_cell('short', 0, versions=dict(torch='2'))], 'in `versions`'),
])
def test_cells_that_make_no_comparison(load, cells, said):
    with pytest.raises(ValueError, match=said):
        load(cells)


def test_thresholds_are_drawn_where_scores_decide():
    curves = report.plan_curves(make_cell('tiers', 0, iters=100, pruned=True))
    assert list(curves.index) == [0, 40.5, 100]
    assert list(curves['kept_share']) == [1, 0.5, 0.5]
    np.testing.assert_equal(curves['threshold'].values, [np.nan, 2, 2])


@pytest.mark.parametrize('cells, plots', [
    (RESULTS, {'differences', 'miou', 'plans', 'scores'}),
    ([FULL], {'miou'}),
])
def test_the_command(path_of, tmp_path, monkeypatch, capsys, cells, plots):
    path, out = path_of(cells), tmp_path / 'new' / 'plots'
    monkeypatch.setattr('sys.argv', ['report.py', path, '--out', str(out)])
    report.main()
    said = capsys.readouterr().out
    assert said == report.report(report.load(path)) + '\n'
    assert ('What each part does' in said) == (cells is RESULTS)
    assert {plot.stem for plot in out.iterdir()} == plots
    assert all(plot.stat().st_size > 5000 for plot in out.iterdir())


def test_results_that_are_not_there(monkeypatch, capsys):
    monkeypatch.setattr('sys.argv', ['report.py', 'results.jsonl'])
    with pytest.raises(SystemExit):
        report.main()
    assert 'results.jsonl' in capsys.readouterr().err


ARMS_WITH_V = [
    ('full', 50., 2000, None),
    ('short_lr', 46., 1000, None),
    ('random', 46., 1000, [1., 1., 1.]),
    ('tiers', 47., 1000, [0.8, 0.7, 0.9]),
]


def test_what_the_choice_was_worth(path_of):
    """The plain training gains 4 when its steps double."""
    cells = [
        make_cell(arm, seed, miou + seed, iters=iters, variance_ratio=ratio)
        for arm, miou, iters, ratio in ARMS_WITH_V for seed in range(3)
    ]
    table = report.worth_table(report.load(path_of(cells)))
    assert table.index.tolist() == ['tiers']
    assert table.loc['tiers'].tolist() == [
        pytest.approx(0.8), '20.0%', f'{-4 * np.log2(0.8):+.2f}',
        '+1.00 [+1.00, +1.00]'
    ]
    without = [cell for cell in cells if cell['arm'] != 'short_lr']
    assert report.worth_table(report.load(path_of(without))).empty
