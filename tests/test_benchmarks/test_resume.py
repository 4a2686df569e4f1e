# Copyright (c) mmib contributors. All rights reserved.
"""It counts what is loaded. Its times are no business of tests."""
from argparse import Namespace

from benchmarks import resume

from .utils import rows_of

STARTED = 2 * 2 * 4


def test_processes_of_their_own(tmp_path, monkeypatch, capsys):
    """One resumes, and its figures stand for those of all others."""
    args = Namespace(
        iteration=250, images=300, workers=2, folder=str(tmp_path))
    resume.train(args, 'checkpoint')
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
