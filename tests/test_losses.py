# Copyright (c) mmib contributors. All rights reserved.
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from mmengine.structures import PixelData
from mmseg.models.decode_heads import FCNHead
from mmseg.models.losses import CrossEntropyLoss
from mmseg.registry import MODELS
from mmseg.structures import SegDataSample

from mmib import InfoBatchLoss
from mmib.losses import wrap_losses
from tests.utils import small_head

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


def make_stock(**kwargs):
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
    loss.weights = weights
    value, grad = run(loss, logits, label)

    by_hand = sigmoid_by_hand if 'use_sigmoid' in kwargs else softmax_by_hand
    logits.requires_grad_()
    expected, raw = by_hand(logits, label, weights, **kwargs)
    expected.backward()
    torch.testing.assert_close(value, expected.detach().float())
    torch.testing.assert_close(grad, logits.grad)
    torch.testing.assert_close(loss.scores, raw.float())
    assert loss.scores.dtype == torch.float32
    assert not loss.scores.requires_grad
    if ignored == 'an image':
        assert loss.scores[2] == 0


@pytest.mark.parametrize('weights', [torch.ones(B), None], ids=['1', 'off'])
@pytest.mark.parametrize('ignored', ['none', 'some', 'an image', 'all'])
@pytest.mark.parametrize('kwargs', SOFTMAX + SIGMOID, ids=name)
def test_without_weights_it_is_the_stock_loss(kwargs, ignored, weights):
    logits, label = make_batch(ignored)
    stock = make_stock(**kwargs)
    loss = InfoBatchLoss(CrossEntropyLoss(**kwargs))
    loss.weights = weights
    for got, expected in zip(
            run(loss, logits, label), run(stock, logits, label)):
        torch.testing.assert_close(got, expected)
        assert got.isfinite().all()


@pytest.mark.parametrize('kwargs', SOFTMAX[:4], ids=name)
def test_weights_equal_pixel_weights_of_stock(kwargs):
    """Stock takes a weight per pixel and leaves its divisor alone."""
    logits, label = make_batch()
    weights = torch.tensor([4., 1., 2.])
    stock = make_stock(**kwargs)
    loss = InfoBatchLoss(CrossEntropyLoss(**kwargs))
    loss.weights = weights
    expected = run(stock, logits, label, weight=weights[:, None, None])
    torch.testing.assert_close(run(loss, logits, label), expected)


def test_class_weights_equal_stock_where_it_works():
    logits, label = make_batch('none')
    stock = CrossEntropyLoss(class_weight=CLASS_WEIGHT)
    loss = InfoBatchLoss(stock)
    loss.weights = torch.tensor([4., 1., 2.])
    expected = run(stock, logits, label, weight=loss.weights[:, None, None])
    torch.testing.assert_close(run(loss, logits, label), expected)


@pytest.mark.parametrize('kwargs', SOFTMAX + SIGMOID, ids=name)
def test_amp(kwargs):
    """Under autocast logits are bfloat16, and scores float32 still."""
    logits, label = make_batch()
    weights = torch.tensor([1., 3., 0.5])
    stock = make_stock(**kwargs)
    loss = InfoBatchLoss(CrossEntropyLoss(**kwargs))
    conv = nn.Conv2d(C, C, 1)
    with torch.autocast('cpu', dtype=torch.bfloat16):
        low = conv(logits)
        assert low.dtype == torch.bfloat16
        for value_of in (torch.ones(B), weights):
            loss.weights = value_of
            got, grad = run(loss, low.detach(), label)
            expected, _ = run(
                stock,
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
    stock = CrossEntropyLoss()
    loss = InfoBatchLoss(stock)
    loss.weights = torch.tensor([1., 3., 0.5])
    got = run(loss, logits, label, weight=pixels)
    expected = run(
        stock, logits, label, weight=pixels * loss.weights[:, None, None])
    torch.testing.assert_close(got, expected)
    raw = stock(
        logits,
        label,
        weight=pixels,
        ignore_index=IGNORE,
        reduction_override='none')
    torch.testing.assert_close(loss.scores, raw.mean((1, 2)))


def test_calls_that_are_neither_scored_nor_weighted():
    logits, label = make_batch()
    stock = CrossEntropyLoss()
    loss = InfoBatchLoss(stock)
    # Outside of training and in annealing: stock to the bit.
    for got, expected in zip(
            run(loss, logits, label), run(stock, logits, label)):
        assert torch.equal(got, expected)
    assert loss.scores is None
    # OHEMPixelSampler(thresh=None) asks for the pixel losses first.
    loss.weights = torch.tensor([1., 3., 0.5])
    kwargs = dict(ignore_index=IGNORE, reduction_override='none')
    assert torch.equal(
        loss(logits, label, **kwargs), stock(logits, label, **kwargs))
    assert loss.scores is None


def test_scores_of_several_calls_add_up():
    logits, label = make_batch()
    loss = InfoBatchLoss(CrossEntropyLoss())
    loss.weights = torch.ones(B)
    loss(logits, label, ignore_index=IGNORE)
    once = loss.scores
    loss(logits, label, ignore_index=IGNORE)
    torch.testing.assert_close(loss.scores, 2 * once)


def make_model(**heads):
    """A segmentor of convolutions with the given loss configs."""
    cfg = dict(
        type='EncoderDecoder',
        backbone=dict(type='OneConv'),
        decode_head=small_head(
            heads['decode'], num_classes=C, **heads.get('decode_kwargs', {})))
    if 'aux' in heads:
        cfg['auxiliary_head'] = [
            small_head(loss, num_classes=C) for loss in heads['aux']
        ]
    return MODELS.build(cfg)


def ce(**kwargs):
    return dict(type='CrossEntropyLoss', **kwargs)


def test_two_auxiliary_heads():
    """The weight multiplies every head's loss; the score is their sum."""
    model = make_model(
        decode=[ce(), ce(loss_weight=0.5, loss_name='loss_extra')],
        aux=[ce(loss_weight=0.4), ce(loss_weight=0.2)])
    torch.manual_seed(0)
    inputs = torch.randn(B, 3, 16, 16)
    label = torch.randint(0, C, (B, 1, 16, 16))
    label[0, :, :5] = IGNORE
    samples = [SegDataSample(gt_sem_seg=PixelData(data=one)) for one in label]

    def losses_of(indices):
        losses = model.loss(inputs[indices], [samples[i] for i in indices])
        return {k: v for k, v in losses.items() if 'loss' in k}

    model.eval()  # a batch of one image must not change the features
    stock = [losses_of([i]) for i in range(B)]
    wrapped = wrap_losses(model)
    assert len(wrapped) == 4
    weights = torch.tensor([1., 3., 0.5])
    for loss in wrapped:
        loss.weights = weights
    got = losses_of(range(B))
    assert got.keys() == stock[0].keys() == {
        'decode.loss_ce', 'decode.loss_extra', 'aux_0.loss_ce', 'aux_1.loss_ce'
    }
    for key, value in got.items():
        by_hand = sum(w * one[key] for w, one in zip(weights, stock)) / B
        torch.testing.assert_close(value, by_hand)
    score = sum(loss.scores for loss in wrapped)
    torch.testing.assert_close(
        score,
        torch.stack([sum(one.values()) for one in stock]).detach())


def test_cascade():
    """Every stage is a head of its own."""
    fcn = small_head(ce(loss_weight=0.4))
    ocr = small_head(
        ce(), type='OCRHead', ocr_channels=4, norm_cfg=dict(type='BN'))
    for key in ('num_convs', 'concat_input'):
        ocr.pop(key)
    model = make_model(decode=ce())
    model.decode_head = nn.ModuleList([MODELS.build(fcn), MODELS.build(ocr)])
    assert [type(loss) for loss in wrap_losses(model)] == [InfoBatchLoss] * 2


class OwnHead(FCNHead):

    def loss(self, *args, **kwargs):
        return dict(super().loss(*args, **kwargs), loss_own=torch.zeros(()))


def test_a_head_with_a_loss_of_its_own():
    model = make_model(decode=ce())
    model.decode_head.__class__ = OwnHead
    with pytest.raises(ValueError, match='none for OwnHead'):
        wrap_losses(model)


def test_a_config_may_write_the_loss_out():
    model = make_model(
        decode=dict(type='InfoBatchLoss', loss=ce(loss_name='loss_x')))
    written = model.decode_head.loss_decode
    assert isinstance(written, InfoBatchLoss)
    assert written.loss_name == 'loss_x'
    assert wrap_losses(model) == [written]


def test_wrapping_keeps_the_names_of_parameters():
    model = make_model(decode=ce(), aux=[ce()])
    before = list(model.state_dict())
    wrap_losses(model)
    assert list(model.state_dict()) == before


@pytest.mark.parametrize('heads, message', [
    (dict(decode=dict(type='DiceLoss')),
     'model.decode_head.loss_decode.*FCNHead.*none for DiceLoss'),
    (dict(decode=[ce(), dict(type='LovaszLoss', reduction='none')]),
     'none for LovaszLoss'),
    (dict(decode=ce(), aux=[dict(type='FocalLoss')]),
     'model.auxiliary_head.loss_decode.*none for FocalLoss'),
    (dict(decode=ce(reduction='none')), "reduction='mean'"),
    (dict(
        decode=ce(),
        decode_kwargs=dict(type='STDCHead',
                           boundary_threshold=0.1)), 'none for STDCHead'),
])
def test_losses_without_a_value_per_image(heads, message):
    with pytest.raises(ValueError, match=message):
        wrap_losses(make_model(**heads))


def test_mask_loss_and_missing_head():
    with pytest.raises(ValueError, match='use_mask=True'):
        InfoBatchLoss(CrossEntropyLoss(use_mask=True))
    with pytest.raises(ValueError, match='Sequential has none'):
        wrap_losses(nn.Sequential())
