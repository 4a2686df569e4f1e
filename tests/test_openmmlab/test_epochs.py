# Copyright (c) mmib contributors. All rights reserved.
"""Steps of schedulers in epochs that are shorter than those of the baseline.
"""
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mmib.openmmlab.runner.epochs import ScheduleSteps
from mmib.pruning import EpochPlan, RandomPruning
from mmib.run.run import Run
from mmib.stream.schedule import Schedule


@given(
    st.integers(1, 50), st.lists(st.integers(1, 400), min_size=2, max_size=5),
    st.integers(1, 40), st.integers(1, 40), st.booleans(), st.integers(0, 40))
def test_schedulers_make_the_steps_of_the_baseline(per_epoch, sizes,
                                                   slots_per_iter, later,
                                                   drop_last, resumed_at):
    """Whatever the epochs keep, each ends where that of the baseline does,
    also where a run goes on with another batch size. The next epoch makes
    up for one that has no whole batch."""
    run = Run(
        np.arange(400), RandomPruning(),
        Schedule(400, 5, 400, 1, 0, by_epoch=True), print)
    steps_of_run, stream = ScheduleSteps(run, per_epoch), run.stream
    iteration = steps = 0
    for epoch, size in enumerate(sizes):
        ones = np.ones(size, np.float32)
        stream.deal(EpochPlan(np.arange(size), ones), size)
        assert run.epoch == epoch + 1
        begin, is_over, made_up = (stream.position, False, steps
                                   < epoch * per_epoch)
        while True:
            end = stream.end - (stream.left % slots_per_iter) * drop_last
            steps_of_run.set_end(end)
            while stream.position < end and iteration != resumed_at:
                stream.advance(min(stream.position + slots_per_iter, end))
                iteration += 1
                due = steps_of_run.due()
                most = -(-per_epoch * slots_per_iter // max(end - begin, 1))
                assert 0 <= due and (due <= most or made_up
                                     or iteration > resumed_at)
                steps += due
                is_over = stream.position == end
            if iteration != resumed_at:
                break
            resumed_at, slots_per_iter, is_over = -1, later, False
            state = steps_of_run.state_dict()
            steps_of_run = ScheduleSteps(run, 999)
            steps_of_run.load_state_dict(state)
        if is_over:
            assert steps == (epoch + 1) * per_epoch
        # With what `drop_last` leaves.
        stream.advance(stream.end)
