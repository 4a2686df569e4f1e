# Copyright (c) mmib contributors. All rights reserved.
"""States: a run that goes on is the run that was never stopped, bit for bit.
"""
import copy
import itertools
import pickle
import warnings

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import given, settings
from hypothesis import strategies as st
from mmengine.dataset import DefaultSampler, InfiniteSampler
from mmengine.utils import apply_to

from mmib import Session
from mmib.integrations.distributed import DistributedState
from mmib.pruning import MeanThreshold, Neyman, RandomPruning
from tests.helpers.audit import (Audit, Trainer, assert_same, network, refused,
                                 said)
from tests.helpers.runs import (POLICIES, SIZE, dealt, loop, losses_of,
                                plans_of, state_of)

pytestmark = pytest.mark.filterwarnings('error:InfoBatch',
                                        'ignore:InfoBatch. the budget needs')
by_stream = pytest.mark.parametrize('stream', [False, True])


def own(policy=None, stream=False, **kwargs):
    """A Session of a few images, for :func:`tests.helpers.runs.loop`."""
    arguments = dict(epochs=6, delta=0.7, seed=3, stream=stream)
    return Session(range(SIZE), policy, **{**arguments, **kwargs})


@by_stream
@pytest.mark.parametrize('workers', [0, 2])
def test_masks_of_dropout(stream, workers):
    """They are those of the run that was never stopped, where the random
    state of torch is restored before the first batch is asked for."""

    def new():
        audit = Audit(60, stream=stream)
        return audit, Trainer(audit, network(torch.nn.Dropout()))

    def go(audit, trainer, stop=None):
        train(audit, audit.loader(16, num_workers=workers), trainer, stop)

    audit, whole = new()
    go(audit, whole)
    audit, trainer = new()
    go(audit, trainer, 2)
    audit.resume()
    with warnings.catch_warnings():
        warnings.filterwarnings('ignore', '.*goes on with the')
        go(audit, trainer)
    assert torch.equal(trainer.parameters(), whole.parameters())


@by_stream
def test_a_distributed_checkpoint(tmp_path, stream):
    """Within an epoch, and into a Session that has not begun."""
    session, rest = own(stream=stream), own(stream=stream)
    loop(session, 4, 3)
    expected = state_of(session)
    dcp.save(dict(session=DistributedState(session)), checkpoint_id=tmp_path)
    dcp.load(dict(session=DistributedState(rest)), checkpoint_id=tmp_path)
    assert_same(state_of(rest), expected)
    with warnings.catch_warnings():
        warnings.filterwarnings('ignore', '.*goes on with the')
        assert go_on(rest, 4) == go_on(session, 4)


def test_a_state_decides_on_weights():
    """Where the Session doesn't say, so that a framework, which decides at
    the first batch, goes on as before."""
    session = own(normalize=True)
    loop(session, 4, 6)
    rest = own()
    with said():
        rest.load_state_dict(state_of(session))
    rest.decide_normalize(torch.optim.SGD([torch.zeros(1)], 0.1))
    assert state_of(rest)['normalize']
    with said('mean weight'):
        own(normalize=False).load_state_dict(state_of(session))


def seeds_of(session, size=4):
    """The seeds of the workers of an iterator that begins now."""
    return [
        seed for _, seeds in session.loader(size, **WORKERS) for seed in seeds
    ]


def seeds_in(items):
    return [torch.utils.data.get_worker_info().seed]


WORKERS = dict(num_workers=2, collate_fn=seeds_in)


def test_seeds_of_workers():
    """They depend on the position and the seed of the run alone."""
    session = own()
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        first = seeds_of(session)
        assert seeds_of(session) == first and len({*first}) == 2
    assert seeds_of(own()) == first and seeds_of(own(seed=4)) != first
    loop(session, 4, 4)
    assert session.epoch == 1 and not {*seeds_of(session)} & {*first}


def test_a_generator_of_the_user():
    """It draws the seeds of the workers."""
    for seed in (1, 2):
        generator = torch.Generator().manual_seed(seed)
        expected = torch.empty((), dtype=torch.int64).random_(
            generator=torch.Generator().manual_seed(seed)).item()
        loader = own().loader(4, generator=generator, **WORKERS)
        assert next(iter(loader))[1] == [expected]


def go_on(session, batch_size, **loader):
    """Train until the end, unless the run is over."""
    return loop(session, batch_size, **loader) if session.progress < 1 else []


def slots_of(steps):
    return [slot for step in steps for slot in zip(*step[:2])]


def train(audit, loader, trainer, stop=None):
    """Train until so many calls of `weigh`."""
    for _ in trainer.iterators():
        for batch in loader:
            trainer.step(*batch)
            if audit.calls == stop:
                return


@by_stream
def test_going_on_with_workers_is_exact(stream):
    """What was in flight is asked for again. At any place, without workers,
    is below."""
    workers = dict(num_workers=2, persistent_workers=True)
    whole, part = (Audit(stream=stream) for _ in range(2))
    trainer, other = Trainer(whole), Trainer(part)
    train(whole, whole.loader(25, **workers), trainer)
    train(part, part.loader(25, **workers), other, whole.calls // 2)
    part.resume()
    with warnings.catch_warnings():
        warnings.filterwarnings('ignore', '.*goes on with the')
        train(part, part.loader(25, **workers), other)
    assert torch.equal(trainer.parameters(), other.parameters())
    assert (part.calls, part.images) == (whole.calls, whole.images)
    assert_same(state_of(part.session), state_of(whole.session))
    assert part.session.worth == whole.session.worth
    assert part.session.progress == whole.session.progress == 1
    part.check(part.planned)


@by_stream
def test_a_loop_of_ones_own(stream):
    """A first pass of the baseline, pruned ones, and annealing, in 0.6 times
    the slots of the baseline."""
    session = own(stream=stream, epochs=10)
    plans = plans_of(session)
    steps = loop(session, 4)
    assert slots_of(steps) == dealt(plans)
    images = [image for image, _ in slots_of(steps)]
    sampler = (InfiniteSampler if stream else DefaultSampler)(
        range(SIZE), seed=3)
    assert images[:SIZE] == list(itertools.islice(sampler, SIZE))
    assert len(images) == pytest.approx(
        0.6 * 10 * SIZE, abs=1 if stream else 4)
    progress = [step[2] for step in steps]
    assert progress == sorted(progress)
    assert progress[-1] == 1 and progress[0] < 0.1
    full = [plan.is_full for _, plan in plans]
    assert full[:2] == [True, False] and full[-1] and sum(full) < len(full) / 2
    # All that was seen is in the tables.
    tables = session._run.table
    session.state_dict()
    assert tables.visits.tolist() == np.bincount(images).tolist()


@given(POLICIES, st.booleans(), st.booleans(), st.integers(1, 5), st.data())
@settings(max_examples=15)
def test_any_policy_goes_on(policy, stream, drop_last, batch_size, data):
    """At any batch, also at the last of an epoch, before the first one and
    after the end. Saving changes nothing, nor what the Session that goes on
    was trained on before."""
    one, two, three = (own(policy(), stream) for _ in range(3))
    with warnings.catch_warnings():
        warnings.filterwarnings('ignore', message='InfoBatch')
        whole = loop(one, batch_size, save=True, drop_last=drop_last)
        at = data.draw(st.integers(0, len(whole)))
        part = loop(two, batch_size, at, drop_last=drop_last)
        if data.draw(st.booleans()):
            given_up = data.draw(st.integers(0, len(whole)))
            loop(three, batch_size, given_up, drop_last=drop_last)
        three.load_state_dict(state_of(two))
        rest = go_on(three, batch_size, drop_last=drop_last)
    assert part + rest == whole
    assert_same(state_of(three)['tables'], state_of(one)['tables'])


@given(POLICIES, st.booleans(), st.integers(1, 5), st.integers(1, 5),
       st.integers(1, 12))
@settings(max_examples=25)
def test_a_loop_with_another_batch_size(policy, stream, before, after, at):
    """Each slot of each plan comes once, except for those that would make a
    smaller batch than the baseline's last one."""
    part, rest = own(policy(), stream), own(policy(), stream)
    plans = plans_of(part)
    with warnings.catch_warnings():
        warnings.filterwarnings('ignore', message='InfoBatch')
        steps = loop(part, before, at)
        open_plan = len(plans)
        rest.load_state_dict(state_of(part))
        rest._run._observers = part._run._observers
        steps += go_on(rest, after)
    images, planned = ([image for image, _ in slots]
                       for slots in (slots_of(steps), dealt(plans)))
    num_cut = len(planned) - len(images)
    if num_cut:
        left = sum(len(plan) for _, plan in plans[:open_plan]) - sum(
            len(step[0]) for step in steps[:at])
        assert num_cut == left % after and not stream
        rows = iter(planned)
        assert all(image in rows for image in images)
    else:
        assert slots_of(steps) == dealt(plans)
    assert rest.progress == 1


class OnDevice(torch.Tensor):
    """A tensor that numpy can't read, as on a GPU."""

    def numpy(self):
        raise TypeError

    def cpu(self):
        return self.as_subclass(torch.Tensor)


def test_a_state_that_was_loaded_to_the_device():
    part, rest = own(), own()
    steps = loop(part, 4, 2)
    rest.load_state_dict(
        apply_to(
            state_of(part), torch.is_tensor,
            lambda tensor: tensor.as_subclass(OnDevice)))
    with said('epoch 1 goes on'):
        assert steps + loop(rest, 4) == loop(own(), 4)


@pytest.mark.parametrize(
    'duplicate',
    [copy.deepcopy, lambda session: pickle.loads(pickle.dumps(session))])
def test_a_copy_goes_on(duplicate):
    """Also of a Session that hears signals of the cluster."""
    whole, part = own(MeanThreshold()), own(MeanThreshold())
    assert not part.wants_to_stop
    steps = loop(part, 4, 2)
    with said('goes on'):
        assert steps + loop(duplicate(part), 4) == loop(whole, 4)


def test_what_has_changed_is_said():
    part = own(Neyman())
    loop(part, 4, 6)
    rest = own(RandomPruning(0.5), epochs=8, normalize=True, ema=0.5)
    with said('`ema` is 0.5'):
        rest.load_state_dict(state_of(part))
    with said():
        own(Neyman()).load_state_dict(state_of(part))


def test_slots_of_before_are_refused():
    """And iterators too, as what they deliver is dealt once more."""
    session = own()
    loader = session.loader(4)
    batches = iter(loader)
    slots, batch = next(batches)
    losses, predictions = losses_of(slots.indices, 0)
    state = state_of(session)
    session.load_state_dict(state)
    with refused('`slots`'):
        session.weigh(losses, slots, predictions)
    with refused('newer iterator'):
        next(batches)
    slots, batch = next(iter(loader))
    session.weigh(losses, slots, predictions)


@pytest.mark.parametrize('drop_last', [False, True])
def test_the_last_batch_of_an_epoch_is_skipped(drop_last):
    """The epoch is over, also for a run that goes on."""
    parameters = []
    for resumes in (False, True):
        audit = Audit(policy=RandomPruning(0.5))
        trainer = Trainer(audit)
        for epoch in trainer.iterators():
            assert epoch == len(audit.plans)
            for slots, batch in audit.loader(25, drop_last):
                if slots.end != audit.run.stream.end:
                    trainer.step(slots, batch)
            if resumes:
                audit.resume()
        parameters.append(trainer.parameters())
    assert torch.equal(*parameters)
