# Copyright (c) mmib contributors. All rights reserved.
"""What `weigh` makes of losses, and the norms that come of it."""
import copy
import functools
import gc
import itertools
import warnings
from unittest import mock

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from mmengine.dataset import DefaultSampler, InfiniteSampler
from torch.autograd import forward_ad
from torch.utils.checkpoint import (CheckpointPolicy, checkpoint,
                                    create_selective_checkpoint_contexts)

from mmib.pruning import (EpochPlan, MeanThreshold, Neyman, RandomPruning,
                          ScoreOnly)
from tests.helpers.audit import (EPOCHS, SIZE, Audit, Samples, Trainer,
                                 network, refused, said)
from tests.helpers.runs import state_of

pytestmark = pytest.mark.filterwarnings('error:InfoBatch')
by_stream = pytest.mark.parametrize('stream', [False, True])


def pruned(policy=RandomPruning(0.5), **kwargs):
    """A trainer whose next batch is the first one of a pruned epoch."""
    audit = Audit(SIZE, policy, **kwargs)
    trainer = Trainer(audit)
    for batch in audit.loader(20):
        trainer.step(*batch)
    return trainer


def norms_of(session):
    """Norm of each slot since visits were merged."""
    run = session._run
    merged = run.log.merge(run.stream.known_from, run.stream.position,
                           run.checksum)
    numbers = np.concatenate([merged.numbers, merged.late_numbers])
    norms = np.concatenate([merged.norms, merged.late_norms])
    assert len({*numbers.tolist()}) == len(numbers)
    return dict(zip(numbers.tolist(), norms.tolist()))


def true_norms(slots, losses, logits):
    """Norm of the gradient of each image's own loss at its logits."""
    own, = torch.autograd.grad(losses.sum(), logits, retain_graph=True)
    return dict(zip(slots.numbers.tolist(), own.float().norm(dim=1).tolist()))


def check_norms(session, expected, rtol=1e-4):
    norms = norms_of(session)
    assert norms.keys() == expected.keys() and len(norms) > 20
    np.testing.assert_allclose([norms[number] for number in expected],
                               [*expected.values()], rtol)


REDUCTIONS = [
    torch.mean,
    torch.sum,
    lambda weighed: 0.01 * weighed.sum() / 7,
    lambda weighed: (torch.linspace(1, 9, len(weighed)) * weighed).mean(),
    lambda weighed: weighed.square().sum(),
    lambda weighed: weighed.logsumexp(0),
]


@pytest.mark.parametrize('reduce', REDUCTIONS)
def test_norms_of_each_reduction(reduce):
    """Each is the norm of the image's own gradient."""
    trainer, expected = pruned(), {}
    for slots, (inputs, labels, images) in trainer.audit.loader(20):
        logits = trainer.model(inputs)
        losses = F.cross_entropy(logits, labels, reduction='none')
        expected |= true_norms(slots, losses, logits)
        trainer.update(reduce(trainer.session.weigh(losses, slots, logits)))
    check_norms(trainer.session, expected)


class OwnTensor(torch.Tensor):
    """As datasets of images and frameworks have."""


@pytest.mark.parametrize(
    'kind', ['leaf', 'split', 'in place', 'hook', 'reused', 'own', 'captured'])
def test_norms_at_predictions_of_each_kind(kind):
    """Predictions are a leaf, one of several outputs of an operation, and
    tensors that are changed in place before the backward pass. The gradient is
    changed by a later hook, changed in place after its backward pass, of a
    subclass of Tensor, and asked for at the predictions alone."""
    trainer, expected = pruned(), {}
    for slots, (inputs, labels, images) in trainer.audit.loader(20):
        logits = trainer.model(inputs)
        if kind == 'leaf':
            logits = logits.detach().requires_grad_()
        elif kind == 'own':
            logits = logits.as_subclass(OwnTensor)
        elif kind == 'split':
            _, logits = torch.cat([2 * logits, logits], 1).split(3, 1)
        losses = F.cross_entropy(logits, labels, reduction='none')
        expected |= true_norms(slots, losses, logits)
        weighed = trainer.session.weigh(losses, slots, logits)
        if kind == 'in place':
            logits.zero_()
            weighed *= torch.linspace(1, 9, len(slots))
        elif kind == 'hook':
            logits.register_hook(lambda gradient: gradient.clamp(-0.1, 0.1))
        loss = weighed.mean()
        if kind == 'captured':
            torch.autograd.grad(loss, logits)
        elif kind == 'reused':
            gradient, = torch.autograd.grad(loss, losses, retain_graph=True)
            losses.backward(gradient)
            gradient.zero_()
        else:
            loss.backward()
    check_norms(trainer.session, expected)


def test_no_gradient_at_the_losses_is_no_norm():
    """A Function of a user may pass none on."""

    class Nothing(torch.autograd.Function):

        @staticmethod
        def forward(ctx, losses):
            return losses.clone()

        @staticmethod
        def backward(ctx, gradient):
            return None

    trainer = pruned()
    for slots, (inputs, labels, images) in trainer.audit.loader(20):
        logits = trainer.model(inputs)
        losses = F.cross_entropy(logits, labels, reduction='none')
        weighed = trainer.session.weigh(losses, slots, logits)
        (Nothing.apply(weighed).mean() + logits.mean()).backward()
    assert np.isnan([*norms_of(trainer.session).values()]).all()


def test_norms_with_another_default_type():
    trainer, expected = pruned(), {}
    torch.set_default_dtype(torch.float64)
    try:
        for slots, (inputs, labels, images) in trainer.audit.loader(20):
            logits = trainer.model(inputs)
            losses = F.cross_entropy(logits, labels, reduction='none')
            expected |= true_norms(slots, losses, logits)
            trainer.session.weigh(losses, slots, logits).mean().backward()
    finally:
        torch.set_default_dtype(torch.float32)
    check_norms(trainer.session, expected)


def test_norms_with_accumulation():
    """Of batches in parts, with one backward for each and for all."""
    trainer, expected = pruned(), {}
    for number, (slots, batch) in enumerate(trainer.audit.loader(20)):
        inputs, labels, images = batch
        total = 0.
        for part in (slice(0, 7), slice(7, None)):
            logits = trainer.model(inputs[part])
            losses = F.cross_entropy(logits, labels[part], reduction='none')
            expected |= true_norms(slots[part], losses, logits)
            weighed = trainer.session.weigh(losses, slots[part], logits)
            loss = weighed.sum() / len(slots) / 4
            if number % 2:
                loss.backward()
            else:
                total = total + loss
        if not number % 2:
            total.backward()
        trainer.optimizer.step()
    check_norms(trainer.session, expected)


SELECTIVE = functools.partial(
    create_selective_checkpoint_contexts,
    lambda *args, **kwargs: CheckpointPolicy.PREFER_RECOMPUTE)


@pytest.mark.parametrize('how', [
    dict(use_reentrant=True),
    dict(use_reentrant=False),
    dict(use_reentrant=False, context_fn=SELECTIVE)
])
def test_norms_within_a_checkpointed_function(how):
    """Each image has one visit, with its norm, though the function is computed
    twice."""
    trainer, expected = pruned(), {}
    for slots, (inputs, labels, images) in trainer.audit.loader(20):

        def step(inputs):
            logits = trainer.model(inputs)
            losses = F.cross_entropy(logits, labels, reduction='none')
            return trainer.session.weigh(losses, slots, logits).mean()

        logits = trainer.model(inputs)
        losses = F.cross_entropy(logits, labels, reduction='none')
        expected |= true_norms(slots, losses, logits)
        weights = torch.from_numpy(slots.weights)
        own = torch.autograd.grad((weights * losses).mean(),
                                  [*trainer.model.parameters()])
        trainer.optimizer.zero_grad()
        checkpoint(step, inputs.requires_grad_(), **how).backward()
        for parameter, gradient in zip(trainer.model.parameters(), own):
            torch.testing.assert_close(parameter.grad, gradient)
        trainer.optimizer.step()
    check_norms(trainer.session, expected)


def test_a_captured_graph():
    """A graph would keep the weights of one batch."""
    trainer = pruned()
    slots, (inputs, labels, _) = next(iter(trainer.audit.loader(20)))
    losses = F.cross_entropy(trainer.model(inputs), labels, reduction='none')
    with mock.patch.object(torch.Tensor, 'is_cuda', True), mock.patch(
            'torch.cuda.is_current_stream_capturing',
            lambda: True), refused('make_graphed_callables'):
        trainer.session.weigh(losses, slots)


def test_norms_with_mixed_precision():
    """With a loss scale, and losses of half precision."""
    trainer, expected = pruned(), {}
    scaler = torch.amp.GradScaler('cpu', init_scale=1024.)
    assert scaler.is_enabled()
    for slots, (inputs, labels, images) in trainer.audit.loader(20):
        with torch.autocast('cpu', torch.bfloat16):
            logits = trainer.model(inputs)
            assert logits.dtype == torch.bfloat16
            losses = F.cross_entropy(logits, labels, reduction='none')
        expected |= true_norms(slots, losses, logits)
        loss = trainer.session.weigh(losses, slots, logits).mean()
        trainer.optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(trainer.optimizer)
        scaler.update()
    check_norms(trainer.session, expected, 0.02)


@pytest.mark.parametrize('dtype',
                         [torch.float16, torch.bfloat16, torch.float64])
def test_types_of_losses(dtype):
    """The result is float32 or wider, in all epochs."""
    audit = Audit()
    trainer = Trainer(audit, network().to(dtype))
    for _ in trainer.iterators():
        for slots, (inputs, labels, images) in audit.loader(20):
            logits = trainer.model(inputs.to(dtype))
            losses = (logits.float() if dtype == torch.float16 else
                      logits).logsumexp(1).to(dtype)
            weighed = audit.session.weigh(losses, slots, logits)
            assert losses.dtype == dtype
            assert weighed.dtype == torch.promote_types(dtype, torch.float32)
            torch.testing.assert_close(
                weighed.detach(),
                losses.detach() * torch.from_numpy(slots.relative_weights),
                check_dtype=False)
            trainer.update(weighed.mean())
    assert audit.session.epoch == EPOCHS
    assert np.isfinite(audit.run.table.scores).all()


def test_a_gradient_of_a_gradient():
    """A penalty on the gradient of the weighed loss has weights too."""
    trainer, expected = pruned(), {}
    weight = trainer.model[0].weight
    for slots, (inputs, labels, images) in trainer.audit.loader(20):
        logits = trainer.model(inputs)
        losses = F.cross_entropy(logits, labels, reduction='none')
        penalties = []
        for weighed in (trainer.session.weigh(losses, slots, logits),
                        torch.from_numpy(slots.weights) * losses):
            gradient, = torch.autograd.grad(
                weighed.mean(), weight, create_graph=True)
            penalties.append(
                torch.autograd.grad(
                    gradient.square().sum(), weight, retain_graph=True)[0])
        torch.testing.assert_close(*penalties)
        expected |= true_norms(slots, losses, logits)
        loss = trainer.session.weigh(losses, slots, logits).mean()
        loss.backward(create_graph=True)
        weight.grad = None
    check_norms(trainer.session, expected)


def test_a_loss_without_weight_has_no_norm():
    """Neither has one that the reduction leaves out."""

    def policy(scores, rng):
        weights = np.ones(SIZE, np.float32)
        weights[::3] = 0
        return EpochPlan(np.arange(SIZE), weights)

    trainer = pruned(policy)
    session = trainer.session
    slots, (inputs, labels, images) = next(iter(session.loader(20)))
    logits = trainer.model(inputs)
    losses = F.cross_entropy(logits, labels, reduction='none')
    expected = true_norms(slots, losses, logits)
    session.weigh(losses, slots, logits)[:13].sum().backward()
    norms = norms_of(session)
    for number, image in zip(slots.numbers.tolist()[:13], images.tolist()):
        if image % 3 == 0:
            assert np.isnan(norms[number])
        else:
            assert norms[number] == pytest.approx(expected[number], 1e-4)


# Other terms at the predictions ----------------------------------------------


def after(mean, penalty):
    mean.backward(retain_graph=True)
    penalty.backward()


def before(mean, penalty):
    penalty.backward(retain_graph=True)
    mean.backward()


def one_each(mean, penalty, *parameters):
    """As methods that combine the gradients of several losses."""
    for term in (mean, penalty):
        gradients = torch.autograd.grad(term, parameters, retain_graph=True)
    for parameter, gradient in zip(parameters, gradients):
        parameter.grad = gradient


@pytest.mark.parametrize('backward', [after, before, one_each])
def test_norms_beside_a_backward_pass_of_another_term(backward):
    """The norm of an image is the norm of the gradient of its own loss."""
    trainer, expected = pruned(), {}
    for slots, (inputs, labels, images) in trainer.audit.loader(20):
        logits = trainer.model(inputs)
        losses = F.cross_entropy(logits, labels, reduction='none')
        expected |= true_norms(slots, losses, logits)
        mean = trainer.session.weigh(losses, slots, logits).mean()
        penalty = logits.square().sum(1).mean()
        if backward is one_each:
            backward(mean, penalty, *trainer.model.parameters())
        else:
            backward(mean, penalty)
        trainer.optimizer.step()
    check_norms(trainer.session, expected)


def epochs_with_a_term(factors,
                       is_apart=False,
                       policy=RandomPruning(0.5),
                       batch_size=20):
    """A trainer of one epoch for each factor of a term that uses the logits
    within the same backward pass. The network stays as it is."""
    trainer = Trainer(Audit(SIZE, policy, epochs=9))
    for factor in factors:
        for slots, (inputs, labels,
                    images) in trainer.audit.loader(batch_size):
            logits = trainer.model(inputs)
            own = logits.view_as(logits) if is_apart else logits
            losses = F.cross_entropy(own, labels, reduction='none')
            mean = trainer.session.weigh(losses, slots, own).mean()
            (mean + factor * logits.square().sum(1).mean()).backward()
    return trainer


OTHER_TERM = 'another term'


def test_a_term_at_the_predictions_is_noticed():
    """Losses then stand in for norms, as where nothing is known of them."""
    with said(OTHER_TERM):
        trainer = epochs_with_a_term([0.3] * 4)
        trainer.session.state_dict()
    audit = trainer.audit
    assert audit.run.lacks_norms
    kept = [*audit.plans[-1].weights]
    assert audit.run.table.sums[:, 2].sum() == pytest.approx(
        audit.run.table.scores[kept].sum(), 1e-4)


def test_a_view_keeps_a_term_apart():
    """V is then what it is without the term."""
    values = [
        epochs_with_a_term([factor] * 5, True, Neyman(num_tiers=3))
        for factor in (0, 1)
    ]
    for trainer in values:
        trainer.session.state_dict()
        assert trainer.audit.run.lacks_norms is False
    one, other = (trainer.session.worth.value for trainer in values)
    assert one == pytest.approx(other, 1e-5) and one < 1


def test_a_term_that_comes_later_is_noticed():
    """As where its factor grows from 0. From then on no norm is known, and V
    stays what it was. A term that comes soon after a probe is noticed later.
    """
    trainer = epochs_with_a_term([0, 0, 0], batch_size=2)
    run = trainer.audit.run
    trainer.session.state_dict()
    sums = run.table.sums.copy()
    assert sums.sum() > 0
    with said(OTHER_TERM):
        for slots, (inputs, labels, images) in trainer.audit.loader(20):
            logits = trainer.model(inputs)
            losses = F.cross_entropy(logits, labels, reduction='none')
            mean = trainer.session.weigh(losses, slots, logits).mean()
            (mean + logits.square().sum(1).mean()).backward()
        trainer.session.state_dict()
    assert run.lacks_norms is False and not run.table.sums.any()


def test_hooks_of_others_at_the_predictions_act_once():
    """FSDP gathers parameters in such hooks, and expects one backward."""
    trainer, calls = pruned(), []
    for slots, (inputs, labels, images) in trainer.audit.loader(20):
        logits = trainer.model(inputs)
        logits.register_hook(calls.append)
        losses = F.cross_entropy(logits, labels, reduction='none')
        trainer.update(trainer.session.weigh(losses, slots, logits).mean())
        assert len(calls) == 1
        calls.clear()


def test_a_state_between_weigh_and_backward_keeps_the_norms():
    """Its scores are in the state. The norms are known to a later merge."""
    trainer, expected = pruned(), {}
    session, weighed = trainer.session, []
    for slots, (inputs, labels, images) in trainer.audit.loader(20):
        logits = trainer.model(inputs)
        losses = F.cross_entropy(logits, labels, reduction='none')
        expected |= true_norms(slots, losses, logits)
        weighed.append(session.weigh(losses, slots, logits).mean())
        if len(weighed) == 2:
            assert session.state_dict()['tables']['visits'].sum() > SIZE
            sum(weighed).backward()
            weighed.clear()
    sum(weighed).backward()
    tables = trainer.audit.run.table
    for _ in range(2):
        session.state_dict()
    visits, norms = tables.sums[:, [0, 2]].sum(0)
    assert visits == len(expected)
    # All weights are equal, so they leave the relative weights 1.
    assert norms == pytest.approx(sum(expected.values()), 1e-4)
    assert tables.visits.sum() == SIZE + len(expected)


@pytest.mark.parametrize('policy', [Neyman(), MeanThreshold()])
def test_negative_losses_are_no_norms(policy):
    """A run whose losses are negative, such as of a likelihood, prunes as with
    the same losses plus a constant. V is unknown."""
    scores = []
    for constant in (0, -9):
        audit = Audit(policy=policy)
        trainer = Trainer(audit)
        with said('gradient'):
            for _ in trainer.iterators():
                for slots, (inputs, labels,
                            images) in audit.session.loader(20):
                    losses = trainer.model(inputs)[:, 0].square() + constant
                    audit.session.weigh(losses, slots).mean().backward()
        worth = audit.session.worth.value
        assert np.isnan(worth) if constant else np.isfinite(worth)
        scores.append(audit.run.table.scores - constant)
    assert len(audit.plans) == EPOCHS
    np.testing.assert_allclose(*scores, atol=1e-5)


def test_v_is_told_from_norms():
    """Of the norms of the logits, and not of the losses."""
    audit = Audit(policy=RandomPruning(0.5))
    Trainer(audit).train(audit.loader(20))
    assert audit.run.lacks_norms is False
    assert audit.session.worth.value == pytest.approx(1)
    audit = Audit(policy=Neyman())
    Trainer(audit).train(audit.loader(20))
    low, high = audit.session.worth[1:3]
    assert low < audit.session.worth.value < high


# Off is off ------------------------------------------------------------------


def baseline(images, size=20):
    """A plain loop over the images, in batches."""
    model, dataset = network(), Samples()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    losses = []
    loader = torch.utils.data.DataLoader(dataset, size, sampler=images)
    for inputs, labels, _ in loader:
        loss = F.cross_entropy(model(inputs), labels, reduction='none').mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return torch.cat([p.detach().flatten()
                      for p in model.parameters()]), losses


@pytest.mark.parametrize(
    'policy',
    [MeanThreshold(0), RandomPruning(0.),
     ScoreOnly()])
@by_stream
def test_what_prunes_nothing_is_the_baseline(policy, stream):
    """The same images, the same values and gradients, to the last bit."""
    audit = Audit(policy=policy, stream=stream, seed=5)
    trainer, losses, images = Trainer(audit), [], []
    for _ in trainer.iterators():
        for slots, batch in audit.loader(20):
            loss = trainer.weigh(slots, batch).mean()
            trainer.update(loss)
            losses.append(loss.item())
            images += batch[2].tolist()
    if stream:
        sampler = iter(InfiniteSampler(range(SIZE), seed=5))
        expected = [next(sampler) for _ in images]
    else:
        sampler = DefaultSampler(range(SIZE), seed=5)
        expected = []
        for epoch in range(EPOCHS):
            sampler.set_epoch(epoch)
            expected += sampler
    assert images == expected
    parameters, expected = baseline(images)
    assert losses == expected
    assert torch.equal(trainer.parameters(), parameters)
    assert audit.run.table.visits.min() > 0


@by_stream
def test_full_plans_are_the_baseline(stream):
    """The first one, and those of annealing, where losses come back."""
    audit, num_steps = Audit(stream=stream, delta=0.6), [0, 0, 0]
    trainer = Trainer(audit)
    weight = trainer.model[0].weight
    for _ in trainer.iterators():
        for slots, (inputs, labels, images) in audit.loader(20):
            logits = trainer.model(inputs)
            losses = F.cross_entropy(logits, labels, reduction='none')
            weighed = audit.session.weigh(losses, slots, logits)
            loss, plain = weighed.mean(), losses.mean()
            gradients = [
                torch.autograd.grad(value, weight, retain_graph=True)[0]
                for value in (loss, plain)
            ]
            is_same = loss.item() == plain.item() and torch.equal(*gradients)
            assert is_same or not slots.annealing and slots.end > SIZE
            assert (weighed is losses) == slots.annealing
            num_steps[2 if slots.annealing else is_same] += 1
            trainer.update(loss)
    assert num_steps[1] == SIZE // 20
    assert num_steps[0] >= 3 and num_steps[2] >= 8


# Transforms ------------------------------------------------------------------


def weigh_by(trainer, slots, batch, weight):
    inputs, labels, _ = batch
    losses = F.cross_entropy(inputs @ weight, labels, reduction='none')
    return trainer.session.weigh(losses, slots)


@pytest.mark.parametrize('requires_grad', [False, True])
def test_transforms_are_refused(requires_grad):
    """They would leave the weights out. Nothing counts as weighed."""
    trainer = pruned()
    slots, batch = next(iter(trainer.session.loader(20)))
    position = trainer.audit.run.stream.position
    weigh = functools.partial(weigh_by, trainer, slots, batch)
    weight = torch.randn(8, 3, requires_grad=requires_grad)
    tangent = torch.ones_like(weight)

    def forward():
        with forward_ad.dual_level():
            weigh(forward_ad.make_dual(weight, tangent))

    for transform in (forward, lambda: torch.func.jvp(weigh, (weight, ),
                                                      (tangent, )),
                      lambda: torch.func.vmap(weigh)(weight.expand(2, 8, 3)),
                      lambda: torch.func.grad(lambda x: weigh(x).mean())
                      (weight), lambda: torch.func.vjp(weigh, weight),
                      lambda: torch.func.jacfwd(weigh)(weight)):
        with refused('`torch.func`'):
            transform()
    assert trainer.audit.run.stream.position == position
    with torch.no_grad():
        assert torch.func.vmap(weigh)(weight.expand(2, 8, 3)).shape == (2, 20)


def compiled_run(audit, compile, says=()):
    """Train an audit whose step is compiled. Return the parameters, and how
    much of the run was over after each step."""
    trainer, session, progress = Trainer(audit), audit.session, []
    model = trainer.model

    def step(slots, inputs, labels):
        logits = model(inputs)
        losses = F.cross_entropy(logits, labels, reduction='none')
        return session.weigh(losses, slots, logits).mean()

    step = compile(step)
    with said(*says):
        for _ in trainer.iterators():
            for slots, (inputs, labels, images) in session.loader(20):
                trainer.update(step(slots, inputs, labels))
                progress.append(session.progress)
    return trainer.parameters(), progress


@by_stream
def test_a_compiled_step(stream):
    """One graph weighs, and sees the norms. No other batch needs a graph of
    its own, except the first one of another size, and of annealing."""
    audits = [
        Audit(policy=MeanThreshold(), epochs=30, stream=stream)
        for _ in range(2)
    ]
    eager = compiled_run(audits[0], lambda step: step)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = compiled_run(
        audits[1],
        functools.partial(torch.compile, backend='aot_eager', fullgraph=True))
    torch.testing.assert_close(compiled[0], eager[0], rtol=0, atol=0)
    assert compiled[1] == eager[1] and len(compiled[1]) > 100
    assert torch._dynamo.utils.counters['stats']['unique_graphs'] <= 3
    one, other = (audit.facts() for audit in audits)
    np.testing.assert_array_equal(one.scores, other.scores)
    np.testing.assert_array_equal(one.visits, other.visits)
    assert one.plans == other.plans
    assert audits[0].session.worth == audits[1].session.worth
    assert audits[0].session.worth.value != 1


def step_in_graph(trainer):
    """A compiled step of a trainer, which returns its loss."""
    model, session = trainer.model, trainer.session

    def step(slots, inputs, labels):
        logits = model(inputs)
        losses = F.cross_entropy(logits, labels, reduction='none')
        return session.weigh(losses, slots, logits).mean()

    torch._dynamo.reset()
    return torch.compile(step, backend='aot_eager')


@pytest.mark.parametrize('case', ['two batches', 'twice', 'after an eager'])
def test_compiled_steps_of_several_batches(case):
    """As eager ones: two batches before a backward pass, a batch that is
    weighed twice, and after steps that weren't compiled."""
    results = []
    for is_compiled in (False, True):
        trainer = pruned(MeanThreshold())
        step = eager = step_in_graph(trainer)
        if not is_compiled:
            step = eager = step._torchdynamo_orig_callable
        elif case == 'after an eager':
            eager = step._torchdynamo_orig_callable
        batches = [(slots, *batch[:2]) for slots, batch in itertools.islice(
            trainer.session.loader(20), 2)]
        if case == 'twice':
            step(*batches[0]).backward()
            loss = step(*batches[0]) + step(*batches[1])
        else:
            loss = eager(*batches[0]) + step(*batches[1])
        loss.backward()
        gradient = torch.cat(
            [p.grad.flatten() for p in trainer.model.parameters()])
        state = trainer.session.state_dict()
        results.append((gradient, trainer.session.progress,
                        trainer.audit.run.table.scores.copy(),
                        trainer.audit.run.table.sums.copy(), state['stream']))
    one, other = results
    torch.testing.assert_close(one[0], other[0])
    assert one[1] == other[1]
    np.testing.assert_allclose(one[2], other[2])
    assert one[4]['position'] == other[4]['position']
    if case != 'twice':
        np.testing.assert_allclose(one[3], other[3], rtol=1e-5)


def test_validation_ends_no_compiled_steps():
    trainer = pruned(MeanThreshold())
    step = step_in_graph(trainer)
    for slots, (inputs, labels, _) in trainer.session.loader(20):
        with torch.no_grad():
            for _ in range(20):
                trainer.session.weigh(torch.zeros(len(slots)), slots)
        step(slots, inputs, labels).backward()
        assert slots.was_weighed


@pytest.mark.parametrize('kind', ['predictions', 'losses', 'masked'])
def test_a_compiled_step_that_leaves_the_graph(kind):
    """A graph that begins behind the predictions sees no gradient at them, and
    a part of a batch is not ready for a graph."""
    audits = [Audit(policy=RandomPruning(0.5), epochs=4) for _ in range(2)]
    parameters = []
    for audit, is_compiled in zip(audits, (False, True)):
        trainer, session = Trainer(audit), audit.session
        model = trainer.model

        def losses_of(inputs, labels):
            logits = model(inputs)
            return logits, F.cross_entropy(logits, labels, reduction='none')

        def step(slots, inputs, labels):
            logits, losses = losses_of(inputs, labels)
            if kind == 'masked':
                slots = slots[:]
            if kind != 'losses':
                torch._dynamo.graph_break()
            return session.weigh(losses, slots, logits).mean()

        torch._dynamo.reset()
        if is_compiled and kind == 'losses':
            losses_of = torch.compile(losses_of, backend='aot_eager')
        elif is_compiled:
            step = torch.compile(step, backend='aot_eager')
        with said(*['gradient'] * is_compiled):
            for _ in trainer.iterators():
                for slots, (inputs, labels, images) in session.loader(20):
                    trainer.update(step(slots, inputs, labels))
        parameters.append(trainer.parameters())
    torch.testing.assert_close(*parameters)
    one, other = (audit.facts() for audit in audits)
    np.testing.assert_allclose(one.scores, other.scores, 1e-4)
    np.testing.assert_array_equal(one.visits, other.visits)
    assert one.plans == other.plans and one.visits.sum() < 4 * SIZE


# Memory ----------------------------------------------------------------------


@pytest.mark.parametrize('in_row', [True, False])
def test_scores_keep_no_batch_alive(in_row):
    """A view of the losses would keep what they are a part of, and a loss that
    is changed in place would change its score."""
    trainer = pruned()
    slots, _ = next(iter(trainer.session.loader(20)))
    of_all = torch.rand(1000, 20, requires_grad=True) * 2
    losses = of_all[0]
    before = losses.tolist()
    part = slots if in_row else slots[np.arange(20)]
    trainer.session.weigh(losses, part).mean().backward()
    log = trainer.audit.run.log
    if in_row:
        stretch, = log._stretches
        kept, most = stretch._rows, 2 * len(stretch._numbers)
    else:
        kept, most = log._entries[-1].scores, 20
    assert kept.untyped_storage().nbytes() == 4 * most < of_all.nbytes
    with torch.no_grad():
        losses.zero_()
    merged = log.merge(0, slots.end, 0)
    assert merged.scores.tolist() == before
    assert merged.numbers.tolist() == slots.numbers.tolist()


def test_workers_that_persist_end_with_their_loader():
    """And not with the garbage collector, which takes five seconds for each.
    """
    audit = Audit()
    loader = audit.session.loader(20, num_workers=1, persistent_workers=True)
    trainer = Trainer(audit)
    gc.disable()
    try:
        for batch in loader:
            trainer.step(*batch)
        process = loader._batches._iterator._workers[0]
        assert process.is_alive()
        del loader
        assert not process.is_alive()
    finally:
        gc.enable()


def test_state_has_tensors_and_plain_values_alone():
    trainer = pruned(Neyman())
    state = trainer.session.state_dict()
    loaded = state_of(trainer.session)
    assert repr(loaded) == repr(copy.deepcopy(state))


def test_warnings_are_those_of_a_line_of_the_loop():
    trainer = pruned()
    with warnings.catch_warnings(record=True) as records:
        warnings.simplefilter('always')
        for _ in range(2):
            for batch in trainer.session.loader(20):
                pass
    assert [record.filename for record in records] == [__file__]
