# Copyright (c) mmib contributors. All rights reserved.
import copy

import pytest
import torch
import torch.nn as nn
from mmengine.registry import DefaultScope
from mmengine.structures import InstanceData, PixelData
from mmseg.registry import MODELS
from mmseg.structures import SegDataSample
from torch.testing import assert_close

from mmib import InfoBatchLoss
from mmib.errors import Refusal
from mmib.openmmlab.batch import BatchContext
from mmib.openmmlab.tasks import attach
from mmib.openmmlab.tasks.replace import follow_rows
from mmib.openmmlab.tasks.segmentation import (_num_masks, _num_queries,
                                               register_head,
                                               register_segmentor)
from tests.helpers.segmentors import small_head

from .contract import check_weights, override, told_to_call

B, C, SIZE = 3, 5, 16
IGNORE = 255
WEIGHTS = torch.tensor([1., 3., 0.5])


def ce(**kwargs):
    return dict(type='CrossEntropyLoss', **kwargs)


def dice(**kwargs):
    return dict(type='DiceLoss', **kwargs)


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


def test_pixels_that_are_sampled_by_two_losses():
    """The head calls its losses for the choice, too. Other heads are in
    tests/system/test_families.py."""
    inputs = torch.randn(B, 3, SIZE, SIZE)
    losses = [ce(), ce(loss_weight=0.4, loss_name='loss_b')]
    sampler = dict(type='OHEMPixelSampler', min_kept=40)
    known, _ = check_weights(lambda: make_model(losses, sampler=sampler),
                             inputs, make_samples(), WEIGHTS)
    assert known.scores.isfinite().all()
    assert len(set(known.scores.tolist())) == B


def wrap_losses(model, batch):
    """All losses of a model, wrapped."""
    attach(model, batch)
    return [x for x in model.modules() if isinstance(x, InfoBatchLoss)]


def test_what_follows_the_matching():
    """Masks are counted as they are matched, with more of them than queries
    too. The matchers of the heads need ops of mmcv: test_families.py."""

    class Matcher:

        def get_targets(self, cls_scores, mask_preds, instances):
            return losses[0].rows_per_image, losses[1].rows_per_image

    matcher = Matcher()
    losses = [InfoBatchLoss(nn.MSELoss()) for _ in range(2)]
    follow_rows(matcher, 'get_targets', (losses[:1], _num_queries),
                (losses[1:], _num_masks))
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


@pytest.mark.parametrize('is_first', [True, False])
def test_a_loss_under_another_name(is_first):
    """A part that isn't registered would train it without weights."""
    model = make_model(ce())
    head = model.decode_head
    if is_first:
        del model.decode_head
    model.boundary = nn.Module()
    model.boundary.criterion = head.loss_decode
    model.decode_head = head
    with pytest.raises(Refusal, match='loss `model.boundary.criterion` was'):
        wrap_losses(model, BatchContext())


def test_losses_that_are_only_logged():
    """Their keys have no "loss", so they train nothing and score nothing."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(B, 3, SIZE, SIZE, generator=generator)
    runs = []
    for losses in ([ce(), dice(loss_name='dice_metric')], ce()):
        model, batch = make_model(losses), BatchContext()
        wrap_losses(model, batch)
        batch.set_weights(WEIGHTS, WEIGHTS)
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
