# Copyright (c) mmib contributors. All rights reserved.
"""The cells of the comparison on CIFAR-10: which, with what, in which order.
"""
import glob
import os.path as osp

import pytest

from benchmarks.cifar10 import run
from benchmarks.cifar10.arms import ARMS, MORE_PASSES, ORDER, PASSES
from benchmarks.compare.run import Crew

NETWORKS = sorted(
    glob.glob(osp.join(osp.dirname(run.__file__), '*-625_cifar10.py')))[::-1]
RATES = dict(full=0.1, short=0.2, random=0.05)


@pytest.fixture(scope='module')
def bases():
    return {
        passes: run.load_base('images.npz', passes)
        for passes in (PASSES, MORE_PASSES)
    }


def test_every_arm_is_run_in_an_order_without_repeats(bases):
    cells = list(run.all_cells('', bases, RATES))
    names = [(cell.path, cell.arm, cell.seed) for cell in cells]
    assert len(set(names)) == len(names)
    # That of the official package is trained by a script of its own.
    assert {arm for _, arm, _ in names} == set(ARMS) - {'official'}
    assert len({(cell.path, *cell.key) for cell in cells}) == len(cells)
    assert [name[1:] for name in names[:7]
            ] == [(arm, 0) for arm in ORDER[0][1]] + [('full', 1)]


def test_arms_that_would_be_others_are_left_out(bases):
    equal = dict(RATES, random=RATES['full'])
    arms = {cell.arm for cell in run.all_cells('', bases, equal)}
    assert set(ARMS) - arms == {
        'official', 'random_full_rate', 'neyman_full_rate'
    }


def test_other_networks():
    """At the rate of their config, one seed of all before the next."""
    base = run.load_base('images.npz', config=NETWORKS[0])
    cells = list(run.other_cells('', {'a': base, 'b': base}))
    assert [(cell.path, cell.arm, cell.seed)
            for cell in cells[:5]] == [('a.jsonl', 'full', 0),
                                       ('a.jsonl', 'short', 0),
                                       ('a.jsonl', 'random', 0),
                                       ('a.jsonl', 'neyman', 0),
                                       ('b.jsonl', 'full', 0)]
    assert [cell.seed for cell in cells[::8]] == [0, 1, 2]
    assert [cell.cfg.train_cfg.max_iters
            for cell in cells[:4]] == [625, 375, 375, 375]
    assert {cell.cfg.optim_wrapper.optimizer.lr for cell in cells} == {0.001}


def test_the_best_rate_is_that_of_the_mean():
    rows = [
        dict(arm=arm, lr=lr, accuracy=accuracy)
        for arm in ('full', 'short', 'random')
        for lr, accuracy in ((0.4, 50.), (0.1, 49.), (0.1, 53.), (0.4, 51.),
                             (0.2, 51.))
    ]
    assert run.best_rates(rows)['full'] == 0.1
    # The lower one of two that are equal.
    rows.append(dict(arm='short', lr=0.2, accuracy=51.))
    rows.append(dict(arm='short', lr=0.4, accuracy=52.))
    assert run.best_rates(rows)['short'] == 0.1


def test_a_cell_that_fails_is_said_and_the_next_one_trained(bases, capsys):
    crew, cells = Crew(1), []
    for module in ('no_such_module', 'benchmarks.camvid.run'):
        cell = run.make_cell('x', bases[24], 'full', ARMS['full'], 0, 0.1)
        cells.append(cell._replace(module=module, options=dict(wrong=1)))
    assert not list(crew.train(cells))
    assert crew.num_failed == 2
    said = capsys.readouterr()
    assert 'full 0: FAILED: ModuleNotFoundError' in said.out
    assert "unexpected keyword argument 'wrong'" in said.err
