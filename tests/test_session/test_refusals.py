# Copyright (c) mmib contributors. All rights reserved.
"""What is refused, and what is said."""
import itertools
import math
import re
import threading
import warnings
from functools import partial

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from mmib import Session
from mmib.pruning import EpochPlan, Neyman, RandomPruning
from tests.helpers.audit import Audit, Samples, Trainer, refused, said
from tests.helpers.runs import SIZE, loop, losses_of, state_of

pytestmark = pytest.mark.filterwarnings('error:InfoBatch')


def own(policy=None, **kwargs):
    """A Session of a few images."""
    arguments = dict(epochs=6, delta=0.7, seed=3)
    return Session(range(SIZE), policy, **{**arguments, **kwargs})


def first_batch(session, size=4):
    """Slots, losses and predictions of the first batch."""
    slots, _ = next(iter(session.loader(size)))
    return slots, *losses_of(slots.indices, 0)


# What is refused -------------------------------------------------------------


class WithLock(RandomPruning):

    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()


class Stream(IterableDataset):

    def __iter__(self):
        return iter(range(SIZE))


class StreamWithLength(Stream):

    def __len__(self):
        return SIZE


def weigh(losses=None, slots=None, predictions=None):
    """Weigh the losses of a first batch of 4, or other ones."""
    session = own()
    of_batch, of_slots, _ = first_batch(session)
    if losses is not None:
        of_slots = losses(of_slots)
    try:
        session.weigh(of_slots, of_batch if slots is None else slots,
                      predictions)
    finally:
        # Nothing counts as weighed.
        assert session._run.stream.position == 0


# Each call, and a keyword of its refusal.
REFUSALS = [
    *((partial(Session, range(SIZE), policy, 6), '`policy`')
      for policy in (0.6, 'Neyman', dict(type='Neyman'), Neyman, [Neyman()])),
    (partial(Session, range(SIZE), WithLock(), 6), 'WithLock'),
    # Policies whose plans can't be trained on, before the first epoch.
    *((partial(own, policy), keyword) for policy, keyword in (
        (lambda x, rng: EpochPlan(np.arange(len(x)), np.ones(len(x))),
         '`weights`'),
        (lambda x, rng: EpochPlan(x > 1, np.ones(len(x), 'f4')), '`indices`'),
        (lambda x, rng: EpochPlan(np.arange(9), np.ones(1, 'f4')),
         '`weights`'), (lambda x, rng: x, 'EpochPlan'))),
    (partial(own, Neyman(), ratio=0.8), '`ratio=0.8`'),
    *((partial(Session, dataset, epochs=6), keyword)
      for dataset, keyword in ((DataLoader(range(SIZE), 4), 'DataLoader'),
                               (Stream(), 'IterableDataset'),
                               (StreamWithLength(), 'IterableDataset'),
                               ((x for x in range(SIZE)), 'generator'),
                               ([], 'empty'))),
    *((partial(own, **{name: value}), f'`{name}`') for name, values in dict(
        epochs=(None, 1, 0, -3, 2.5, 6., '6', True),
        delta=(1.2, -1, math.nan),
        start=(-0.1, 0.7),
        ema=(1, -0.1),
        seed=(-1, 2**63, 0.5, '3')).items() for value in values),
    *((partial(own, **ranks), '`rank`')
      for ranks in (dict(rank=0), dict(num_replicas=2),
                    dict(rank=2, num_replicas=2))),
    (lambda: first_batch(own(rank=0, num_replicas=2)), '`num_replicas=2`'),
    (partial(own, delta=0.1), 'Nothing would be pruned'),
    (partial(own, stream=True, delta=0.2), 'Nothing would be pruned'),
    (partial(own, stream=True, epochs=3), '4 `epochs`'),
    *((partial(own().loader, **{
        'batch_size': 4,
        name: value
    }), f'`{name}')
      for name, value in (('shuffle', True), ('shuffle', False),
                          ('sampler', [0]), ('batch_sampler', [[0]]),
                          ('in_order', False))),
    *((partial(own().loader, size), '`batch_size`')
      for size in (None, 0, -1, True, 2.5, '4')),
    *((lambda session=own(stream=stream), size=size: next(
        iter(session.loader(size, drop_last=True))), '`drop_last`')
      for stream, size in ((False, 14), (True, 48))),
    (lambda: own(stream=True).epoch, 'epochs'),
    (lambda: own().num_steps(4), '`progress`'),
    # Losses, in the first batch.
    *((partial(weigh, lambda losses, change=change: change(losses)), keyword)
      for change, keyword in (
          (lambda losses: losses.mean(), "reduction='none'"),
          (lambda losses: losses[:, None], '(4, 1)'),
          (lambda losses: losses[:, None].expand(4, 2), '(4, 2)'),
          (lambda losses: losses[:, None, None].expand(4, 2, 2), '(4, 2, 2)'),
          (lambda losses: losses.mean()[None], '1 losses'),
          (lambda losses: losses[:3], '`collate_fn`'),
          (lambda losses: losses.repeat(2), '8 losses'),
          (lambda losses: losses.mean().item(), 'float'),
          (lambda losses: [*losses], 'list'))),
    *((partial(weigh, predictions=predictions), '`predictions`')
      for predictions in (torch.ones(3, 2), torch.ones(2, 4), torch.tensor(1.),
                          [torch.ones(4)])),
    *((partial(weigh, slots=slots), '`slots`')
      for slots in (torch.arange(4), first_batch(own())[0])),
    (partial(weigh, slots=[]), '`slots`'),
]


@pytest.mark.parametrize('call, keyword', REFUSALS)
def test_refusals(call, keyword):
    with refused(re.escape(keyword)):
        call()


def test_a_batch_may_be_larger_than_the_dataset():
    for stream, size in ((False, 14), (True, 48)):
        assert len(first_batch(own(stream=stream), size)[0]) == size - 1


def test_a_function_that_counts():
    """It is called for the plans of the run alone."""
    numbers = itertools.count()

    def policy(scores, rng):
        return RandomPruning(0.1 * next(numbers))(scores, rng)

    loop(own(policy), 4)
    assert next(numbers) == 3


KNOWN = {}


def test_a_policy_that_knows_nothing_before_the_first_epoch():
    """It may fail for scores that are made up."""

    def by_name(scores, rng):
        return RandomPruning(KNOWN['ratio'])(scores, rng)

    def above(scores, rng):
        kept = np.flatnonzero(scores > 1.6)
        return EpochPlan(kept, np.ones(len(kept), np.float32))

    session = own(by_name)
    KNOWN['ratio'] = 0.5
    assert len(loop(session, 4)) < 6 * SIZE
    own(above)


def test_a_trial_of_a_policy_changes_nothing():
    policy = Neyman()
    session = own(policy)
    assert vars(policy).keys() == vars(session._run.policy).keys()
    assert repr(policy.state_dict()) == repr(session._run.policy.state_dict())


def test_the_ratio_of_the_default_policy():
    assert repr(own(ratio=0.8)._run.policy) == repr(Neyman(0.8))
    assert own(ratio=0.8, stream=True).num_samples == round(0.8 * 6 * SIZE)


@pytest.mark.parametrize('epochs', [2, 3])
def test_a_run_without_a_full_epoch_at_its_end(epochs):
    with said('`delta=0.85`'):
        Session(range(SIZE), epochs=epochs)
    with said():
        Session(range(SIZE), epochs=epochs, delta=1)
        Session(range(SIZE), epochs=4)


@pytest.mark.parametrize('name', ['losses', 'predictions'])
def test_tensors_of_which_each_rank_has_a_part(name, tmp_path):
    session = own()
    slots, losses, predictions = first_batch(session)
    torch.distributed.init_process_group(
        'gloo', init_method=f'file://{tmp_path}/it', rank=0, world_size=1)
    try:
        mesh = torch.distributed.init_device_mesh('cpu', (1, ))
        given = dict(losses=losses, predictions=predictions)
        given[name] = torch.distributed.tensor.distribute_tensor(
            given[name].detach(), mesh).requires_grad_()
        with refused(f'`{name}` are a DTensor'):
            session.weigh(slots=slots, **given)
    finally:
        torch.distributed.destroy_process_group()


def test_a_function_reads_what_it_read():
    """As a method of an object that the loop changes."""

    class Owner:
        ratio = 0.

        def plan(self, scores, rng):
            return RandomPruning(self.ratio)(scores, rng)

    owner = Owner()
    session = Session(range(SIZE), owner.plan, 6, seed=0)
    owner.ratio = 0.5
    assert len(loop(session, 4)) < 6 * SIZE


def test_numbers_of_numpy():
    session = own(epochs=np.int64(5), seed=np.int64(3))
    assert loop(session, np.int64(4)) == loop(own(epochs=5), 4)
    assert session.epoch == 5
    state_of(session)


def test_a_loader_has_no_length():
    loader = own().loader(4)
    with pytest.raises(TypeError, match='session.progress'):
        len(loader)
    assert len([*loader]) == 4
    assert not isinstance(loader, DataLoader)


def test_a_loader_is_no_data_loader():
    """Frameworks look for a sampler to replace, and find none."""
    loader = own().loader(4)
    assert not hasattr(loader, 'sampler')
    with pytest.raises(AttributeError, match='skip_first_batches'):
        loader.dataset


def test_a_loader_begins_with_its_first_batch():
    """Frameworks call `iter` to see whether there are batches."""
    session = own()
    loader = session.loader(4)
    batches = iter(loader)
    for _ in range(3):
        iter(loader), iter(session.loader(5))
    assert session._run.stream.newest is None
    assert len([*batches]) == 4


def test_a_dataset_that_grows():
    """Its new samples would never be trained on."""
    dataset = [*range(20)]
    session = Session(dataset, epochs=4)
    loader = session.loader(5)
    next(iter(loader))
    dataset.append(20)
    with refused('21 samples now, .* for 20'):
        next(iter(loader))


def test_older_iterators():
    """What they have delivered may still be weighed."""
    session = own()
    loader = session.loader(4)
    one = iter(loader)
    slots, _ = next(one)
    other = iter(session.loader(4))
    assert next(other)[0].indices.tolist() == slots.indices.tolist()
    with refused('newer iterator'):
        next(one)
    losses, predictions = losses_of(slots.indices, 0)
    session.weigh(losses, slots, predictions)
    next(other)


@pytest.mark.parametrize('stream', [False, True])
def test_after_the_end(stream):
    session = own(stream=stream)
    loop(session, 4)
    assert session.progress == 1
    for size in (4, 3):
        with refused('over'):
            next(iter(session.loader(size)))
    assert session.progress == 1 and (stream or session.epoch == 6)
    rest = own(stream=stream)
    rest.load_state_dict(state_of(session))
    with refused('over'):
        next(iter(rest.loader(4)))
    assert rest.progress == 1


def test_a_look_at_the_end_of_a_stream():
    """The loop after it has nothing to do."""
    session = own(stream=True)
    loop(session, 4, 11)
    loader = session.loader(4, drop_last=True)
    assert session.progress < 1
    with said('given up'):
        assert next(iter(loader), None) is None
    assert session.progress == 1 and not [*loader]


@pytest.mark.parametrize('size, batch_size', [(80, 16), (100, 16), (75, 16),
                                              (13, 4), (13, 50)])
@pytest.mark.parametrize('drop_last', [False, True])
def test_the_steps_of_a_stream(size, batch_size, drop_last):
    session = Session(range(size), epochs=6, stream=True)
    expected = session.num_steps(batch_size, drop_last)
    if expected:
        count = 0
        for slots, _ in session.loader(batch_size, drop_last):
            step(session, slots)
            count += 1
        assert count == expected
    assert session.num_steps(batch_size, drop_last) == expected


def test_images_that_are_not_there():
    session = own()
    assert session.explain(0) is None
    loop(session, 4, 6)
    assert 'image 12' in str(session.explain(12))
    for index in (-1, SIZE):
        with refused(f'image {index}'):
            session.explain(index)


# What is said ----------------------------------------------------------------


def step(session, slots, scale=1., with_norms=True):
    """A step of a loop of one's own."""
    predictions = torch.ones(len(slots), 1, requires_grad=True)
    images = torch.from_numpy(slots.indices)
    losses = scale * predictions[:, 0] * (images + 1)
    session.weigh(losses, slots,
                  predictions if with_norms else None).mean().backward()


@pytest.mark.parametrize('scale', [1., -1.])
def test_losses_stand_in_for_norms(scale):
    """If the first epoch has none, said once. Any loss is a score, also -1.
    Negative losses are no norms, so V is unknown."""
    session = own(RandomPruning(0.5))
    with said('gradient'):
        for _ in range(3):
            for slots, _ in session.loader(4):
                step(session, slots, scale, with_norms=False)
    state = state_of(session)
    scores = [scale * (i + 1) for i in range(SIZE)]
    assert session._run.table.scores.tolist() == scores
    worth = session.worth.value
    assert worth == 1 if scale > 0 else math.isnan(worth)
    rest = own(RandomPruning(0.5))
    rest.load_state_dict(state)
    assert rest._run.lacks_norms
    for slots, _ in rest.loader(4):
        step(rest, slots, scale, with_norms=False)


def test_a_batch_without_norms_does_not_count():
    """Where others have some."""
    session = own(RandomPruning(0.5))
    for epoch in range(3):
        for slots, _ in session.loader(SIZE):
            step(session, slots, with_norms=epoch < 2)
    session.state_dict()
    tables = session._run.table
    assert tables.last_visit.max() == session._run.stream.position == 27
    assert not session._run.lacks_norms and not tables.sums.any()


@pytest.mark.parametrize('score', ['loss', 'gradient'])
def test_weight_0_has_a_loss_and_no_gradient(score):
    """The score stays, and this is no loss that isn't finite."""

    def policy(scores, rng):
        return EpochPlan(np.arange(SIZE), np.float32([2, 0, *11 * [1]]))

    session = own(policy)
    tables = session._run.table
    tables.score = score
    for scale in (1., 2.):
        for slots, _ in session.loader(4):
            step(session, slots, scale)
    session.state_dict()
    expected = 2 * np.arange(1., SIZE + 1)
    if score == 'gradient':
        expected[1] = 2.  # Of the first pass.
    np.testing.assert_allclose(tables.scores, expected, rtol=1e-5)
    assert tables.non_finite == 0


def test_losses_that_are_not_finite():
    """They are no scores, and are counted."""
    audit = Audit(policy=RandomPruning(0.5))
    session = audit.session
    for slots, (inputs, labels, images) in session.loader(20):
        losses = torch.ones(len(slots), requires_grad=True) * 2.
        losses = torch.where(images == 7, torch.nan, losses)
        losses = torch.where(images == 9, torch.inf, losses)
        session.weigh(losses, slots)
    with said('2 scores'):
        session.state_dict()
    tables = audit.run.table
    assert tables.scores[[7, 9]].tolist() == [1, 1]
    assert (np.delete(tables.scores, [7, 9]) == 2).all()
    assert tables.non_finite == 2 and (tables.visits == 1).all()


def test_a_budget_that_cannot_be_met():
    """The first plan may know too few scores, so this is said once, later."""
    session = own(Neyman(ratio=0.3, min_keep=0.3))
    with said('budget'):
        steps = loop(session, 4)
    assert len(steps) > 0.3 * 6 * SIZE / 4


def test_epochs_without_a_batch():
    """With `drop_last` an epoch whose plan fills no batch is over, and the
    loop gets a warning."""
    session, sizes = own(RandomPruning(0.5)), []
    with said(*(f'nothing is trained on in epoch {epoch}'
                for epoch in (2, 3, 4))):
        while session.epoch < 6:
            assert session.epoch == len(sizes)
            sizes.append(0)
            for slots, _ in session.loader(8, drop_last=True):
                step(session, slots)
                sizes[-1] += len(slots)
    # 13, 7, 7, 7 and 13 images, of which 7 are none.
    assert sizes == [8, 0, 0, 0, 8, 8]


def test_predictions_that_are_no_part_of_the_graph():
    """A slice of the predictions that is made after the losses."""
    session = own()
    with said('estimated from the losses'):
        while session.epoch < 3:
            for slots, _ in session.loader(4):
                losses, logits = losses_of(slots.indices, 0)
                session.weigh(losses, slots, logits * 1).sum().backward()


def test_a_resumed_run_may_have_fewer_epochs():
    session, shorter = own(), own(epochs=3)
    while session.epoch < 4:
        for slots, _ in session.loader(4):
            step(session, slots)
    with said('2 passes instead of 4'):
        shorter.load_state_dict(state_of(session))
    assert shorter.epoch == 4 and shorter.progress == 1


def test_a_loop_that_forgets_its_losses():
    """It is told where the batches go, and where all images are, and would
    never end."""
    for stream in (False, True):
        session = own(stream=stream)
        with said('nothing was weighed'):
            with refused('`session.weigh`'):
                while session.progress < 1:
                    for slots, _ in session.loader(4):
                        pass
        assert session.progress == 0


def test_a_stream_that_forgets_its_losses():
    """It is told after a pass, and at its end."""
    session = own(stream=True)
    with said(*2 * ['nothing was weighed']):
        assert len([*session.loader(1)]) == 47
    session = own(stream=True)
    with said('nothing was weighed'):
        assert len([*session.loader(16)]) == 3


@pytest.mark.parametrize('held', [1, 15])
@pytest.mark.parametrize('workers', [{}, dict(num_workers=2)], ids=str)
def test_a_stream_whose_batches_are_held(held, workers):
    """They are weighed later."""
    session, waiting = own(stream=True), []
    with said():
        for slots, _ in session.loader(1, **workers):
            waiting.append(slots)
            if len(waiting) > held:
                step(session, waiting.pop(0))
        for slots in waiting:
            step(session, slots)
    assert session.progress == 1


def test_batches_that_come_again():
    """`itertools.cycle` keeps the batches of the first epoch."""
    session = own()
    with said('trained on again'):
        for slots, _ in itertools.islice(
                itertools.cycle(session.loader(4)), 12):
            step(session, slots)
    assert session.epoch == 1


def test_batches_that_are_weighed_in_parts_after_the_end():
    session = own()
    with said():
        batches = [slots for slots, _ in session.loader(4)]
        for slots in batches:
            step(session, slots[:2])
            step(session, slots[2:])
    assert session.epoch == 1


class EndsEarly(Samples):

    def __getitem__(self, index):
        next(i for i in range(20) if i == index != 7)
        return super().__getitem__(index)


@pytest.mark.parametrize('stream', [False, True])
@pytest.mark.parametrize('workers', [{}, dict(num_workers=2)], ids=str)
def test_a_dataset_that_stops_iterating(stream, workers):
    """torch takes this for the end of its loader."""
    session = Session(EndsEarly(20), epochs=6, stream=stream, seed=0)
    with refused('StopIteration'):
        for slots, _ in session.loader(4, **workers):
            step(session, slots)


def test_a_look_after_going_back():
    """What was weighed before the state was loaded doesn't count."""
    session = own()
    state = state_of(session)
    loop(session, 4, 6)
    session.load_state_dict(state)
    with said('nothing was weighed'):
        for _ in range(2):
            for _ in session.loader(4):
                pass


def test_passes_that_look_between_epochs():
    """Each is told, and the run goes on."""
    session = own()
    with warnings.catch_warnings(record=True) as records:
        warnings.simplefilter('always')
        while session.epoch < 6:
            for slots, _ in session.loader(4):
                step(session, slots)
            if session.epoch < 6:
                for _ in session.loader(4):
                    pass
    told = [x for x in records if 'nothing was weighed' in str(x.message)]
    assert len(told) == 5


def test_a_user_of_another_framework_sees_no_words_of_it():
    """The helpers of these tests find them in any message."""
    with pytest.raises(AssertionError, match='custom_hooks'):
        with refused('`policy`'):
            Session(range(SIZE), 'custom_hooks', 6)
    trainer = Trainer(Audit(Samples(20)))
    with pytest.raises(AssertionError):
        with said('something'):
            trainer.train(trainer.audit.loader(4))
