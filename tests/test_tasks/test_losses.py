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
from mmib.losses import check_loss, register_unreduced, scale_gradient
from mmib.tasks import segmentation  # noqa: F401

B, C, H, W = 3, 5, 6, 7
IGNORE = 255
WEIGHTS = torch.tensor([1., 3., 0.5])
CLASS_WEIGHT = [0.5, 1., 2., 3., 0.25]
SOFTMAX = [
    dict(),
    dict(avg_non_ignore=True),
    dict(class_weight=CLASS_WEIGHT),
    dict(class_weight=CLASS_WEIGHT, avg_non_ignore=True),
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
        label[0, :2] = IGNORE
        label[1, 3, 4] = IGNORE
    if ignored == 'an image':
        label[2] = IGNORE
    if ignored == 'all':
        label[:] = IGNORE
    return logits, label


def cross_entropy_by_hand(logits,
                          label,
                          use_sigmoid=False,
                          class_weight=None,
                          avg_non_ignore=False,
                          loss_weight=1.,
                          reduction='mean'):
    """The losses of all elements, in float64, and their divisor."""
    logits, num_classes = logits.double(), logits.shape[1]
    valid = (label != IGNORE)[:, None]
    classes = torch.arange(num_classes) if num_classes > 1 else torch.ones(1)
    # Of no class where the pixel is ignored.
    is_class = label[:, None] == classes.view(-1, 1, 1)
    if use_sigmoid:
        hit, miss = F.logsigmoid(logits), F.logsigmoid(-logits)
        losses = -torch.where(is_class,
                              (class_weight or 1) * hit, miss) * valid
        divisor = valid.sum() * num_classes if avg_non_ignore else None
    else:
        weights = is_class * torch.tensor(class_weight or [1] * C).view(
            -1, 1, 1)
        losses = -(weights * logits.log_softmax(1)).sum(1)
        divisor = weights.sum() if class_weight or avg_non_ignore else None
    if reduction == 'sum':
        divisor = 1
    elif reduction == 'none' or divisor is None:
        divisor = losses.numel()
    # No loss of ignored pixels alone.
    return loss_weight * losses, max(divisor, 1e-6)


def ohem_by_hand(logits, label, thres, min_kept, class_weight=None):
    """The mean over the pixels with the lowest probability of their class."""
    losses, _ = cross_entropy_by_hand(logits, label, class_weight=class_weight)
    prob = torch.exp(-cross_entropy_by_hand(logits, label)[0])
    valid = label != IGNORE
    increasing = prob[valid].sort()[0]
    last = increasing[min(min_kept, len(increasing) - 1)]
    hard = valid & (prob < last.clamp(min=thres))
    return 0.5 * losses * hard, hard.sum()


def boundary_by_hand(logits, label):
    """The pixels of the other class, as a share of both, weigh."""
    edge, other = label == 1, label == 0
    number = max((edge | other).sum(), 1)
    losses = (F.softplus(-logits[:, 0].double()) * edge * other.sum() +
              F.softplus(logits[:, 0].double()) * other * edge.sum()) / number
    return 20 * losses, losses.numel()


def combine(elements, divisor):
    """The weighted loss, and the raw one of each image."""
    images = elements.flatten(1)
    return (WEIGHTS * images.sum(1)).sum() / divisor, images.mean(1)


class WeightedCrossEntropy(CrossEntropyLoss):
    """What ``CrossEntropyLoss`` with class weights is meant to be. In mmseg
    1.2.2, and with ``avg_non_ignore`` in 1.4.2, it fails at ignored pixels."""

    def forward(self, pred, label, weight=None, ignore_index=-100):
        class_weight = pred.new_tensor(self.class_weight)
        loss = F.cross_entropy(
            pred,
            label,
            class_weight,
            ignore_index=ignore_index,
            reduction='none')
        weights = class_weight[label[label != ignore_index]]
        if weight is not None:
            loss = loss * weight
        eps = torch.finfo(torch.float32).eps
        return self.loss_weight * loss.sum() / (weights.sum() + eps)


def make_baseline(kwargs, ignored='some'):
    """MMSegmentation's own loss, where it doesn't fail."""
    is_weighted = 'class_weight' in kwargs and 'use_sigmoid' not in kwargs
    if is_weighted and (ignored != 'none' or 'avg_non_ignore' in kwargs):
        return WeightedCrossEntropy(**kwargs)
    return CrossEntropyLoss(**kwargs)


def run(loss, pred, target, **kwargs):
    """The loss and its gradient."""
    pred = pred.clone().requires_grad_()
    # The segmentor takes the mean of a loss that isn't a scalar.
    value = loss(pred, target, **kwargs).mean()
    value.backward()
    return value.detach(), pred.grad


def run_with_weights(wrapped,
                     pred,
                     target,
                     baseline=None,
                     rows_per_image=1,
                     **kwargs):
    """Loss, gradient and scores; with weight 1 and without weights the loss
    is the baseline."""
    batch = pred, target
    loss = InfoBatchLoss(wrapped, rows_per_image)
    expected = run(baseline or wrapped, *batch, **kwargs)
    for weights in (None, torch.ones(B)):
        loss.batch.begin(weights)
        assert_close(run(loss, *batch, **kwargs), expected)
    loss.batch.begin(WEIGHTS)
    value, grad = run(loss, *batch, **kwargs)
    return value, grad, loss.batch.scores


def assert_by_hand(got, logits, by_hand, label, **kwargs):
    logits = logits.clone().requires_grad_()
    expected, raw = combine(*by_hand(logits, label, **kwargs))
    expected.backward()
    assert_close(
        got, (expected.detach().float(), logits.grad, raw.detach().float()))


@pytest.mark.parametrize(
    'kwargs, num_classes, ignored',
    [(kwargs, C, ignored) for kwargs in SOFTMAX + SIGMOID
     for ignored in ('none', 'some', 'an image', 'all')] +
    # MMSegmentation fails at one class of which all is ignored.
    [(kwargs, 1, ignored) for kwargs in SIGMOID
     for ignored in ('none', 'some', 'an image')],
    ids=str)
def test_cross_entropy(kwargs, num_classes, ignored):
    logits, label = make_batch(ignored, num_classes)
    got = run_with_weights(
        CrossEntropyLoss(**kwargs),
        logits,
        label,
        make_baseline(kwargs, ignored),
        ignore_index=IGNORE)
    assert not got[-1].requires_grad
    assert_by_hand(got, logits, cross_entropy_by_hand, label, **kwargs)


@pytest.mark.parametrize('kwargs', SOFTMAX + SIGMOID, ids=str)
def test_amp(kwargs):
    """Under autocast logits are bfloat16, and scores float32 still."""
    logits, label = make_batch()
    baseline = make_baseline(kwargs)
    loss = InfoBatchLoss(CrossEntropyLoss(**kwargs))
    with torch.autocast('cpu', dtype=torch.bfloat16):
        low = nn.Conv2d(C, C, 1)(logits).detach()
        assert low.dtype == torch.bfloat16
        for weights in (torch.ones(B), WEIGHTS):
            loss.batch.begin(weights)
            got, grad = run(loss, low, label, ignore_index=IGNORE)
            pixels = weights[:, None, None].expand(B, H, W)
            expected, _ = run(
                baseline, low, label, weight=pixels, ignore_index=IGNORE)
            assert_close(got, expected)
    assert loss.batch.scores.dtype == torch.float32
    # Its gradient is the one by hand, up to the rounding of bfloat16.
    reference = low.float().requires_grad_()
    combine(*cross_entropy_by_hand(reference, label, **kwargs))[0].backward()
    assert grad.dtype == torch.bfloat16
    assert_close(grad.float(), reference.grad, rtol=2e-2, atol=2e-4)


def test_pixel_weights_count_in_score_and_loss():
    """As with OHEM pixel samplers: the unsampled pixels have no loss."""
    logits, label = make_batch()
    pixels = (torch.arange(B * H * W).reshape(B, H, W) % 3 == 0).float()
    got = run_with_weights(
        CrossEntropyLoss(), logits, label, weight=pixels, ignore_index=IGNORE)
    weighted = run(
        CrossEntropyLoss(),
        logits,
        label,
        weight=pixels * WEIGHTS[:, None, None],
        ignore_index=IGNORE)
    losses, _ = cross_entropy_by_hand(logits, label)
    assert_close(got, (*weighted, (pixels * losses).mean((1, 2)).float()))


def test_calls_that_are_neither_scored_nor_weighted():
    """Baseline to the bit."""
    logits, label = make_batch()
    baseline = CrossEntropyLoss()
    loss = InfoBatchLoss(baseline)

    def assert_is_baseline(*batch, **kwargs):
        assert torch.equal(
            loss(*batch, ignore_index=IGNORE, **kwargs),
            baseline(*batch, ignore_index=IGNORE, **kwargs))
        assert loss.batch.scores is None

    # Outside of training and in annealing.
    assert_is_baseline(logits, label)
    loss.batch.begin(WEIGHTS)
    # OHEMPixelSampler(thresh=None) asks for the pixel losses first.
    assert_is_baseline(logits, label, reduction_override='none')
    # A hook looks at losses.
    with torch.no_grad():
        assert_is_baseline(logits[:2], label[:2])


def one_hot(label):
    return F.one_hot(label.clamp(max=C - 1), C).permute(0, 3, 1, 2).float()


def make_other_batch(loss_type, kwargs):
    """Predictions and targets that the loss takes."""
    if loss_type == 'SiLogLoss':
        generator = torch.Generator().manual_seed(0)
        depth = torch.rand(2, B, 1, H, W, generator=generator)
        return depth[0] + 0.1, depth[1]
    if loss_type == 'FocalLoss':
        # Other targets fail on a CPU, in MMSegmentation.
        logits, label = make_batch('none')
        return logits, one_hot(label)
    if kwargs.get('loss_type') == 'binary':
        logits, label = make_batch(num_classes=1)
        return logits.squeeze(1), label
    return make_batch()


@pytest.mark.parametrize(
    'loss_type, kwargs', [
        ('DiceLoss', dict()),
        ('DiceLoss', dict(use_sigmoid=False, loss_weight=3.)),
        ('DiceLoss', dict(naive_dice=True, ignore_index=1)),
        ('FocalLoss', dict(loss_weight=2., gamma=1.5)),
        ('FocalLoss', dict(class_weight=CLASS_WEIGHT)),
        ('TverskyLoss', dict(loss_weight=2.)),
        ('TverskyLoss', dict(class_weight=CLASS_WEIGHT, ignore_index=2)),
        ('HuasdorffDisstanceLoss', dict(loss_weight=0.5)),
        ('LovaszLoss', dict(per_image=True)),
        ('LovaszLoss', dict(per_image=True, reduction='none', loss_weight=2.)),
        ('LovaszLoss', dict(per_image=True, class_weight=CLASS_WEIGHT)),
        ('LovaszLoss', dict(per_image=True, loss_type='binary')),
        ('SiLogLoss', dict(loss_weight=2.)),
    ],
    ids=str)
def test_losses_that_are_the_mean_of_images(loss_type, kwargs):
    pred, target = make_other_batch(loss_type, kwargs)
    baseline = getattr(mmseg_losses, loss_type)(**kwargs)
    values, grads = zip(*(run(baseline, pred[i:i + 1], target[i:i + 1])
                          for i in range(B)))
    raw = torch.stack(values)
    grads = [w * grad / B for w, grad in zip(WEIGHTS, grads)]
    assert_close(
        run_with_weights(baseline, pred, target),
        ((raw * WEIGHTS).mean(), torch.cat(grads), raw))
    assert len(set(raw.tolist())) == B


@pytest.mark.parametrize(
    'kwargs', [
        dict(thres=0.3, min_kept=1),
        dict(thres=0.01, min_kept=20),
        dict(thres=0.01, min_kept=1000),
        dict(thres=0.3, min_kept=10, class_weight=CLASS_WEIGHT),
    ],
    ids=str)
@pytest.mark.parametrize('ignored', ['none', 'some', 'an image'])
def test_ohem_cross_entropy(kwargs, ignored):
    logits, label = make_batch(ignored)
    baseline = mmseg_losses.OhemCrossEntropy(loss_weight=0.5, **kwargs)
    assert_by_hand(
        run_with_weights(baseline, logits, label), logits, ohem_by_hand, label,
        **kwargs)


def test_ohem_cross_entropy_of_ignored_pixels():
    batch = make_batch('all')
    baseline = mmseg_losses.OhemCrossEntropy()
    loss = InfoBatchLoss(baseline)
    loss.batch.begin(torch.ones(B))
    assert loss(*batch) == baseline(*batch) == 0
    assert torch.equal(loss.batch.scores, torch.zeros(B))


@pytest.mark.parametrize('edges', ['some', 'none', 'all ignored'])
def test_boundary_loss(edges):
    logits, _ = make_batch(num_classes=1)
    generator = torch.Generator().manual_seed(1)
    label = (torch.rand(B, H, W, generator=generator) < 0.2).long()
    label[0, :2] = IGNORE
    if edges == 'none':
        label[label == 1] = 0
    elif edges == 'all ignored':
        label[:] = IGNORE
    baseline = mmseg_losses.BoundaryLoss(loss_weight=20.)
    assert_by_hand(
        run_with_weights(baseline, logits, label), logits, boundary_by_hand,
        label)


@pytest.mark.parametrize('ignored', ['some', 'an image'])
@pytest.mark.parametrize(
    'kwargs', [
        dict(),
        dict(loss_weight=2., class_weight=CLASS_WEIGHT),
        dict(classes='all'),
        dict(loss_type='binary')
    ],
    ids=str)
def test_lovasz_loss_of_a_batch(kwargs, ignored):
    """It is no sum over images: the weights act on shares of the gradient."""
    pred, label = make_other_batch('LovaszLoss', kwargs)
    if ignored == 'an image':
        label[2] = IGNORE
    baseline = LovaszLoss(reduction='none', **kwargs)
    value, grad, scores = run_with_weights(
        baseline, pred, label, ignore_index=IGNORE)
    expected, baseline_grad = run(baseline, pred, label, ignore_index=IGNORE)
    assert value == expected
    weights = WEIGHTS.view(-1, *[1] * (pred.dim() - 1))
    assert_close(grad, baseline_grad * weights)
    for i in range(B):
        alone = baseline(pred[i:i + 1], label[i:i + 1], ignore_index=IGNORE)
        assert_close(scores[i], alone.sum())
    # Without a gradient to scale.
    loss = InfoBatchLoss(baseline)
    loss.batch.begin(WEIGHTS)
    assert loss(pred, label, ignore_index=IGNORE) == expected


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
    value, grad, scores = run_with_weights(
        baseline, logits, target, rows_per_image=masks, avg_factor=avg_factor)
    weights = WEIGHTS.repeat_interleave(torch.tensor(masks))
    rows = baseline(logits, target, reduction_override='none').view(6, -1)
    assert_close(value, (rows.mean(1) * weights).sum() / 6)
    _, baseline_grad = run(baseline, logits, target, avg_factor=avg_factor)
    assert_close(grad, baseline_grad * weights[:, None])
    means = [part.mean() if len(part) else 0. for part in rows.split(masks)]
    assert_close(scores, torch.tensor(means))


@pytest.mark.parametrize('rows', [2, 4, 6])
@pytest.mark.parametrize(
    'loss', [
        InfoBatchLoss(CrossEntropyLoss()),
        InfoBatchLoss(DiceLoss()),
        InfoBatchLoss(LovaszLoss(reduction='none')),
        InfoBatchLoss(DiceLoss(), rows_per_image=[2, 1, 2])
    ],
    ids=['pixels', 'images', 'coupled', 'masks'])
def test_rows_that_are_not_the_images(loss, rows):
    """As of a segmentor that trains on a part of a batch, or on two views."""
    logits, label = make_batch('none')
    loss.batch.begin(torch.ones(B))
    with pytest.raises(RuntimeError, match=f'{rows} rows for a batch of 3 im'):
        loss(logits.repeat(2, 1, 1, 1)[:rows], label.repeat(2, 1, 1)[:rows])
    assert loss.batch.scores is None


class SquaredLoss(nn.Module):
    """A loss of a user."""
    loss_name = 'loss_squared'

    def forward(self, pred, target):
        return (pred.softmax(1) - one_hot(target)).square().mean()


class SubclassOfARegistered(CrossEntropyLoss):
    """What it computes isn't known."""


class WithoutReduction(SquaredLoss):
    pass


class StatefulLoss(nn.Module):
    """A loss that learns its weight."""

    reduction = 'mean'

    def __init__(self):
        super().__init__()
        self.log_var = nn.Parameter(torch.zeros(()))


register_unreduced(WithoutReduction, StatefulLoss)(lambda *args: None)


@pytest.mark.parametrize('loss, message', [
    (SquaredLoss(), 'none for SquaredLoss.*register_unr'),
    (SubclassOfARegistered(), 'none for SubclassOfARegistered'),
    (CrossEntropyLoss(use_mask=True), 'use_mask=True'),
    (WithoutReduction(), 'no `reduction`.*reduces=False'),
    (StatefulLoss(), r'StatefulLoss.*\(log_var\).*head'),
])
def test_losses_that_are_refused(loss, message):
    with pytest.raises(ValueError, match=message):
        check_loss(loss)


def test_losses_of_users():

    class Registered(SquaredLoss):
        pass

    @register_unreduced(Registered, reduces=False)
    def elements(loss, pred, target):
        squares = (pred.softmax(1) - one_hot(target)).square()
        return squares, squares.numel()

    logits, label = make_batch('none')
    check_loss(Registered())
    value, _, scores = run_with_weights(Registered(), logits, label)
    images = torch.stack(
        [SquaredLoss()(logits[i:i + 1], label[i:i + 1]) for i in range(B)])
    assert_close(value, (images * WEIGHTS).mean())
    assert_close(scores, images)

    @register_unreduced(Registered, reduces=False)
    def scalar(loss, pred, target):
        return loss(pred, target), 1

    with pytest.raises(RuntimeError, match='`scalar`.*gives a scalar'):
        run_with_weights(Registered(), logits, label)


@pytest.mark.parametrize('weights', [None, torch.ones(B)], ids=['off', 'on'])
def test_attributes_are_those_of_the_wrapped_loss(weights):
    """As of a hook that changes a loss while it trains."""
    batch = make_batch('none')
    loss = InfoBatchLoss(CrossEntropyLoss(loss_weight=0.4))
    assert (loss.loss_weight, loss.loss_name) == (0.4, 'loss_ce')
    loss.batch.begin(weights)
    before, _ = run(loss, *batch)
    loss.loss_weight = 0.8
    after, _ = run(loss, *batch)
    assert_close(after, 2 * before)
    with pytest.raises(AttributeError, match='no_such'):
        loss.no_such


def test_a_wrapped_loss_is_copied_and_pickled():
    """As by EMAHook."""
    loss = InfoBatchLoss(CrossEntropyLoss(loss_weight=0.4)).eval()
    for other in (copy.deepcopy(loss), pickle.loads(pickle.dumps(loss))):
        assert other.loss is not loss.loss and not other.training
        other.loss_weight = 2.
        assert (other.loss_weight, loss.loss_weight) == (2., 0.4)
    loss.train()
    assert loss.training and loss.loss.training


@pytest.mark.parametrize('num_classes', [1, C])
def test_negative_labels_are_not_counted(num_classes):
    """As sigmoid cross entropy with `avg_non_ignore` divides."""
    logits, label = make_batch('some', num_classes)
    label[0, 3] = -1
    run_with_weights(
        CrossEntropyLoss(use_sigmoid=True, avg_non_ignore=True),
        logits,
        label,
        ignore_index=IGNORE)


def test_weights_of_half_precision_are_not_rounded():
    """1 / 0.6 in bfloat16 is 0.2 % less."""
    weight, pred = torch.tensor([1 / 0.6]), torch.zeros(1, 300)
    pred = pred.bfloat16().requires_grad_()
    gradient = torch.linspace(1, 2, 300).bfloat16()
    scale_gradient(pred, weight).backward(gradient[None])
    assert pred.grad.dtype == torch.bfloat16
    expected = (gradient.float() * weight).bfloat16()
    assert_close(pred.grad[0], expected, rtol=0, atol=0)
    assert not torch.equal(expected, gradient * weight.bfloat16())
