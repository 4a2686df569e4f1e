# Copyright (c) mmib contributors. All rights reserved.
"""What a run says of V."""
import pytest

from mmib.openmmlab.console.reporter import worth_in_words
from mmib.worth import MeanRatio, VarianceRatio


@pytest.mark.parametrize('value, effect', [
    (0.966, 'was worth up to 3 % of the steps (V 0.97,'),
    (1.02, "is not distinguishable from chance (V 1.02,"),
    (1.12, 'cost up to 12 % of the steps (V 1.12,'),
])
def test_in_words(value, effect):
    """The percentage and V are rounded alike."""
    ratio = VarianceRatio(value, value - 0.03, value + 0.03, 0.5)
    text = worth_in_words(ratio, 'The', '.')
    assert text.startswith(f'The choice of images {effect} ')
    assert text.endswith(
        f' {value - 0.03:.2f} to {value + 0.03:.2f}; at random it is 1).')


@pytest.mark.parametrize('unknown', [None, MeanRatio().mean()])
def test_nothing_is_said_where_v_is_unknown(unknown):
    assert worth_in_words(unknown, 'The', '.') == ''
