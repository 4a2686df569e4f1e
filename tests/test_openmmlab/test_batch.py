# Copyright (c) mmib contributors. All rights reserved.
"""The norms of gradients, against those of each image alone, and mixtures."""
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from mmseg.models import losses as mmseg_losses
from torch.testing import assert_close

from mmib.openmmlab.batch import BatchContext
from mmib.openmmlab.losses import InfoBatchLoss
from mmib.openmmlab.tasks import segmentation  # noqa: F401

WEIGHTS = torch.tensor([1., 2., 4.])
GENERATOR = torch.Generator().manual_seed(0)
LOGITS = torch.randn(3, 5, 6, 6, generator=GENERATOR)
LABELS = torch.randint(0, 5, (3, 6, 6), generator=GENERATOR)
CE = mmseg_losses.CrossEntropyLoss


@pytest.fixture
def loss():
    loss = InfoBatchLoss(CE())
    loss.batch.set_weights(WEIGHTS, WEIGHTS)
    return loss


@pytest.fixture
def pred():
    """A prediction that the network has computed."""
    return LOGITS.clone().requires_grad_() * 1


def differentiate(batch, total, scale=1.):
    """The backward pass of a total loss, which AMP or gradient accumulation
    may have scaled."""
    batch.watch_total(total)
    (scale * total).backward()


def step(losses,
         logits=LOGITS,
         labels=LABELS,
         weights=WEIGHTS,
         scale=1.,
         **kwargs):
    """A step in which each loss has a prediction of its own."""
    batch = BatchContext()
    batch.set_weights(weights, weights)
    logits = logits.clone().requires_grad_()
    total = sum(
        InfoBatchLoss(loss, batch=batch)(logits * number, labels, **kwargs)
        for number, loss in enumerate(losses, 1))
    differentiate(batch, total, scale)
    return batch


def norms_alone(losses):
    """The same from the loss of each image, without mmib."""
    norms = []
    for logit, label in zip(LOGITS, LABELS):
        preds = [(logit[None] * number).requires_grad_()
                 for number in range(1,
                                     len(losses) + 1)]
        value = sum(loss(x, label[None]) for loss, x in zip(losses, preds))
        gradients = torch.autograd.grad(value, preds)
        norms.append(torch.cat(gradients).norm())
    return torch.stack(norms)


@pytest.mark.parametrize('losses', [
    [CE(loss_weight=0.4)],
    [CE(use_sigmoid=True)] * 2,
    [mmseg_losses.LovaszLoss(per_image=True, reduction='none')],
    [mmseg_losses.TverskyLoss()],
    [CE(), mmseg_losses.DiceLoss(use_sigmoid=False)],
])
def test_norms_are_those_of_each_image(losses):
    """Of all heads, whatever weights and scale are."""
    for kwargs in ({}, dict(weights=torch.ones(3)), dict(scale=1024.)):
        assert_close(step(losses, **kwargs).norms, norms_alone(losses))


@pytest.mark.parametrize('losses', [
    [CE(avg_non_ignore=True)],
    [CE(class_weight=[1., 2., 3., 4., 5.])],
    [mmseg_losses.DiceLoss()],
    [CE(avg_non_ignore=True), mmseg_losses.DiceLoss()],
])
@pytest.mark.parametrize('ignored', [0, 20])
def test_other_images_of_the_batch_do_not_matter(losses, ignored):
    """Whatever the losses of a batch are divided by."""
    labels = LABELS.clone()
    labels.flatten(1)[1, :ignored] = 255
    norms, scores = [], []
    for images in ([0, 1, 2], [0], [1], [2]):
        batch = step(
            losses,
            LOGITS[images],
            labels[images],
            WEIGHTS[images],
            ignore_index=255)
        norms.append(batch.norms)
        scores.append(batch.scores)
    assert_close(norms[0], torch.cat(norms[1:]))
    assert_close(scores[0], torch.cat(scores[1:]))


@pytest.mark.parametrize('factor', [3., torch.tensor(5.)])
def test_the_average_factor_does_not_matter(factor):
    assert_close(step([CE()], avg_factor=factor).norms, norms_alone([CE()]))


def test_parts_of_a_tensor_count_each(loss, pred):
    """As the predictions of all layers in one stack."""
    layers = torch.stack([pred, pred])
    differentiate(loss.batch, sum(loss(layer, LABELS) for layer in layers))
    assert_close(loss.batch.norms, 2**0.5 * norms_alone([CE()]))


def test_a_coupled_loss_has_norms_too():
    loss = mmseg_losses.LovaszLoss(reduction='none')
    pred = LOGITS.clone().requires_grad_()
    gradient, = torch.autograd.grad(loss(pred, LABELS), pred)
    for weights in (WEIGHTS, torch.ones(3)):
        assert_close(
            step([loss], weights=weights).norms,
            3 * gradient.flatten(1).norm(dim=1))


def test_rows_of_masks(loss):
    """Images with 2, 0 and 2 masks: the loss of an image is the mean over its
    own masks."""
    loss.rows_per_image = [2, 0, 2]
    logits, labels = (torch.cat([x, x[:1]]) for x in (LOGITS, LABELS))
    differentiate(loss.batch, loss(logits.requires_grad_() * 1, labels))
    expected = torch.zeros(3)
    for image, masks in ((0, slice(0, 2)), (2, slice(2, 4))):
        pred = logits[masks].detach().requires_grad_()
        CE()(pred, labels[masks]).backward()
        expected[image] = pred.grad.norm()
    assert_close(loss.batch.norms, expected)


def test_no_gradient_no_norms(loss, pred):
    loss(LOGITS, LABELS)
    assert loss.batch.norms is None
    # Rows that can't be told apart hide those of all.
    loss.batch.set_weights(WEIGHTS, WEIGHTS)
    loss.batch.watch(pred[:2])
    differentiate(loss.batch, loss(pred, LABELS))
    assert loss.batch.norms is None


@pytest.mark.parametrize('is_first', [False, True])
def test_another_backward_pass_does_not_matter(loss, pred, is_first):
    """Of a term that isn't in the total loss, as in a `train_step` of one's
    own, or of the total once more."""
    expected = step([CE()]).norms
    total, term = loss(pred, LABELS), pred.square().sum()
    if is_first:
        term.backward(retain_graph=True)
    loss.batch.watch_total(total)
    for each in (total, total, term):
        each.backward(retain_graph=True)
    assert_close(loss.batch.norms, expected)


def test_no_total_no_norms(loss, pred):
    """What the gradients were scaled by isn't known then."""
    loss(pred, LABELS).backward()
    assert loss.batch.norms is None


@pytest.mark.parametrize('factors', [(0, 1), (1, 0), (3, 1), (0.5, 2)])
def test_a_loss_that_the_model_multiplies(loss, pred, factors):
    """The norms are those of what is trained on, and a warm-up from 0 is no
    division by 0."""
    total = sum(factor * loss(pred * 1, LABELS) for factor in factors)
    differentiate(loss.batch, total)
    expected = torch.tensor(factors).float().norm() * norms_alone([CE()])
    assert_close(loss.batch.norms, expected)


@pytest.mark.parametrize('number', [1, 2, 3])
def test_a_prediction_that_losses_share(number):
    """Its gradient is that of all of them, and counts once."""
    batch = BatchContext()
    batch.set_weights(WEIGHTS, WEIGHTS)
    losses = [CE(), mmseg_losses.DiceLoss(use_sigmoid=False), CE()][:number]
    pred = LOGITS.clone().requires_grad_() * 1
    differentiate(
        batch,
        sum(InfoBatchLoss(loss, batch=batch)(pred, LABELS) for loss in losses))
    expected = []
    for logits, labels in zip(LOGITS[:, None], LABELS[:, None]):
        logits = logits.clone().requires_grad_()
        sum(loss(logits, labels) for loss in losses).backward()
        expected.append(logits.grad.norm())
    assert_close(batch.norms, torch.stack(expected))


def test_the_value_has_relative_weights(loss, pred):
    """And the gradient the full ones."""
    raw = CE(reduction='none')(LOGITS, LABELS).mean((1, 2))
    relative_weights = WEIGHTS / WEIGHTS.mean()
    loss.batch.set_weights(relative_weights, WEIGHTS)
    value = loss(pred, LABELS)
    assert_close(value, (relative_weights * raw).mean())
    gradient, = torch.autograd.grad(value, pred)
    plain = LOGITS.clone().requires_grad_()
    CE()(plain, LABELS).backward()
    assert_close(gradient, WEIGHTS[:, None, None, None] * plain.grad)


@st.composite
def mixtures(draw):
    """Weights of images, share of each row, and losses of the rows."""
    size = draw(st.integers(1, 9))

    def numbers(low, high):
        number = st.floats(low, high, width=32)
        return torch.tensor(
            draw(st.lists(number, min_size=size, max_size=size)))

    share = draw(st.floats(0, 1, width=32)) if draw(
        st.booleans()) else numbers(0, 1)
    return numbers(0, 8), share, numbers(0, 4)


@given(mixtures())
def test_weights_and_scores_of_mixtures(example):
    """Row by row, as the definition says."""
    weights, share, losses = example
    size = len(weights)
    row_weights, scores = torch.zeros(size), torch.zeros(size)
    for row in range(size):
        own = float(share[row] if torch.is_tensor(share) else share)
        for image, part in ((row, own), (size - 1 - row, 1 - own)):
            row_weights[row] += part * weights[image]
            scores[image] += part * losses[row]
    batch = BatchContext()
    batch.set_weights(weights, weights)
    batch.mix(share)
    value = batch.mean(losses)
    assert_close(batch.row_weights, row_weights)
    assert_close(batch.scores, scores)
    # The loss is that of the images, each with its own weight.
    assert_close(value, (weights * batch.scores).mean())
    # The next batch isn't mixed, and in annealing none is.
    batch.set_weights(weights, weights)
    batch.mean(losses)
    assert_close(batch.row_weights, weights)
    assert_close(batch.relative_weights, weights)
    assert_close(batch.scores, losses)
    batch.clear()
    batch.mix(share)
    assert batch.weights is None and batch.scores is None


@given(mixtures())
def test_relative_weights_of_mixtures(example):
    """They are mixed as weights are."""
    weights, share, losses = example
    relative_weights = weights / 3
    batch = BatchContext()
    batch.set_weights(relative_weights, weights)
    batch.mix(share)
    value = batch.mean(losses)
    assert_close(batch.relative_weights, batch.row_weights / 3)
    assert_close(value, (relative_weights * batch.scores).mean())


@pytest.mark.parametrize('share', [0.3, torch.tensor([0.3, 0.8, 1.])])
def test_norms_of_mixtures(loss, share):
    logits = LOGITS.clone().requires_grad_()
    loss.batch.mix(share)
    differentiate(loss.batch, loss(logits * 1, LABELS))
    share = torch.as_tensor(share).expand(3)
    rows = torch.stack(
        [CE()(logits[i:i + 1], LABELS[i:i + 1]) for i in range(3)])
    expected = []
    for image, other in enumerate((2, 1, 0)):
        mixed = share[image] * rows[image] + (1 - share[other]) * rows[other]
        gradient, = torch.autograd.grad(mixed, logits, retain_graph=True)
        expected.append(gradient.norm())
    assert_close(loss.batch.norms, torch.stack(expected))
