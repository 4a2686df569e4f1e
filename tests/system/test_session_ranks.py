# Copyright (c) mmib contributors. All rights reserved.
"""Loops of one's own in several real processes, over gloo."""
import functools
import itertools
import warnings

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from mmib import Session
from mmib.errors import Refusal
from mmib.pruning import Neyman, RandomPruning
from mmib.ranks import World
from tests.helpers.audit import (EPOCHS, SIZE, Audit, Samples, Trainer,
                                 assert_same, check_facts, check_words,
                                 network)
from tests.helpers.processes import run_ranks
from tests.test_session.random_loops import RandomLoop


def of_workers(num_workers, **kwargs):
    """Arguments of a loader whose workers start at once."""
    return dict(
        num_workers=num_workers,
        persistent_workers=True,
        multiprocessing_context='fork',
        **kwargs)


by_stream = pytest.mark.parametrize('stream', [False, True])


def random_loops(rank, results, seeds):
    for seed in seeds:
        print('seed', seed, flush=True)
        RandomLoop(seed).run()
    results[rank] = len(seeds)


@pytest.mark.parametrize('seeds', [
    range(12),
    *(pytest.param(range(begin, begin + 100), marks=pytest.mark.slow)
      for begin in range(12, 412, 100))
])
def test_random_loops(seeds):
    """A failure shows the seed of its loop last."""
    results = run_ranks(functools.partial(random_loops, seeds=seeds), 2)
    assert results == 2 * [len(seeds)]


def outside_of_the_group(store, function):
    """Call a function without a process group. The group begins anew then."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    # Another rank may still connect to this one.
    dist.barrier()
    dist.destroy_process_group()
    value = function()
    dist.init_process_group(
        'gloo',
        init_method=f'file://{store}',
        rank=rank,
        world_size=world_size)
    return value


def train(rank,
          results,
          batch_size=10,
          drop_last=False,
          num_workers=0,
          store=None,
          **kwargs):
    """Train until the end, with a Session from before the process group if
    there is a store."""
    make = functools.partial(Audit, **kwargs)
    audit = outside_of_the_group(store, make) if store else make()
    trainer = Trainer(audit, DistributedDataParallel(network()))
    trainer.train(
        audit.loader(batch_size, drop_last,
                     **(of_workers(num_workers) if num_workers else {})))
    facts = audit.facts()
    assert audit.session.progress == 1
    results[rank] = facts, trainer.parameters(), audit.run.seed


def check_slots(facts, world_size, stream):
    """Each slot of each plan was dealt once. By epochs, slots of a plan fill a
    step of all ranks: the first slots of a full plan, and random slots of a
    plan that prunes. The last slots of a stream, fewer than ranks, are left.
    """
    expected = []
    for plan in facts.plans:
        images, size = [*plan.weights], len(plan.weights)
        filled = 0 if stream else -size % world_size
        again = range(filled)
        if size < len(facts.scores):
            rng = np.random.default_rng([facts.state['seed'], plan.first_slot])
            again = rng.choice(size, filled, replace=filled > size)
        expected += images + [images[row] for row in again]
    end = len(expected) - len(expected) % world_size
    assert facts.images == dict(enumerate(expected[:end]))


@by_stream
@pytest.mark.parametrize('drop_last', [False, True])
@pytest.mark.parametrize('size', [SIZE, SIZE + 1])
def test_two_ranks(stream, drop_last, size):
    results = run_ranks(
        functools.partial(
            train, dataset=size, stream=stream, drop_last=drop_last), 2)
    facts = check_facts([facts for facts, *_ in results])
    planned = sum(len(plan.weights) for plan in facts.plans)
    # By epochs the last plan that prunes may have left a step out.
    assert planned == pytest.approx(
        0.6 * EPOCHS * size, abs=1 if stream else 20)
    if not drop_last:
        check_slots(facts, 2, stream)
    elif stream:
        assert facts.images.keys() == {*range(planned - planned % 20)}
    else:
        # Two full epochs of 121 images.
        assert len(facts.images) == planned - 2 * (size - SIZE)
    assert torch.equal(results[0][1], results[1][1])


def train_sharded(rank, results):
    """Train with FSDP."""
    model = network()
    mesh = init_device_mesh('cpu', (2, ))
    for module in (model[0], model[-1], model):
        fully_shard(module, mesh=mesh)
    audit = Audit()
    Trainer(audit, model).train(audit.loader(10))
    assert audit.session.progress == 1
    results[rank] = audit.facts(), torch.cat(
        [p.full_tensor().detach().flatten() for p in model.parameters()])


def test_sharded_parameters():
    """They are those of DistributedDataParallel."""
    facts, parameters = zip(*run_ranks(train_sharded, 2))
    check_slots(check_facts(facts), 2, False)
    _, expected, _ = run_ranks(train, 2)[0]
    assert torch.equal(parameters[0], parameters[1])
    torch.testing.assert_close(parameters[0], expected)


def train_replica(rank, results, stream, num_replicas):
    """Train two processes on the same batches, with other last bits."""
    audit = Audit(stream=stream, num_replicas=num_replicas, rank=rank // 2)
    model = network()
    with torch.no_grad():
        model[0].weight += 1e-4 * rank
    Trainer(audit, model).train(audit.loader(10))
    results[rank] = audit.facts()


@by_stream
@pytest.mark.parametrize('num_replicas', [1, 2])
def test_processes_that_train_on_the_same_batches(stream, num_replicas):
    """The scores of one of them count for all."""
    facts = run_ranks(
        functools.partial(
            train_replica, stream=stream, num_replicas=num_replicas),
        2 * num_replicas)
    for one, other in zip(facts[::2], facts[1::2]):
        assert one.images == other.images and one.losses != other.losses
        assert_same(one.state, other.state)
    check_slots(check_facts(facts[1::2]), num_replicas, stream)


def train_with_one_rank(rank, results):
    audit = Audit(num_replicas=2, rank=0)
    with pytest.raises(Refusal, match=r'ranks \[0, 0\] of 2'):
        Trainer(audit, network()).train(audit.loader(10))
    results[rank] = True


def test_replicas_that_all_have_one_rank():
    assert run_ranks(train_with_one_rank, 2) == [True, True]


def test_three_ranks_with_workers():
    results = run_ranks(
        functools.partial(train, num_workers=1, batch_size=7), 3)
    facts = check_facts([facts for facts, *_ in results])
    check_slots(facts, 3, stream=False)


@by_stream
@pytest.mark.parametrize('seed', [0, None])
def test_a_session_from_before_the_process_group(stream, seed, tmp_path):
    results = run_ranks(
        functools.partial(
            train, store=tmp_path / 'store', stream=stream, seed=seed), 2)
    facts = check_facts([facts for facts, *_ in results])
    check_slots(facts, 2, stream)
    assert results[0][2] == results[1][2] is not None


def train_and_meet(rank, results, store):
    """Train on some batches before there is a process group."""

    def begin():
        audit = Audit()
        trainer = Trainer(audit)
        for batch in itertools.islice(audit.loader(10), 3):
            trainer.step(*batch)
        return audit.session

    session, results[rank] = outside_of_the_group(store, begin), []
    for function in (lambda: next(iter(session.loader(10))),
                     session.state_dict):
        with pytest.raises(Refusal) as caught:
            function()
        results[rank].append(str(caught.value))


def test_a_process_group_from_after_the_first_batch(tmp_path):
    results = run_ranks(
        functools.partial(train_and_meet, store=tmp_path / 'store'), 2)
    for rank, texts in enumerate(results):
        for text in texts:
            assert text.startswith(
                'The Session has begun as rank 0 of 1, and the process is now '
                f'rank {rank} of 2: call `init_process_group`')
            check_words(text)


class OfItsOwn:
    """A policy that doesn't take its random choices from `rng`."""

    def __init__(self, seed):
        self._rng = np.random.default_rng(seed)

    def __call__(self, scores, rng):
        return RandomPruning(0.5)(scores, self._rng)


DIFFERENT = dict(
    batch_size=[dict(batch_size=10), dict(batch_size=12)],
    drop_last=[dict(drop_last=False),
               dict(drop_last=True)],
    num_workers=[{}, of_workers(1)],
    prefetch_factor=[
        of_workers(1, prefetch_factor=2),
        of_workers(1, prefetch_factor=3)
    ],
    seed=[dict(seed=0), dict(seed=1)],
    policy=[dict(policy=Neyman()),
            dict(policy=RandomPruning(0.3))],
    random_policy=[dict(policy=OfItsOwn(0)),
                   dict(policy=OfItsOwn(1))])
NAMES = dict(
    num_workers='num_workers` and `prefetch_factor',
    prefetch_factor='num_workers` and `prefetch_factor',
    random_policy='policy')


def train_differently(rank, results, of_ranks, stream):
    arguments = dict(of_ranks[rank])
    session = Session(
        Samples(),
        arguments.pop('policy', None),
        EPOCHS,
        seed=arguments.pop('seed', 0),
        stream=stream)
    model, iterators = network(), 0
    with pytest.raises(Refusal) as caught:
        while session.progress < 1:
            iterators += 1
            for slots, (inputs, labels, _) in session.loader(**{
                    'batch_size': 10,
                    **arguments
            }):
                losses = F.cross_entropy(
                    model(inputs), labels, reduction='none')
                session.weigh(losses, slots).mean().backward()
        session.state_dict()
    results[rank] = str(caught.value), iterators


@by_stream
@pytest.mark.parametrize('name', DIFFERENT)
def test_what_differs_between_ranks(name, stream):
    """It is refused on all of them, and none hangs."""
    results = run_ranks(
        functools.partial(
            train_differently, of_ranks=DIFFERENT[name], stream=stream), 2)
    for text, iterators in results:
        assert text.startswith(
            f'`{NAMES.get(name, name)}` differs between the ranks')
        check_words(text)
        # Where an iterator is an epoch, it is refused between two.
        if not stream:
            assert iterators == (3 if 'policy' in name else 2)


def look_alone(rank, results):
    audit = Audit()
    trainer, loader = Trainer(audit), audit.loader(10)
    if rank == 1:
        next(iter(loader))
        next(iter(audit.loader(7)))
    trainer.train(loader)
    results[rank] = audit.facts()


def test_a_rank_looks_at_batches_alone():
    """Before the first epoch it may."""
    check_slots(check_facts(run_ranks(look_alone, 2)), 2, False)


def skip_alone(rank, results, stream):
    audit = Audit(stream=stream)
    trainer, skipped = Trainer(audit), set()

    def skip(epoch, number, slots, batch):
        if number % 3 == rank + 1:
            skipped.update(slots.numbers.tolist())
            return True

    trainer.train(audit.loader(5), skip)
    results[rank] = audit.facts(), skipped, audit.session.progress


@by_stream
def test_ranks_skip_batches_alone(stream):
    """Each rank other ones, also the last one of an epoch."""
    results = run_ranks(functools.partial(skip_alone, stream=stream), 2)
    facts = check_facts([facts for facts, *_ in results])
    skipped = results[0][1] | results[1][1]
    assert not skipped & facts.images.keys() and len(skipped) > 50
    planned = sum(len(plan.weights) for plan in facts.plans)
    assert skipped | facts.images.keys() == {*range(planned - planned % 2)}
    assert [progress for *_, progress in results] == [1, 1]


def skip_before_a_break(rank, results):
    audit, ends = Audit(), []
    trainer = Trainer(audit)
    for number, batch in enumerate(audit.loader(5)):
        if rank == 0 or number < 2:
            trainer.step(*batch)
        if number == 4:
            break
    with warnings.catch_warnings():
        warnings.filterwarnings('ignore', '.*goes on with the')
        for slots, batch in audit.loader(5):
            ends.append(slots.end)
            trainer.step(slots, batch)
    results[rank] = audit.facts(), ends


def test_a_rank_skips_batches_before_a_break():
    """All ranks go on where the furthest one is, with as many batches."""
    (facts, ends), (others, their_ends) = run_ranks(skip_before_a_break, 2)
    assert ends == their_ends == [*range(60, 121, 10)]
    missing = {*range(120)} - check_facts([facts, others]).images.keys()
    assert missing == {*range(21, 50, 2)}


def weigh_late(rank, results):
    audit = Audit()
    trainer = Trainer(audit)
    held = [*itertools.islice(audit.loader(5), 4)]
    for number in (2, 0, 1):
        if rank or number:
            trainer.step(*held[number])
        audit.session.state_dict()
    facts = audit.facts()
    with warnings.catch_warnings():
        warnings.filterwarnings('ignore', '.*goes on with the')
        for batch in audit.loader(5):
            trainer.step(*batch)
    for batch in audit.loader(5):
        trainer.step(*batch)
    before = audit.facts()
    audit.session.weigh(torch.ones(5, requires_grad=True), held[3][0])
    after = audit.facts()
    results[rank] = facts, before, after


def test_batches_that_are_weighed_late():
    """States were saved after a later batch. What is of the plan in training
    counts, and of a plan before nothing is written, nor for other images."""
    results = run_ranks(weigh_late, 2)
    facts = check_facts([facts for facts, *_ in results])
    # One rank has left a batch out.
    assert len(facts.images) == 25
    for _, before, after in results:
        np.testing.assert_array_equal(after.visits, before.visits)
        np.testing.assert_array_equal(after.scores, before.scores)


def train_part(rank, results, stream, batch_size, until, before=None):
    """Train until more than so much of a run is over."""
    audit = Audit(SIZE - 1, stream=stream)
    if before:
        audit.go_on(before)
    trainer = Trainer(audit)

    def train():
        for _ in trainer.iterators():
            for batch in audit.loader(batch_size):
                trainer.step(*batch)
                if audit.session.progress > until:
                    return

    with warnings.catch_warnings():
        warnings.filterwarnings('ignore', '.*goes on with the')
        train()
    results[rank] = audit.facts()


@by_stream
def test_other_ranks(stream):
    """One rank, then two, then one, with other batch sizes: each slot of each
    plan is dealt once, except for those that fill a step by epochs, and those
    that would make a last step smaller than the baseline's."""
    before = None
    for world_size, batch_size, until in ((1, 8, 0.25), (2, 5, 0.9), (1, 7,
                                                                      1)):
        results = run_ranks(
            functools.partial(
                train_part,
                stream=stream,
                batch_size=batch_size,
                until=until,
                before=before), world_size)
        before = check_facts(results)
    facts = before
    assert {*facts.images} == {*range(facts.state['stream']['position'])}
    ends = [plan.first_slot
            for plan in facts.plans[1:]] + [facts.state['stream']['position']]
    missing = []
    for plan, end in zip(facts.plans, ends):
        planned = [*plan.weights]
        dealt = [
            facts.images[number] for number in range(plan.first_slot, end)
        ]
        missing.append(len(planned) - len(dealt))
        own, again = dealt[:len(planned)], dealt[len(planned):]
        rest = iter(planned)
        assert all(image in rest for image in own)
        assert {*again} <= {*own}
        if len(planned) == SIZE - 1:
            assert again == planned[:len(again)]
    filled = [-(len(plan.weights) % 2) for plan in facts.plans]
    # Of the plan that was open on one rank, 23 slots were left for steps of
    # 10, and the baseline's last one has 9. The last plan ends on one rank.
    assert missing == (len(ends) * [0] if stream else [0, 3, *filled[2:-1], 0])
    assert stream or filled[-1]


def go_on_without_last(rank, results, facts, batch_size):
    """Go on where an iterator leaves out what fills no batch."""
    audit, sizes = Audit(policy=RandomPruning(0.5)), []
    audit.go_on(facts)
    trainer = Trainer(audit)
    with warnings.catch_warnings():
        warnings.filterwarnings('ignore', '.*(goes on with|given up)')
        for epoch in trainer.iterators():
            sizes.append((epoch, 0))
            for batch in audit.loader(batch_size, drop_last=True):
                trainer.step(*batch)
                sizes[-1] = epoch, sizes[-1][1] + len(batch[0])
    results[rank] = sizes, audit.facts()


@pytest.mark.parametrize(
    'world_size, batch_size, expected',
    [
        # 30 of 120 are left: two ranks take 12 each, and leave the rest.
        (2, 12, [(0, 12), (1, 24)]),
        # They fill no batch of two ranks, so the epoch is over.
        (2, 16, [(0, 0), (1, 16)]),
        (1, 25, [(0, 25), (1, 50)]),
    ])
def test_a_rest_on_other_ranks(world_size, batch_size, expected):
    """Whether an epoch is over is kept, whatever the next batches are."""
    audit = Audit(policy=RandomPruning(0.5))
    trainer = Trainer(audit)
    for batch in itertools.islice(audit.loader(10), 9):
        trainer.step(*batch)
    results = run_ranks(
        functools.partial(
            go_on_without_last, facts=audit.facts(), batch_size=batch_size),
        world_size)
    for sizes, _ in results:
        assert sizes[:len(expected)] == expected
        assert sizes[-1][0] == EPOCHS - 1
    check_facts([facts for _, facts in results])


def norms_of(rank, results):
    """Train with DistributedDataParallel and a reduction of each rank."""
    audit = Audit(policy=RandomPruning(0.5))
    trainer = Trainer(audit, DistributedDataParallel(network()))
    for batch in audit.loader(10):
        trainer.step(*batch)
    truth = {}
    for slots, (inputs, labels, images) in audit.loader(10):
        logits = trainer.model(inputs)
        losses = F.cross_entropy(logits, labels, reduction='none')
        own, = torch.autograd.grad(losses.sum(), logits, retain_graph=True)
        truth.update(zip(slots.numbers.tolist(), own.norm(dim=1).tolist()))
        weighed = audit.session.weigh(losses, slots, logits)
        (128 * weighed.sum() / (1 + rank)).backward()
    run = audit.run
    merged = run.log.merge(run.stream.known_from, run.stream.position,
                           run.checksum, World(rank, 2))
    results[rank] = merged, truth


def test_norms_of_ranks():
    """Each is that of the image's own loss."""
    results = run_ranks(norms_of, 2)
    (merged, truth), (other, of_other) = results
    truth |= of_other
    np.testing.assert_array_equal(merged.norms, other.norms)
    np.testing.assert_allclose(
        merged.norms, [truth[number] for number in merged.numbers.tolist()],
        1e-4)
    assert len(truth) == len(merged.numbers) == SIZE // 2
