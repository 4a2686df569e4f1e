# Copyright (c) mmib contributors. All rights reserved.
import copy

import pytest
import torch
import torch.nn as nn
from mmengine.runner.checkpoint import get_state_dict, load_state_dict
from mmpretrain.models import losses as mmpretrain_losses
from mmpretrain.registry import MODELS
from torch.testing import assert_close

from mmib import InfoBatchLoss
from mmib.errors import Refusal
from mmib.openmmlab.batch import BatchContext
from mmib.openmmlab.losses import check_loss
from mmib.openmmlab.tasks import classification  # noqa: F401

from ..contract import check_loss_weights

pytestmark = pytest.mark.mmpretrain

B, C = 3, 5
WEIGHTS = torch.tensor([1., 3., 0.5])
CLASS_WEIGHT = [0.5, 1., 2., 3., 0.25]


def make_batch(kind):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(B, C, generator=generator)
    labels = torch.tensor([2, 0, 2])
    if kind == 'labels':
        return logits, labels
    if kind == 'mixed':
        one_hot = nn.functional.one_hot(labels, C).float()
        return logits, 0.7 * one_hot + 0.3 * one_hot.flip(0).roll(1, 1)
    if kind == 'many labels':
        return logits, torch.randint(0, 2, (B, C), generator=generator)
    return logits, torch.randn(B, C, generator=generator)


def ce(**kwargs):
    return dict(type='CrossEntropyLoss', **kwargs)


def smooth(**kwargs):
    return dict(type='LabelSmoothLoss', label_smooth_val=0.1, **kwargs)


LOSSES = [
    (ce(), 'labels'),
    (ce(), 'mixed'),
    (ce(loss_weight=0.4), 'labels'),
    (ce(class_weight=CLASS_WEIGHT), 'labels'),
    (ce(reduction='none'), 'labels'),
    (ce(use_soft=True), 'mixed'),
    (ce(use_soft=True, class_weight=CLASS_WEIGHT), 'mixed'),
    (ce(use_sigmoid=True), 'many labels'),
    (ce(use_sigmoid=True), 'mixed'),
    (ce(use_sigmoid=True, reduction='none'), 'many labels'),
    (ce(use_sigmoid=True, pos_weight=CLASS_WEIGHT), 'many labels'),
    (ce(use_sigmoid=True, pos_weight=CLASS_WEIGHT,
        class_weight=CLASS_WEIGHT), 'many labels'),
    (smooth(), 'labels'),
    (smooth(), 'mixed'),
    (smooth(mode='classy_vision', loss_weight=0.4), 'labels'),
    (smooth(mode='classy_vision'), 'mixed'),
    (smooth(mode='original', use_sigmoid=True), 'mixed'),
    (smooth(class_weight=CLASS_WEIGHT), 'mixed'),
    (smooth(reduction='none'), 'labels'),
    (smooth(mode='multi_label', use_sigmoid=True), 'many labels'),
    (smooth(mode='multi_label', pos_weight=CLASS_WEIGHT), 'many labels'),
    (dict(type='FocalLoss'), 'labels'),
    (dict(type='FocalLoss', gamma=1., loss_weight=0.4), 'many labels'),
    (dict(type='FocalLoss', reduction='none'), 'mixed'),
    (dict(type='AsymmetricLoss'), 'labels'),
    (dict(type='AsymmetricLoss', gamma_pos=1., clip=0.), 'many labels'),
    (dict(type='AsymmetricLoss', use_sigmoid=False), 'mixed'),
    (dict(type='SeesawLoss', num_classes=C), 'labels'),
    (dict(type='SeesawLoss', num_classes=C, q=0., loss_weight=0.4), 'labels'),
    (dict(type='RegressionLoss', loss_type='L1Loss'), 'numbers'),
    (dict(type='RegressionLoss', loss_type='MSELoss'), 'numbers'),
]
# They have more than a loss per image in common, or belong to pretraining.
REFUSED = {'CAELoss', 'CrossCorrelationLoss', 'SwAVLoss'}
# tests/test_tasks/test_masked_images.py has them.
OF_MASKED_IMAGES = ('CosineSimilarityLoss', 'PixelReconstructionLoss')


@pytest.mark.parametrize('avg_factor', [B, None])
@pytest.mark.parametrize('cfg, kind', LOSSES, ids=str)
def test_the_weight_of_an_image_multiplies_its_loss(cfg, kind, avg_factor):
    """A score is the sum of an image's elements, or their mean where the model
    takes the mean of all elements."""
    if cfg['type'] not in MODELS:
        pytest.skip("OneDL's alone has it")
    loss = MODELS.build(cfg)
    check_loss(loss)
    pred, target = make_batch(kind)
    kwargs = {} if avg_factor is None else dict(avg_factor=avg_factor)
    known, parts = check_loss_weights(loss, pred, target, WEIGHTS, **kwargs)
    if loss.reduction == 'none':
        divisor = B
    else:
        elements = loss(pred, target, reduction_override='none')
        divisor = avg_factor or elements.numel()
    assert_close(known.scores, parts * divisor)


@pytest.mark.parametrize(
    'kind', [
        kind for kind in vars(mmpretrain_losses).values()
        if isinstance(kind, type) and issubclass(kind, nn.Module)
        and kind.__name__ not in OF_MASKED_IMAGES
    ],
    ids=lambda kind: kind.__name__)
def test_every_loss_is_known_or_refused(kind):
    if kind.__name__ not in REFUSED:
        assert kind.__name__ in {cfg['type'] for cfg, _ in LOSSES}
        return
    loss = kind.__new__(kind)
    nn.Module.__init__(loss)
    with pytest.raises(Refusal, match=f'none for {kind.__name__}: use'):
        check_loss(loss)


@pytest.mark.parametrize('read, load', [
    (get_state_dict, load_state_dict),
    (nn.Module.state_dict, nn.Module.load_state_dict),
])
def test_buffers_have_the_names_of_the_baseline(read, load):
    cfg = dict(type='SeesawLoss', num_classes=C)
    plain, other = (
        nn.ModuleDict(dict(loss_module=MODELS.build(cfg))) for _ in range(2))
    wrapped = nn.ModuleDict(dict(loss_module=InfoBatchLoss(MODELS.build(cfg))))
    plain.loss_module.cum_samples += 7
    load(wrapped, read(plain), strict=True)
    assert (wrapped.loss_module.loss.cum_samples == 7).all()
    assert list(read(wrapped)) == ['loss_module.cum_samples']
    load(other, read(copy.deepcopy(wrapped)), strict=True)
    assert (other.loss_module.cum_samples == 7).all()
    with pytest.raises(RuntimeError, match='cum_samples'):
        load(wrapped, {}, strict=True)


def test_scoring_alone_counts_once():
    """What the loss has seen is a part of its next value."""
    cfg = dict(type='SeesawLoss', num_classes=C)
    plain, batch = MODELS.build(cfg), BatchContext(only_scores=True)
    ours = InfoBatchLoss(MODELS.build(cfg), batch=batch)
    rng = torch.Generator().manual_seed(0)
    for _ in range(3):
        logits = torch.randn(8, C, generator=rng, requires_grad=True)
        labels = torch.randint(3, (8, ), generator=rng)
        batch.set_weights(torch.ones(8), torch.ones(8))
        assert ours(logits, labels).item() == plain(logits, labels).item()
    assert torch.equal(ours.loss.cum_samples, plain.cum_samples)
