# Copyright (c) mmib contributors. All rights reserved.
"""It counts what is loaded. Its times are no business of tests."""
from argparse import Namespace
from types import SimpleNamespace

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


def test_what_is_skipped(tmp_path, monkeypatch):
    dataset = resume.CountingDataset(9, str(tmp_path / 'loaded.bin'))
    for index in (7, 8, 9, 8):
        dataset[index]
    assert dataset.loaded() == [7, 8, 9, 8]
    batch = [SimpleNamespace(index=index) for index in (8, 7, 5)]
    watch = resume.WatchStart(iters=1)

    class Runner:
        train_loop = SimpleNamespace()
        train_dataloader = SimpleNamespace(dataset=dataset, num_workers=0)
        hooks = [watch]

        def train(self):
            watch.before_train_iter(self, 0, dict(data_samples=batch))

    monkeypatch.setattr(resume, 'make_config', lambda args, start: None)
    monkeypatch.setattr(resume.Runner, 'from_cfg', lambda cfg: Runner())
    found = resume.train(None, 'fresh')
    # One of two visits of 8, and 9.
    assert found['loaded'] == 4 and found['skipped'] == 2
    assert Runner.train_loop.stop_training


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
