# Copyright (c) mmib contributors. All rights reserved.
import logging

import pytest

from benchmarks import frameworks
from tests.test_benchmarks.utils import rows_of


@pytest.mark.filterwarnings('ignore')
def test_frameworks(monkeypatch, capsys):
    options = '--size 6400 --steps 7 --turns 1'
    monkeypatch.setattr('sys.argv', ['frameworks.py', *options.split()])
    frameworks.main()
    logging.disable(logging.NOTSET)
    rows = rows_of(capsys.readouterr().out)
    assert [row[0] for row in rows] == ['accelerate', 'lightning',
                                        'transformers']  # yapf: disable
    assert all(float(cell) > 0 for row in rows for cell in row[1:3])
