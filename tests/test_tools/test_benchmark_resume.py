# Copyright (c) mmib contributors. All rights reserved.
"""The benchmark of resuming counts what is loaded. Its times are no business
of tests."""
import argparse
import json
import os.path as osp
import sys

import pytest
from mmengine.runner.loops import _InfiniteDataloaderIterator

ROOT = osp.dirname(osp.dirname(osp.dirname(osp.abspath(__file__))))
sys.path.append(osp.join(ROOT, 'tools', 'benchmark'))
import resume  # noqa: E402

# OpenMMLab's loop starts its workers before the checkpoint is read, and stock
# skips the past by loading it.
IS_LAZY = hasattr(_InfiniteDataloaderIterator, 'skip_iter')


@pytest.fixture(scope='module')
def args(tmp_path_factory):
    """The options, with a checkpoint that was made."""
    tmp_path = tmp_path_factory.mktemp('resume')
    args = argparse.Namespace(
        iteration=250,
        images=300,
        workers=2,
        repeats=1,
        stock_repeats=1,
        work_dir=str(tmp_path),
        result=str(tmp_path / 'result.json'))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resume, 'start_part', start_here)
        resume.following(args)
    return args


def start_here(args, part, workers):
    """``start_part`` without a process of its own, which takes longer."""
    resume.run_part(
        argparse.Namespace(**dict(vars(args), part=part, workers=workers)))
    with open(args.result) as file:
        return json.load(file)


def test_what_is_loaded(args, monkeypatch):
    monkeypatch.setenv('TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD', '1')
    monkeypatch.setattr(resume, 'start_part', start_here)
    figures = resume.measure(args)
    items = {name: row['items'] for name, row in figures.items()}
    others = {name: row['others'] for name, row in figures.items()}
    past, started = 250 * 4, 2 * 2 * 4
    assert items == {
        'fresh, 0 workers': 4,
        'resumed, 0 workers': 4,
        'stock fresh, 0 workers': 4,
        'stock resumed, 0 workers': 4 if IS_LAZY else past + 4,
        'fresh, 2 workers': started + 4,
        'resumed, 2 workers': started + 4 + (0 if IS_LAZY else started),
        'stock fresh, 2 workers': started + 4,
        'stock resumed, 2 workers': started + 4 + (0 if IS_LAZY else past),
    }
    for name in items:
        if IS_LAZY or 'fresh' in name or name == 'resumed, 0 workers':
            assert others[name] == 0
        elif 'stock' in name:
            assert others[name] > past / 2
        else:
            assert 0 < others[name] <= started
    for row in figures.values():
        assert 0 < row['median_since_built'] < row['median']
        assert len(row['seconds']) == 1


def test_a_process_of_its_own(args):
    """It resumes from the checkpoint that was made here."""
    after = resume.following(args)
    assert len(after['loaded']) == 4 * (resume.NUM_FOLLOWING + 1)
    result = resume.start_part(args, 'resumed', 0)
    assert result['loaded'] == after['loaded'][:4]


def test_other_items_are_seen():
    runs = [
        dict(
            loaded=loaded,
            cpu=cpu,
            times={
                'loop is built': 1.,
                'first step': seconds
            })
        for loaded, cpu, seconds in (([7, 8, 9], 0.5, 3.), ([1, 7, 8], 1., 4.))
    ]
    figures = resume.summarize(runs, after=[8, 7, 9, 1])
    assert figures['others'] == 1 and figures['items'] == 3
    assert figures['median'] == 3.5 and figures['median_since_built'] == 2.5
    assert figures['median_cpu'] == 0.75
