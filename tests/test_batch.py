# Copyright (c) mmib contributors. All rights reserved.
"""The norms of gradients, against those of each image alone."""
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from mmseg.models import losses as mmseg_losses
from torch.testing import assert_close

from mmib.batch import BatchContext
from mmib.losses import InfoBatchLoss
from mmib.tasks import segmentation  # noqa: F401

WEIGHTS = torch.tensor([1., 2., 4.])


@pytest.fixture
def data():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 5, 6, 6, generator=generator)
    labels = torch.randint(0, 5, (3, 6, 6), generator=generator)
    return logits, labels


@pytest.fixture
def loss():
    loss = InfoBatchLoss(mmseg_losses.CrossEntropyLoss())
    loss.batch.begin(WEIGHTS)
    return loss


def norms(losses, logits, labels, weights=WEIGHTS, scale=1., heads=2):
    """Norms of one step of some heads that call the same losses."""
    batch = BatchContext()
    batch.begin(weights)
    wrapped = [InfoBatchLoss(loss, batch=batch) for loss in losses]
    logits = logits.clone().requires_grad_()
    total = 0
    for head in range(heads):
        pred = logits * (head + 1)
        total = total + sum(loss(pred, labels) for loss in wrapped)
    (scale * total).backward()
    return batch.norms


def of_cross_entropy(data, loss_weight=1.):
    """Norms of one prediction with one loss."""
    logits, labels = data
    loss = mmseg_losses.CrossEntropyLoss(loss_weight=loss_weight)
    return norms([loss], logits.detach(), labels, heads=1)


def norms_alone(losses, logits, labels, heads=2):
    """The same from the loss of each image without mmib."""
    result = []
    for logit, label in zip(logits, labels):
        squares = 0.
        for head in range(heads):
            pred = (logit[None] * (head + 1)).requires_grad_()
            loss = sum(loss(pred, label[None]) for loss in losses)
            gradient, = torch.autograd.grad(loss, pred)
            squares += gradient.square().sum()
        result.append(squares.sqrt())
    return torch.stack(result)


@pytest.mark.parametrize(
    'losses', [
        [mmseg_losses.CrossEntropyLoss(loss_weight=0.4)],
        [mmseg_losses.CrossEntropyLoss(use_sigmoid=True)],
        [mmseg_losses.LovaszLoss(per_image=True, reduction='none')],
        [mmseg_losses.TverskyLoss()],
        [
            mmseg_losses.CrossEntropyLoss(),
            mmseg_losses.DiceLoss(use_sigmoid=False)
        ],
    ],
    ids=lambda losses: '+'.join(type(loss).__name__ for loss in losses))
def test_norms_are_those_of_each_image(losses, data):
    """Of all heads, and of the sum of the losses of a prediction."""
    assert_close(norms(losses, *data), norms_alone(losses, *data))


@pytest.mark.parametrize('losses', [
    [mmseg_losses.CrossEntropyLoss(avg_non_ignore=True)],
    [mmseg_losses.CrossEntropyLoss(class_weight=[1., 2., 3., 4., 5.])],
    [mmseg_losses.DiceLoss()],
    [
        mmseg_losses.CrossEntropyLoss(avg_non_ignore=True),
        mmseg_losses.DiceLoss()
    ],
    [
        mmseg_losses.DiceLoss(),
        mmseg_losses.CrossEntropyLoss(avg_non_ignore=True)
    ],
])
@pytest.mark.parametrize('ignored', [0, 20])
@pytest.mark.parametrize('shared', [False, True])
def test_other_images_of_the_batch_do_not_matter(data, losses, ignored,
                                                 shared):
    """Whatever the losses of a batch are divided by, and also where they are
    computed from the same prediction."""
    logits, labels = data
    labels = labels.clone()
    labels.flatten(1)[1, :ignored] = 255
    wrapped = [InfoBatchLoss(loss) for loss in losses]

    def step(images, weights):
        batch = BatchContext()
        batch.begin(weights)
        pred = logits[images].clone().requires_grad_() * 1
        value = 0
        for loss in wrapped:
            loss.batch = batch
            value = value + loss(
                pred if shared else pred * 1, labels[images], ignore_index=255)
        value.backward()
        return batch

    batch = step(slice(None), WEIGHTS)
    alone = [step(slice(i, i + 1), WEIGHTS[:1]) for i in range(3)]
    assert_close(batch.norms, torch.cat([b.norms for b in alone]))
    assert_close(batch.scores, torch.cat([b.scores for b in alone]))


@pytest.mark.parametrize('factor', [3., torch.tensor(5.)])
def test_the_average_factor_does_not_matter(data, loss, factor):
    logits, labels = data
    loss(logits.requires_grad_() * 1, labels, avg_factor=factor).backward()
    assert_close(loss.batch.norms, of_cross_entropy(data))


def test_norms_depend_neither_on_weights_nor_on_the_scale(data):
    loss = [mmseg_losses.CrossEntropyLoss()]
    expected = norms(loss, *data)
    assert_close(norms(loss, *data, torch.ones(3)), expected)
    assert_close(norms(loss, *data, scale=1024.), expected)


@pytest.mark.parametrize('order', [1, -1])
def test_another_view_of_a_prediction_counts_once(data, loss, order):
    """Whichever comes first, as of points of masks in two losses."""
    logits, labels = data
    pred = logits.requires_grad_() * 1
    views = [(pred, labels), (pred.flatten(2), labels.flatten(1))]
    sum(loss(*view) for view in views[::order]).backward()
    assert_close(loss.batch.norms, of_cross_entropy(data, loss_weight=2.))


def test_parts_of_a_tensor_count_each(data, loss):
    """As the predictions of all layers in one stack."""
    logits, labels = data
    layers = torch.stack([logits, logits]).requires_grad_() * 1
    sum(loss(layer, labels) for layer in layers).backward()
    assert_close(loss.batch.norms, 2**0.5 * of_cross_entropy(data))


def test_a_coupled_loss_has_norms_too(data):
    loss = [mmseg_losses.LovaszLoss(reduction='none')]
    logits, labels = data
    for weights in (WEIGHTS, torch.ones(3)):
        pred = logits.clone().requires_grad_()
        value = loss[0](pred, labels)
        gradient, = torch.autograd.grad(value, pred)
        assert_close(
            norms(loss, logits, labels, weights, heads=1),
            len(logits) * gradient.flatten(1).norm(dim=1))


def test_rows_of_masks(data, loss):
    """Images with 2, 0 and 2 masks: the loss of an image is the mean over its
    own masks."""
    loss.rows_per_image = [2, 0, 2]
    logits, labels = (torch.cat([x, x[:1]]) for x in data)
    loss(logits.requires_grad_() * 1, labels).backward()
    expected = []
    for masks in (slice(0, 2), slice(2, 4)):
        pred = logits[masks].detach().requires_grad_()
        own = mmseg_losses.CrossEntropyLoss()(pred, labels[masks])
        expected.append(torch.autograd.grad(own, pred)[0].norm())
    expected.insert(1, torch.zeros(()))
    assert_close(loss.batch.norms, torch.stack(expected))


def test_no_gradient_no_norms(data, loss):
    logits, labels = data
    loss(logits, labels)
    assert loss.batch.norms is None
    # Rows that can't be told apart hide those of all.
    pred = logits.requires_grad_() * 1
    for part in (pred, pred[:2]):
        loss.batch.watch(part, 1)
    value = pred.sum()
    loss.batch.watch_loss(value)
    value.backward()
    assert loss.batch.norms is None


def test_a_loss_that_the_model_multiplies(data, loss):
    """The scale is that of the other losses, so a warm-up from 0 is no
    division by 0."""
    logits, labels = data
    first, second = (logits.requires_grad_() * 1 for _ in range(2))
    (loss(first, labels) + 0 * loss(second, labels)).backward()
    assert_close(loss.batch.norms, of_cross_entropy(data))


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
    batch.begin(weights)
    batch.mix(share)
    batch.add_scores(losses, losses.mean())
    assert_close(batch.row_weights, row_weights)
    assert_close(batch.scores, scores)
    assert batch.weights is weights
    # The loss is that of the images, each with its own weight.
    assert_close((batch.row_weights * losses).sum(),
                 (weights * batch.scores).sum())
    # The next batch isn't mixed.
    batch.begin(weights)
    batch.add_scores(losses, losses.mean())
    assert batch.row_weights is weights
    assert_close(batch.scores, losses)


def test_without_weights_there_are_no_mixtures():
    batch = BatchContext()
    batch.begin(None)
    batch.mix(0.3)
    assert batch.row_weights is None


@pytest.mark.parametrize('share', [0.3, torch.tensor([0.3, 0.8, 1.])])
def test_norms_of_mixtures(data, loss, share):
    logits, labels = data
    loss.batch.mix(share)
    loss(logits.requires_grad_() * 1, labels).backward()
    share = torch.as_tensor(share).expand(3)
    expected = []
    for image, other in enumerate((2, 1, 0)):
        rows = torch.stack(
            [loss.loss(logits[i:i + 1], labels[i:i + 1]) for i in range(3)])
        mixed = share[image] * rows[image] + (1 - share[other]) * rows[other]
        expected.append(torch.autograd.grad(mixed, logits)[0].norm())
    assert_close(loss.batch.norms, torch.stack(expected))


def test_scores_hold_no_larger_tensor(loss):
    """They are kept for some batches."""
    loss.batch.mean(torch.zeros(3, 100)[:, 0])
    assert loss.batch.scores.untyped_storage().nbytes() == 3 * 4
