# Copyright (c) mmib contributors. All rights reserved.
"""A classifier that trains in a second and needs no files."""
import uuid

import torch
from mmengine.config import Config
from mmengine.runner import Runner
from mmpretrain.registry import DATASETS, MODELS
from mmpretrain.structures import DataSample
from torch.utils.data import Dataset

import mmib.openmmlab.tasks.classification  # noqa: F401

CLASSES = 3


@DATASETS.register_module()
class DrawnImages(Dataset):
    """Noisy stripes, in one of three directions. It is the class."""

    METAINFO = dict(classes=('across', 'along', 'none'))

    def __init__(self, size):
        self.size = size

    @property
    def metainfo(self):
        return self.METAINFO

    def __len__(self):
        return self.size

    def get_data_info(self, index):
        return dict(img_path=f'{index}.png', sample_idx=index)

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        image = torch.randn(3, 16, 16, generator=generator) * (1 + index % 5)
        label = index % CLASSES
        if label < 2:
            stripes = torch.arange(16) // 2 % 2 * 4.
            image += stripes if label else stripes[:, None]
        sample = DataSample(metainfo=self.get_data_info(index))
        return dict(inputs=image, data_samples=sample.set_gt_label(label))


@MODELS.register_module()
class OneConvClassifier(torch.nn.Module):
    """A backbone of one convolution, without normalisation: what it computes
    for an image doesn't depend on the batch.

    ``form`` is what heads take: ``'vector'``, ``'map'``, or several ``tokens``
    in a list.
    """

    def __init__(self, channels=8, form='vector', tokens=1):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, channels, 5, padding=2)
        self.form = form
        self.tokens = tokens

    def forward(self, x):
        x = self.conv(x / 4).tanh()
        if self.form == 'map':
            return (x[:, :, ::4, ::4], )
        if self.tokens == 1:
            return (x.mean((2, 3)), )
        return ([part.mean((2, 3)) for part in x.chunk(self.tokens, 2)], )


def model_cfg(**changes):
    """Config of a small classifier."""
    cfg = dict(
        type='ImageClassifier',
        data_preprocessor=dict(
            type='ClsDataPreprocessor', num_classes=CLASSES),
        backbone=dict(type='OneConvClassifier'),
        head=dict(type='LinearClsHead', num_classes=CLASSES, in_channels=8))
    cfg.update(changes)
    return cfg


def config(work_dir, **changes):
    """Config of a small training with pruning, with changes as in a child
    config."""
    cfg = Config(
        dict(
            default_scope='mmpretrain',
            work_dir=str(work_dir),
            # Trainings of a name within a second share their log.
            experiment_name=f'test_{uuid.uuid4()}',
            randomness=dict(seed=0),
            model=model_cfg(),
            train_dataloader=dict(
                batch_size=4,
                num_workers=0,
                sampler=dict(type='InfoBatchSampler'),
                collate_fn=dict(type='default_collate'),
                dataset=dict(type='DrawnImages', size=22)),
            optim_wrapper=dict(optimizer=dict(type='SGD', lr=0.05)),
            train_cfg=dict(type='IterBasedTrainLoop', max_iters=40),
            custom_hooks=[
                dict(type='InfoBatchHook', policy=dict(type='MeanThreshold'))
            ]),
        format_python_code=False)
    cfg.merge_from_dict(changes)
    return cfg


def train(work_dir, **changes):
    """Train, and return the Runner."""
    runner = Runner.from_cfg(config(work_dir, **changes))
    runner.train()
    return runner
