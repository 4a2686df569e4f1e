# Copyright (c) mmib contributors. All rights reserved.
"""The report of a comparison says what its cells say."""
import json
import os
import os.path as osp
import subprocess
import sys

import numpy as np
import pytest

ROOT = osp.dirname(osp.dirname(osp.dirname(osp.abspath(__file__))))
sys.path.append(osp.join(ROOT, 'tools', 'benchmark'))
import report_arms  # noqa: E402
from arms import plots, results  # noqa: E402


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


def write(path, cells):
    path.write_text(''.join(json.dumps(cell) + '\n' for cell in cells))
    return str(path)


def run(*args):
    return subprocess.run([
        sys.executable,
        osp.join(ROOT, 'tools', 'benchmark', 'report_arms.py'), *args
    ],
                          capture_output=True,
                          text=True)


@pytest.mark.parametrize('last, expected', [(0, 4), (0.1, 4), (0.3, 3.5),
                                            (0.7, 3), (1, 2.5)])
def test_the_evaluations_near_the_end_count(last, expected):
    # In floats, (1 - 0.7) * 10 is above 3.
    cell = dict(
        iters=10,
        evals=[
            dict(iter=i, mIoU=m) for i, m in ((1, 1), (3, 2), (7, 3), (10, 4))
        ])
    assert results.cell_miou(cell, last) == expected


def test_a_known_interval():
    # The differences are 1, 2 and 3: 2 +- 4.302653 * 1 / sqrt(3).
    found = results.paired_difference({
        0: 11,
        1: 22,
        2: 33
    }, {
        0: 10,
        1: 20,
        2: 30
    })
    assert found == pytest.approx((2, -0.484138, 4.484138, 3), abs=1e-6)
    assert found.verdict == 'undecided'
    assert str(found) == '+2.00 [-0.48, +4.48]'


def test_only_seeds_of_both_are_paired():
    found = results.paired_difference({5: 1, 0: 2, 3: 7}, {3: 4, 4: 100, 0: 1})
    # 1 and 3: 2 +- 12.706205 * sqrt(2) / sqrt(2).
    assert found == pytest.approx((2, -10.706205, 14.706205, 2), abs=1e-6)


def test_too_few_pairs_have_no_interval():
    one = results.paired_difference({0: 3, 1: 4}, {1: 6})
    assert one[::3] == (-2, 1) and np.isnan(one[1:3]).all()
    assert (str(one), one.verdict) == ('-2.00', '-')
    none = results.paired_difference({0: 3}, {1: 6})
    assert none.n == 0 and np.isnan(none[:3]).all()
    assert (str(none), none.verdict) == ('-', '-')


@pytest.mark.parametrize('low, high, verdict', [(0.1, 2, 'above'),
                                                (-2, -0.1, 'below'),
                                                (-1, 1, 'undecided'),
                                                (0, 0, 'undecided')])
def test_verdicts(low, high, verdict):
    assert results.Difference((low + high) / 2, low, high,
                              3).verdict == verdict


def test_rows_of_results():
    arms = results.group(make_results(), 'full')
    head, full, tiers, short = report_arms.result_rows(arms, 'full', 0.05)
    assert head[6:] == [
        'full with these seeds', 'difference to full', 'which is'
    ]
    assert full == [
        'full', '2', '1200', '40.0', '51.00', '1.41', '-', '-', '-'
    ]
    assert tiers == [
        'tiers', '1', '720', '40.0', '51.00', '-', '50.00', '+1.00', '-'
    ]
    # The baseline and short differ by -2 and -3: -2.5 +- 12.706205 * 0.5.
    assert short == [
        'short', '2', '720', '40.0', '48.50', '0.71', '51.00',
        '-2.50 [-8.85, +3.85]', 'undecided'
    ]


def test_rows_of_pairs():
    arms = results.group(make_results(), 'full')
    rows = report_arms.pair_rows(
        arms, ['tiers:short', 'full:short', 'absent:short', 'full:absent'],
        0.05)
    assert rows[1:] == [
        ['tiers', 'short', '1', '+3.00', '-'],
        ['full', 'short', '2', '+2.50 [-3.85, +8.85]', 'undecided'],
    ]


def test_the_table_of_pairs_is_left_out_without_any():
    cells = [make_cell('full', 0), make_cell('other', 0)]
    text = report_arms.report(results.group(cells, 'full'))
    assert 'What each part does' not in text
    assert text.count('### ') == 3


def test_rows_of_costs():
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
    rows = report_arms.cost_rows(results.group(cells, 'full'), 'full')
    assert rows[1:] == [
        ['full', '1200', '0.0%', '0', '300', '120', '200'],
        ['tiers', '720', '40.0%', '800', '75', '40', '120'],
    ]


def test_rows_of_cells():
    assert report_arms.cell_rows(results.group(make_results(), 'full'),
                                 0.05) == [
                                     ['arm', 'seed 0', 'seed 1'],
                                     ['full', '50.00', '52.00'],
                                     ['tiers', '51.00', '-'],
                                     ['short', '48.00', '49.00'],
                                 ]


def test_markdown():
    assert report_arms.markdown([['a', 'b'],
                                 ['1', '-']]) == ('| a | b |\n|---|---|\n'
                                                  '| 1 | - |')


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
])
def test_cells_that_make_no_comparison(cells, said):
    with pytest.raises(ValueError, match=said):
        results.group(cells, 'full')


def test_a_line_that_a_kill_cut_off_is_left_out(tmp_path):
    path = tmp_path / 'results.jsonl'
    write(path, make_results())
    with open(path, 'a') as file:
        file.write('{"arm": "sh')
    assert results.read_results(str(path)) == make_results()


def test_results_that_cannot_be_read(tmp_path):
    path = tmp_path / 'results.jsonl'
    result = run(str(path))
    assert result.returncode == 2 and 'No such file' in result.stderr
    assert 'Traceback' not in result.stderr
    path.write_text('{"arm": "full"}\n{"arm": \n{"arm": "short"}\n')
    with pytest.raises(ValueError, match=f'Line 2 of {path} is no JSON'):
        results.read_results(str(path))


def test_panels_stay_readable():
    arms = {f'main{i}': {0: {}, 1: {}} for i in range(9)}
    arms.update(late={0: {}})
    panels = plots.panels_of(arms, 'main0')
    assert [list(names) for names in panels] == [
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
    iters, shares, thresholds = plots.plan_curves(cell)
    assert iters == [0, 50.5, 75.5, 100]
    assert shares == [1, 0.5, 0.5, 0.5]
    np.testing.assert_equal(thresholds, [np.nan, 2, np.nan, np.nan])


def test_the_arm_whose_scores_are_drawn():
    cells = [make_cell('full', 0)]
    assert plots.scores_arm(results.group(cells, 'full'), None) is None
    cells.append(make_cell('mean', 0, pruned=True))
    assert plots.scores_arm(results.group(cells, 'full'), None) == 'mean'
    cells.append(make_cell('tiers', 0, pruned=True))
    arms = results.group(cells, 'full')
    assert plots.scores_arm(arms, None) == 'tiers'
    assert plots.scores_arm(arms, 'mean') == 'mean'
    with pytest.raises(ValueError, match='--scores full has no histograms'):
        plots.scores_arm(arms, 'full')


def test_the_command_prints_tables_and_writes_plots(tmp_path):
    path = write(tmp_path / 'results.jsonl', make_results())
    out = tmp_path / 'new' / 'plots'
    result = run(path, '--out', str(out), '--last', '0.05')
    assert (result.returncode, result.stderr) == (0, '')
    assert result.stdout == report_arms.report(
        results.group(make_results(), 'full'), last=0.05) + '\n'
    assert result.stdout.count('\n| full | ') == 3
    assert '\n| tiers | short | 1 | ' in result.stdout
    assert str(tmp_path) not in result.stdout
    assert sorted(os.listdir(out)) == [
        'differences.png', 'miou.png', 'plans.png', 'scores.png'
    ]
    for path in out.iterdir():
        image = path.read_bytes()
        assert 5000 < len(image) <= 100_000
        assert str(tmp_path).encode() not in image


def test_plots_of_a_baseline_alone(tmp_path):
    arms = results.group([make_cell('full', 0)], 'full')
    plots.write_plots(str(tmp_path), arms, 'full', 0.1, None)
    assert os.listdir(tmp_path) == ['miou.png']


@pytest.mark.parametrize('options, said', [
    (['--baseline', 'long'], 'no cell of long, the baseline'),
    (['--last', '10'], '--last is a part, from 0 to 1'),
    (['--scores', 'short'], "short has no histograms; ['tiers'] have"),
    (['--pairs', 'tiers-short'], 'which are no two of'),
    (['--pairs', 'tiers:short', 'tires:short'], '--pairs has tires:short'),
])
def test_wrong_options(tmp_path, options, said):
    result = run(write(tmp_path / 'results.jsonl', make_results()), *options)
    assert result.returncode == 2
    assert said in result.stderr and 'Traceback' not in result.stderr
    assert result.stdout == ''
