# Copyright (c) mmib contributors. All rights reserved.
"""The small trainings of the picture of docs/optimizers.md."""
import numpy as np
import pytest

from benchmarks import weights_and_steps
from benchmarks.camvid.results import read_results


@pytest.fixture
def small(tmp_path, monkeypatch):
    """One seed, 10 passes of 20 iterations, and a folder of its own."""
    values = dict(OUT=str(tmp_path), SEEDS=1, ITERS=200, NUM_SAMPLES=320)
    for name, value in values.items():
        monkeypatch.setattr(weights_and_steps, name, value)


def test_weights_make_steps_longer_and_then_shorter(small):
    """And nothing is trained twice."""
    for _ in range(2):
        weights_and_steps.train_missing()
    cells = read_results(weights_and_steps.path_of('classifier'))
    assert [cell['arm']
            for cell in cells] == ['short', 'random', 'random_mean1']
    edges = weights_and_steps.edges(cells)
    assert [*edges.values()] == [20, 170]
    steps = weights_and_steps.relative_steps(cells)
    for of_arm in steps.values():
        # The first pass is that of the baseline.
        np.testing.assert_allclose(of_arm.loc[:, :20], 1)
    plain, divided = (steps[arm].iloc[0] for arm in ('random', 'random_mean1'))
    assert plain.loc[20:50].mean() > 1.1 > divided.loc[20:50].mean() > 0.9
    assert plain.loc[180:].mean() < 0.8 < 0.9 < divided.loc[180:].mean() < 1.1


def test_tables_compare_seed_by_seed():
    cells = [
        dict(arm=arm, seed=seed, evals=[dict(mIoU=0),
                                        dict(mIoU=mean + seed)])
        for arm, mean in (('short', 30), ('random', 31),
                          ('random_mean1', 30.5)) for seed in range(3)
    ]
    table = weights_and_steps.quality_table(cells)
    assert table['mIoU'].tolist() == [31, 32, 31.5]
    assert table.loc['random_mean1'].tolist()[-2:] == [
        '+0.50 [+0.50, +0.50]', '-0.50 [-0.50, -0.50]'
    ]
