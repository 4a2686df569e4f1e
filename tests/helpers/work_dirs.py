# Copyright (c) mmib contributors. All rights reserved.
"""Work folders as trainings leave them, by hand, and a training that leaves
one."""
import json
from math import nan
from pathlib import Path

import numpy as np
import torch
from mmengine.hooks import Hook
from mmengine.logging import HistoryBuffer

from mmib.openmmlab.runner.checkpoint import seal
from mmib.pruning import ScoreHistogram, Tier
from mmib.report.read import LoggedPlan
from mmib.session import Session
from mmib.worth import VarianceRatio
from tests.helpers.segmentors import VALIDATION, small_config, small_head

HEAD = small_head()
HEAD['num_classes'] = 5
CONFIG = """
custom_hooks = [
    dict(delta=0.85, policy=dict(ratio=0.5, type='MeanThreshold'),
         type='InfoBatchHook'),
]
default_scope = 'mmseg'
train_cfg = dict(max_iters=40, type='IterBasedTrainLoop')
train_dataloader = dict(dataset=dict(type='NowhereDataset'))
"""
BEGINS = dict(
    iter=0,
    unit='iteration',
    annealing_at=34,
    max_iters=40,
    pass_length=12,
    slots_per_iter=3,
    policy='MeanThreshold(ratio=0.5)',
    run=None)
ENDS = dict(
    iter=40,
    saved_iters=10.0,
    variance_ratio=[0.9, 0.85, 0.95, None],
    visits=150,
    pruned=30)


def plan(iteration, full_equivalent, kept, **changes):
    """A line of infobatch.jsonl."""
    edges = np.linspace(0, 3, 31).tolist()
    some = [0] * 18 + [12] + [0] * 11
    prunes = kept < 12
    record = LoggedPlan(
        kept=kept,
        tiers=(Tier(6, kept - 6), Tier(6, 6)) if prunes else (Tier(12, 12), ),
        covered_epochs=full_equivalent / 4,
        iter=iteration,
        saved_iters=full_equivalent - iteration,
        threshold=0.5 * prunes,
        mean_score=1.5,
        variance_ratio=VarianceRatio(0.9, 0.8, 1.0, 0.7) if prunes else None,
        mean_ratio=VarianceRatio(0.9, 0.85, 0.95, nan) if prunes else None,
        histogram=ScoreHistogram(edges, some, some, some) if prunes else None)
    return dict(record.to_dict(), **changes)


PLANS = [
    plan(0, 0.0, 12),
    plan(4, 4.0, 9),
    plan(7, 8.0, 9),
    plan(10, 12.0, 9),
    plan(34, 44.0, 12, annealing=True)
]


def train_line(step, loss, **changes):
    return dict(lr=0.01, loss=loss, time=0.1, iter=step, step=step, **changes)


def val_line(step, miou):
    return dict(aAcc=2 * miou, mIoU=miou, data_time=0.1, time=0.1, step=step)


SCALARS = [
    train_line(10, 2.0, unweighted_loss=1.0),
    train_line(20, 1.8, unweighted_loss=0.9),
    val_line(20, 30.0),
    train_line(30, 1.6, unweighted_loss=0.8),
    train_line(40, 0.7, unweighted_loss=0.7),
    val_line(40, 40.0),
]


def records_of(scalars):
    """Lines of infobatch.jsonl that say what lines of scalars.json say."""
    for line in scalars:
        iteration, values = line['step'], dict(line)
        if 'loss' in line:
            yield dict(
                iter=iteration, loss=line.get('unweighted_loss', line['loss']))
        else:
            for name in ('step', 'time', 'data_time'):
                values.pop(name, None)
            yield dict(iter=iteration, metrics=values)


def write_start(work_dir,
                scalars=SCALARS,
                records=None,
                config=CONFIG,
                start='20260101_000000'):
    """What one start of a training leaves; returns the folder of all. With
    records it is one with mmib, of 135 seconds."""
    folder = work_dir / start
    (folder / 'vis_data').mkdir(parents=True)
    (folder / 'vis_data' / 'scalars.json').write_text(''.join(
        json.dumps(line) + '\n' for line in scalars))
    if records is not None:
        begin, *rest = records
        end = [line for line in rest if 'ends' in line]
        rest = [line for line in rest if 'ends' not in line]
        lines = [begin, *rest, *records_of(scalars), *end]
        seconds = np.linspace(10, 145, len(lines))
        (folder / 'infobatch.jsonl').write_text(''.join(
            json.dumps(dict(line, time=time)) + '\n'
            for line, time in zip(lines, seconds)))
    if config:
        (folder / 'vis_data' / 'config.py').write_text(config)
    return work_dir


def write_finished(work_dir, **kwargs):
    """A whole training."""
    records = [{'begins': BEGINS}, *PLANS, {'ends': ENDS}]
    return write_start(work_dir, records=records, **kwargs)


def write_checkpoint(work_dir, iteration=40, **changes):
    """A checkpoint of 12 images, of which the last was never visited."""
    state = dict(Session(range(12), epochs=2).state_dict(), images_checksum=0)
    scores = torch.where(torch.arange(12) < 11, torch.arange(12.) / 10, 1.)
    state['tables'].update(
        scores=scores,
        # The order isn't that of the scores: images 0 and 10 are exchanged.
        averages=scores[[10, *range(1, 10), 0, 11]],
        last_visit=torch.arange(11, -1, -1, dtype=torch.int32),
        visits=torch.full((12, ), 5, dtype=torch.int32),
        pruned=torch.arange(12, dtype=torch.int32))
    checkpoint = dict(
        state_dict=dict(),
        # As MMEngine has it: arrays and methods of a class.
        message_hub=dict(
            log_scalars=dict(loss=HistoryBuffer([1.], [1])),
            runtime_info=dict(iter=iteration)),
        meta=dict(iter=iteration, value=np.float64(1.)),
        infobatch=seal(state))
    checkpoint.update(changes)
    path = work_dir / f'iter_{iteration}.pth'
    torch.save(checkpoint, path)
    (work_dir / 'last_checkpoint').write_text(f'/elsewhere/{path.name}')
    return path


def rank_by_score(work_dir):
    """The command that ranks the images of a training by its scores."""
    config, = Path(work_dir).glob('*.py')
    checkpoint = Path(work_dir, 'last_checkpoint').read_text()
    return ['rank', str(config), checkpoint, '--rank-by', 'score']


class StoppedAt(Hook):
    """As a training that is killed."""

    priority = 'LOWEST'

    def __init__(self, iteration):
        self.iteration = iteration

    def after_train_iter(self, runner, *args, **kwargs):
        if runner.iter + 1 == self.iteration:
            raise KeyboardInterrupt


def files_config(root, work_dir, **changes):
    """A training of a second on files."""
    load = [
        dict(type='LoadImageFromFile'),
        dict(type='LoadAnnotations', reduce_zero_label=True)
    ]
    pack = dict(type='PackSegInputs')

    def dataset(split, pipeline):
        return dict(
            type='BaseSegDataset',
            data_root=str(root),
            data_prefix=dict(
                img_path=f'images/{split}',
                seg_map_path=f'annotations/{split}'),
            reduce_zero_label=True,
            metainfo=dict(
                classes=('sky', 'ground', 'disc', 'square', 'triangle'),
                palette=[[50 * i, 200, 99] for i in range(5)]),
            pipeline=pipeline)

    crop = dict(type='RandomCrop', crop_size=(32, 32))
    validation = dict(
        VALIDATION['val_dataloader'],
        dataset=dataset('validation', [*load, pack]))
    cfg = small_config(
        work_dir, **{
            **VALIDATION,
            'model.decode_head': HEAD,
            'model.auxiliary_head': HEAD,
            'model.data_preprocessor.size': None,
            'train_dataloader.dataset': dict(
                _delete_=True, **dataset('training', [*load, crop, pack])),
            'train_cfg': dict(max_iters=40, val_interval=20),
            'val_dataloader': validation,
            'test_cfg': dict(),
            'test_dataloader': validation,
            'test_evaluator': VALIDATION['val_evaluator'],
            'default_hooks.logger.interval': 10,
            'default_hooks.checkpoint.interval': 20,
        })
    cfg.model.data_preprocessor.size_divisor = 1
    cfg.merge_from_dict(changes)
    return cfg
