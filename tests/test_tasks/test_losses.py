# Copyright (c) mmib contributors. All rights reserved.
import copy
import pickle

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from mmseg.models import losses as mmseg_losses
from mmseg.models.losses import CrossEntropyLoss

from mmib import InfoBatchLoss
from mmib.losses import check_loss, register_unreduced
from mmib.tasks import segmentation  # noqa: F401

B, C, H, W = 3, 5, 6, 7
IGNORE = 255
CLASS_WEIGHT = [0.5, 1., 2., 3., 0.25]
SOFTMAX = [
    dict(),
    dict(avg_non_ignore=True),
    dict(class_weight=CLASS_WEIGHT),
    dict(class_weight=CLASS_WEIGHT, avg_non_ignore=True),
    dict(loss_weight=0.4),
    dict(reduction='sum'),
]
SIGMOID = [
    dict(use_sigmoid=True),
    dict(use_sigmoid=True, avg_non_ignore=True),
    dict(use_sigmoid=True, avg_non_ignore=True, class_weight=CLASS_WEIGHT[0]),
    dict(use_sigmoid=True, loss_weight=0.4),
]


def name(kwargs):
    return ','.join(f'{k}={v}' for k, v in kwargs.items()) or 'default'


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


def softmax_by_hand(logits,
                    label,
                    weights,
                    loss_weight=1.,
                    avg_non_ignore=0,
                    class_weight=None,
                    reduction='mean'):
    """Pixel by pixel in float64: weighted sum, divisor, raw loss of images."""
    log_prob = F.log_softmax(logits.double(), 1)
    total, valid, valid_weight = 0., 0, 0.
    raw = torch.zeros(B, dtype=torch.float64)
    for b in range(B):
        for y in range(H):
            for x in range(W):
                k = int(label[b, y, x])
                if k == IGNORE:
                    continue
                weight = class_weight[k] if class_weight else 1.
                loss = -weight * log_prob[b, k, y, x]
                total = total + float(weights[b]) * loss
                raw[b] += float(loss.detach()) / (H * W)
                valid += 1
                valid_weight += weight
    divisor = B * H * W
    if avg_non_ignore:
        divisor = valid
    if class_weight:
        divisor = valid_weight
    if reduction == 'sum':
        divisor = 1
    return loss_weight * total / divisor, loss_weight * raw


def sigmoid_by_hand(logits,
                    label,
                    weights,
                    loss_weight=1.,
                    avg_non_ignore=0,
                    class_weight=1.,
                    use_sigmoid=True):
    total, valid = 0., 0
    raw = torch.zeros(B, dtype=torch.float64)
    num_classes = logits.shape[1]
    prob = logits.double().sigmoid()
    for b in range(B):
        for y in range(H):
            for x in range(W):
                k = int(label[b, y, x])
                if k == IGNORE:
                    continue
                for c in range(num_classes):
                    p = prob[b, c, y, x]
                    hit = k == 1 if num_classes == 1 else k == c
                    loss = -class_weight * p.log() if hit else -(1 - p).log()
                    total = total + float(weights[b]) * loss
                    raw[b] += float(loss.detach()) / (H * W * num_classes)
                    valid += 1
    divisor = valid if avg_non_ignore else B * num_classes * H * W
    return loss_weight * total / divisor, loss_weight * raw


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


def make_baseline(**kwargs):
    if 'class_weight' in kwargs and 'use_sigmoid' not in kwargs:
        return WeightedCrossEntropy(**kwargs)
    return CrossEntropyLoss(**kwargs)


def run(loss, logits, label, **kwargs):
    logits = logits.clone().requires_grad_()
    value = loss(logits, label, ignore_index=IGNORE, **kwargs)
    value.backward()
    return value.detach(), logits.grad


@pytest.mark.parametrize('ignored', ['none', 'some', 'an image'])
@pytest.mark.parametrize(
    'kwargs, num_classes',
    [(kwargs, C) for kwargs in SOFTMAX + SIGMOID] + [(kwargs, 1)
                                                     for kwargs in SIGMOID],
    ids=str)
def test_weighted_loss_equals_the_one_by_hand(kwargs, num_classes, ignored):
    logits, label = make_batch(ignored, num_classes)
    weights = torch.tensor([1., 3., 0.5])
    loss = InfoBatchLoss(CrossEntropyLoss(**kwargs))
    loss.batch.weights = weights
    value, grad = run(loss, logits, label)

    by_hand = sigmoid_by_hand if 'use_sigmoid' in kwargs else softmax_by_hand
    logits.requires_grad_()
    expected, raw = by_hand(logits, label, weights, **kwargs)
    expected.backward()
    torch.testing.assert_close(value, expected.detach().float())
    torch.testing.assert_close(grad, logits.grad)
    torch.testing.assert_close(loss.batch.scores, raw.float())
    assert loss.batch.scores.dtype == torch.float32
    assert not loss.batch.scores.requires_grad
    if ignored == 'an image':
        assert loss.batch.scores[2] == 0


@pytest.mark.parametrize('weights', [torch.ones(B), None], ids=['1', 'off'])
@pytest.mark.parametrize('ignored', ['none', 'some', 'an image', 'all'])
@pytest.mark.parametrize('kwargs', SOFTMAX + SIGMOID, ids=name)
def test_without_weights_it_is_the_baseline_loss(kwargs, ignored, weights):
    logits, label = make_batch(ignored)
    baseline = make_baseline(**kwargs)
    loss = InfoBatchLoss(CrossEntropyLoss(**kwargs))
    loss.batch.weights = weights
    for got, expected in zip(
            run(loss, logits, label), run(baseline, logits, label)):
        torch.testing.assert_close(got, expected)
        assert got.isfinite().all()


@pytest.mark.parametrize('kwargs', SOFTMAX[:4], ids=name)
def test_weights_equal_pixel_weights_of_baseline(kwargs):
    """The baseline takes a weight per pixel and leaves its divisor alone."""
    logits, label = make_batch()
    weights = torch.tensor([4., 1., 2.])
    baseline = make_baseline(**kwargs)
    loss = InfoBatchLoss(CrossEntropyLoss(**kwargs))
    loss.batch.weights = weights
    expected = run(baseline, logits, label, weight=weights[:, None, None])
    torch.testing.assert_close(run(loss, logits, label), expected)


def test_class_weights_equal_baseline_where_it_works():
    logits, label = make_batch('none')
    baseline = CrossEntropyLoss(class_weight=CLASS_WEIGHT)
    loss = InfoBatchLoss(baseline)
    loss.batch.weights = torch.tensor([4., 1., 2.])
    expected = run(
        baseline, logits, label, weight=loss.batch.weights[:, None, None])
    torch.testing.assert_close(run(loss, logits, label), expected)


@pytest.mark.parametrize('kwargs', SOFTMAX + SIGMOID, ids=name)
def test_amp(kwargs):
    """Under autocast logits are bfloat16, and scores float32 still."""
    logits, label = make_batch()
    weights = torch.tensor([1., 3., 0.5])
    baseline = make_baseline(**kwargs)
    loss = InfoBatchLoss(CrossEntropyLoss(**kwargs))
    conv = nn.Conv2d(C, C, 1)
    with torch.autocast('cpu', dtype=torch.bfloat16):
        low = conv(logits)
        assert low.dtype == torch.bfloat16
        for value_of in (torch.ones(B), weights):
            loss.batch.weights = value_of
            got, grad = run(loss, low.detach(), label)
            expected, _ = run(
                baseline,
                low.detach(),
                label,
                weight=value_of[:, None, None].expand(B, H, W))
            assert got.dtype == expected.dtype
            torch.testing.assert_close(got, expected)
    # Its gradient is the one by hand, up to the rounding of bfloat16.
    reference = low.detach().float().requires_grad_()
    by_hand = sigmoid_by_hand if 'use_sigmoid' in kwargs else softmax_by_hand
    expected, _ = by_hand(reference, label, weights, **kwargs)
    expected.backward()
    assert grad.dtype == torch.bfloat16
    torch.testing.assert_close(
        grad.float(), reference.grad, rtol=2e-2, atol=2e-4)


def test_pixel_weights_count_in_score_and_loss():
    """As with OHEM pixel samplers: the unsampled pixels have no loss."""
    logits, label = make_batch()
    pixels = (torch.arange(B * H * W).reshape(B, H, W) % 3 == 0).float()
    baseline = CrossEntropyLoss()
    loss = InfoBatchLoss(baseline)
    loss.batch.weights = torch.tensor([1., 3., 0.5])
    got = run(loss, logits, label, weight=pixels)
    expected = run(
        baseline,
        logits,
        label,
        weight=pixels * loss.batch.weights[:, None, None])
    torch.testing.assert_close(got, expected)
    raw = baseline(
        logits,
        label,
        weight=pixels,
        ignore_index=IGNORE,
        reduction_override='none')
    torch.testing.assert_close(loss.batch.scores, raw.mean((1, 2)))


def test_calls_that_are_neither_scored_nor_weighted():
    logits, label = make_batch()
    baseline = CrossEntropyLoss()
    loss = InfoBatchLoss(baseline)
    # Outside of training and in annealing: baseline to the bit.
    for got, expected in zip(
            run(loss, logits, label), run(baseline, logits, label)):
        assert torch.equal(got, expected)
    assert loss.batch.scores is None
    # OHEMPixelSampler(thresh=None) asks for the pixel losses first.
    loss.batch.weights = torch.tensor([1., 3., 0.5])
    kwargs = dict(ignore_index=IGNORE, reduction_override='none')
    assert torch.equal(
        loss(logits, label, **kwargs), baseline(logits, label, **kwargs))
    assert loss.batch.scores is None


def test_scores_of_several_calls_add_up():
    logits, label = make_batch()
    loss = InfoBatchLoss(CrossEntropyLoss())
    loss.batch.weights = torch.ones(B)
    loss(logits, label, ignore_index=IGNORE)
    once = loss.batch.scores
    loss(logits, label, ignore_index=IGNORE)
    torch.testing.assert_close(loss.batch.scores, 2 * once)


def test_reduction_none():
    """The segmentor takes the mean of a loss that isn't a scalar."""
    logits, label = make_batch()
    baseline = CrossEntropyLoss(reduction='none', avg_non_ignore=True)
    loss = InfoBatchLoss(baseline)
    weights = loss.batch.weights = torch.tensor([1., 3., 0.5])
    pixels = baseline(logits, label, ignore_index=IGNORE)
    assert pixels.shape == (B, H, W)
    got = loss(logits, label, ignore_index=IGNORE)
    torch.testing.assert_close(got, (pixels * weights[:, None, None]).mean())
    torch.testing.assert_close(loss.batch.scores, pixels.mean((1, 2)))


def one_hot(label, num_classes=C):
    return F.one_hot(label.clamp(max=num_classes - 1),
                     num_classes).permute(0, 3, 1, 2).float()


# The loss of a batch is the mean of the losses of its images alone.
MEAN_OF_IMAGES = [
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
]


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


def run_other(loss, logits, label, **kwargs):
    logits = logits.clone().requires_grad_()
    # A loss that isn't a scalar is averaged by the segmentor.
    value = loss(logits, label, **kwargs).mean()
    value.backward()
    return value.detach(), logits.grad


@pytest.mark.parametrize('loss_type, kwargs', MEAN_OF_IMAGES, ids=str)
def test_losses_that_are_the_mean_of_images(loss_type, kwargs):
    logits, label = make_other_batch(loss_type, kwargs)
    baseline = getattr(mmseg_losses, loss_type)(**kwargs)
    loss = InfoBatchLoss(baseline)
    expected = run_other(baseline, logits, label)
    for loss.batch.weights in (None, torch.ones(B)):
        torch.testing.assert_close(run_other(loss, logits, label), expected)

    loss.batch.weights, loss.batch.scores = torch.tensor([1., 3., 0.5]), None
    got, grad = run_other(loss, logits, label)
    images = [
        run_other(baseline, logits[i:i + 1], label[i:i + 1]) for i in range(B)
    ]
    raw = torch.stack([value for value, _ in images])
    torch.testing.assert_close(got, (raw * loss.batch.weights).mean())
    torch.testing.assert_close(
        grad,
        torch.cat([w * g / B
                   for w, (_, g) in zip(loss.batch.weights, images)]))
    torch.testing.assert_close(loss.batch.scores, raw)
    assert len(set(raw.tolist())) == B


def test_reduction_sum():
    logits, label = make_batch()
    baseline = mmseg_losses.DiceLoss(reduction='sum')
    loss = InfoBatchLoss(baseline)
    loss.batch.weights = torch.tensor([1., 3., 0.5])
    images = baseline(logits, label, reduction_override='none')
    torch.testing.assert_close(
        loss(logits, label), (images * loss.batch.weights).sum())


def ohem_by_hand(logits, label, weights, thres, min_kept, class_weight=None):
    """Pixel by pixel, in float64."""
    prob = F.softmax(logits.double(), 1)
    pixels = [(float(prob[b, label[b, y, x], y, x]), b, y, x) for b in range(B)
              for y in range(H) for x in range(W) if label[b, y, x] != IGNORE]
    pixels.sort()
    threshold = max(pixels[min(min_kept, len(pixels) - 1)][0], thres)
    hard = [pixel for pixel in pixels if pixel[0] < threshold]
    total, raw = 0., torch.zeros(B, dtype=torch.float64)
    for _, b, y, x in hard:
        k = label[b, y, x]
        loss = -prob[b, k, y, x].log() * (
            class_weight[k] if class_weight else 1.)
        total = total + float(weights[b]) * loss
        raw[b] += float(loss.detach()) / (H * W)
    return total / len(hard), raw


@pytest.mark.parametrize(
    'kwargs', [
        dict(thres=0.3, min_kept=1),
        dict(thres=0.01, min_kept=20),
        dict(thres=0.01, min_kept=1000),
        dict(thres=0.3, min_kept=10, class_weight=CLASS_WEIGHT),
    ],
    ids=name)
@pytest.mark.parametrize('ignored', ['none', 'some', 'an image'])
def test_ohem_cross_entropy(kwargs, ignored):
    logits, label = make_batch(ignored)
    baseline = mmseg_losses.OhemCrossEntropy(loss_weight=0.5, **kwargs)
    loss = InfoBatchLoss(baseline)
    for loss.batch.weights in (None, torch.ones(B)):
        torch.testing.assert_close(
            run_other(loss, logits, label), run_other(baseline, logits, label))
    loss.batch.weights, loss.batch.scores = torch.tensor([1., 3., 0.5]), None
    value, grad = run_other(loss, logits, label)
    logits.requires_grad_()
    expected, raw = ohem_by_hand(logits, label, loss.batch.weights, **kwargs)
    (0.5 * expected).backward()
    torch.testing.assert_close(value, 0.5 * expected.detach().float())
    torch.testing.assert_close(grad, logits.grad)
    torch.testing.assert_close(loss.batch.scores, 0.5 * raw.float())


def test_ohem_cross_entropy_of_ignored_pixels():
    logits, label = make_batch('all')
    baseline = mmseg_losses.OhemCrossEntropy()
    loss = InfoBatchLoss(baseline)
    loss.batch.weights = torch.ones(B)
    assert loss(logits, label) == baseline(logits, label) == 0
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
    loss = InfoBatchLoss(baseline)
    for loss.batch.weights in (None, torch.ones(B)):
        torch.testing.assert_close(
            run_other(loss, logits, label), run_other(baseline, logits, label))
    loss.batch.weights, loss.batch.scores = torch.tensor([1., 3., 0.5]), None
    value, grad = run_other(loss, logits, label)

    # By hand: the pixels of the other class, as a share of both, weigh.
    logits.requires_grad_()
    pixels = [(b, y, x) for b in range(B) for y in range(H) for x in range(W)]
    counts = [int((label == k).sum()) for k in range(2)]
    raw = [0.] * B
    for b, y, x in pixels:
        k = int(label[b, y, x])
        if k == IGNORE:
            continue
        logit = logits[b, 0, y, x].double()
        loss_of_pixel = F.softplus(-logit if k else logit)
        share = counts[1 - k] / max(sum(counts), 1)
        raw[b] = raw[b] + 20 * share * loss_of_pixel / (H * W)
    expected = sum(w * one
                   for w, one in zip(loss.batch.weights.tolist(), raw)) / B
    torch.testing.assert_close(float(value), float(expected))
    torch.testing.assert_close(loss.batch.scores,
                               torch.tensor(list(map(float, raw))))
    if edges == 'some':
        expected.backward()
        torch.testing.assert_close(grad, logits.grad)


@pytest.mark.parametrize('ignored', ['some', 'an image'])
@pytest.mark.parametrize(
    'kwargs', [
        dict(),
        dict(loss_weight=2., class_weight=CLASS_WEIGHT),
        dict(classes='all'),
        dict(loss_type='binary')
    ],
    ids=name)
def test_lovasz_loss_of_a_batch(kwargs, ignored):
    """It is no sum over images: the weights act on shares of the gradient."""
    logits, label = make_other_batch('LovaszLoss', kwargs)
    if ignored == 'an image':
        label[2] = IGNORE
    baseline = mmseg_losses.LovaszLoss(reduction='none', **kwargs)
    loss = InfoBatchLoss(baseline)
    expected, baseline_grad = run(baseline, logits, label)
    for loss.batch.weights in (None, torch.ones(B)):
        torch.testing.assert_close(
            run(loss, logits, label), (expected, baseline_grad))
    loss.batch.weights, loss.batch.scores = torch.tensor([1., 3., 0.5]), None
    value, grad = run(loss, logits, label)
    assert value == expected
    shape = [B] + [1] * (grad.dim() - 1)
    torch.testing.assert_close(grad,
                               baseline_grad * loss.batch.weights.view(shape))
    alone = [
        float(
            baseline(logits[i:i + 1], label[i:i + 1],
                     ignore_index=IGNORE).sum()) for i in range(B)
    ]
    torch.testing.assert_close(loss.batch.scores, torch.tensor(alone))
    # Without a gradient to scale, as under `torch.no_grad`.
    assert loss(logits, label, ignore_index=IGNORE) == expected


@pytest.mark.parametrize('loss_type', ['CrossEntropyLoss', 'DiceLoss'])
@pytest.mark.parametrize('masks', [[2, 1, 3], [4, 0, 2]])
def test_masks_belong_to_images(loss_type, masks):
    """Heads that classify masks put those of all images in one row."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(6, 20, generator=generator)
    target = torch.randint(0, 2, (6, 20), generator=generator).float()
    kwargs = dict(use_sigmoid=True)
    if loss_type == 'DiceLoss':
        kwargs.update(ignore_index=None, naive_dice=True, eps=1.)
    baseline = getattr(mmseg_losses, loss_type)(**kwargs)
    loss = InfoBatchLoss(baseline)
    loss.rows_per_image = masks
    avg_factor = torch.tensor([6.])
    if loss_type == 'CrossEntropyLoss':
        avg_factor = avg_factor * 20

    loss.batch.weights = torch.ones(B)
    torch.testing.assert_close(
        run_other(loss, logits, target, avg_factor=avg_factor),
        run_other(baseline, logits, target, avg_factor=avg_factor))
    loss.batch.weights, loss.batch.scores = torch.tensor([1., 3., 0.5]), None
    value, grad = run_other(loss, logits, target, avg_factor=avg_factor)
    weight_of_mask = loss.batch.weights.repeat_interleave(torch.tensor(masks))
    rows = baseline(logits, target, reduction_override='none').view(6, -1)
    torch.testing.assert_close(value,
                               (rows.mean(1) * weight_of_mask).sum() / 6)
    _, baseline_grad = run_other(
        baseline, logits, target, avg_factor=avg_factor)
    torch.testing.assert_close(grad, baseline_grad * weight_of_mask[:, None])
    scores = [
        float(part.mean()) if len(part) else 0. for part in rows.split(masks)
    ]
    torch.testing.assert_close(loss.batch.scores, torch.tensor(scores))


class SquaredLoss(nn.Module):
    """A loss of a user."""
    loss_name = 'loss_squared'

    def forward(self, pred, target, ignore_index=None):
        return (pred.softmax(1) - one_hot(target)).square().mean()


@pytest.mark.parametrize('rows', [2, 4, 6])
@pytest.mark.parametrize('loss_type', ['CrossEntropyLoss', 'DiceLoss'])
def test_rows_that_are_not_the_images(loss_type, rows):
    """As of a segmentor that trains on a part of a batch, or on two views."""
    logits, label = make_batch('none')
    loss = InfoBatchLoss(getattr(mmseg_losses, loss_type)())
    loss.batch.weights = torch.ones(B)
    with pytest.raises(RuntimeError, match=f'{rows} rows for a batch of 3 im'):
        loss(
            logits.repeat(2, 1, 1, 1)[:rows].requires_grad_(),
            label.repeat(2, 1, 1)[:rows])
    assert loss.batch.scores is None


def test_rows_of_lovasz_and_of_masks():
    logits, label = make_batch('none')
    loss = InfoBatchLoss(mmseg_losses.LovaszLoss(reduction='none'))
    loss.batch.weights = torch.ones(2)
    with pytest.raises(RuntimeError, match='3 rows for a batch of 2 images'):
        loss(logits, label)
    loss = InfoBatchLoss(mmseg_losses.DiceLoss(ignore_index=None))
    loss.batch.weights, loss.rows_per_image = torch.ones(2), [1, 1]
    with pytest.raises(RuntimeError, match='3 rows for a batch of 2 images'):
        loss(torch.randn(3, 5), torch.ones(3, 5))


def test_what_is_not_differentiated_is_baseline():
    """A hook that looks at losses changes neither weights nor scores."""
    logits, label = make_batch()
    baseline = CrossEntropyLoss()
    loss = InfoBatchLoss(baseline)
    loss.batch.weights = torch.tensor([1., 3., 0.5])
    with torch.no_grad():
        got = loss(logits[:2], label[:2], ignore_index=IGNORE)
    assert torch.equal(got,
                       baseline(logits[:2], label[:2], ignore_index=IGNORE))
    assert loss.batch.scores is None


def test_what_is_registered_wrongly():

    class Alone(SquaredLoss):
        pass

    register_unreduced(Alone)(lambda *args, **kwargs: None)
    with pytest.raises(ValueError, match='no `reduction`.*reduces=False'):
        check_loss(Alone())

    @register_unreduced(Alone, reduces=False)
    def scalar(loss, pred, target, ignore_index):
        return loss(pred, target), 1

    loss = InfoBatchLoss(Alone())
    loss.batch.weights = torch.ones(B)
    with pytest.raises(RuntimeError, match='`scalar`.*gives a scalar'):
        run(loss, *make_batch('none'))


class StatefulLoss(nn.Module):
    """A loss that learns its weight."""

    reduction = 'mean'

    def __init__(self):
        super().__init__()
        self.log_var = nn.Parameter(torch.zeros(()))


def test_losses_with_parameters():
    register_unreduced(StatefulLoss)(lambda *args, **kwargs: None)
    with pytest.raises(ValueError, match=r'StatefulLoss.*\(log_var\).*head'):
        check_loss(StatefulLoss())


def test_losses_of_users():
    with pytest.raises(ValueError, match='none for SquaredLoss.*register_unr'):
        check_loss(SquaredLoss())

    class Registered(SquaredLoss):
        pass

    @register_unreduced(Registered, reduces=False)
    def elements(loss, pred, target, ignore_index):
        squares = (pred.softmax(1) - one_hot(target)).square()
        return squares, squares.numel()

    logits, label = make_batch('none')
    loss = InfoBatchLoss(Registered())
    loss.batch.weights = torch.tensor([1., 3., 0.5])
    got, _ = run(loss, logits, label)
    images = torch.stack(
        [SquaredLoss()(logits[i:i + 1], label[i:i + 1]) for i in range(B)])
    torch.testing.assert_close(got, (images * loss.batch.weights).mean())
    torch.testing.assert_close(loss.batch.scores, images)
    # What a subclass computes isn't known.
    with pytest.raises(ValueError, match='none for Other'):
        check_loss(type('Other', (Registered, ), {})())


def test_mask_loss_is_refused():
    with pytest.raises(ValueError, match='use_mask=True'):
        check_loss(CrossEntropyLoss(use_mask=True))


@pytest.mark.parametrize('weights', [None, torch.ones(B)], ids=['off', 'on'])
def test_attributes_are_those_of_the_wrapped_loss(weights):
    """As of a hook that changes a loss while it trains."""
    logits, label = make_batch()
    loss = InfoBatchLoss(CrossEntropyLoss(loss_weight=0.4))
    assert (loss.loss_weight, loss.loss_name) == (0.4, 'loss_ce')
    loss.batch.weights = weights
    before, _ = run(loss, logits, label)
    loss.loss_weight = 0.8
    after, _ = run(loss, logits, label)
    torch.testing.assert_close(after, 2 * before)
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
    kwargs = dict(use_sigmoid=True, avg_non_ignore=True)
    loss = InfoBatchLoss(CrossEntropyLoss(**kwargs))
    loss.batch.weights = torch.ones(B)
    torch.testing.assert_close(
        run(loss, logits, label),
        run(CrossEntropyLoss(**kwargs), logits, label))
