# Copyright (c) mmib contributors. All rights reserved.
"""Runs that can't be pruned are refused before the first step."""
import functools
from contextlib import nullcontext

import numpy as np
import pytest

from mmib.errors import Refusal
from mmib.openmmlab.data.delivery import DeliveryCheck
from mmib.openmmlab.runner.checks import check_length, check_ranks
from mmib.openmmlab.runner.iterations import Iterations
from tests.helpers.processes import run_ranks
from tests.helpers.runs import SIZE, DrivenRun
from tests.test_openmmlab.test_datasets import Listed


@pytest.mark.parametrize('iterations, match', [
    (Iterations(100, 10, 19, 1), r'1.90 passes over 100.* 20 iterations'),
    (Iterations(100, 10, 1, 1,
                iters_per_epoch=10), '`train_cfg.max_epochs` is 1'),
    (Iterations(5, 10, 3, 1,
                iters_per_epoch=0), '`drop_last` leaves them all'),
])
def test_runs_that_are_too_short(iterations, match):
    with pytest.raises(Refusal, match=match):
        check_length(iterations)
    check_length(Iterations(100, 10, 20, 1))
    check_length(Iterations(100, 10, 2, 1, iters_per_epoch=10))


@pytest.mark.parametrize('iterations, fits', [
    (Iterations(100, 10, 19, 1), True),
    (Iterations(100, 10, 1, 1, iters_per_epoch=10), True),
    (Iterations(5, 10, 3, 1, iters_per_epoch=0), False),
])
def test_a_run_that_prunes_nothing_may_be_short(iterations, fits):
    with nullcontext() if fits else pytest.raises(Refusal):
        check_length(iterations, prunes=False)


PATHS = [f'folder/{number}.png' for number in range(SIZE)]


def check_on_rank(rank, results, others):
    results[rank] = []
    for other in others:
        dataset = Listed(other if rank else PATHS)
        size = len(dataset)
        try:
            check_ranks(
                DrivenRun(images=np.arange(size), size=size).run,
                DeliveryCheck(dataset, None))
        except Refusal as error:
            results[rank].append(str(error))


def test_ranks_that_read_other_images():
    """In another order, or fewer."""
    others = [PATHS[::-1], PATHS[:-1], PATHS]
    for errors in run_ranks(
            functools.partial(check_on_rank, others=others), 2):
        assert len(errors) == 2
        assert all('The ranks have read different images, or the same' in error
                   for error in errors)
