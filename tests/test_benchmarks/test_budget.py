# Copyright (c) mmib contributors. All rights reserved.
"""What its simulation says of the policy is tested with the policy."""
from benchmarks import budget

from .utils import rows_of


def test_a_row_for_each_shape_and_policy(monkeypatch, capsys):
    monkeypatch.setattr('sys.argv', [
        'budget.py', '--images', '300', '--slots-per-iter', '4', '--max-iters',
        '1200', '--full-iters', '2000'
    ])
    budget.main()
    rows = rows_of(capsys.readouterr().out)
    assert len(rows) == 21
    assert [row[1] for row in rows[:3]
            ] == ['Budget', 'QuantileTiers', 'MeanThreshold']
    assert {float(row[3]) for row in rows} == {26.67}
    assert abs(float(rows[0][2]) - 26.67) < 0.3
