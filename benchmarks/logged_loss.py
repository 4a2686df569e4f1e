# Copyright (c) mmib contributors. All rights reserved.
"""Compare the `loss` in the log of pruned epochs with the mean loss of the
whole dataset.

    python -m benchmarks.logged_loss

A network is trained for a while. Then it stands still, at a learning rate of
0, and `QuantileTiers` prunes: the mean of the loss that is logged in the
pruned epochs should be the mean loss of all images. The latter is what the
baseline logs with the same network, in full epochs, in training mode too, in
batches of the same size. Nothing is augmented at random, and BatchNorm keeps
its statistics except for one row: with the statistics of the batch, the loss
of an image depends on which images were kept. An error is twice the standard
error of a ratio, from the spread of the epochs.

Segmentors are that of `make demo` on its scenes. With MMPretrain there are
rows of a classifier, and with MMDetection those of a detector.
"""
import argparse
import os.path as osp
import re
import sys
import tempfile
import time
from importlib.util import find_spec
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import numpy as np
import torch
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.registry import DATASETS, MODELS
from mmengine.runner import Runner
from torch import Tensor, nn
from torch.utils.data import Dataset

import mmib  # noqa: F401
from mmib_cli.zoo import resolve_config
from tools.make_demo_data import make_demo_data

DEMO = 'mmib::upernet/upernet_r18_1xb8-300-infobatch_demo-64x64'
SCENES = 240
POLICY = dict(type='QuantileTiers')
UNSCALED = dict(POLICY, rescale=False)


class Kind(NamedTuple):
    """A row of the table.

    Args:
        name (str): What it is.
        network (str): The network that is trained.
        changes (dict): Changes to the config of the network, once that is
            trained.
        policy (dict): Draws the plans.
        batch_norm (bool): Whether BatchNorm has the statistics of the batch.
        epochs (int): Factor of the epochs, where these are short.
    """

    name: str
    network: str
    changes: Dict[str, Any] = {}
    policy: Dict[str, Any] = POLICY
    batch_norm: bool = False
    epochs: int = 1


def of_heads(**loss: Any) -> Dict[str, Any]:
    """Changes that give both heads of the segmentor another loss."""
    return {
        'model.decode_head.loss_decode': dict(
            _delete_=True, loss_weight=1., **loss),
        'model.auxiliary_head.loss_decode': dict(
            _delete_=True, loss_weight=0.4, **loss),
    }


CE = dict(type='CrossEntropyLoss')
KINDS = [
    Kind('CE', 'segmentor'),
    Kind('CE, statistics of the batch', 'segmentor', batch_norm=True),
    Kind('CE, policy without rescaling', 'segmentor', policy=UNSCALED),
    Kind('CE, `avg_non_ignore`', 'segmentor',
         of_heads(**CE, avg_non_ignore=True)),
    Kind('CE, class weights', 'segmentor',
         of_heads(**CE, class_weight=[0.5, 0.5, 1.5, 1.5, 1.5])),
    Kind(
        'CE, OHEMPixelSampler', 'segmentor', {
            'model.decode_head.sampler': dict(
                type='OHEMPixelSampler', thresh=0.7, min_kept=500)
        }),
    Kind('OhemCrossEntropy', 'segmentor with DDRHead'),
    Kind('Lovasz over the batch', 'segmentor',
         of_heads(type='LovaszLoss', reduction='none')),
]
OF_MMPRETRAIN = [
    Kind('classifier, CE', 'classifier', epochs=10),
    Kind('classifier, mixup', 'classifier of mixtures', epochs=10),
]
OF_MMDET = [Kind('RetinaNet', 'detector')]


def known_kinds() -> List[Kind]:
    """Return the rows for the libraries that are installed. MMDetection's
    models need compiled operations."""
    kinds = [*KINDS]
    if find_spec('mmpretrain'):
        kinds += OF_MMPRETRAIN
    if 'mmdet.models' in sys.modules or (find_spec('mmdet')
                                         and find_spec('mmcv._ext')):
        kinds += OF_MMDET
    return kinds


def segmentor(data_root: str) -> Config:
    """The config of the demo without its random augmentations, and with a
    quarter of the channels."""
    cfg = Config.fromfile(resolve_config(DEMO), import_custom_modules=False)
    model = cfg.model
    cfg.optim_wrapper.optimizer.lr = 0.05
    model.backbone.update(base_channels=16, stem_channels=16)
    model.decode_head.update(in_channels=[16, 32, 64, 128], channels=16)
    model.auxiliary_head.update(in_channels=64, channels=16)
    cfg.train_dataloader.dataset.update(
        data_root=data_root,
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(type='LoadAnnotations', reduce_zero_label=True),
            dict(type='Resize', scale=(64, 64), keep_ratio=False),
            dict(type='PackSegInputs'),
        ])
    return cfg


def segmentor_with_ddr_head(data_root: str) -> Config:
    """A segmentor whose head calls OhemCrossEntropy, on features of two
    depths."""
    cfg = segmentor(data_root)
    cfg.model.auxiliary_head = None
    cfg.model.backbone.out_indices = (2, 3)
    loss = dict(type='OhemCrossEntropy', thres=0.7, min_kept=1000)
    cfg.model.decode_head = dict(
        type='DDRHead',
        in_channels=128,
        channels=16,
        num_classes=5,
        dropout_ratio=0.,
        norm_cfg=dict(type='BN'),
        loss_decode=[loss, dict(loss, loss_weight=0.4)])
    return cfg


class Drawn(Dataset):
    """Images of noise, with stripes or boxes on it that tell the label."""

    def __init__(self, size: int = 240) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size


@DATASETS.register_module()
class Stripes(Drawn):
    """Stripes in one of three directions, and more or less noise. A tenth has
    the label of another direction."""

    metainfo = dict(classes=('across', 'along', 'none'))

    def __getitem__(self, index: int) -> dict:
        from mmpretrain.structures import DataSample
        random = torch.Generator().manual_seed(index)
        image = torch.randn(3, 16, 16, generator=random) * (1 + index % 5)
        direction = int(torch.randint(3, (), generator=random))
        if direction < 2:
            stripes = torch.arange(16) // 2 % 2 * 4.
            image += stripes if direction else stripes[:, None]
        label = (direction + (index % 10 == 0)) % 3
        return dict(
            inputs=image, data_samples=DataSample().set_gt_label(label))


@DATASETS.register_module()
class Boxes(Drawn):
    """One to four boxes of two colours."""

    metainfo = dict(classes=('a', 'b'))

    def get_data_info(self, index: int) -> dict:
        return dict(img_id=index, width=64, height=64)

    def __getitem__(self, index: int) -> dict:
        from mmdet.structures import DetDataSample
        from mmengine.structures import InstanceData
        rng = np.random.default_rng(index)
        image = rng.integers(128, size=(3, 64, 64), dtype=np.uint8)
        corners = rng.integers(24, size=(1 + index % 4, 2))
        sizes = rng.integers(12, 40, size=corners.shape)
        labels = rng.integers(2, size=len(corners))
        for (x, y), (w, h), label in zip(corners, sizes, labels):
            image[:, y:y + h, x:x + w] = (255, 160)[label]
        sample = DetDataSample(
            metainfo=dict(
                img_shape=(64, 64),
                pad_shape=(64, 64),
                batch_input_shape=(64, 64),
                scale_factor=(1., 1.),
                **self.get_data_info(index)))
        boxes = np.hstack([corners, corners + sizes])
        sample.gt_instances = InstanceData(
            bboxes=torch.from_numpy(boxes).float(),
            labels=torch.from_numpy(labels))
        return dict(inputs=torch.from_numpy(image), data_samples=sample)


@MODELS.register_module()
class Convolutions(nn.Module):
    """A backbone of two levels without normalisation, which gives maps of
    their features or the means over the last one."""

    def __init__(self, stride: int, means: bool = False) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 2 * stride - 1, stride, stride - 1)
        self.second = nn.Conv2d(16, 16, 3, 2, 1)
        self.means = means

    def forward(self, x: Tensor) -> Tuple[Tensor, ...]:
        first = self.first(x).relu()
        second = self.second(first).relu()
        return (second.mean((2, 3)), ) if self.means else (first, second)


def classifier(data_root: str) -> Config:
    """A small classifier."""
    # It has PairedMixup.
    import mmib.openmmlab.tasks.classification  # noqa: F401
    model = dict(
        type='ImageClassifier',
        data_preprocessor=dict(
            type='ClsDataPreprocessor',
            num_classes=3,
            std=[4.] * 3,
            mean=[0.] * 3),
        backbone=dict(type='Convolutions', stride=2, means=True),
        head=dict(type='LinearClsHead', num_classes=3, in_channels=16))
    return small('mmpretrain', model, 'Stripes', 'default_collate', 0.3)


def classifier_of_mixtures(data_root: str) -> Config:
    """A small classifier that is trained on mixtures of two images."""
    cfg = classifier(data_root)
    cfg.model.train_cfg = dict(augments=dict(type='PairedMixup', alpha=0.8))
    return cfg


def detector(data_root: str) -> Config:
    """A small RetinaNet."""
    import mmdet.models  # noqa: F401
    model = dict(
        type='RetinaNet',
        data_preprocessor=dict(
            type='DetDataPreprocessor', mean=[0.] * 3, std=[255.] * 3),
        backbone=dict(type='Convolutions', stride=8),
        neck=None,
        bbox_head=dict(
            type='RetinaHead',
            num_classes=2,
            in_channels=16,
            feat_channels=16,
            stacked_convs=1,
            anchor_generator=dict(
                type='AnchorGenerator',
                scales=[2, 4],
                ratios=[0.5, 2.],
                strides=[8, 16]),
            bbox_coder=dict(type='DeltaXYWHBBoxCoder'),
            loss_bbox=dict(type='L1Loss')),
        train_cfg=dict(
            assigner=dict(
                type='MaxIoUAssigner',
                pos_iou_thr=0.4,
                neg_iou_thr=0.3,
                min_pos_iou=0),
            sampler=dict(type='PseudoSampler'),
            allowed_border=-1,
            pos_weight=-1))
    return small('mmdet', model, 'Boxes', 'pseudo_collate', 0.02)


def small(library: str, model: dict, dataset: str, collate: str,
          lr: float) -> Config:
    """A config of a training that needs no files."""
    return Config(
        dict(
            default_scope=library,
            model=model,
            train_dataloader=dict(
                batch_size=8,
                dataset=dict(type=dataset),
                collate_fn=dict(type=collate)),
            optim_wrapper=dict(
                optimizer=dict(type='SGD', lr=lr, momentum=0.9))))


NETWORKS = {
    'segmentor': segmentor,
    'segmentor with DDRHead': segmentor_with_ddr_head,
    'classifier': classifier,
    'classifier of mixtures': classifier_of_mixtures,
    'detector': detector,
}


class LossOfEpochs(Hook):
    """Notes the loss that is logged. Where the network stands still, nothing
    but the last layers of a segmentor has a gradient, for speed."""

    def __init__(self, stands_still: bool, batch_norm: bool) -> None:
        self.losses: List[List[float]] = []
        self._stands_still, self._batch_norm = stands_still, batch_norm

    def before_train(self, runner: Runner) -> None:
        if self._stands_still and hasattr(runner.model, 'decode_head'):
            for name, parameter in runner.model.named_parameters():
                parameter.requires_grad_(
                    bool(re.search('(conv|cls)_seg', name)))

    def before_train_epoch(self, runner: Runner) -> None:
        self.losses.append([])

    def before_train_iter(self, runner: Runner, *args: Any,
                          **kwargs: Any) -> None:
        if not self._batch_norm:
            for module in runner.model.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.eval()

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any,
                         outputs: Any) -> None:
        logged = runner.message_hub.get_scalar('train/loss')
        self.losses[-1].append(logged.current())


def train(cfg: Config,
          work_dir: str,
          epochs: int,
          policy: Optional[dict] = None,
          checkpoint: Optional[str] = None,
          batch_norm: bool = True) -> List[float]:
    """Train, at a learning rate of 0 if there is a checkpoint to begin with,
    else write one. Return the mean loss of each epoch in the log."""
    cfg = Config(cfg.to_dict(), format_python_code=False)
    sampler = 'DefaultSampler' if policy is None else 'InfoBatchSampler'
    cfg.train_dataloader.update(
        num_workers=0,
        persistent_workers=False,
        sampler=dict(type=sampler, shuffle=True))
    changes = dict(
        custom_imports=None,
        work_dir=work_dir,
        experiment_name=f'{osp.basename(work_dir)}_{time.time()}',
        log_level='ERROR',
        randomness=dict(seed=0),
        load_from=checkpoint,
        param_scheduler=[],
        visualizer=None,
        train_cfg=dict(type='EpochBasedTrainLoop', max_epochs=epochs),
        log_processor=dict(by_epoch=True),
        default_hooks=dict(
            logger=dict(type='LoggerHook', interval=10**6),
            checkpoint=dict(
                type='CheckpointHook',
                interval=-1 if checkpoint else epochs,
                by_epoch=True)),
        custom_hooks=[dict(type='InfoBatchHook', policy=policy, delta=1.)]
        if policy else [])
    for name, value in changes.items():
        cfg[name] = value
    for split in ('val', 'test'):
        for part in ('cfg', 'dataloader', 'evaluator'):
            cfg[f'{split}_{part}'] = None
    if checkpoint:
        cfg.optim_wrapper.optimizer.lr = 0.
    runner = Runner.from_cfg(cfg)
    losses = LossOfEpochs(checkpoint is not None, batch_norm)
    # After RuntimeInfoHook, which writes the loss.
    runner.register_hook(losses, priority='LOWEST')
    runner.train()
    return [float(np.mean(epoch)) for epoch in losses.losses]


def mean_and_error(values: List[float]) -> Tuple[float, float]:
    """The mean, and its standard error."""
    return float(np.mean(values)), float(
        np.std(values, ddof=1) / np.sqrt(len(values)))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        '--kinds', nargs='+', help='rows to print, all by default')
    parser.add_argument(
        '--warmup', type=int, default=12, help='epochs that train a network')
    parser.add_argument(
        '--epochs', type=int, default=16, help='pruned epochs of each kind')
    parser.add_argument(
        '--full', type=int, default=4, help='full epochs of each loss')
    args = parser.parse_args()
    torch.set_num_threads(1)  # More of them only wait for each other.
    print(
        '| loss | mean logged | true mean | ratio | error |\n'
        '|---|---|---|---|---|',
        flush=True)
    configs: Dict[str, Tuple[Config, str]] = {}
    truths: Dict[str, Tuple[float, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        make_demo_data(osp.join(folder, 'data'), SCENES, 1)
        for kind in known_kinds():
            if args.kinds and kind.name not in args.kinds:
                continue
            work_dir = osp.join(folder, kind.network.replace(' ', '_'))
            if kind.network not in configs:
                cfg = NETWORKS[kind.network](osp.join(folder, 'data'))
                train(cfg, work_dir, args.warmup)
                configs[kind.network] = cfg, osp.join(
                    work_dir, f'epoch_{args.warmup}.pth')
            cfg, checkpoint = configs[kind.network]
            cfg = Config(cfg.to_dict(), format_python_code=False)
            cfg.merge_from_dict(kind.changes)
            baseline = f'{kind.network} {kind.changes} {kind.batch_norm}'
            if baseline not in truths:
                truths[baseline] = mean_and_error(
                    train(cfg, work_dir, kind.epochs * args.full, None,
                          checkpoint, kind.batch_norm))
            # The first epoch is full.
            logged, error = mean_and_error(
                train(cfg, work_dir, kind.epochs * args.epochs + 1,
                      kind.policy, checkpoint, kind.batch_norm)[1:])
            true, error_of_true = truths[baseline]
            ratio = logged / true
            error = ratio * np.hypot(error / logged, error_of_true / true)
            print(
                f'| {kind.name} | {logged:.4f} | {true:.4f} | {ratio:.3f} | '
                f'{2 * error:.3f} |',
                flush=True)


if __name__ == '__main__':
    main()
