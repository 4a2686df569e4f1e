# Copyright (c) mmib contributors. All rights reserved.
from benchmarks import plan

from .utils import rows_of


def test_a_row_for_each_size_and_drawer(monkeypatch, capsys):
    monkeypatch.setattr(
        'sys.argv', ['plan.py', '--sizes', '1000', '2000', '--seconds', '0'])
    plan.main()
    rows = rows_of(capsys.readouterr().out)
    assert [row[0] for row in rows] == ['1000'] * 3 + ['2000'] * 3
    # Its ratio is to itself.
    assert rows[0][1] == 'plain numpy' and float(rows[0][3]) == 1
    assert all(float(cell) > 0 for row in rows for cell in row[2:])
