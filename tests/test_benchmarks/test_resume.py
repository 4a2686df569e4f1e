# Copyright (c) mmib contributors. All rights reserved.
"""It counts what is loaded. Its times are no business of tests."""
from argparse import Namespace

import pytest
from mmengine.runner.loops import _InfiniteDataloaderIterator

from benchmarks import resume

from .utils import rows_of

# OpenMMLab's loop starts its workers before the checkpoint is read, and the
# baseline skips the past by loading it.
IS_LAZY = hasattr(_InfiniteDataloaderIterator, 'skip_iter')
PAST, STARTED = 250 * 4, 2 * 2 * 4


@pytest.fixture(scope='module')
def args(tmp_path_factory):
    """The options, with a checkpoint that was made."""
    args = Namespace(iteration=250, images=300, workers=2)
    args.folder = str(tmp_path_factory.mktemp('resume'))
    resume.train(args, 'checkpoint')
    return args


@pytest.mark.parametrize('start, dropped', [('fresh', 0), ('resumed', STARTED),
                                            ('baseline resumed', PAST)])
def test_what_is_loaded(args, start, dropped):
    found = resume.train(args, start)
    dropped = 0 if IS_LAZY else dropped
    assert found['loaded'] == STARTED + 4 + dropped
    # An image that was dropped may be trained on next as well.
    assert found['skipped'] <= dropped
    assert (found['skipped'] > 0) == (dropped > 0)
    assert found['seconds'] > 0


def test_processes_of_their_own(args, monkeypatch, capsys):
    found = resume.train_apart(args, 'resumed')
    assert found['loaded'] >= STARTED + 4
    monkeypatch.setattr(
        resume, 'train_apart', lambda args, start: resume.train(args, start)
        if start == 'checkpoint' else dict(found, start=start))
    monkeypatch.setattr('sys.argv', [
        'resume.py', '--iteration', '250', '--images', '300', '--repeats', '3'
    ])
    resume.main()
    rows = rows_of(capsys.readouterr().out)
    assert [row[0] for row in rows] == list(resume.STARTS)
    assert [len(row[4].split()) for row in rows] == [3, 3, 1]
    assert int(rows[1][1]) == found['loaded']
