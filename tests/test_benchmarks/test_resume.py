# Copyright (c) mmib contributors. All rights reserved.
"""It counts what is loaded. Its times are no business of tests."""
from argparse import Namespace

import pytest

from benchmarks import resume

from .utils import rows_of

STARTED = 2 * 2 * 4


@pytest.fixture(scope='module')
def args(tmp_path_factory):
    """The options, with a checkpoint that was made."""
    args = Namespace(iteration=250, images=300, workers=2)
    args.folder = str(tmp_path_factory.mktemp('resume'))
    resume.train(args, 'checkpoint')
    return args


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
