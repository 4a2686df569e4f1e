# Copyright (c) mmib contributors. All rights reserved.
"""Loops as people write them: each slot is dealt once, with its own weight."""
import itertools
import warnings
from collections import UserDict, deque

import pytest
import torch
import torch.nn.functional as F

from mmib.pruning import MeanThreshold, Neyman, RandomPruning
from tests.helpers.audit import (EPOCHS, SIZE, Audit, Samples, Trainer,
                                 assert_same, network, said)
from tests.helpers.runs import state_of

pytestmark = pytest.mark.filterwarnings('error:InfoBatch')
# 0.6 of the images of all epochs, as the default policy has it.
BUDGET = 0.6 * EPOCHS * SIZE
WORKERS = dict(num_workers=2)
PERSISTENT = dict(WORKERS, persistent_workers=True)
on_workers = pytest.mark.parametrize('workers', [{}, PERSISTENT])
by_stream = pytest.mark.parametrize('stream', [False, True])


@by_stream
@pytest.mark.parametrize('workers', [{}, WORKERS, PERSISTENT])
def test_a_plain_loop(stream, workers):
    audit = Audit(stream=stream)
    trainer = Trainer(audit).train(audit.loader(20, **workers))
    audit.check(audit.planned)
    # By epochs the last plan that prunes may have left a step out.
    assert audit.planned == pytest.approx(BUDGET, abs=1 if stream else 20)
    assert audit.session.progress == 1
    if workers and not stream:
        # Nothing is in flight when a plan is drawn.
        plain = Audit()
        expected = Trainer(plain).train(plain.loader(20)).parameters()
        assert torch.equal(trainer.parameters(), expected)


@pytest.mark.parametrize('policy', [RandomPruning(0.5), MeanThreshold()])
@pytest.mark.parametrize('normalize', [False, True])
@pytest.mark.parametrize('shuffle', [False, True])
def test_other_plans(policy, normalize, shuffle):
    audit = Audit(policy=policy, normalize=normalize, shuffle=shuffle)
    Trainer(audit).train(audit.loader(20))
    audit.check(audit.planned)
    assert audit.planned < 0.9 * EPOCHS * SIZE


def test_a_policy_of_two_sessions():
    """None of them learns from the other one."""
    policy = Neyman()
    alone, first, second = Audit(), Audit(policy=policy), Audit(policy=policy)
    for audit in (alone, first, second):
        Trainer(audit).train(audit.loader(20))
    assert alone.images == first.images == second.images
    assert_same(state_of(second.session), state_of(alone.session))


@on_workers
@pytest.mark.parametrize('drop_last', [False, True])
def test_skipped_batches(workers, drop_last):
    """They are no visits, and their images keep their scores."""
    audit = Audit()
    delivered, skipped = [], []

    def is_skipped(epoch, number, slots, batch):
        delivered.append(len(slots))
        if number % 3 == 2:
            skipped.append(len(slots))
            return True

    loader = audit.loader(11, drop_last, **workers)
    Trainer(audit).train(loader, is_skipped)
    audit.check(sum(delivered) - sum(skipped))
    assert len(skipped) >= 10
    assert sum(delivered) + len(audit.given_up) == audit.planned
    assert audit.session.epoch == len(audit.plans) == EPOCHS


@pytest.mark.parametrize('drop_last', [False, True])
def test_the_last_batch_of_each_epoch_is_skipped(drop_last):
    audit, skipped = Audit(), []

    def is_last(epoch, number, slots, batch):
        if slots.end == audit.run.stream.end:
            skipped.append(len(slots))
            return True

    Trainer(audit).train(audit.loader(22, drop_last), is_last)
    left_out = sum(skipped) + len(audit.given_up)
    audit.check(audit.planned - left_out)
    assert len(skipped) == audit.session.epoch == EPOCHS


def test_an_epoch_of_which_nothing_is_weighed_comes_again():
    audit, counts = Audit(), []

    def is_fourth(epoch, number, slots, batch):
        if number == 0:
            counts.append(epoch)
        return epoch == 3 and counts.count(3) == 1

    with said('nothing was weighed'):
        Trainer(audit).train(audit.loader(20), is_fourth)
    assert counts == [0, 1, 2, 3, 3, 4, 5]
    audit.check(audit.planned)


def test_two_heads_of_which_the_last_counts():
    audit = Audit()
    trainer = Trainer(audit)
    for _ in trainer.iterators():
        for slots, batch in audit.loader(20):
            trainer.update(
                trainer.weigh(slots, batch, scale=0.3).mean() +
                trainer.weigh(slots, batch).mean())
    audit.check(audit.planned)


@by_stream
def test_a_mask(stream):
    """A tensor, on the training device."""
    audit, expected = Audit(stream=stream), 0
    trainer = Trainer(audit)
    for _ in trainer.iterators():
        for slots, batch in audit.loader(20):
            mask = batch[1] != 2
            expected += int(mask.sum())
            trainer.update(trainer.weigh(slots, batch, mask).sum() / 20)
    assert 0 < expected < audit.planned
    audit.check(expected)


def test_microbatches():
    audit = Audit()
    trainer = Trainer(audit)
    for _ in trainer.iterators():
        for slots, batch in audit.loader(20):
            trainer.optimizer.zero_grad()
            for begin in range(0, len(slots), 8):
                part = slice(begin, begin + 8)
                loss = trainer.weigh(slots, batch, part).sum() / len(slots)
                loss.backward()
            trainer.optimizer.step()
    audit.check(audit.planned)


@by_stream
@on_workers
def test_batches_that_are_held_and_weighed_in_reverse_order(stream, workers):
    """Four batches, one backward."""
    audit = Audit(stream=stream)
    trainer, held = Trainer(audit), []

    def weigh_held():
        trainer.update(
            sum(trainer.weigh(*batch).mean() for batch in held[::-1]))
        held.clear()

    loader = audit.loader(20, **workers)
    for _ in trainer.iterators():
        for batch in loader:
            held.append(batch)
            if len(held) == 4:
                weigh_held()
        if held:
            weigh_held()
    audit.check(audit.planned)


def test_a_sample_at_a_time():
    """In any order, with a permutation of the slots."""
    audit = Audit()
    trainer = Trainer(audit)
    for _ in trainer.iterators():
        for slots, batch in audit.loader(20):
            order = torch.randperm(len(slots))
            trainer.optimizer.zero_grad()
            for row in order.split(1):
                (trainer.weigh(slots, batch, row).sum() / 20).backward()
            trainer.optimizer.step()
    audit.check(audit.planned)


@on_workers
@pytest.mark.parametrize('drop_last', [False, True])
def test_looks_at_batches(workers, drop_last):
    """Before the first epoch, and before each one."""
    audit = Audit()
    loader = audit.loader(22, drop_last, **workers)
    trainer = Trainer(audit)
    next(iter(loader))
    for _ in trainer.iterators():
        next(iter(loader))
        next(iter(loader))
        for batch in loader:
            trainer.step(*batch)
    audit.check(audit.planned - len(audit.given_up))
    assert audit.session.epoch == len(audit.plans) == EPOCHS


@on_workers
@pytest.mark.parametrize('epochs', [0, 2])
def test_a_whole_pass_without_a_loss(workers, epochs):
    """Before an epoch, for statistics of BatchNorm: the same batches come
    again, and the Session says where to take all images from."""
    audit, plain = Audit(), Audit()
    expected = Trainer(plain).train(plain.loader(20)).parameters()
    loader = audit.loader(20, **workers)
    trainer = Trainer(audit)
    for _ in range(epochs):
        for batch in loader:
            trainer.step(*batch)
    images = [index for _, batch in loader for index in batch[2].tolist()]
    assert images == [*audit.plans[-1].weights]
    assert audit.session.epoch == epochs
    with said('nothing was weighed'):
        trainer.train(loader)
    audit.check(audit.planned)
    assert torch.equal(trainer.parameters(), expected)


@on_workers
def test_a_look_in_the_middle_of_an_epoch(workers):
    """The loop can't go on then, and goes on when it is run again."""
    audit = Audit()
    loader = audit.loader(10, **workers)

    def look(epoch, number, slots, batch):
        if (epoch, number) == (2, 2):
            next(iter(loader))

    trainer = Trainer(audit)
    with pytest.raises(ValueError, match='iterator'):
        with said('epoch 3 goes on'):
            trainer.train(loader, look)
    with said('epoch 3 goes on'):
        trainer.train(loader)
    audit.check(audit.planned)
    assert len(audit.plans) == EPOCHS


def test_a_rest_of_the_last_epoch_fills_no_batch():
    """With `drop_last` the rest is given up, so that a loop until the end of
    the last epoch ends."""
    audit = Audit(policy=RandomPruning(0.5))
    trainer = Trainer(audit)
    loader = audit.loader(24)
    while audit.session.epoch < EPOCHS - 1:
        for batch in loader:
            trainer.step(*batch)
    for batch in itertools.islice(loader, 4):
        trainer.step(*batch)
    assert audit.session.epoch == EPOCHS - 1
    with said(f'epoch {EPOCHS} goes on', '24 images are given up'):
        assert not [*audit.session.loader(25, drop_last=True)]
    audit.check(audit.planned - 24)
    assert audit.session.epoch == len(audit.plans) == EPOCHS


@on_workers
def test_a_break_in_each_epoch(workers):
    """The next iterator goes on with what is left."""
    audit = Audit()
    loader = audit.loader(10, **workers)
    trainer, iterators = Trainer(audit), 0
    with warnings.catch_warnings(record=True) as texts:
        warnings.simplefilter('always')
        # Python 3.12 has one for a worker that is forked beside a thread.
        warnings.simplefilter('ignore', DeprecationWarning)
        for _ in trainer.iterators():
            iterators += 1
            for batch in itertools.islice(loader, 3):
                trainer.step(*batch)
    assert len(texts) == iterators - EPOCHS >= 3
    assert ' 90 images' in str(texts[0].message)
    audit.check(audit.planned)
    assert len(audit.plans) == EPOCHS


@on_workers
@by_stream
def test_an_exception_and_the_cell_run_again(workers, stream):
    audit = Audit(stream=stream)
    loader = audit.loader(20, **workers)

    def fail(epoch, number, slots, batch):
        if audit.calls == 13:
            audit.calls += 1
            raise KeyboardInterrupt

    trainer = Trainer(audit)
    with pytest.raises(KeyboardInterrupt):
        trainer.train(loader, fail)
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        trainer.train(loader, fail)
    audit.check(audit.planned)


def test_a_batch_in_halves():
    """The memory is too small for the backward pass of the whole batch."""
    audit = Audit()
    trainer = Trainer(audit)
    for _ in trainer.iterators():
        for number, (slots, batch) in enumerate(audit.loader(20)):
            weighed = trainer.weigh(slots, batch)
            if number != 3:
                trainer.update(weighed.mean())
                continue
            del weighed
            trainer.optimizer.zero_grad()
            for half in (slice(0, 10), slice(10, None)):
                loss = trainer.weigh(slots, batch, half).sum() / len(slots)
                loss.backward()
            trainer.optimizer.step()
    audit.check(audit.planned)


@by_stream
@pytest.mark.parametrize('drop_last', [False, True])
def test_a_loader_with_smaller_batches(stream, drop_last):
    """The memory is too small in the forward pass: another loader goes on."""
    audit = Audit(stream=stream)
    trainer, size = Trainer(audit), 24
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        while audit.session.progress < 1:
            try:
                for batch in audit.loader(size, drop_last):
                    if size == 24 and audit.calls == 13:
                        raise MemoryError
                    trainer.step(*batch)
            except MemoryError:
                size //= 2
    missing = {*range(audit.run.stream.position)} - audit.images.keys()
    assert missing <= audit.given_up
    assert drop_last or not missing
    audit.check()


@on_workers
def test_validation(workers):
    """Losses without a gradient stay, anywhere in an epoch."""
    audit = Audit()
    trainer = Trainer(audit)

    def validate(epoch, number, slots, batch):
        inputs, labels, _ = next(iter(validation))
        for slots in (None, slots):
            with torch.no_grad():
                losses = F.cross_entropy(
                    trainer.model(inputs), labels, reduction='none')
                assert audit.session.weigh(losses, slots) is losses
            losses = torch.ones(3, 2)
            assert audit.session.weigh(losses, slots) is losses
        losses = F.cross_entropy(trainer.model(inputs), labels)
        assert audit.session.weigh(losses.detach(), None) == losses

    validation = torch.utils.data.DataLoader(Samples(40, seed=1), 40)
    trainer.train(audit.loader(20, **workers), validate)
    plain = Audit()
    expected = Trainer(plain).train(plain.loader(20))
    assert torch.equal(trainer.parameters(), expected.parameters())
    audit.check(audit.planned)


class Ahead:
    """A loader of a framework that asks for batches before they are due."""

    def __init__(self, loader, count):
        self._loader, self._count = loader, count

    def __iter__(self):
        held = deque()
        for batch in self._loader:
            held.append(batch)
            if len(held) > self._count:
                yield held.popleft()
        yield from held


@by_stream
@on_workers
@pytest.mark.parametrize('count', [1, 2])
def test_a_framework_that_prefetches(stream, workers, count):
    audit = Audit(stream=stream)
    Trainer(audit).train(Ahead(audit.loader(20, **workers), count))
    audit.check(audit.planned)


@by_stream
@pytest.mark.parametrize('count, stops', [(0, (5, 14)), (1, (2, 5, 6, 13)),
                                          (2, (2, 9, 13))])
def test_going_on_in_a_framework_that_prefetches(stream, count, stops):
    """Batches that it holds come again."""
    for stop in stops:
        audit = Audit(stream=stream)
        trainer = Trainer(audit)

        def train(stop=None):
            for _ in trainer.iterators():
                for batch in Ahead(audit.loader(20), count):
                    trainer.step(*batch)
                    if audit.calls == stop:
                        return

        with warnings.catch_warnings():
            warnings.filterwarnings('ignore', '.*goes on with the')
            train(stop)
            audit.resume()
            train()
        audit.check(audit.planned)
        assert audit.session.progress == 1
        assert stream or len(audit.plans) == EPOCHS


@pytest.mark.parametrize('size, policy', [(40, None), (41, None),
                                          (44, RandomPruning(0.5)),
                                          (41, MeanThreshold())])
@pytest.mark.parametrize('drop_last', [False, True])
def test_no_batch_is_smaller_than_those_of_the_baseline(
        size, policy, drop_last):
    """BatchNorm fails on a last batch of one image."""
    sizes = []

    def note(epoch, number, slots, batch):
        sizes.append(len(slots))

    audit = Audit(size, policy)
    # Else the baseline fails.
    layers = [torch.nn.BatchNorm1d(8)] * (size % 4 != 1)
    trainer = Trainer(audit, network(*layers))
    trainer.train(audit.loader(4, drop_last), note)
    audit.check(audit.planned - len(audit.given_up))
    assert min(sizes) == (4 if drop_last else size % 4 or 4)


class OwnBatch(UserDict):
    """A batch that is not a dict."""

    def __init__(self, samples):
        super().__init__(inputs=torch.stack([sample[0] for sample in samples]))

    def to(self, device):
        self.data = {name: x.to(device) for name, x in self.data.items()}
        return self


def test_collate_functions_and_devices():
    """Batches of any form are moved, and slots stay."""

    def collate(samples):
        inputs, labels, images = torch.utils.data.default_collate(samples)
        return dict(
            inputs=[inputs], labels=(labels, ), images=images, name='a')

    audit = Audit()
    loader = audit.loader(
        20, device='meta', collate_fn=collate, num_workers=1, pin_memory=False)
    slots, batch = next(iter(loader))
    assert batch['inputs'][0].is_meta and batch['labels'][0].is_meta
    assert batch['name'] == 'a' and len(slots) == 20
    # As a tokenizer returns them.
    loader = audit.loader(
        20, device='meta', collate_fn=lambda samples: OwnBatch(samples))
    _, batch = next(iter(loader))
    assert batch['inputs'].is_meta
    loader = audit.loader(20, device=torch.device('cpu'), collate_fn=collate)
    slots, batch = next(iter(loader))
    assert batch['images'].tolist() == slots.indices.tolist()
