# Copyright (c) mmib contributors. All rights reserved.
"""Loops of random events, each of which follows from a seed."""
import random
import warnings
from collections import deque

import torch
import torch.distributed as dist

from mmib.pruning import MeanThreshold, RandomPruning
from mmib.ranks import world_of_process
from tests.helpers.audit import Audit, Trainer, assert_same, check_facts

# No loop needs as many iterators.
MOST_ITERATORS = 80


def of_all_ranks(value):
    """Return the value of each rank."""
    world_size = world_of_process().size
    if world_size == 1:
        return [value]
    values = [None] * world_size
    dist.all_gather_object(values, value)
    return values


class RandomLoop:
    """A loop that a seed describes, on any number of ranks.

    Each iterator has a batch size and may leave out what fills no batch. It
    may follow a look at the first batch, a framework may prefetch up to three
    batches from it, and it may end early: by a ``break``, or by a state that
    is saved and loaded. Batches are skipped, masked, or weighed in two parts,
    and on several ranks a rank may skip a batch alone.

    Args:
        seed (int): What everything but the network follows from.
        num_workers (int): Workers of each loader. Defaults to 0.
    """

    def __init__(self, seed, num_workers=0):
        rank, world_size = world_of_process()
        self._random = random.Random(seed)
        # Choices of one rank alone, of which the others know nothing.
        self._alone = random.Random(f'{seed} {rank}')
        self._chooses_alone = world_size > 1
        choose = self._random.choice
        self._prefetched = choose([0, 0, 1, 2, 3])
        self._num_workers = num_workers
        self._skipped = set()
        self._audit = Audit(
            choose([37, 100, 151]),
            choose([None, RandomPruning(0.5),
                    MeanThreshold()]),
            epochs=choose([4, 6, 8]),
            stream=self._random.random() < 0.4,
            shuffle=self._random.random() < 0.8,
            normalize=self._random.random() < 0.3,
            seed=seed)
        self._trainer = Trainer(self._audit)

    def run(self):
        """Run the loop and check what it has done."""
        audit, iterators = self._audit, 0
        with warnings.catch_warnings():
            warnings.filterwarnings('ignore', message='InfoBatch')
            while not self._is_over():
                iterators += 1
                assert iterators < MOST_ITERATORS
                self._iterate()
        facts = of_all_ranks((audit.facts(), self._skipped, audit.given_up))
        images = check_facts([each for each, _, _ in facts]).images
        assert audit.session.progress == 1
        left_out = set().union(*(some for each in facts for some in each[1:]))
        missing = {*range(audit.run.stream.position)} - images.keys()
        assert missing <= left_out, missing - left_out
        if audit.run.schedule.by_epoch:
            assert len(audit.plans) == audit.session.epochs

    def _is_over(self):
        session = self._audit.session
        if self._audit.run.schedule.by_epoch:
            is_over = session.epoch == session.epochs
        else:
            is_over = session.progress == 1
        return any(of_all_ranks(is_over))

    def _iterate(self):
        """Take an iterator until it ends, or until the loop leaves it."""
        audit, choose = self._audit, self._random.choice
        loader = audit.loader(
            choose([8, 13, 18]),
            drop_last=self._random.random() < 0.3,
            num_workers=self._num_workers)
        if self._random.random() < 0.2:
            next(iter(loader), None)
        ends = choose(['by itself', 'by itself', 'break', 'break', 'resume'])
        left = self._random.randrange(1, 9)
        held, batches, is_first = deque(), iter(loader), True
        while True:
            while batches and len(held) <= self._prefetched:
                batch = next(batches, None)
                if batch is None:
                    batches = None
                else:
                    held.append(batch)
            if not held:
                return
            # Ranks that never weigh don't know that others did.
            self._train_on(*held.popleft(), is_first)
            is_first = False
            if self._random.random() < 0.03:
                audit.session.state_dict()
            left -= 1
            if ends != 'by itself' and left == 0:
                if not batches:
                    # The iterator is over, and so is the epoch.
                    for slots, _ in held:
                        self._skipped |= {*slots.numbers.tolist()}
                if ends == 'resume':
                    states = of_all_ranks(audit.resume())
                    assert_same(states[0], states[-1])
                return

    def _train_on(self, slots, batch, is_first):
        trainer, way = self._trainer, self._random.random()
        # What was trained on isn't dealt again.
        assert not {*slots.numbers.tolist()} & self._audit.images.keys()
        if self._chooses_alone and not is_first:
            way *= self._alone.random() > 0.1
        half = len(slots) // 2
        if way < 0.1 and not (self._chooses_alone and is_first):
            self._skipped |= {*slots.numbers.tolist()}
        elif way < 0.2 and half:
            (trainer.weigh(slots, batch, slice(half)).sum() +
             trainer.weigh(slots, batch, slice(half, None)).sum()).backward()
        elif way < 0.25:
            mask = torch.tensor(
                [self._alone.random() < 0.6 for _ in slots.numbers])
            self._skipped |= {*slots[~mask].numbers.tolist()}
            trainer.weigh(slots, batch, mask).sum().backward()
        else:
            trainer.step(slots, batch)
