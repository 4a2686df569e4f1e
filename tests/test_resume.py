# Copyright (c) mmib contributors. All rights reserved.
"""What a checkpoint has is what a training goes on with. Whole trainings that
are resumed are in tests/system."""
import functools
import io

import numpy as np
import pytest
import torch

from mmib import InfoBatchSampler
from mmib.clock import IterationClock
from mmib.delivery import DeliveryCheck
from mmib.log.counts import ImageCounts
from mmib.planner import Planner
from mmib.pruning import (EpsilonGreedy, MeanThreshold, Neyman, QuantileTiers,
                          UpperConfidenceBound, as_policy)
from mmib.resume import check_ranks, load_state, make_state
from mmib.scores import ScoreTable
from mmib.state import seal
from mmib.visits import VisitCounter
from tests.system.processes import run_ranks
from tests.test_datasets import Listed
from tests.visits import make_visits

PATHS = [f'folder/{number}.png' for number in range(13)]


class Parts:
    """The parts of a hook, as it drives them with so many batches in flight,
    and losses that follow from image and iteration."""

    def __init__(self,
                 size=13,
                 policy=MeanThreshold(),
                 paths=None,
                 batch_size=2,
                 lookahead=0,
                 max_iters=60,
                 annealing_iter=51,
                 nan_image=3,
                 **kind):
        dataset = Listed(paths) if paths else range(size)
        self.batch_size = batch_size
        self.lookahead = lookahead
        self.nan_image = nan_image
        self.iter = 0
        self.sampler = InfoBatchSampler(dataset, seed=3)
        self.sampler.by_epoch = False
        self.scores = ScoreTable(np.arange(size), torch.device('cpu'))
        self.clock = IterationClock(
            size,
            batch_size,
            max_iters,
            annealing_iter / max_iters,
            lookahead=lookahead * batch_size)
        self.planner = Planner(
            as_policy(policy), VisitCounter(self.scores, **kind),
            ImageCounts(np.arange(size)), self.clock)
        self.delivery = DeliveryCheck(dataset, None)
        self.epochs = []
        self.slots = []

    def train(self, until):
        """Train until an iteration."""
        self.sampler.connect(self.planner)
        indices = iter(self.sampler)
        for _ in range(self.lookahead * self.batch_size):
            next(indices)
        while self.iter < until:
            for _ in range(self.batch_size):
                next(indices)
            slots = self.sampler.take(self.batch_size)
            self.planner.counts.visit(slots.indices)
            self.epochs += self.planner.advance(self.sampler.position)
            self.slots += zip(slots.indices.tolist(), slots.weights.tolist())
            if self.iter < self.clock.annealing_at:
                losses = (slots.indices + 1) / (2. + self.iter)
                losses[slots.indices == self.nan_image] = np.nan
                losses = torch.tensor(losses).float()
                self.scores.record(
                    make_visits(
                        slots.indices, losses, self.iter, slots.tier_of_slot,
                        slots.weights / self.planner.current.mean_weight,
                        losses.sqrt()))
            self.iter += 1

    @property
    def saved(self):
        return self.planner.saved_iters(self.sampler.position)

    def state(self):
        buffer = io.BytesIO()
        torch.save(
            make_state(self.sampler, self.scores, self.planner, self.delivery),
            buffer)
        buffer.seek(0)
        return torch.load(buffer, weights_only=True)

    def load(self, state, iteration):
        self.iter = iteration
        return load_state(state, iteration, self.batch_size, self.sampler,
                          self.scores, self.planner, self.delivery)

    def resumed(self, other):
        """Load the state into parts that were just set up."""
        reason, other.changes = other.load(self.state(), self.iter)
        assert reason is None
        return other


@pytest.mark.parametrize('policy',
                         [MeanThreshold, EpsilonGreedy, UpperConfidenceBound])
def test_saved_iterations_go_on_with_other_images(policy):
    """And nothing of what the policy remembers of the former ones."""
    part, rest = Parts(policy=policy()), Parts(11, policy())
    part.train(30)
    saved = part.saved
    reason, _ = rest.load(part.state(), 30)
    assert reason == ('the checkpoint is of 13 images, and '
                      '`train_dataloader.dataset` has 11 images')
    assert rest.saved == pytest.approx(saved) and saved > 1
    rest.train(45)
    assert rest.planner.counts.pruned.any()


@pytest.mark.parametrize(
    'policy', [
        QuantileTiers(),
        Neyman(60, num_strata=20),
        Neyman(60, num_strata=1),
        MeanThreshold()
    ],
    ids=repr)
def test_another_policy_learns_nothing_from_the_tiers_of_the_last(policy):
    """Neither from visits nor from slots that are left of its plan."""
    part, rest = Parts(policy=policy), Parts(
        policy=Neyman(60, num_strata=3, min_keep=0.3))
    part.train(20)
    _, changes = rest.load(part.state(), 20)
    assert 'Neyman(full_iters=60, num_strata=3' in changes[-1]
    assert len(rest.sampler._slots) > 0
    assert not rest.sampler._slots.tier_of_slot.any()
    assert rest.planner.visits.take().count == 0
    rest.train(40)


@pytest.mark.parametrize('before, score', [('loss', 'gradient'),
                                           ('loss, relative', 'loss')])
def test_another_kind_of_score_starts_afresh(before, score):
    """Older versions could divide scores by a moving mean of all images."""
    part, rest = Parts(), Parts(score=score)
    part.train(20)
    state = part.state()
    state['planner']['visits']['score'] = before
    reason, _ = rest.load(seal(state), 20)
    assert f'scores in the checkpoint are "{before}", and those' in reason
    assert (rest.scores.numpy() == 1).all()


@pytest.mark.parametrize('paths', [
    PATHS[::-1],
    [*PATHS[1:], 'folder/new.png'],
    None,
])
def test_other_images_start_afresh(paths):
    """Also the same in another order."""
    part, rest = Parts(paths=PATHS), Parts(paths=paths)
    part.train(20)
    reason, _ = rest.load(part.state(), 20)
    assert 'is of other images than `train_dataloader.data' in reason
    assert (rest.scores.numpy() == 1).all()
    rest.train(25)


def test_the_same_images_in_another_folder_go_on():
    part = Parts(paths=PATHS)
    part.train(20)
    rest = Parts(paths=[f'/data/{path}' for path in PATHS])
    assert rest.load(part.state(), 20) == (None, [])
    assert str(rest.state()) == str(part.state())


def check_on_rank(rank, results, other):
    parts = Parts(len(other), paths=other) if rank else Parts(paths=PATHS)
    try:
        check_ranks(parts.sampler, parts.scores, parts.delivery)
    except ValueError as error:
        results[rank] = str(error)


@pytest.mark.parametrize('other', [PATHS[::-1], PATHS[:-1]])
def test_ranks_that_read_other_images(other):
    """In another order, or fewer."""
    for error in run_ranks(functools.partial(check_on_rank, other=other), 2):
        assert 'The ranks have read different images, or the same' in error
