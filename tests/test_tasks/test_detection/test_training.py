# Copyright (c) mmib contributors. All rights reserved.
"""Trainings of small detectors, as of a config that was converted."""
import functools

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.runner import Runner

from mmib import convert
from mmib.errors import Refusal
from mmib.openmmlab.batch import BatchContext
from mmib_cli.zoo import resolve_config
from tests.helpers import segmentors as small_training
from tests.helpers.processes import run_ranks
from tests.system.operations import assert_few_more

from . import small_detector as small

pytestmark = pytest.mark.mmdet


def note(runner, data_batch, outputs):
    """Images, loss, weights and norms of a step."""
    batch = small_training.infobatch_hook(runner).batch
    step = [[s.img_id for s in data_batch['data_samples']],
            outputs['loss'].item()]
    if batch.weights is not None:
        step += [batch.weights.tolist(), batch.norms.tolist()]
    return step


def build(work_dir, model=small.RETINANET, ratio=0.6, **changes):
    return Runner.from_cfg(
        convert(small.config(work_dir, model, **changes), ratio))


def train(runner):
    small_training.distribute(runner)
    return small_training.train_and_note(runner, note)


BOTH = pytest.mark.parametrize(
    'model', [small.RETINANET, small.DETR], ids=['RetinaNet', 'DETR'])


@BOTH
def test_pruned(tmp_path, model):
    runner = build(tmp_path, model, ratio=0.75)
    steps = train(runner)
    run = small_training.infobatch_hook(runner).run
    tables = run.table
    assert (tables.ema, tables.score) == (0.8, 'gradient')
    assert not run.lacks_norms
    assert len(steps) < 0.9 * small.MAX_EPOCHS * 7
    assert np.isfinite(tables.scores).all()
    assert len(set(tables.scores.tolist())) == small.SIZE
    assert run.worth.value > 0
    assert max(max(step[2]) for step in steps if len(step) > 2) > 1
    assert small_training.state_of(runner)['paths_comparable'] == [True]


def train_rank(rank, results, work_dir):
    runner = build(work_dir)
    results[rank] = (train(runner), small_training.weights_of(runner),
                     small_training.infobatch_hook(runner).run.table.scores)


def test_two_ranks(tmp_path):
    (first, weights, scores), (second, others, same) = run_ranks(
        functools.partial(train_rank, work_dir=str(tmp_path)), 2)
    assert len(first) == len(second) < 0.9 * small.MAX_EPOCHS * 4
    torch.testing.assert_close(weights, others, rtol=0, atol=0)
    np.testing.assert_array_equal(scores, same)


@BOTH
def test_scoring_alone_is_the_baseline(tmp_path, model):
    """To the last bit, where the order of the images is the same."""
    changes = {'train_dataloader.batch_sampler': None}
    trained = []
    for name in ('baseline', 'ours'):
        cfg = small.config(tmp_path / name, model, **changes)
        if name == 'ours':
            cfg = convert(cfg, policy=dict(type='ScoreOnly'), delta=1.)
        runner = Runner.from_cfg(cfg)
        losses = small_training.train_and_note(
            runner, lambda runner, batch, outputs: outputs['loss'].item())
        trained.append((losses, small_training.weights_of(runner)))
    small_training.assert_equal(*trained)
    scores = small_training.infobatch_hook(runner).run.table.scores
    assert len(set(scores.tolist())) == small.SIZE


def test_without_norms_there_are_no_scores(tmp_path, monkeypatch):
    monkeypatch.setattr(BatchContext, 'write_norms', lambda *_: None)
    runner = build(tmp_path)
    with pytest.raises(Refusal, match='cannot be seen here: train with'):
        runner.train()


def test_operations(tmp_path):
    """Two levels of two predictions each."""
    changes = {
        # Heads take image by image apart, and box by box.
        'train_dataloader.dataset': dict(size=128, num_boxes=(2, )),
        'train_cfg.max_epochs': 8,
        'train_dataloader.drop_last': True,
        'train_dataloader.batch_sampler': None
    }
    plain, pruned = (
        small.config(tmp_path / name, **changes)
        for name in ('plain', 'pruned'))
    assert_few_more(
        Runner.from_cfg(plain), Runner.from_cfg(convert(pruned)), at_most=22)


def test_a_config_of_the_zoo():
    name = 'mmdet::retinanet/retinanet_r18_fpn_1x_coco'
    cfg = convert(Config.fromfile(resolve_config(name)))
    assert cfg.train_dataloader.sampler.type == 'InfoBatchSampler'
    assert cfg.train_dataloader.batch_sampler is None
    assert cfg.train_cfg.max_epochs == 12
