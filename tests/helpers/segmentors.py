# Copyright (c) mmib contributors. All rights reserved.
"""A training of a second that needs no files, and ways to look at it."""
import copy
import json
import os
import os.path as osp
import uuid
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
import torch.distributed as dist
from mmengine.config import Config
from mmengine.dist import get_rank
from mmengine.hooks import Hook
from mmengine.model import MMDistributedDataParallel, is_model_wrapper
from mmengine.registry import HOOKS, LOOPS
from mmengine.runner import FlexibleRunner, IterBasedTrainLoop, Runner
from mmengine.structures import PixelData
from mmseg.registry import DATASETS, MODELS
from mmseg.structures import SegDataSample
from torch.utils._pytree import tree_flatten
from torch.utils.data import Dataset

from mmib import InfoBatchHook

# Of the trainings that :func:`build` makes.
MAX_ITERS = 40
SAVED = 20
ANNEALING_ITER = 34
# Of the same training without mmib.
BASELINE = {
    'train_dataloader.sampler.type': 'InfiniteSampler',
    'custom_hooks': [],
}
# Changes for one that is validated, of which the iterations are given apart.
VALIDATION = {
    'val_cfg': dict(type='ValLoop'),
    'val_dataloader': dict(
        batch_size=1,
        num_workers=0,
        sampler=dict(type='DefaultSampler', shuffle=False),
        dataset=dict(type='ValDataset', size=5)),
    'val_evaluator': dict(type='IoUMetric', iou_metrics=['mIoU']),
    'model.test_cfg': dict(mode='whole'),
}


@DATASETS.register_module()
class IndexDataset(Dataset):
    """Every pixel of image i has the value i, or NaN in broken images."""

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
    """Config of a small segmentor with pruning on :class:`IndexDataset`, with
    changes as in a child config."""
    cfg = Config(
        dict(
            default_scope='mmseg',
            work_dir=str(work_dir),
            log_level='INFO',
            experiment_name=f'test_{uuid.uuid4()}',
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
                vis_backends=[dict(type='LocalVisBackend')])),
        # MMEngine would do it five times, in half of the time.
        format_python_code=False)
    # MMEngine takes `_delete_` out of what it merges.
    cfg.merge_from_dict(copy.deepcopy(changes))
    return cfg


def small_runner(work_dir, **changes):
    """The Runner of ``small_config(work_dir, **changes)``."""
    return Runner.from_cfg(small_config(work_dir, **changes))


def infobatch_hook(runner):
    """The hook of a training, None of one without mmib."""
    hooks = [h for h in runner.hooks if isinstance(h, InfoBatchHook)]
    return hooks[0] if hooks else None


def weights_of_batch(runner, data_batch):
    """The relative weights and the weights that the losses have for the images
    of this iteration. They are 1 in annealing, without mmib, and after
    InfoBatchHook."""
    hook = infobatch_hook(runner)
    if hook is None or hook.batch.weights is None:
        ones = [1.] * len(data_batch['inputs'])
        return ones, ones
    return hook.batch.relative_weights.tolist(), hook.batch.weights.tolist()


def expected_loss(step):
    """What the loss of a step of :class:`StepLog` must be where each loss is a
    mean over images: the mean of relative weight x score."""
    return np.multiply(step['relative_weights'], step['scores']).mean()


def weights_of(runner):
    """The state of the model, also of one that is wrapped."""
    model = runner.model
    model = model.module if is_model_wrapper(model) else model
    return {name: value.cpu() for name, value in model.state_dict().items()}


def state_of(runner):
    """What InfoBatch would write into a checkpoint now."""
    checkpoint = {}
    infobatch_hook(runner).before_save_checkpoint(runner, checkpoint)
    return checkpoint['infobatch']


def load(path):
    """A checkpoint."""
    return torch.load(path, map_location='cpu', weights_only=False)


def read_log(work_dir):
    """All lines of all log files of a work folder."""
    return ''.join(path.read_text()
                   for path in sorted(Path(work_dir).glob('*/*.log')))


def assert_equal(state, other):
    """Compare nested tensors and plain values, bit by bit. NaN, as the score
    of an image that no pass has, equals NaN."""
    leaves, structure = tree_flatten(state)
    other_leaves, other_structure = tree_flatten(other)
    assert structure == other_structure
    for leaf, other_leaf in zip(leaves, other_leaves):
        np.testing.assert_array_equal(leaf, other_leaf)


def distribute(runner, **kwargs):
    """Wrap the model where there are ranks: MMEngine's launcher does it for
    GPUs alone."""
    if dist.is_initialized():
        runner.model = MMDistributedDataParallel(runner.model, **kwargs)


def read_lines(path):
    """The whole lines of a file of JSON; none if there is no file."""
    if not osp.exists(path):
        return []
    with open(path) as file:
        # In one go, as another process may be writing the last line.
        *lines, _ = file.read().split('\n')
    return [json.loads(line) for line in lines]


@HOOKS.register_module()
class StepLog(Hook):
    """Writes down what each step really used: its iteration, learning rate,
    images, loss, relative weights and weights, and scores if it prunes.
    ``path`` begins the name of a file for each rank, which outlives the
    process."""

    # Before InfoBatchHook takes weights and scores back.
    priority = 'HIGH'

    def __init__(self, path=None):
        self.path = path and f'{path}_rank{get_rank()}.jsonl'
        self.steps = []

    def after_train_iter(self, runner, batch_idx, data_batch, outputs):
        relative_weights, weights = weights_of_batch(runner, data_batch)
        step = dict(
            iter=runner.iter,
            lr=runner.optim_wrapper.get_lr(),
            images=[int(image[0, 0, 0]) for image in data_batch['inputs']],
            loss=outputs['loss'].item(),
            relative_weights=relative_weights,
            weights=weights)
        hook = infobatch_hook(runner)
        if hook is not None and hook.batch.scores is not None:
            assert hook.batch.scores.dtype == torch.float32
            step['scores'] = hook.batch.scores.tolist()
            if hook.batch.norms is not None:
                step['norms'] = hook.batch.norms.tolist()
        self.steps.append(step)
        if self.path:
            with open(self.path, 'a') as file:
                file.write(json.dumps(step) + '\n')


class Notes(Hook):
    """What a function makes of each step: of the runner, the batch and its
    outputs."""

    priority = 'HIGH'

    def __init__(self, function):
        self.function = function
        self.steps = []

    def after_train_iter(self, runner, batch_idx, data_batch, outputs):
        self.steps.append(self.function(runner, data_batch, outputs))


def train_and_note(runner, function):
    """Train, and return what the function makes of each step."""
    notes = Notes(function)
    runner.register_hook(notes)
    runner.train()
    return notes.steps


def train(runner):
    """Train, and return the steps as :class:`StepLog` has them."""
    log = StepLog()
    runner.register_hook(log)
    runner.train()
    return log.steps


def column(steps, name):
    """What all the steps that have it used, in order."""
    return [step[name] for step in steps if name in step]


def assert_pruned(steps, rtol=1e-5):
    """The steps have weights, and the loss follows from them."""
    assert np.max(column(steps, 'weights')) > 1
    assert len(column(steps, 'scores')) == min(ANNEALING_ITER, len(steps))
    for step in steps[:ANNEALING_ITER]:
        assert step['loss'] == pytest.approx(expected_loss(step), rel=rtol)


def build(work_dir, **changes):
    """The Runner of a training with a checkpoint in the middle."""
    cfg = small_config(
        work_dir,
        train_cfg=dict(max_iters=MAX_ITERS),
        default_hooks=dict(checkpoint=dict(interval=SAVED)),
        optim_wrapper=dict(optimizer=dict(momentum=0.9)))
    cfg.merge_from_dict(copy.deepcopy(changes))
    return (FlexibleRunner if 'strategy' in cfg else Runner).from_cfg(cfg)


def train_rank(rank, results, work_dir, changes):
    """Train as one of several ranks: its steps."""
    runner = build(work_dir, **changes)
    distribute(runner)
    results[rank] = train(runner)


def check_resumed(folder,
                  runner,
                  steps,
                  name=f'iter_{SAVED}',
                  build=build,
                  train=train,
                  **changes):
    """Resume from a checkpoint in the folder of a training: all that follows
    is the same to the last bit. Returns the resumed Runner, which works in
    the folder ``resumed`` of that folder."""
    path = folder / f'{name}.pth'
    resumed = build(
        folder / 'resumed', resume=True, load_from=str(path), **changes)
    later = train(resumed)
    assert later == steps[load(path)['meta']['iter']:]
    assert_equal(weights_of(resumed), weights_of(runner))
    assert_equal(state_of(resumed), state_of(runner))
    return resumed


@DATASETS.register_module()
class ValDataset(IndexDataset):
    """Samples that a segmentor can predict."""

    def __getitem__(self, index):
        results = super().__getitem__(index)
        results['data_samples'].set_metainfo(
            dict(img_shape=(8, 8), ori_shape=(8, 8)))
        return results


@MODELS.register_module()
class UnknownLoss(torch.nn.Module):
    """A loss of which mmib doesn't know how it falls into images."""

    loss_name = 'loss_unknown'

    def forward(self, pred, target, **kwargs):
        return pred.sum()


@LOOPS.register_module()
class EagerTrainLoop(IterBasedTrainLoop):
    """One that derives from OneDL's, and starts its workers when it is
    built."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        if self.dataloader_iterator._iterator is None:
            self.dataloader_iterator._iterator = iter(self.dataloader)


class EagerBatches:
    """Starts its workers when it is built, and can't skip."""

    def __init__(self, dataloader):
        self.batches = iter(dataloader)

    def __iter__(self):
        return self

    def __next__(self):
        return next(self.batches)


@LOOPS.register_module()
class SkippingTrainLoop(IterBasedTrainLoop):
    """As OpenMMLab's, which skips the past by asking for each batch of it."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        # OneDL's has started no workers yet.
        if hasattr(self.dataloader_iterator, 'skip_iter'):
            self.dataloader_iterator = EagerBatches(self.dataloader)

    def run(self):
        self.runner.call_hook('before_train')
        self.runner.call_hook('before_train_epoch')
        for _ in range(self._iter):
            next(self.dataloader_iterator)
        while self._iter < self._max_iters and not self.stop_training:
            self.runner.model.train()
            self.run_iter(next(self.dataloader_iterator))
        self.runner.call_hook('after_train_epoch')
        self.runner.call_hook('after_train')
        return self.runner.model


def write_images(root, num_training, validation='validation', suffix='jpg'):
    """Noise as training images, and one for validation, in the folder layout
    of ADE20K with 5 classes."""
    rng = np.random.default_rng(0)
    for split, number in (('training', num_training), (validation, 1)):
        images = osp.join(root, 'images', split)
        labels = osp.join(root, 'annotations', split)
        os.makedirs(images)
        os.makedirs(labels)
        for i in range(number):
            noise = rng.integers(256, size=(96, 96, 3), dtype=np.uint8)
            cv2.imwrite(osp.join(images, f'{i}.{suffix}'), noise)
            noise = rng.integers(6, size=(96, 96), dtype=np.uint8)
            cv2.imwrite(osp.join(labels, f'{i}.png'), noise)
