# Copyright (c) mmib contributors. All rights reserved.
import copy

import pytest
import torch
import torch.nn as nn
from mmengine.registry import DefaultScope
from mmengine.structures import InstanceData, PixelData
from mmseg.models.decode_heads.point_head import point_sample
from mmseg.registry import MODELS
from mmseg.structures import SegDataSample
from mmseg.utils import MatchMasks
from torch.testing import assert_close

from mmib import InfoBatchLoss
from mmib.batch import BatchContext
from mmib.errors import Refusal
from mmib.tasks import attach
from mmib.tasks.segmentation import register_head, register_segmentor
from mmib.tasks.segmentation.heads import _follow_matching
from tests.system.small_training import small_head

from .contract import check_weights, override, told_to_call

B, C, SIZE = 3, 5, 16
IGNORE = 255
WEIGHTS = torch.tensor([1., 3., 0.5])


def ce(**kwargs):
    return dict(type='CrossEntropyLoss', **kwargs)


def dice(**kwargs):
    return dict(type='DiceLoss', **kwargs)


OHEM = dict(type='OHEMPixelSampler', min_kept=40)
# Losses of a head, and what samples pixels for them. Other types of heads are
# in tests/system/test_families.py.
HEADS = {
    'OHEM': ([ce()], dict(OHEM, thresh=0.3)),
    'OHEM of losses': ([ce(), ce(loss_weight=0.4, loss_name='loss_b')], OHEM),
    'CE and Dice': ([ce(), dice(loss_weight=3.)], None),
    'CE and Lovasz': ([ce(), dict(type='LovaszLoss', reduction='none')], None),
    'CE and Tversky': ([ce(), dict(type='TverskyLoss')], None),
}


def make_samples():
    generator = torch.Generator().manual_seed(1)
    samples = []
    for i in range(B):
        label = torch.randint(
            0, C, (1, SIZE // 4, SIZE // 4), generator=generator)
        label = label.repeat_interleave(4, 1).repeat_interleave(4, 2)
        label[:, :i] = IGNORE
        samples.append(SegDataSample(gt_sem_seg=PixelData(data=label)))
    return samples


def make_model(losses, **kwargs):
    """A segmentor of convolutions with the given losses."""
    torch.manual_seed(0)
    with DefaultScope.overwrite_default_scope('mmseg'):
        return MODELS.build(
            dict(
                type='EncoderDecoder',
                backbone=dict(type='OneConv'),
                decode_head=small_head(
                    copy.deepcopy(losses), num_classes=C, **kwargs)))


@pytest.mark.parametrize('name', HEADS)
def test_the_weight_of_an_image_multiplies_its_gradient(name):
    """Whatever the head does with its losses."""
    losses, sampler = HEADS[name]
    inputs = torch.randn(B, 3, SIZE, SIZE)
    known, _ = check_weights(lambda: make_model(losses, sampler=sampler),
                             inputs, make_samples(), WEIGHTS)
    assert known.scores.isfinite().all()
    assert len(set(known.scores.tolist())) == B


def wrap_losses(model, batch):
    """All losses of a model, wrapped."""
    attach(model, batch)
    return [x for x in model.modules() if isinstance(x, InfoBatchLoss)]


@pytest.mark.skipif(point_sample is None, reason='needs ops of mmcv')
@pytest.mark.parametrize('num_masks', [(2, 5, 0), (9, 1, 3)])
def test_masks_of_each_image(num_masks):
    """Counted as they are matched, with more masks than queries too."""
    num_queries = 6
    with DefaultScope.overwrite_default_scope('mmseg'):
        matcher = MatchMasks(
            num_points=16,
            num_queries=num_queries,
            num_classes=C,
            assigner=dict(
                type='HungarianAssigner',
                match_costs=[
                    dict(type='ClassificationCost', weight=2.),
                    dict(type='DiceCost', weight=5., pred_act=True, eps=1.)
                ]))
        loss = InfoBatchLoss(
            MODELS.build(dice(use_sigmoid=True, ignore_index=None)))
    _follow_matching(matcher, [], [loss])
    instances = [
        InstanceData(
            labels=torch.arange(n) % C,
            masks=torch.randint(0, 2, (n, SIZE, SIZE))) for n in num_masks
    ]
    _, targets, mask_weights, _ = matcher.get_targets(
        torch.randn(B, num_queries, C + 1),
        torch.randn(B, num_queries, SIZE, SIZE), instances)
    assert loss.rows_per_image == (mask_weights > 0).sum(1).tolist()
    assert sum(loss.rows_per_image) == len(targets)


def test_what_follows_the_matching():
    """As the test before, with a matcher that needs no ops of mmcv."""

    class Matcher:

        def get_targets(self, cls_scores, mask_preds, instances):
            return losses[0].rows_per_image, losses[1].rows_per_image

    matcher = Matcher()
    losses = [InfoBatchLoss(nn.MSELoss()) for _ in range(2)]
    _follow_matching(matcher, losses[:1], losses[1:])
    for num_masks in ((2, 5, 0), (9, 1, 3)):
        instances = [InstanceData(labels=torch.arange(n)) for n in num_masks]
        rows = matcher.get_targets(
            torch.zeros(B, 6, C + 1), torch.zeros(B, 6, SIZE, SIZE), instances)
        assert rows == (6, [min(n, 6) for n in num_masks])


def test_a_config_may_write_the_loss_out():
    model = make_model(dict(type='InfoBatchLoss', loss=ce(loss_name='loss_x')))
    written = model.decode_head.loss_decode
    assert isinstance(written, InfoBatchLoss)
    assert written.loss_name == 'loss_x'
    assert wrap_losses(model, BatchContext()) == [written]


def test_missing_head():
    with pytest.raises(Refusal, match='no losses of Sequential'):
        attach(nn.Sequential(), BatchContext())


def test_losses_that_are_only_logged():
    """Their keys have no "loss", so they train nothing and score nothing."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(B, 3, SIZE, SIZE, generator=generator)
    runs = []
    for losses in ([ce(), dice(loss_name='dice_metric')], ce()):
        model, batch = make_model(losses), BatchContext()
        wrap_losses(model, batch)
        batch.begin(WEIGHTS)
        losses = model.loss(inputs, make_samples())
        runs.append((batch.scores, model.parse_losses(losses)[0]))
    assert_close(*runs)


def test_what_users_are_told_to_call():
    """tests/test_tasks/test_head_table.py registers heads and models."""
    model = make_model(ce())
    override(model.decode_head)
    assert told_to_call(model) is register_head
    override(model)
    assert told_to_call(model) is register_segmentor
