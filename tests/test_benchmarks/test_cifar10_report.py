# Copyright (c) mmib contributors. All rights reserved.
"""The tables of the comparison on CIFAR-10 say what its cells say."""
import json

import pytest

from benchmarks.cifar10 import report

from .utils import rows_of


def make_cell(arm, seed, accuracy, iters=60, ratio=None, **changes):
    quarters = [None, 1.2, 1., 0.8] if ratio else None
    return dict(
        dict(
            arm=arm,
            seed=seed,
            config=arm,
            lr=0.1,
            device='cpu',
            versions=dict(torch='2.13'),
            iters=iters,
            batch_size=4,
            num_images=40,
            virtual_epochs=6.,
            accuracy=accuracy,
            evals=[(iters // 2, accuracy - 10), (iters, accuracy)],
            **(dict(
                variance_ratio=[ratio, ratio - 0.1, ratio + 0.1],
                variance_ratio_of_quarters=quarters) if ratio else {})),
        **changes)


CELLS = [
    cell for seed in range(3)
    for cell in (make_cell('tiers', seed, 63. + seed / 2, ratio=0.8),
                 make_cell('random', seed, 62. + seed / 2, ratio=1.),
                 make_cell('full', seed, 66. + seed / 2, iters=120),
                 make_cell('short', seed, 62. + seed / 2))
]


@pytest.fixture
def folder(tmp_path):
    """A folder of results."""
    (tmp_path / 'passes-24.jsonl').write_text(''.join(
        json.dumps(cell) + '\n' for cell in CELLS))
    rates = [
        dict(arm=arm, seed=seed, lr=rate, accuracy=accuracy + seed)
        for seed in range(2)
        for arm, rate, accuracy in (('full', 0.1, 50.), ('full', 0.2, 52.),
                                    ('short', 0.1, 40.), ('short', 0.2, 39.))
    ]
    (tmp_path / 'learning-rates.jsonl').write_text(''.join(
        json.dumps(cell) + '\n' for cell in rates))
    resumed = dict(
        has_state=False,
        before=dict(epochs=5, next_kept_share=0.75),
        after=dict(epochs=0, next_kept_share=1.))
    (tmp_path / 'official.json').write_text(
        json.dumps(
            dict(
                step_ms={
                    'plain loop': 10.,
                    'official': 13.,
                    'MMEngine': 12.,
                    'mmib': 14.
                },
                plan_seconds={'10000': dict(official=0.1, mmib=0.05)},
                after_resume=resumed)))
    return tmp_path


def test_tables(folder):
    text = report.reports(str(folder))
    assert 'Best: `full` 0.2, `short` 0.1.' in text
    rows = rows_of(text)
    assert ['full', '2', '50.50', '52.50'] in rows
    assert [
        'tiers', '0.1', '3', '60', '6.0', '63.50', '0.50', '66.50', '0.80',
        '-3.00 [-3.00, -3.00]', 'below'
    ] in rows
    assert ['tiers', 'random', '3', '+1.00 [+1.00, +1.00]', 'above'] in rows
    # Of twice the iterations the plain training makes 4 points.
    assert ['tiers', '0.80', '20.0%', '+1.29', '+1.00 [+1.00, +1.00]'] in rows
    assert ['tiers', '0.80', '-', '1.20', '1.00', '0.80'] in rows
    assert ['short', '52.50', '62.50'] in rows
    assert ['step with pruning', '13.00', '14.00'] in rows
    assert ['plan of 10,000 images', '100.00', '50.00'] in rows
    assert ['next kept share', '0.75', '1'] in rows
    # The order of arms.py.
    arms = [row[0] for row in rows if len(row) == 11]
    assert arms[2:] == ['full', 'short', 'random', 'tiers']


def test_tables_of_other_networks(tmp_path):
    """Here of a loss, whose differences have the sign of the loss."""
    cells = [
        dict(cell, loss=cell['accuracy'] + (seed if arm == 'tiers' else 0))
        for cell in CELLS for arm, seed in [(cell['arm'], cell['seed'])]
    ]
    for cell in cells:
        if cell['arm'] == 'tiers':
            cell['variance_ratio'] = [0.8 + cell['seed'] / 10, 0., 1.]
    (tmp_path / 'mae-w64.jsonl').write_text(''.join(
        json.dumps(cell) + '\n' for cell in cells))
    text = report.reports(str(tmp_path))
    assert '### Results of mae-w64' in text
    rows = rows_of(text)
    assert [
        'full', '3', '120', '0%', '-', '66.50', '0.50', '-',
        '+4.00 [+4.00, +4.00]', '+4.00 [+4.00, +4.00]'
    ] in rows
    # 2.48 is the t-interval of three values that are 1 apart.
    assert [
        'tiers', '3', '60', '50%', '0.900 [0.652, 1.148]', '64.50', '1.50',
        '-2.00 [-4.48, +0.48]', '+2.00 [-0.48, +4.48]', '+2.00 [-0.48, +4.48]'
    ] in rows


def test_the_worth_is_of_arms_with_the_steps_of_random(folder):
    """At another learning rate the difference to it isn't of the choice."""
    path = folder / 'passes-24.jsonl'
    other = [
        make_cell('neyman_full_rate', seed, 64., ratio=0.9, lr=0.2)
        for seed in range(3)
    ]
    path.write_text(''.join(json.dumps(cell) + '\n' for cell in CELLS + other))
    assert list(report.worth_table(report.load(path)).index) == ['tiers']


def test_an_empty_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr('sys.argv', ['report.py', str(tmp_path)])
    with pytest.raises(SystemExit):
        report.main()
    assert 'has no results' in capsys.readouterr().err
