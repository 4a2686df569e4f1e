# Copyright (c) mmib contributors. All rights reserved.
"""Detectors that train in a second on drawn boxes, without files."""
import uuid

import mmdet.datasets  # noqa: F401
import mmdet.models  # noqa: F401
import numpy as np
import torch
from mmdet.registry import DATASETS, MODELS
from mmdet.structures import DetDataSample
from mmengine.config import Config
from mmengine.registry import DefaultScope
from mmengine.structures import InstanceData
from torch.utils.data import Dataset

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


DETECTOR = dict(
    data_preprocessor=dict(
        type='DetDataPreprocessor', mean=[0.] * 3, std=[255.] * 3),
    backbone=dict(type='TwoLevels'),
    neck=None)
ANCHORS = dict(
    type='AnchorGenerator', scales=[2, 4], ratios=[0.5, 2.], strides=[8, 16])
CODER = dict(type='DeltaXYWHBBoxCoder')
ASSIGNER = dict(
    type='MaxIoUAssigner', pos_iou_thr=0.4, neg_iou_thr=0.3, min_pos_iou=0)
L1 = dict(type='L1Loss')
HEAD = dict(num_classes=2, in_channels=16, feat_channels=8, stacked_convs=1)
RETINANET = dict(
    DETECTOR,
    type='RetinaNet',
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
    DETECTOR,
    type='FCOS',
    bbox_head=dict(
        HEAD,
        type='FCOSHead',
        norm_cfg=None,
        strides=[8, 16],
        regress_ranges=((-1, 24), (24, 1e8)),
        loss_bbox=dict(type='GIoULoss')))
ATTENTION = dict(embed_dims=16, num_heads=2, dropout=0.)
LAYER = dict(
    self_attn_cfg=ATTENTION,
    ffn_cfg=dict(embed_dims=16, feedforward_channels=16, ffn_drop=0.))
DETR = dict(
    DETECTOR,
    type='DETR',
    num_queries=6,
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


@DATASETS.register_module()
class DrawnBoxes(Dataset):
    """Images of 64 x 64 with one to four boxes on noise."""

    metainfo = dict(classes=('a', 'b'))

    def __init__(self, size=SIZE, num_boxes=(1, 2, 3, 4)):
        self.size, self.num_boxes = size, num_boxes

    def __len__(self):
        return self.size

    def get_data_info(self, index):
        return dict(img_path=f'{index}.png', img_id=index, width=64, height=64)

    def __getitem__(self, index):
        rng = np.random.default_rng(index)
        image = rng.integers(128, size=(3, 64, 64), dtype=np.uint8)
        number = self.num_boxes[index % len(self.num_boxes)]
        corners = rng.integers(24, size=(number, 2))
        sizes = rng.integers(12, 40, size=(number, 2))
        labels = rng.integers(2, size=number)
        for (x, y), (w, h), label in zip(corners, sizes, labels):
            image[:, y:y + h, x:x + w] = (255, 160)[label]
        sample = DetDataSample(
            metainfo=dict(
                self.get_data_info(index),
                img_shape=(64, 64),
                pad_shape=(64, 64),
                batch_input_shape=(64, 64),
                scale_factor=(1., 1.)))
        sample.gt_instances = InstanceData(
            bboxes=torch.from_numpy(np.hstack([corners,
                                               corners + sizes])).float(),
            labels=torch.from_numpy(labels))
        return dict(inputs=torch.from_numpy(image), data_samples=sample)


def config(work_dir, model=RETINANET, **changes):
    """Config of a training without pruning on :class:`DrawnBoxes`."""
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
                dataset=dict(type='DrawnBoxes'),
                collate_fn=dict(type='pseudo_collate')),
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
