# Copyright (c) mmib contributors. All rights reserved.
"""Detectors that train in a second on drawn boxes."""
import json
import uuid

import cv2
import mmdet.datasets  # noqa: F401
import mmdet.models  # noqa: F401
import numpy as np
import torch
from mmdet.registry import MODELS
from mmengine.config import Config
from mmengine.registry import DefaultScope

SIZE, MAX_EPOCHS, BATCH = 13, 6, 2


@MODELS.register_module()
class TwoLevels(torch.nn.Module):
    """A backbone of strides 8 and 16 without normalisation: what it computes
    for an image doesn't depend on the batch."""

    def __init__(self, channels=16):
        super().__init__()
        self.first = torch.nn.Conv2d(3, channels, 8, 8)
        self.second = torch.nn.Conv2d(channels, channels, 2, 2)

    def forward(self, x):
        x = self.first(x).relu()
        return x, self.second(x)


PREPROCESSOR = dict(type='DetDataPreprocessor', mean=[0.] * 3, std=[255.] * 3)
ANCHORS = dict(
    type='AnchorGenerator', scales=[2, 4], ratios=[0.5, 2.], strides=[8, 16])
CODER = dict(type='DeltaXYWHBBoxCoder')
ASSIGNER = dict(
    type='MaxIoUAssigner', pos_iou_thr=0.4, neg_iou_thr=0.3, min_pos_iou=0)
L1 = dict(type='L1Loss')
HEAD = dict(num_classes=2, in_channels=16, feat_channels=8, stacked_convs=1)
RETINANET = dict(
    type='RetinaNet',
    data_preprocessor=PREPROCESSOR,
    backbone=dict(type='TwoLevels'),
    neck=None,
    bbox_head=dict(
        HEAD,
        type='RetinaHead',
        anchor_generator=ANCHORS,
        bbox_coder=CODER,
        loss_bbox=L1),
    train_cfg=dict(
        assigner=ASSIGNER,
        sampler=dict(type='PseudoSampler'),
        allowed_border=-1,
        pos_weight=-1))
FCOS = dict(
    RETINANET,
    type='FCOS',
    bbox_head=dict(
        HEAD,
        type='FCOSHead',
        strides=[8, 16],
        regress_ranges=((-1, 24), (24, 1e8)),
        norm_cfg=None))
ATSS = dict(
    RETINANET,
    type='ATSS',
    bbox_head=dict(
        HEAD,
        type='ATSSHead',
        norm_cfg=None,
        anchor_generator=ANCHORS,
        bbox_coder=CODER,
        loss_bbox=dict(type='GIoULoss')),
    train_cfg=dict(
        assigner=dict(type='ATSSAssigner', topk=4),
        allowed_border=-1,
        pos_weight=-1))
ATTENTION = dict(embed_dims=16, num_heads=2, dropout=0.)
LAYER = dict(
    self_attn_cfg=ATTENTION,
    ffn_cfg=dict(embed_dims=16, feedforward_channels=16, ffn_drop=0.))
DETR = dict(
    type='DETR',
    num_queries=6,
    data_preprocessor=PREPROCESSOR,
    backbone=dict(type='TwoLevels'),
    neck=None,
    encoder=dict(num_layers=1, layer_cfg=LAYER),
    decoder=dict(
        num_layers=2,
        return_intermediate=True,
        layer_cfg=dict(LAYER, cross_attn_cfg=ATTENTION)),
    positional_encoding=dict(num_feats=8, normalize=True),
    bbox_head=dict(
        type='DETRHead',
        num_classes=2,
        embed_dims=16,
        loss_cls=dict(
            type='CrossEntropyLoss', bg_cls_weight=0.1, class_weight=1.)),
    train_cfg=dict(
        assigner=dict(
            type='HungarianAssigner',
            match_costs=[
                dict(type='ClassificationCost', weight=1.),
                dict(type='BBoxL1Cost', weight=5., box_format='xywh'),
                dict(type='IoUCost', iou_mode='giou', weight=2.)
            ])))


def build(model):
    """A detector of a config, with equal weights in each."""
    torch.manual_seed(0)
    with DefaultScope.overwrite_default_scope('mmdet'):
        model = MODELS.build(Config(dict(model=model)).model)
    model.init_weights()
    return model.train()


def draw(folder, size=SIZE, num_boxes=(1, 2, 3, 4)):
    """Images of 64 x 64 with one to four boxes on noise, as COCO has them."""
    rng = np.random.default_rng(0)
    images, annotations = [], []
    for i in range(size):
        image = rng.integers(128, size=(64, 64, 3), dtype=np.uint8)
        images.append(dict(id=i, file_name=f'{i}.png', width=64, height=64))
        for _ in range(num_boxes[i % len(num_boxes)]):
            x, y, w, h = rng.integers((0, 0, 16, 16),
                                      (40, 40, 24, 24)).tolist()
            label = int(rng.integers(2))
            image[y:y + h, x:x + w] = (255, 160)[label]
            annotations.append(
                dict(
                    id=len(annotations),
                    image_id=i,
                    category_id=label,
                    bbox=[x, y, w, h],
                    area=w * h,
                    iscrowd=0))
        cv2.imwrite(str(folder / f'{i}.png'), image)
    categories = [dict(id=i, name=name) for i, name in enumerate('ab')]
    (folder / 'boxes.json').write_text(
        json.dumps(
            dict(
                images=images, annotations=annotations,
                categories=categories)))


def config(work_dir, folder, model=RETINANET, policy=None, **changes):
    """Config of a training on :func:`draw`, the baseline without a policy."""
    cfg = Config(
        dict(
            default_scope='mmdet',
            work_dir=str(work_dir),
            # Trainings of a name within a second share their log.
            experiment_name=f'test_{uuid.uuid4()}',
            randomness=dict(seed=0),
            model=model,
            train_dataloader=dict(
                batch_size=BATCH,
                num_workers=0,
                sampler=dict(type='DefaultSampler', shuffle=True),
                batch_sampler=dict(type='AspectRatioBatchSampler'),
                dataset=dict(
                    type='CocoDataset',
                    data_root=str(folder),
                    ann_file='boxes.json',
                    data_prefix=dict(img=''),
                    metainfo=dict(classes=('a', 'b')),
                    filter_cfg=dict(filter_empty_gt=True),
                    pipeline=[
                        dict(type='LoadImageFromFile'),
                        dict(type='LoadAnnotations', with_bbox=True),
                        dict(type='PackDetInputs')
                    ])),
            optim_wrapper=dict(optimizer=dict(type='SGD', lr=0.01)),
            train_cfg=dict(type='EpochBasedTrainLoop', max_epochs=MAX_EPOCHS),
            param_scheduler=[
                dict(
                    type='LinearLR',
                    start_factor=0.1,
                    by_epoch=False,
                    begin=0,
                    end=10),
                dict(type='MultiStepLR', milestones=[4], by_epoch=True)
            ]))
    cfg.merge_from_dict(changes)
    return cfg
