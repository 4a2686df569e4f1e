# Copyright (c) mmib contributors. All rights reserved.
"""The comparison of ways to train, on a few synthetic images."""
import itertools
import json
from argparse import Namespace

import cv2
import numpy as np
import pandas as pd
import pytest

from benchmarks.quality import arms, cifar10, run, table, train

from .utils import rows_of

# With 4 channels, channels last, torch 2.13 crashes on CPUs without AVX-512.
SMALL = {
    'model.backbone.base_channels': 8,
    'model.backbone.stem_channels': 8,
    'model.channels': 32,
    'train_dataloader.batch_size': 4
}
OPTIONS = [f'{name}={value}' for name, value in SMALL.items()]


@pytest.fixture(scope='module')
def data(tmp_path_factory):
    """Packed images whose brightness tells their class: 2 of each to train
    on, 1 that is held out, 1 more, and 2 to test on."""
    folder = tmp_path_factory.mktemp('cifar10')
    rng = np.random.default_rng(0)
    for split, count in (('train', 4), ('test', 2)):
        for label in range(10):
            (folder / split / f'class{label}').mkdir(parents=True)
            for number in range(count):
                image = 25 * label + rng.integers(0, 20, (32, 32, 3))
                path = folder / split / f'class{label}' / f'{number}.jpg'
                cv2.imwrite(str(path), image.astype(np.uint8))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cifar10, 'TRAIN', 2)
        patch.setattr(cifar10, 'HELD_OUT', 1)
        cifar10.prepare(str(folder), str(folder / 'cifar10.npz'))
    return str(folder / 'cifar10.npz')


def test_a_training_in_parts(data, tmp_path, monkeypatch):
    """It is that in one go, however often it is stopped."""
    full = cifar10.full_training(data)
    full.merge_from_dict(SMALL)
    full = arms.with_passes(full, 40 / full.train_cfg.max_iters)
    cfg = arms.make_config(full, 0.6, 8, **arms.ARMS['neyman'])

    def start(folder, deadline):
        return train.train(cfg, cifar10.METRIC, 0, str(tmp_path / folder),
                           deadline)

    whole = start('whole', np.inf)
    # Each look at this clock is a second.
    clock = itertools.count()
    monkeypatch.setattr(train, 'time', Namespace(time=lambda: next(clock)))
    parts, count = None, 0
    while parts is None:
        parts, count = start('parts', next(clock) + 10), count + 1
    assert count > 2 and not (tmp_path / 'parts').exists()
    for figures in (whole, parts):
        figures.pop('seconds')
    assert json.dumps(parts) == json.dumps(whole)
    assert [point['iter'] for point in whole['evals']] == [6, 12, 18, 24]
    assert whole['quality'] == whole['evals'][-1][cifar10.METRIC]


def test_the_command(data, tmp_path, monkeypatch, capsys):
    """Again: nothing is trained twice."""
    monkeypatch.chdir(tmp_path)
    command = [
        'run.py', 'cifar10', '--data', data, '--arms', 'full', 'short',
        '--passes', '0.1', '--lr', '0.1', 'full=0.2', '--out', 'x.jsonl',
        '--seeds', '0', '--cfg-options', *OPTIONS
    ]
    for left in (2, 0):
        monkeypatch.setattr('sys.argv', command)
        with pytest.raises(SystemExit, match='False'):
            run.main()
        assert f'{left} of 2 cells' in capsys.readouterr().out
    lines = run.read_results(tmp_path / 'x.jsonl')
    assert {(x['arm'], x['lr'], x['iters'])
            for x in lines} == {('full', 0.2, 8), ('short', 0.1, 5)}
    monkeypatch.setattr('sys.argv',
                        ['table.py', 'x.jsonl', '--against', 'short'])
    table.main()
    rows = rows_of(capsys.readouterr().out)
    assert [row[:2] for row in rows] == [['full', '0.2'], ['short', '0.1']]


@pytest.mark.parametrize('values, expected', [
    ([1, 2, 3], '+2.00 [-0.48, +4.48]'),
    ([-2, -2.5, -3], '-2.50 [-3.74, -1.26]'),
    ([1.5], '+1.50'),
    ([], '-'),
])
def test_differences(values, expected):
    """Of the seeds that both arms have, as 2 +- 4.302653 * 1 / sqrt(3). Among
    rates the best one counts."""
    figures = dict(data_set='cifar10', passes=24., ratio=0.6, options={})
    figures.update(v=0.9, iters=9, metric='accuracy')
    cells = []
    for alone, (arm, lr, qualities) in enumerate(
        (('a', 0.1, values), ('b', 0.025, [0] * len(values)),
         ('b', 0.1, [-9] * len(values)))):
        for seed, quality in [*enumerate(qualities), (10 + alone, 0.)]:
            cells.append(
                dict(figures, arm=arm, lr=lr, seed=seed, quality=quality))
    (title, group), = table.groups(pd.DataFrame(cells))
    assert title == 'cifar10, 24 passes, ratio 0.6'
    found = table.table(group, 'b')
    assert found.columns[-1] == 'difference to b at 0.025'
    assert found.loc['a', 0.1].iloc[-1] == expected
