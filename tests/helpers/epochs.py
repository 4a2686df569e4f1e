# Copyright (c) mmib contributors. All rights reserved.
"""The training of ``segmentors.py``, by epochs."""
from mmengine.hooks import Hook
from mmengine.registry import HOOKS

from tests.helpers.segmentors import build

MAX_EPOCHS = 8
# Images of the dataset, and of a batch.
SIZE, BATCH = 23, 3
PRUNES = dict(type='Neyman', ratio=0.6)
KEEPS = dict(type='RandomPruning', ratio=0.)


def by_epoch(policy=PRUNES, **changes):
    """Changes of ``small_config`` for a training that counts epochs, the
    baseline without a policy."""
    hooks = [dict(type='InfoBatchHook', policy=policy)] if policy else []
    return {
        'train_cfg': dict(
            _delete_=True, type='EpochBasedTrainLoop', max_epochs=MAX_EPOCHS),
        'train_dataloader.dataset.size': SIZE,
        'train_dataloader.batch_size': BATCH,
        'train_dataloader.sampler.type': 'InfoBatchSampler'
        if policy else 'DefaultSampler',
        'custom_hooks': hooks,
        'log_processor.by_epoch': True,
        'default_hooks.checkpoint': dict(interval=1000, by_epoch=True),
        **changes,
    }


@HOOKS.register_module()
class EdgeLog(Hook):
    """Writes down the learning rate, the iteration and what is expected at
    the edge of each epoch."""

    priority = 'LOWEST'

    def __init__(self):
        self.rates, self.iters, self.expected = [], [], []

    def before_train_epoch(self, runner):
        self.rates.append(runner.optim_wrapper.get_lr()['lr'][0])
        self.iters.append(runner.iter)
        self.expected.append(runner.max_iters)


def edges(work_dir, **changes):
    """Train, and return what there was at the edges, also at the last one."""
    runner = build(work_dir, **changes)
    log = EdgeLog()
    runner.register_hook(log)
    runner.train()
    log.rates.append(runner.optim_wrapper.get_lr()['lr'][0])
    log.iters.append(runner.iter)
    return log


def by_iteration(kind, **arguments):
    """A schedule of epochs that steps after each iteration."""
    return dict(
        type=kind, by_epoch=True, convert_to_iter_based=True, **arguments)


SCHEDULES = {
    'steps': [dict(type='MultiStepLR', by_epoch=True, milestones=[3, 6])],
    'cosine': [
        dict(type='CosineAnnealingLR', by_epoch=True, T_max=MAX_EPOCHS, end=8)
    ],
    'warm-up and cosine': [
        by_iteration('LinearLR', start_factor=0.01, end=2),
        by_iteration(
            'CosineAnnealingLR', begin=2, end=MAX_EPOCHS, T_max=MAX_EPOCHS - 2)
    ],
    'one cycle': [
        by_iteration('OneCycleLR', eta_max=0.05, total_steps=MAX_EPOCHS)
    ],
}
