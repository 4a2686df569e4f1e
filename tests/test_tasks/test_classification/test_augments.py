# Copyright (c) mmib contributors. All rights reserved.
import copy

import numpy as np
import pytest
import torch
from mmpretrain.engine.hooks import SwitchRecipeHook
from mmpretrain.registry import BATCH_AUGMENTS, MODELS
from mmpretrain.structures import DataSample
from torch.testing import assert_close

from mmib.errors import Refusal
from mmib.openmmlab.batch import BatchContext
from mmib.openmmlab.tasks import attach
from mmib.openmmlab.tasks.classification import PairedMixup
from tests.system.test_waiting import Watch

from ..contract import take_step
from .small_classifier import CLASSES, model_cfg

pytestmark = pytest.mark.mmpretrain

AUGMENTS = [
    dict(type='Mixup', alpha=0.8),
    dict(type='CutMix', alpha=1.),
    dict(type='CutMix', alpha=1., correct_lam=False),
    dict(type='CutMix', alpha=1., cutmix_minmax=[0.2, 0.8]),
    dict(type='ResizeMix', alpha=1.),
    dict(type='ResizeMix', alpha=1., lam_max=0.5, interpolation='bicubic'),
]
LOSSES = [
    dict(type='CrossEntropyLoss', use_soft=True),
    dict(type='CrossEntropyLoss', use_sigmoid=True),
    dict(type='LabelSmoothLoss', label_smooth_val=0.1, mode='original'),
    dict(type='LabelSmoothLoss', label_smooth_val=0.1, mode='classy_vision'),
    dict(type='FocalLoss'),
]
# Of pairs, but for the image in the middle, they differ.
LABELS = {1: [2], 4: [0, 1, 2, 1], 5: [0, 1, 2, 2, 1]}


@BATCH_AUGMENTS.register_module()
class PairedShares(PairedMixup):
    """Another share for each image."""

    def mix_inputs(self, inputs):
        share = torch.linspace(0.1, 1, len(inputs))
        column = share[:, None, None, None]
        return column * inputs + (1 - column) * inputs.flip(0), share


def paired(augment):
    return dict(augment, type='Paired' + augment['type'])


def make_data(size):
    generator = torch.Generator().manual_seed(size)
    return dict(
        inputs=torch.randn(size, 3, 16, 16, generator=generator),
        data_samples=[
            DataSample().set_gt_label(label) for label in LABELS[size]
        ])


def make_model(augment, loss=LOSSES[0]):
    torch.manual_seed(0)
    model = MODELS.build(
        model_cfg(
            head=dict(
                type='LinearClsHead',
                num_classes=CLASSES,
                in_channels=8,
                loss=copy.deepcopy(loss)),
            train_cfg=dict(augments=augment)))
    # So that the losses of images differ.
    model.head.fc.weight.data *= 30
    return model


def augment(model, data, seed=0):
    """Mixed images and their samples."""
    np.random.seed(seed)
    data = model.data_preprocessor(copy.deepcopy(data), True)
    return data['inputs'], data['data_samples']


def losses_alone(model, inputs, samples):
    """The loss of each row."""
    return torch.stack([
        take_step(model, inputs[i:i + 1], samples[i:i + 1]).loss
        for i in range(len(inputs))
    ])


@pytest.mark.parametrize('size', [1, 4, 5])
@pytest.mark.parametrize('augment', AUGMENTS, ids=str)
def test_it_is_the_one_of_mmpretrain_with_pairs(augment, size, monkeypatch):
    monkeypatch.setattr(torch, 'randperm', lambda n: torch.arange(n).flip(0))
    images = torch.randn(size, 3, 12, 16)
    labels = torch.eye(size)
    for seed in range(3):
        mixed = []
        for cfg in (augment, paired(augment)):
            np.random.seed(seed)
            mix = BATCH_AUGMENTS.build(dict(cfg))
            mixed.append(mix(images.clone(), labels))
        assert_close(mixed[0], mixed[1])


@pytest.mark.parametrize('size', [1, 4, 5])
@pytest.mark.parametrize(
    'augment_cfg, loss',
    [(AUGMENTS[1], LOSSES[0]),
     (dict(type='Shares', alpha=1.), LOSSES[0])] + [(AUGMENTS[0], loss)
                                                    for loss in LOSSES[1:]],
    ids=str)
def test_mixtures_by_hand(augment_cfg, loss, size):
    """A row has a share of its image, and the rest of the other one."""
    weights = torch.tensor([1., 3., 0.5, 2., 4.])[:size]
    data = make_data(size)
    model = make_model(paired(augment_cfg), loss)
    baseline = copy.deepcopy(model)
    batch = BatchContext()
    attach(model, batch)
    rows = augment(baseline, data)
    plain = take_step(baseline, *rows)
    assert_close(take_step(model, *augment(model, data)), plain)
    batch.set_weights(torch.ones(size), torch.ones(size))
    assert_close(take_step(model, *augment(model, data)), plain)

    batch.set_weights(weights, weights)
    step = take_step(model, *augment(model, data))
    # The label tells the share.
    share = torch.stack([
        sample.gt_score[label] for sample, label in zip(rows[1], LABELS[size])
    ])
    factors = share * weights + (1 - share) * weights.flip(0)
    assert_close(step.inputs[0],
                 plain.inputs[0] * factors[:, None, None, None])
    alone = losses_alone(baseline, *rows)
    assert_close(step.loss, (factors * alone).mean())
    assert_close(batch.scores, share * alone + ((1 - share) * alone).flip(0))


def test_mixtures_read_nothing_back():
    model = make_model(paired(AUGMENTS[0]))
    data = model.data_preprocessor(make_data(5), True)
    batch = BatchContext()
    attach(model, batch)
    weights = torch.tensor([1., 3., 0.5, 2., 4.])
    with Watch() as watch:
        batch.set_weights(weights, weights)
        batch.mix(torch.linspace(0, 1, 5))
        losses = model(data['inputs'], data['data_samples'], mode='loss')
        loss, _ = model.parse_losses(losses)
        loss.backward()
        norms = batch.norms
    assert not watch.waiting
    assert norms.isfinite().all()


def test_without_infobatch_it_only_augments():
    model = make_model(paired(AUGMENTS[0]))
    take_step(model, *augment(model, make_data(4)))
    batch = BatchContext()
    attach(model, batch)
    batch.set_weights(torch.ones(4), torch.ones(4))
    # As in validation.
    model.data_preprocessor(make_data(4), False)
    assert batch.row_weights is batch.weights


def rotate(inputs, scores):
    return inputs.roll(1, 0), scores.roll(1, 0)


@pytest.mark.parametrize('other, message', [
    *((dict(type=name, alpha=1.), f"{name} in `augments` of `model.train_cfg`"
       f".*set `type='Paired{name}'` there instead of '{name}' and import")
      for name in ('Mixup', 'CutMix', 'ResizeMix')),
    (rotate, 'rotate in .*: derive it from'),
])
def test_others_are_refused(other, message):
    model = make_model(paired(AUGMENTS[0]))
    if isinstance(other, dict):
        other = BATCH_AUGMENTS.build(other)
    model.data_preprocessor.batch_augments.augments.append(other)
    with pytest.raises(Refusal, match=message):
        attach(model, BatchContext())


@pytest.mark.parametrize('kwargs, message', [
    (dict(batch_augments=dict(augments=AUGMENTS[0])),
     "`action_epoch=3`: Mixup in .*set `type='PairedMixup'`"),
    (dict(loss=dict(type='SwAVLoss', feat_dim=4, num_prototypes=2)),
     '`action_epoch=3`: InfoBatch needs a loss per image'),
])
def test_a_recipe_that_cannot_be_attached_stops_before_the_first_step(
        kwargs, message):
    model = make_model(paired(AUGMENTS[0]))
    with pytest.raises(Refusal, match='SwitchRecipeHook.*' + message):
        attach(model, BatchContext(),
               [SwitchRecipeHook([dict(action_epoch=3, **kwargs)])])
