# Copyright (c) mmib contributors. All rights reserved.
import glob

import cv2
import numpy as np
import pytest
from mmengine.runner import Runner

from mmib import InfoBatchHook, InfoBatchVisualizationHook

from .system.small_training import BASELINE, write_images
from .test_report.work_dirs import files_config


def test_pictures_at_each_validation(tmp_path):
    write_images(tmp_path, 9)
    cfg = files_config(tmp_path, tmp_path / 'run')
    cfg.custom_hooks.append(
        dict(type='InfoBatchVisualizationHook', num_images=2))
    cfg.visualizer = dict(
        type='SegLocalVisualizer', vis_backends=[dict(type='LocalVisBackend')])
    runner = Runner.from_cfg(cfg)
    runner.train()
    paths = glob.glob(f'{runner.log_dir}/vis_data/vis_image/infobatch_*.png')
    names = sorted(path.rsplit('/')[-1] for path in paths)
    # No plan is drawn in annealing.
    assert names == [
        'infobatch_highest_20.png', 'infobatch_highest_40.png',
        'infobatch_scores_20.png'
    ]
    for path in paths:
        if 'highest_40' in path:
            shown = cv2.imread(path)
    # Two rows of an image beside its labels.
    assert shown.shape == (480, 480, 3)
    hook = next(
        h for h in runner.hooks if isinstance(h, InfoBatchVisualizationHook))
    highest = np.argmax(hook._infobatch.scores.averages())
    image = cv2.imread(hook._images.paths()[highest])
    drawn = cv2.resize(image, (240, 240), interpolation=cv2.INTER_AREA)
    assert np.abs(shown[:240, :240] - np.float64(drawn)).mean() < 2


def test_tensorboard(tmp_path):
    """What arrives there. It takes 2 s."""
    accumulator = pytest.importorskip(
        'tensorboard.backend.event_processing.event_accumulator')
    write_images(tmp_path, 9)
    cfg = files_config(tmp_path, tmp_path / 'run')
    cfg.custom_hooks.append(
        dict(type='InfoBatchVisualizationHook', num_images=2))
    cfg.visualizer = dict(
        type='SegLocalVisualizer',
        vis_backends=[dict(type='TensorboardVisBackend')])
    runner = Runner.from_cfg(cfg)
    runner.train()
    path, = glob.glob(f'{runner.log_dir}/vis_data/events*')
    events = accumulator.EventAccumulator(path, dict(images=0, histograms=0))
    events.Reload()
    assert [i.step for i in events.Images('infobatch_scores')] == [20]
    assert [i.step for i in events.Images('infobatch_highest')] == [20, 40]
    scalars = events.Tags()['scalars']
    assert {
        'infobatch/kept_share', 'infobatch/variance_ratio', 'unweighted_loss'
    } <= {*scalars}
    histograms = events.Histograms('infobatch/scores')
    assert [h.step for h in histograms] == [20, 40]
    hook = next(h for h in runner.hooks if isinstance(h, InfoBatchHook))
    scores = hook.scores.by_image()
    # Nothing is scored in annealing.
    assert histograms[1].histogram_value.num == len(scores)
    assert histograms[1].histogram_value.max == scores.max()


def test_images_that_cannot_be_read_are_a_warning(tmp_path, caplog):
    write_images(tmp_path, 9)
    cfg = files_config(tmp_path, tmp_path / 'run')
    cfg.custom_hooks.append(dict(type='InfoBatchVisualizationHook'))
    runner = Runner.from_cfg(cfg)
    runner.logger.addHandler(caplog.handler)
    # As of a data loader that the Runner was given.
    runner.cfg.train_dataloader = {}
    runner.train()
    warnings = [r.message for r in caplog.records if 'highest' in r.message]
    assert len(warnings) == 1 and 'the config has none' in warnings[0]
    assert runner.iter == 40


def test_it_needs_scores_to_show(tmp_path):
    write_images(tmp_path, 9)
    cfg = files_config(tmp_path, tmp_path / 'run', **BASELINE)
    cfg.custom_hooks = [dict(type='InfoBatchVisualizationHook')]
    with pytest.raises(RuntimeError, match='which `custom_hooks` lacks'):
        Runner.from_cfg(cfg).train()
    with pytest.raises(ValueError, match='`num_images` of InfoBatchVis'):
        InfoBatchVisualizationHook(num_images=-1)
