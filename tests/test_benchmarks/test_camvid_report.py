# Copyright (c) mmib contributors. All rights reserved.
"""The report of a comparison says what its cells say."""
import json
import os

import numpy as np
import pandas as pd
import pytest
from camvid import report


def make_cell(arm, seed, miou=50., iters=1200, pruned=False, **changes):
    """A line of the results, with scores made up.

    Args:
        arm (str): Name of the arm.
        seed (int): Its seed.
        miou (float): That of the last evaluation; the ten others climb
            towards it.
        iters (int): Iterations.
        pruned (bool): Whether it has plans and histograms.
        **changes: Other values.
    """
    rng = np.random.default_rng(seed)
    at = np.linspace(0, iters, 11)[1:]
    evals = [
        dict(iter=int(i), mIoU=float(m), aAcc=80., mAcc=60., loss=1.)
        for i, m in zip(at, miou * (1 - np.exp(-5 * at / iters)))
    ]
    evals[-1]['mIoU'] = miou
    plans, histograms = [], []
    if pruned:
        starts = np.arange(iters // 40, 0.85 * iters, iters / 40)
        scores = [rng.lognormal(-i / iters, 0.7, 400) for i in starts]
        plans = [
            dict(
                iter=float(i),
                kept_share=float(rng.uniform(0.5, 0.55)),
                threshold=float(np.quantile(s, 0.85)),
                mean_score=float(s.mean())) for i, s in zip(starts, scores)
        ]
        full = dict(kept_share=1., threshold=0., mean_score=1.)
        histograms = [
            make_histogram(plans[k]['iter'], scores[k], rng)
            for k in (0, len(plans) // 2, -1)
        ]
        plans = [dict(full, iter=0.), *plans, dict(full, iter=0.85 * iters)]
    return dict(
        dict(
            arm=arm,
            seed=seed,
            config=f'{arm} {iters}',
            versions=dict(torch='2.13'),
            device='cpu',
            threads=1,
            iters=iters,
            batch_size=8,
            num_images=400,
            virtual_epochs=40.,
            saved_iters=800. if pruned else 0.,
            train_seconds=iters / 10,
            train_cpu_seconds=iters / 10,
            val_seconds=20.,
            step_seconds=0.1,
            evals=evals,
            plans=plans,
            histograms=histograms), **changes)


def make_histogram(iteration, scores, rng):
    """Three in four are left out below the median, as a policy does."""
    low = scores < np.median(scores)
    kept = ~low | (rng.random(len(scores)) < 0.25)
    weights = np.where(low, low.sum() / (low & kept).sum(), 1.)
    edges = np.histogram_bin_edges(scores, 30)
    return dict(
        iter=iteration,
        edges=edges.tolist(),
        all=np.histogram(scores, edges)[0].tolist(),
        kept=np.histogram(scores[kept], edges)[0].tolist(),
        weighted=np.histogram(scores[kept], edges,
                              weights=weights[kept])[0].tolist())


def make_results():
    """Three arms, one of which has a single seed so far."""
    return [
        make_cell('tiers', 0, 51., iters=720, pruned=True),
        make_cell('full', 0, 50.),
        make_cell('full', 1, 52.),
        make_cell('short', 1, 49., iters=720),
        make_cell('short', 0, 48., iters=720),
    ]


@pytest.fixture
def load(tmp_path):
    """Write cells to a file, and load it."""

    def write_and_load(cells, **kwargs):
        return report.load(write(tmp_path, cells), **kwargs)

    return write_and_load


def write(folder, cells):
    path = folder / 'results.jsonl'
    path.write_text(''.join(json.dumps(cell) + '\n' for cell in cells))
    return str(path)


def run(monkeypatch, *args):
    """Run the command, and return its exit status."""
    monkeypatch.setattr('sys.argv', ['report.py', *args])
    try:
        report.main()
    except SystemExit as end:
        return end.code


@pytest.mark.parametrize('last, expected', [(0, 4), (0.1, 4), (0.3, 3.5),
                                            (0.7, 3), (1, 2.5)])
def test_the_evaluations_near_the_end_count(last, expected):
    # In floats, (1 - 0.7) * 10 is above 3.
    cell = dict(
        iters=10,
        evals=[
            dict(iter=i, mIoU=m) for i, m in ((1, 1), (3, 2), (7, 3), (10, 4))
        ])
    assert report.final_miou(cell, last) == expected


def test_a_known_interval():
    # The differences are 1, 2 and 3: 2 +- 4.302653 * 1 / sqrt(3).
    mious = pd.DataFrame(
        dict(a=[11, 12, 14, np.nan, 9], b=[10, 10, 11, 5, np.nan])).T
    found = report.compare(mious, 'a', 'b')
    assert found.n == 3 and found.mean == 2
    assert found.high - 2 == 2 - found.low == pytest.approx(2.484138)
    assert str(found) == '+2.00 [-0.48, +4.48]'


@pytest.mark.parametrize('values, said', [([1.5], '+1.50'), ([], '-')])
def test_too_few_seeds_have_no_interval(values, said):
    mious = pd.DataFrame(
        dict(a=[*values, np.nan], b=[0.] * len(values) + [1.])).T
    found = report.compare(mious, 'a', 'b')
    assert str(found) == said and found.verdict == '-'


@pytest.mark.parametrize('low, high, verdict', [(0.1, 2, 'above'),
                                                (-2, -0.1, 'below'),
                                                (-1, 1, 'undecided'),
                                                (0, 0, 'undecided')])
def test_verdicts(low, high, verdict):
    assert report.Difference((low + high) / 2, low, high, 3).verdict == verdict


def rows_of(table):
    return [[arm, *map(str, row)]
            for arm, row in zip(table.index, table.values)]


def test_rows_of_results(load):
    table = report.result_table(load(make_results(), last=0.05))
    assert list(table.columns)[5:] == [
        'full with these seeds', 'difference to full', 'which is'
    ]
    assert rows_of(table) == [
        ['full', '2', '1200', '40.0', '51.00', '1.41', '-', '-', '-'],
        ['tiers', '1', '720', '40.0', '51.00', '-', '50.00', '+1.00', '-'],
        # The baseline and short differ by -2 and -3: -2.5 +- 12.706205 * 0.5.
        [
            'short', '2', '720', '40.0', '48.50', '0.71', '51.00',
            '-2.50 [-8.85, +3.85]', 'undecided'
        ],
    ]


def test_rows_of_pairs(load):
    table = report.pair_table(
        load(make_results(), last=0.05),
        ['tiers:short', 'full:short', 'absent:short', 'full:absent'])
    assert rows_of(table) == [
        ['tiers', 'short', '1', '+3.00', '-'],
        ['full', 'short', '2', '+2.50 [-3.85, +8.85]', 'undecided'],
    ]


def test_the_table_of_pairs_is_left_out_without_any(load):
    text = report.report(load([make_cell('full', 0), make_cell('other', 0)]))
    assert 'What each part does' not in text
    assert text.count('### ') == 3


def test_rows_of_costs(load):
    cells = [
        make_cell(
            arm,
            seed,
            iters=iters,
            train_seconds=wall,
            train_cpu_seconds=cpu,
            step_seconds=step,
            saved_iters=saved)
        for arm, seed, iters, wall, cpu, step, saved in [
            ('full', 0, 1200, 100, 110, 0.1, 0),
            ('full', 1, 1200, 300, 120, 0.2, 0),
            # Other work disturbed it.
            ('full', 2, 1200, 9500, 160, 9, 0),
            ('tiers', 0, 720, 60, 30, 0.11, 790),
            ('tiers', 1, 720, 90, 50, 0.13, 810),
        ]
    ]
    assert rows_of(report.cost_table(load(cells))) == [
        ['full', '1200', '0.0%', '0', '300', '120', '200'],
        ['tiers', '720', '40.0%', '800', '75', '40', '120'],
    ]


def test_rows_of_cells(load):
    table = report.cell_table(load(make_results(), last=0.05))
    assert report.markdown(table) == ('| arm | seed 0 | seed 1 |\n'
                                      '|---|---|---|\n'
                                      '| full | 50.00 | 52.00 |\n'
                                      '| tiers | 51.00 | - |\n'
                                      '| short | 48.00 | 49.00 |')


@pytest.mark.parametrize('cells, said', [
    ([make_cell('short', 0)], 'no cell of full'),
    ([], 'no cell of full'),
    ([make_cell('full', 3), make_cell('full', 3)], 'two lines for seed 3'),
    ([make_cell('full', 0),
      make_cell('full', 1, config='other')], 'full differ in `config`'),
    ([
        make_cell('full', 0, config='same'),
        make_cell('full', 1, iters=9, config='same')
    ], 'full differ in `iters`, 1200, 9'),
    ([make_cell('full', 0),
      make_cell('short', 0, device='GPU')], 'the results differ in `device`'),
    ([make_cell('full', 0),
      make_cell('short', 0, versions=dict(torch='2'))], 'in `versions`'),
])
def test_cells_that_make_no_comparison(load, cells, said):
    with pytest.raises(ValueError, match=said):
        load(cells)


def test_panels_stay_readable(load):
    cells = [make_cell(f'main{i}', seed) for i in range(9) for seed in (0, 1)]
    cells = load([*cells, make_cell('late', 0)], baseline='main0')
    assert report.panels_of(cells) == [
        ['main0', *(f'main{i}' for i in range(1, 5))],
        ['main0', *(f'main{i}' for i in range(5, 9))],
        ['main0', 'late'],
    ]


def test_thresholds_are_drawn_where_scores_decide():
    cell = dict(
        iters=100,
        plans=[
            dict(iter=0., kept_share=1., threshold=0.),
            dict(iter=50.5, kept_share=0.5, threshold=2.),
            dict(iter=75.5, kept_share=0.5, threshold=0.),
        ])
    curves = report.plan_curves(cell)
    assert list(curves.index) == [0, 50.5, 75.5, 100]
    assert list(curves['kept_share']) == [1, 0.5, 0.5, 0.5]
    np.testing.assert_equal(curves['threshold'].values,
                            [np.nan, 2, np.nan, np.nan])


def test_the_arm_whose_scores_are_drawn(load):
    cells = [make_cell('full', 0)]
    assert report.scores_arm(load(cells), None) is None
    cells.append(make_cell('mean', 0, pruned=True))
    assert report.scores_arm(load(cells), None) == 'mean'
    cells.append(make_cell('tiers', 0, pruned=True))
    assert report.scores_arm(load(cells), None) == 'tiers'
    assert report.scores_arm(load(cells), 'mean') == 'mean'


def test_the_command_prints_tables_and_writes_plots(tmp_path, monkeypatch,
                                                    capsys):
    path, out = write(tmp_path, make_results()), tmp_path / 'new' / 'plots'
    assert run(monkeypatch, path, '--out', str(out), '--last', '0.05') is None
    said = capsys.readouterr()
    assert said.out == report.report(
        report.load(path, last=0.05), last=0.05) + '\n'
    assert said.out.count('\n| full | ') == 3
    assert '\n| tiers | short | 1 | ' in said.out and said.err == ''
    assert sorted(os.listdir(out)) == [
        'differences.png', 'miou.png', 'plans.png', 'scores.png'
    ]
    for plot in out.iterdir():
        assert 5000 < plot.stat().st_size <= 100_000


def test_plots_of_a_baseline_alone(tmp_path, load):
    report.write_plots(
        str(tmp_path / 'out'), load([make_cell('full', 0)]), None)
    assert os.listdir(tmp_path / 'out') == ['miou.png']


@pytest.mark.parametrize('options, said', [
    (['--baseline', 'long'], 'no cell of long, the baseline'),
    (['--last', '10'], '--last is a part, from 0 to 1'),
    (['--scores', 'short'], "short has no histograms; ['tiers'] have"),
    (['--pairs', 'tiers-short'], 'which are no two of'),
    (['--pairs', 'tiers:short', 'tires:short'], '--pairs has tires:short'),
])
def test_wrong_options(tmp_path, monkeypatch, capsys, options, said):
    path = write(tmp_path, make_results())
    assert run(monkeypatch, path, *options) == 2
    output = capsys.readouterr()
    assert said in output.err and output.out == ''


def test_results_that_are_not_there(tmp_path, monkeypatch, capsys):
    assert run(monkeypatch, str(tmp_path / 'results.jsonl')) == 2
    assert 'No such file' in capsys.readouterr().err
