# Copyright (c) mmib contributors. All rights reserved.
"""A training of a second that needs no files, for checks and tests."""
import torch
from mmengine.config import Config
from mmengine.structures import PixelData
from mmseg.registry import DATASETS, MODELS
from mmseg.structures import SegDataSample
from torch.utils.data import Dataset

import mmib  # noqa: F401


@DATASETS.register_module()
class IndexDataset(Dataset):
    """Every pixel of image i has the value i.

    Args:
        size (int): Number of images.
        broken (Sequence[int]): Images whose pixels are NaN.
    """

    METAINFO = dict(classes=('even', 'odd'), palette=[[0] * 3, [255] * 3])

    def __init__(self, size, broken=()):
        self.size = size
        self.broken = broken

    @property
    def metainfo(self):
        return self.METAINFO

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        image = torch.full((3, 8, 8), float(index))
        if index in self.broken:
            image[:, 1:] = float('nan')
        label = torch.full((1, 8, 8), index % 2)
        label[:, :index % 5] = 255
        return dict(
            inputs=image,
            data_samples=SegDataSample(gt_sem_seg=PixelData(data=label)))


def small_head(loss_decode=dict(type='CrossEntropyLoss'), **kwargs):
    """Config of a head without normalisation or dropout: what it computes
    for an image doesn't depend on the batch."""
    return dict(
        dict(
            type='FCNHead',
            in_channels=4,
            channels=4,
            num_convs=1,
            in_index=0,
            concat_input=False,
            dropout_ratio=0,
            num_classes=2,
            norm_cfg=None,
            loss_decode=loss_decode), **kwargs)


@MODELS.register_module()
class OneConv(torch.nn.Module):
    """A backbone of one convolution."""

    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, x):
        # The value of a pixel is an index: keep activations of order one.
        return [self.conv(x / 16)]


def small_config(work_dir, **changes):
    """Config of a small segmentor with pruning on :class:`IndexDataset`.

    Args:
        work_dir (str): Folder of logs and checkpoints.
        **changes: Merged into the config, as in a child config.
    """
    cfg = Config(
        dict(
            default_scope='mmseg',
            work_dir=str(work_dir),
            log_level='INFO',
            experiment_name=f'test_{id(changes)}_{torch.rand(1).item()}',
            randomness=dict(seed=0),
            model=dict(
                type='EncoderDecoder',
                data_preprocessor=dict(
                    type='SegDataPreProcessor', size=(8, 8)),
                backbone=dict(type='OneConv'),
                decode_head=small_head(),
                auxiliary_head=small_head(
                    dict(type='CrossEntropyLoss', loss_weight=0.4))),
            train_dataloader=dict(
                batch_size=3,
                num_workers=0,
                sampler=dict(type='InfoBatchSampler'),
                dataset=dict(type='IndexDataset', size=11)),
            optim_wrapper=dict(optimizer=dict(type='SGD', lr=0.01)),
            train_cfg=dict(type='IterBasedTrainLoop', max_iters=30),
            custom_hooks=[
                dict(type='InfoBatchHook', policy=dict(type='MeanThreshold'))
            ],
            default_hooks=dict(
                logger=dict(type='LoggerHook', interval=1000),
                checkpoint=dict(
                    type='CheckpointHook', by_epoch=False, interval=1000)),
            log_processor=dict(by_epoch=False),
            vis_backends=[dict(type='LocalVisBackend')],
            visualizer=dict(
                type='SegLocalVisualizer',
                vis_backends=[dict(type='LocalVisBackend')])))
    cfg.merge_from_dict(changes)
    return cfg
