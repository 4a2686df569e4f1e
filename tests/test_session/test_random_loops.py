# Copyright (c) mmib contributors. All rights reserved.
"""Random loops: `RandomLoop(seed).run()` repeats one that fails."""
import pytest

from .random_loops import RandomLoop


@pytest.mark.parametrize('seed', range(100))
def test_random_loops(seed):
    RandomLoop(seed).run()


@pytest.mark.slow
@pytest.mark.parametrize('seed', range(100, 1100))
def test_many_random_loops(seed):
    RandomLoop(seed).run()


@pytest.mark.slow
@pytest.mark.parametrize('seed', range(1100, 1150))
def test_random_loops_with_workers(seed):
    RandomLoop(seed, num_workers=2).run()
