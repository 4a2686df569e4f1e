# Copyright (c) mmib contributors. All rights reserved.
"""In annealing the hook costs nothing, and visits are counted still."""
import functools
from contextlib import ExitStack
from unittest import mock

import numpy as np
import pytest
import torch.distributed as dist

from tests.helpers.epochs import by_epoch
from tests.helpers.processes import run_ranks
from tests.helpers.segmentors import (build, distribute, infobatch_hook,
                                      train_and_note)
from tests.system import test_waiting
from tests.system.test_ranks import COLLECTIVES
from tests.system.test_waiting import Watch

SIZE = 23
LOOPS = {
    'by iterations': {
        'train_cfg.max_iters': 60,
        'default_hooks.checkpoint.interval': 1000
    },
    'by epochs': by_epoch(),
}
CHANGES = {
    # Delivers the first image in the place of the second one.
    'train_dataloader.dataset.type': test_waiting.LosesAnImage.__name__,
    'train_dataloader.dataset.size': SIZE,
    'train_dataloader.batch_size': 2,
    'custom_hooks': [
        dict(
            type='InfoBatchHook', policy=dict(type='MeanThreshold'), delta=0.5)
    ],
}


def noted(method, operations):
    """Note the operations of each call of a method."""

    def call(*args, **kwargs):
        with Watch() as watch:
            method(*args, **kwargs)
        operations.append(watch.operations.names)

    return call


def train_rank(rank, results, work_dir, loop):
    runner = build(work_dir, **{**LOOPS[loop], **CHANGES})
    distribute(runner)
    hook = infobatch_hook(runner)
    before, after = [], []
    hook.begin_step = noted(hook.begin_step, before)
    hook.end_step = noted(hook.end_step, after)
    with ExitStack() as stack:
        mocks = [
            stack.enter_context(
                mock.patch.object(dist, name, wraps=getattr(dist, name)))
            for name in COLLECTIVES
        ]

        def note(runner, data_batch, outputs):
            return dict(
                is_full=hook.kept_share == 1,
                epoch=hook.run.stream.current.record.epoch,
                collectives=sum(each.call_count for each in mocks),
                asked=hook._slots.indices.tolist(),
                delivered=[int(x[0, 0, 0]) for x in data_batch['inputs']])

        steps = train_and_note(runner, note)
    tables = hook.run.table
    results[rank] = (steps, before, after, tables.visits, tables.scores,
                     tables.last_visit)


@pytest.mark.parametrize('loop', LOOPS)
@pytest.mark.parametrize('world_size', [1, 2])
def test_annealing_costs_nothing_and_is_counted(tmp_path, loop, world_size):
    ranks = run_ranks(
        functools.partial(train_rank, work_dir=str(tmp_path), loop=loop),
        world_size)
    visits = np.zeros(SIZE, int)
    for steps, before, after, *_ in ranks:
        pruned = [i for i, step in enumerate(steps) if not step['is_full']]
        first = pruned[-1] + 1  # Of annealing.
        annealing = steps[first:]
        assert len({step['epoch'] for step in annealing}) > 1
        # Neither an operation nor a collective in several plans.
        assert not set().union(*before[first:], *after[first:])
        assert any(before[:first]) and all(after[:first])
        assert len({step['collectives'] for step in annealing}) == 1
        for step in steps:
            np.add.at(visits, step['asked'], 1)
            assert step['delivered'] == [
                0 if index == 1 else index for index in step['asked']
            ]
    for *_, of_images, scores, last_visit in ranks:
        np.testing.assert_array_equal(of_images, visits)
        # The image that was never delivered.
        assert visits[1] > 3 and scores[1] == 1 and last_visit[1] == 0
        assert (np.delete(scores, 1) != 1).all()
