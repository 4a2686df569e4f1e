# Copyright (c) mmib contributors. All rights reserved.
import pandas as pd
from learning_rates import by_rate


def cells(**mious):
    rows = [(arm, seed, miou) for arm, values in mious.items()
            for seed, miou in enumerate(values)]
    return pd.DataFrame(
        rows, columns=['arm', 'seed', 'miou']).set_index(['arm', 'seed'])


def test_means_are_of_the_seeds_that_all_rates_have():
    table = by_rate({
        '0.1': cells(full=[30, 34, 50], short=[20], tiers=[9]),
        '0.2': cells(full=[31, 36], short=[22, 99])
    })
    assert table.to_dict('index') == {
        'full': {
            'seeds': 2,
            '0.1': '32.00',
            '0.2': '33.50'
        },
        'short': {
            'seeds': 1,
            '0.1': '20.00',
            '0.2': '22.00'
        }
    }
