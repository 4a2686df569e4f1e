# Copyright (c) mmib contributors. All rights reserved.
import copy
import pickle

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from mmseg.models import losses as mmseg_losses
from mmseg.models.losses import CrossEntropyLoss, DiceLoss, LovaszLoss
from torch.testing import assert_close

from mmib import InfoBatchLoss
from mmib.errors import Refusal
from mmib.openmmlab.losses import check_loss, register_unreduced
from mmib.openmmlab.tasks import segmentation  # noqa: F401
from mmib.scores.weigh import weigh_gradients

from .contract import check_loss_weights

B, C, H, W = 3, 5, 6, 7
IGNORE = dict(ignore_index=255)
WEIGHTS = torch.tensor([1., 3., 0.5])
CLASS_WEIGHT = [0.5, 1., 2., 3., 0.25]
SOFTMAX = [
    dict(),
    dict(avg_non_ignore=True),
    dict(loss_weight=0.4),
    dict(reduction='sum'),
    dict(reduction='none', avg_non_ignore=True),
]
SIGMOID = [
    dict(use_sigmoid=True),
    dict(use_sigmoid=True, avg_non_ignore=True),
    dict(use_sigmoid=True, avg_non_ignore=True, class_weight=CLASS_WEIGHT[0]),
    dict(use_sigmoid=True, loss_weight=0.4),
]


def make_batch(ignored='some', num_classes=C):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(B, num_classes, H, W, generator=generator)
    label = torch.randint(
        0, max(num_classes, 2), (B, H, W), generator=generator)
    if ignored != 'none':
        label[0, :2] = 255
        label[1, 3, 4] = 255
    if ignored == 'some, and negative':
        label[0, 3] = -1
    if ignored == 'an image':
        label[2] = 255
    if ignored == 'all':
        label[:] = 255
    return logits, label


def weighting(loss, weights=WEIGHTS, **kwargs):
    """A wrapped loss in a step with weights, or in one of the baseline."""
    loss = InfoBatchLoss(loss, **kwargs)
    if weights is not None:
        loss.batch.set_weights(weights, weights)
    return loss


def run(loss, pred, target, **kwargs):
    """The loss and its gradient."""
    pred = pred.clone().requires_grad_()
    # The segmentor takes the mean of a loss that isn't a scalar.
    value = loss(pred, target, **kwargs).mean()
    value.backward()
    return value.detach(), pred.grad


@pytest.mark.parametrize(
    'kwargs, num_classes, ignored',
    [(kwargs, C, ignored) for kwargs in SOFTMAX + SIGMOID
     for ignored in ('none', 'an image', 'all')] +
    # MMSegmentation fails at one class of which all is ignored.
    [(kwargs, 1, 'an image')
     for kwargs in SIGMOID] + [(SIGMOID[1], num_classes, 'some, and negative')
                               for num_classes in (1, C)] +
    [(dict(class_weight=CLASS_WEIGHT), C, 'none')],
    ids=str)
def test_cross_entropy(kwargs, num_classes, ignored):
    logits, label = make_batch(ignored, num_classes)
    loss = CrossEntropyLoss(**kwargs)
    known, _ = check_loss_weights(loss, logits, label, WEIGHTS, **IGNORE)
    pixels = loss(logits, label, reduction_override='none', **IGNORE)
    assert_close(known.scores, pixels.flatten(1).mean(1))
    assert not known.scores.requires_grad


@pytest.mark.parametrize('kwargs', [SOFTMAX[1], SIGMOID[1]], ids=str)
def test_amp(kwargs):
    """Under autocast logits are bfloat16, and scores float32 still."""
    logits, label = make_batch()
    low = logits.bfloat16()
    loss = weighting(CrossEntropyLoss(**kwargs))
    expected, expected_grad = run(loss, low.float(), label, **IGNORE)
    loss.batch.set_weights(WEIGHTS, WEIGHTS)
    with torch.autocast('cpu', dtype=torch.bfloat16):
        value, grad = run(loss, low, label, **IGNORE)
    assert_close(value, expected)
    assert loss.batch.scores.dtype == torch.float32
    assert grad.dtype == torch.bfloat16
    assert_close(grad.float(), expected_grad, rtol=2e-2, atol=2e-4)


@pytest.mark.parametrize('avg_non_ignore', [False, True])
@pytest.mark.parametrize('ignored', ['none', 'some', 'an image', 'all'])
def test_class_weights_where_mmsegmentation_fails(avg_non_ignore, ignored):
    """At ignored pixels, or where they aren't counted. With and without
    weights of images, it is what torch computes."""
    logits, label = make_batch(ignored)
    class_weight = torch.tensor(CLASS_WEIGHT)
    loss = CrossEntropyLoss(
        class_weight=CLASS_WEIGHT, avg_non_ignore=avg_non_ignore)

    def by_torch(logits, label):
        pixels = F.cross_entropy(
            logits, label, class_weight, reduction='none', **IGNORE)
        used = torch.ones(B) if weights is None else weights
        divisor = class_weight[label[label != 255]].sum()
        return (used * pixels.sum((1, 2))).sum() / divisor.clamp(min=1e-6)

    for weights in (None, WEIGHTS):
        assert_close(
            run(weighting(loss, weights), logits, label, **IGNORE),
            run(by_torch, logits, label))


def test_calls_that_are_neither_scored_nor_weighted():
    """Baseline to the bit."""
    logits, label = make_batch()
    baseline = CrossEntropyLoss()
    loss = weighting(baseline, None)

    def assert_is_baseline(*batch, **kwargs):
        assert torch.equal(
            loss(*batch, **IGNORE, **kwargs),
            baseline(*batch, **IGNORE, **kwargs))
        assert loss.batch.scores is None

    # Outside of training and in annealing.
    assert_is_baseline(logits, label)
    loss.batch.set_weights(WEIGHTS, WEIGHTS)
    # OHEMPixelSampler(thresh=None) asks for the pixel losses first.
    assert_is_baseline(logits, label, reduction_override='none')
    # A hook looks at losses.
    with torch.no_grad():
        assert_is_baseline(logits[:2], label[:2])


def one_hot(label):
    return F.one_hot(label.clamp(max=C - 1), C).permute(0, 3, 1, 2).float()


def make_other_batch(kind):
    """Predictions and targets of a kind."""
    generator = torch.Generator().manual_seed(1)
    edges = torch.rand(B, H, W, generator=generator) < 0.2
    if kind == 'depths':
        depth = torch.rand(2, B, 1, H, W, generator=generator)
        return depth[0] + 0.1, depth[1]
    if kind == 'one-hot':
        logits, label = make_batch('none')
        return logits, one_hot(label)
    if kind == 'binary':
        logits, label = make_batch(num_classes=1)
        return logits.squeeze(1), label
    logits, label = make_batch('all' if kind == 'no edges known' else 'some',
                               1 if 'edges' in kind else C)
    if 'edges' in kind:
        label[label != 255] = 0
    if kind == 'edges':
        label[edges & (label == 0)] = 1
    return logits, label


@pytest.mark.parametrize(
    'loss_type, kwargs, kind',
    [
        ('DiceLoss', dict(), 'labels'),
        ('DiceLoss', dict(use_sigmoid=False, loss_weight=3.), 'labels'),
        ('DiceLoss', dict(naive_dice=True, ignore_index=1), 'labels'),
        # Other targets fail on a CPU, in MMSegmentation.
        ('FocalLoss', dict(loss_weight=2., gamma=1.5), 'one-hot'),
        ('FocalLoss', dict(class_weight=CLASS_WEIGHT), 'one-hot'),
        ('TverskyLoss', dict(loss_weight=2.), 'labels'),
        ('TverskyLoss', dict(class_weight=CLASS_WEIGHT,
                             ignore_index=2), 'labels'),
        ('HuasdorffDisstanceLoss', dict(loss_weight=0.5), 'labels'),
        ('LovaszLoss', dict(reduction='none', loss_weight=2.), 'labels'),
        ('LovaszLoss', dict(class_weight=CLASS_WEIGHT), 'labels'),
        ('LovaszLoss', dict(loss_type='binary'), 'binary'),
        ('SiLogLoss', dict(loss_weight=2.), 'depths'),
        ('BoundaryLoss', dict(loss_weight=20.), 'edges'),
        ('BoundaryLoss', dict(loss_weight=20.), 'no edges'),
        ('BoundaryLoss', dict(loss_weight=20.), 'no edges known'),
    ],
    ids=str)
def test_losses_that_are_the_mean_of_images(loss_type, kwargs, kind):
    pred, target = make_other_batch(kind)
    if loss_type == 'LovaszLoss':
        kwargs = dict(kwargs, per_image=True)
    baseline = getattr(mmseg_losses, loss_type)(**kwargs)
    known, parts = check_loss_weights(baseline, pred, target, WEIGHTS)
    assert_close(known.scores, B * parts)
    # Boundaries are balanced over the batch.
    if loss_type != 'BoundaryLoss':
        alone = [baseline(pred[i:i + 1], target[i:i + 1]) for i in range(B)]
        assert_close(known.scores, torch.stack([x.mean() for x in alone]))


@pytest.mark.parametrize('loss_type', ['HuasdorffDisstanceLoss', 'DiceLoss'])
def test_losses_of_images_with_a_divisor(loss_type):
    """One divides the mean by it, and the other the sum."""
    pred, target = make_other_batch('labels')
    check_loss_weights(
        getattr(mmseg_losses, loss_type)(),
        pred,
        target,
        WEIGHTS,
        avg_factor=10.)


@pytest.mark.parametrize('thres, min_kept, class_weight', [
    (0.3, 1, None),
    (0.01, 20, None),
    (0.01, 1000, None),
    (0.3, 10, CLASS_WEIGHT),
])
@pytest.mark.parametrize('ignored', ['none', 'some', 'an image'])
def test_ohem_cross_entropy(thres, min_kept, class_weight, ignored):
    baseline = mmseg_losses.OhemCrossEntropy(
        thres=thres,
        min_kept=min_kept,
        loss_weight=0.5,
        class_weight=class_weight)
    known, parts = check_loss_weights(baseline, *make_batch(ignored), WEIGHTS)
    # In the ratios of what images add to the loss.
    assert_close(known.scores / known.scores.sum(), parts / parts.sum())


@pytest.mark.parametrize('ignored', ['some', 'all'])
def test_scores_of_ohem_cross_entropy(ignored):
    """The mean over the pixels of the image, where all are hard."""
    logits, label = make_batch(ignored)
    loss = weighting(
        mmseg_losses.OhemCrossEntropy(
            thres=1., min_kept=B * H * W, loss_weight=0.5))
    assert loss(logits, label).isfinite()
    pixels = F.cross_entropy(logits, label, reduction='none', **IGNORE)
    assert_close(loss.batch.scores, 0.5 * pixels.mean((1, 2)))


@pytest.mark.parametrize('ignored', ['some', 'an image'])
@pytest.mark.parametrize(
    'kwargs', [
        dict(),
        dict(loss_weight=2., class_weight=CLASS_WEIGHT),
        dict(classes='all'),
        dict(loss_type='binary'),
    ],
    ids=str)
def test_lovasz_loss_of_a_batch(kwargs, ignored):
    """The loss isn't a sum over images, so weights act on the gradient."""
    pred, label = make_other_batch(kwargs.get('loss_type', 'labels'))
    if ignored == 'an image':
        label[2] = 255
    baseline = LovaszLoss(reduction='none', **kwargs)
    known, _ = check_loss_weights(baseline, pred, label, WEIGHTS, **IGNORE)
    for i in range(B):
        alone = baseline(pred[i:i + 1], label[i:i + 1], **IGNORE)
        assert_close(known.scores[i], alone.sum())
    # Without a gradient to scale.
    assert_close(
        weighting(baseline)(pred, label, **IGNORE),
        baseline(pred, label, **IGNORE))


@pytest.mark.parametrize('baseline, avg_factor', [
    (CrossEntropyLoss(use_sigmoid=True), 6. * 20),
    (DiceLoss(ignore_index=None, naive_dice=True, eps=1.), 6.),
])
@pytest.mark.parametrize('masks', [[2, 1, 3], [4, 0, 2]])
def test_masks_belong_to_images(baseline, avg_factor, masks):
    """Heads that classify masks put those of all images in one row."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(6, 20, generator=generator)
    target = torch.randint(0, 2, (6, 20), generator=generator).float()
    avg_factor = torch.tensor([avg_factor])
    known, _ = check_loss_weights(
        baseline, logits, target, WEIGHTS, rows=masks, avg_factor=avg_factor)
    rows = baseline(logits, target, reduction_override='none').view(6, -1)
    means = [part.mean() if len(part) else 0. for part in rows.split(masks)]
    assert_close(known.scores, torch.tensor(means))


@pytest.mark.parametrize('baseline', [
    CrossEntropyLoss(use_sigmoid=True),
    DiceLoss(ignore_index=None, naive_dice=True, eps=1.),
])
def test_a_batch_without_masks(baseline):
    loss = weighting(baseline, rows_per_image=[0, 0, 0])
    nothing = torch.empty(0, 20, requires_grad=True)
    assert loss(nothing, nothing.detach(), avg_factor=torch.tensor([1.])) == 0
    assert_close(loss.batch.scores, torch.zeros(3))


@pytest.mark.parametrize('rows', [2, 4, 6])
@pytest.mark.parametrize('loss, rows_per_image', [
    (CrossEntropyLoss(), 1),
    (DiceLoss(), 1),
    (LovaszLoss(reduction='none'), 1),
    (LovaszLoss(reduction='none'), [1, 0, 0]),
    (DiceLoss(), [2, 1, 2]),
])
def test_rows_that_are_not_the_images(loss, rows_per_image, rows):
    """As of a segmentor that trains on a part of a batch, or on two views."""
    logits, label = make_batch('none')
    loss = weighting(loss, rows_per_image=rows_per_image)
    with pytest.raises(Refusal, match=f'{rows} rows for a batch of 3 images'):
        loss(logits.repeat(2, 1, 1, 1)[:rows], label.repeat(2, 1, 1)[:rows])
    assert loss.batch.scores is None


class SquaredLoss(nn.Module):
    """A loss of a user."""

    def forward(self, pred, target):
        return (pred.softmax(1) - one_hot(target)).square().mean()


def of_a_subclass(kind, **attributes):
    return type('Mine', (kind, ), attributes)()


def told_of(loss, unreduced, **kwargs):
    register_unreduced(type(loss), **kwargs)(unreduced)
    return loss


def test_a_rule_may_return_the_elements_alone():
    """Of a loss that divides by their number."""
    logits, label = make_batch('none')
    own = of_a_subclass(SquaredLoss)
    rules = [
        lambda loss, *args: (args[0].softmax(1) - one_hot(args[1])).square(),
        lambda loss, *args: (rules[0](loss, *args), logits.numel())
    ]
    values = [
        weighting(told_of(own, rule, reduces=False))(logits, label)
        for rule in rules
    ]
    assert values[0] == values[1]


LEARNS = of_a_subclass(SquaredLoss, reduction='mean')
LEARNS.log_var = nn.Parameter(torch.zeros(()))


@pytest.mark.parametrize('loss, message', [
    (SquaredLoss(), 'none for SquaredLoss.*register_unr'),
    (of_a_subclass(CrossEntropyLoss), 'none for Mine'),
    (CrossEntropyLoss(use_mask=True), 'use_mask=True'),
    (told_of(of_a_subclass(SquaredLoss), None), 'no `reduction`.*reduces=Fal'),
    (told_of(LEARNS, None), r'Mine.*\(log_var\).*head'),
])
def test_losses_that_are_refused(loss, message):
    with pytest.raises(Refusal, match=message):
        check_loss(loss)


def test_losses_of_users():

    def elements(loss, pred, target):
        squares = (pred.softmax(1) - one_hot(target)).square()
        return squares, squares.numel()

    def scalar(loss, pred, target):
        return loss(pred, target), 1

    logits, label = make_batch('none')
    loss = told_of(of_a_subclass(SquaredLoss), elements, reduces=False)
    check_loss(loss)
    known, _ = check_loss_weights(loss, logits, label, WEIGHTS)
    images = [loss(logits[i:i + 1], label[i:i + 1]) for i in range(B)]
    assert_close(known.scores, torch.stack(images))
    told_of(loss, scalar, reduces=False)
    with pytest.raises(Refusal, match='`scalar`.*gives a scalar'):
        check_loss_weights(loss, logits, label, WEIGHTS)


@pytest.mark.parametrize('weights', [None, torch.ones(B)], ids=['off', 'on'])
@pytest.mark.parametrize('copied', [
    lambda loss: loss,
    copy.deepcopy,
    lambda loss: pickle.loads(pickle.dumps(loss)),
])
def test_attributes_are_those_of_the_wrapped_loss(copied, weights):
    """As of a hook that changes a loss while it trains, or of EMAHook."""
    batch = make_batch('none')
    first = weighting(CrossEntropyLoss(loss_weight=0.4), weights).eval()
    loss = copied(first)
    assert (loss.loss_weight, loss.loss_name) == (0.4, 'loss_ce')
    before, _ = run(first, *batch)
    loss.loss_weight = 0.8
    assert_close(run(loss, *batch)[0], 2 * before)
    assert first.loss_weight == (0.8 if loss is first else 0.4)
    assert not loss.training and loss.train().loss.training
    with pytest.raises(AttributeError, match='no_such'):
        loss.no_such


def test_weights_of_half_precision_are_not_rounded():
    """1 / 0.6 in bfloat16 is 0.2 % less."""
    weight, pred = torch.tensor([1 / 0.6]), torch.zeros(1, 300)
    pred = pred.bfloat16().requires_grad_()
    gradient = torch.linspace(1, 2, 300).bfloat16()
    weighed, = weigh_gradients(weight, [pred])
    weighed.backward(gradient[None])
    assert pred.grad.dtype == torch.bfloat16
    expected = (gradient.float() * weight).bfloat16()
    assert_close(pred.grad[0], expected, rtol=0, atol=0)
    assert not torch.equal(expected, gradient * weight.bfloat16())
