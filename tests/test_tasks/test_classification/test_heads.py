# Copyright (c) mmib contributors. All rights reserved.
import copy
from types import SimpleNamespace

import pytest
import torch
import torch.nn as nn
from mmengine.model import BaseModel
from mmpretrain.models import classifiers
from mmpretrain.registry import MODELS
from mmpretrain.structures import DataSample, MultiTaskDataSample
from torch.testing import assert_close

from mmib.errors import Refusal
from mmib.openmmlab.batch import BatchContext
from mmib.openmmlab.tasks import attach
from mmib.openmmlab.tasks.classification import (TABLE, register_classifier,
                                                 register_head)

from .. import contract
from .small_classifier import model_cfg

pytestmark = pytest.mark.mmpretrain

B, C = 3, 3
WEIGHTS = torch.tensor([1., 3., 0.5])
SMOOTH = dict(type='LabelSmoothLoss', label_smooth_val=0.1, num_classes=C)
SIGMOID = dict(type='CrossEntropyLoss', use_sigmoid=True)


def linear(type='LinearClsHead', **kwargs):
    return dict(type=type, num_classes=C, in_channels=8, **kwargs)


def tasks(**kwargs):
    return dict(type='MultiTaskHead', task_heads=kwargs)


# Config of the head, what labels are, and what the backbone makes.
HEADS = {
    'ClsHead': (dict(type='ClsHead'), 'labels', dict(channels=C)),
    'LinearClsHead': (linear(), 'labels', {}),
    'smooth': (linear(loss=SMOOTH), 'labels', {}),
    'accuracy': (linear(cal_acc=True), 'labels', {}),
    'scores': (linear(), 'scores', {}),
    'StackedLinearClsHead': (linear(
        'StackedLinearClsHead', mid_channels=[6],
        norm_cfg=dict(type='BN1d')), 'labels', {}),
    'VisionTransformerClsHead': (linear(
        'VisionTransformerClsHead', hidden_dim=6), 'labels', dict(tokens=2)),
    'DeiTClsHead': (linear('DeiTClsHead'), 'labels', dict(tokens=2)),
    'ConformerHead': (dict(
        type='ConformerHead', num_classes=C, in_channels=[8, 8],
        loss=SMOOTH), 'labels', dict(tokens=2)),
    'EfficientFormerClsHead': (linear(
        'EfficientFormerClsHead', distillation=False), 'labels', {}),
    'LeViTClsHead': (linear('LeViTClsHead', distillation=False), 'labels', {}),
    'VigClsHead': (linear('VigClsHead', hidden_dim=6), 'labels', {}),
    'ArcFaceClsHead': (linear('ArcFaceClsHead', scale=4.), 'labels', {}),
    'sub-centres': (linear('ArcFaceClsHead', num_subcenters=2,
                           scale=4.), 'labels', {}),
    'MultiLabelClsHead': (dict(type='MultiLabelClsHead'), 'many labels',
                          dict(channels=C)),
    'MultiLabelLinearClsHead': (linear(
        'MultiLabelLinearClsHead',
        loss=dict(type='AsymmetricLoss')), 'many labels', {}),
    'CSRAClsHead': (linear('CSRAClsHead', num_heads=2, lam=0.1,
                           loss=SIGMOID), 'many labels', dict(form='map')),
    'MultiTaskHead': (tasks(
        a=linear(),
        b=linear('MultiLabelLinearClsHead',
                 loss=dict(type='FocalLoss'))), 'tasks', {}),
    'tasks without labels': (tasks(a=linear(), b=linear(),
                                   c=linear()), 'some tasks', {}),
    'RegressionHead': (dict(type='RegressionHead'), 'numbers',
                       dict(channels=C)),
    'LinearRegressionHead': (linear(
        'LinearRegressionHead',
        loss=dict(type='RegressionLoss', loss_type='MSELoss')), 'numbers', {}),
}
# They pretrain, or take text besides.
REFUSED = {
    'BEiTV1Head', 'BEiTV2Head', 'CAEHead', 'ContrastiveHead', 'GroundingHead',
    'ITCHead', 'ITMHead', 'LatentCrossCorrelationHead', 'LatentPredictHead',
    'MAEPretrainHead', 'MIMHead', 'MixMIMPretrainHead', 'MoCoV3Head',
    'SeqGenerationHead', 'SimMIMHead', 'SparKPretrainHead', 'SwAVHead',
    'VQAGenerationHead', 'iTPNClipHead'
}


def make_samples(kind):
    scores = torch.rand(
        B, C, generator=torch.Generator().manual_seed(0)).softmax(1)
    # In 'some tasks', a has all images, b the last two and c none.
    num_labels = dict(a=B, b=B if kind == 'tasks' else 2, c=0)
    samples = []
    for i, label in enumerate([2, 0, 1]):
        sample = DataSample().set_gt_label(label)
        if kind == 'many labels':
            sample.set_gt_label([[0, 2], [1], [2]][i])
        elif kind == 'scores':
            sample.set_gt_score(scores[i])
        elif kind == 'numbers':
            sample = DataSample()
            sample.set_field(torch.arange(C) / (i + 1) - 1, 'gt_score')
        elif kind != 'labels':
            of_tasks = MultiTaskDataSample()
            for task, number in num_labels.items():
                if i >= B - number:
                    of_tasks.set_field(sample, task)
            sample = of_tasks
        samples.append(sample)
    return samples


def make_inputs():
    return torch.randn(
        B, 3, 16, 16, generator=torch.Generator().manual_seed(1))


def make_model(head, **backbone):
    torch.manual_seed(0)
    return MODELS.build(
        model_cfg(
            head=copy.deepcopy(head),
            backbone=dict(type='OneConvClassifier', **backbone)))


def check(make, inputs, samples):
    """The score of an image is the loss of that image alone."""
    known, _ = contract.check_weights(make, inputs, samples, WEIGHTS)
    with contract.image_by_image():
        alone = [
            contract.take_step(make(), inputs[i:i + 1], samples[i:i + 1]).loss
            for i in range(B)
        ]
    assert_close(known.scores, torch.stack(alone))
    assert known.norms.isfinite().all()


@pytest.mark.filterwarnings('ignore:MMPretrain cannot train')
@pytest.mark.parametrize('name', HEADS)
def test_heads(name):
    head, kind, backbone = HEADS[name]
    if head['type'] not in MODELS:
        pytest.skip("OneDL's alone has it")
    # A copy of a MultiTaskHead calls the losses of what it was copied from.
    check(lambda: make_model(head, **backbone), make_inputs(),
          make_samples(kind))


def test_tasks_of_each_batch():
    """Which images have a label changes."""
    model = make_model(tasks(a=linear(), b=linear()))
    batch = BatchContext()
    for _ in range(3):
        attach(model, batch)
    # Nothing piles up.
    assert not hasattr(model.head.task_heads['b'].loss.unchanged, 'unchanged')
    some = [0, 1, 1]
    for kind, expected in (('tasks', 1), ('some tasks', some), ('tasks', 1)):
        batch.set_weights(WEIGHTS, WEIGHTS)
        contract.take_step(model, make_inputs(), make_samples(kind))
        loss = model.head.task_heads['b'].loss_module
        assert loss.rows_per_image == expected


@pytest.mark.parametrize('kind', ['TimmClassifier', 'HuggingFaceClassifier'])
def test_networks_of_other_libraries(kind):
    """Their classifiers call the loss themselves."""

    class Network(nn.Module):

        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(3 * 16 * 16, C)

        def forward(self, x):
            logits = self.fc(x.flatten(1) / 30)
            is_timm = kind == 'TimmClassifier'
            return logits if is_timm else SimpleNamespace(logits=logits)

    # Without the constructor, which needs the library.
    model = object.__new__(getattr(classifiers, kind))
    BaseModel.__init__(model)
    model.model = Network()
    model.loss_module = MODELS.build(SMOOTH)
    check(lambda: copy.deepcopy(model), make_inputs(), make_samples('labels'))


def test_retriever():
    model = make_model(HEADS['ArcFaceClsHead'][0])
    retriever = MODELS.build(
        dict(
            type='ImageToImageRetriever',
            image_encoder=model.backbone,
            prototype=torch.zeros(1, 8),
            head=model.head))
    check(lambda: copy.deepcopy(retriever), make_inputs(),
          make_samples('labels'))


@pytest.mark.parametrize(
    'kind', [
        kind for kind in MODELS.module_dict.values()
        if kind.__module__.startswith('mmpretrain.models.heads')
    ],
    ids=lambda kind: kind.__name__)
def test_every_head_is_known_or_refused(kind):
    if kind.__name__ not in REFUSED:
        assert kind.__name__ in {head['type'] for head, _, _ in HEADS.values()}
        return
    model = make_model(linear())
    model.head = object.__new__(kind)
    nn.Module.__init__(model.head)
    with pytest.raises(
            Refusal,
            match=f'knows none for {kind.__name__}, .* change `model.head`, '
            'register this head with .*register_head'):
        attach(model, BatchContext())


def test_every_classifier_is_known():
    for name in classifiers.__all__:
        kind = getattr(classifiers, name)
        assert name == 'BaseClassifier' or any(
            kind in rows for rows in (TABLE.heads, TABLE.models))


def test_what_users_are_told_to_call():
    model = make_model(linear())
    contract.override(model.head, '_get_loss')
    assert contract.told_to_call(model) is register_head
    contract.override(model)
    assert contract.told_to_call(model) is register_classifier


def test_tasks_within_a_task_are_refused():
    nested = make_model(tasks(a=tasks(b=linear())))
    with pytest.raises(
            Refusal, match='`model.head.task_heads.a` is a MultiTaskHead'):
        attach(nested, BatchContext())
