# Copyright (c) mmib contributors. All rights reserved.
"""What does looking at the images with the highest scores bring back on
CamVid, with a pretrained backbone? See study.py."""
import argparse
import copy
import json
import os.path as osp
import shutil
from typing import List

import numpy as np
from mmengine.config import Config
from mmengine.runner import Runner
from mmengine.utils import scandir

import mmib
from benchmarks.camvid.run import load_base
from benchmarks.compare.recorder import Recorder
from benchmarks.compare.run import train
from mmib.config.convert import list_images
from research.label_errors.corrupt_masks import LIST, copy_with_errors
from research.label_errors.label_errors import look

from .study import Review, Study, first_of, percent, train_study

# Values by which the trained network ranks images.
PIXELS, CLEANLAB = ('mean of the highest 5% of the pixel losses',
                    'cleanlab, softmin')
LOOKED = (0.1, 0.3)
REVIEWS = (*(Review(ranking, 'removed', LOOKED)
             for ranking in ('score', 'pixels', 'cleanlab')),
           Review('random', 'removed',
                  (0.3, )), Review('score', 'repaired', LOOKED))
LIBRARIES = ('mmcv', 'mmseg')
MASKS = osp.join('annotations', 'training')


class CamVidStudy(Study):
    """Masks of CamVid become wrong, in copies of the data below ``work_dir``.
    """

    def __init__(self, base: Config, out: str, work_dir: str) -> None:
        super().__init__('camvid', REVIEWS, out)
        self.base = base
        self.work_dir = work_dir
        self.data = base.train_dataloader.dataset.data_root

    def dirty(self, wrong: float, seed: int) -> Config:
        folder = self.data
        if wrong:
            folder = osp.join(self.work_dir, f'dirty_{percent(wrong)}-{seed}')
            if not osp.exists(osp.join(folder, LIST)):
                copy_with_errors(self.data, folder, wrong, seed)
        return self._on(folder, wrong)

    def cleaned(self, line: dict, arm: str, images: List[int],
                what: str) -> Config:
        cfg = self.dirty(line['wrong'], line['seed'])
        if what == 'removed':
            return list_images(cfg, without=images)
        folder = osp.join(self.work_dir, f'{arm}-{line["seed"]}')
        if not osp.exists(folder):
            shutil.copytree(cfg.train_dataloader.dataset.data_root, folder)
            names = sorted(scandir(osp.join(self.data, MASKS), '.png', True))
            for name in np.array(names)[images]:
                shutil.copy(
                    osp.join(self.data, MASKS, name),
                    osp.join(folder, MASKS, name))
        return self._on(folder, line['wrong'])

    def _on(self, folder: str, wrong: float) -> Config:
        cfg = copy.deepcopy(self.base)
        cfg.train_dataloader.dataset.data_root = folder
        # For `train_cell`.
        cfg.wrong = wrong
        return cfg


class WeightsRecorder(Recorder):
    """Keeps the weights that were validated last: those of EMAHook."""

    def before_val_epoch(self, runner: Runner) -> None:
        self.weights = copy.deepcopy(runner.model.state_dict())


def train_cell(cfg: Config, seed: int, rank: bool = False) -> dict:
    """Train a cell, and return its figures."""
    recorder = WeightsRecorder('mIoU')
    if not rank:
        train(cfg, seed, recorder)
        return recorder.summary
    scored = mmib.convert(cfg, policy=dict(type='ScoreOnly'), delta=1.)
    model = train(scored, seed, recorder)
    model.load_state_dict(recorder.weights)
    values, _, names = look(cfg, model)
    errors = []
    if cfg.wrong:
        path = osp.join(cfg.train_dataloader.dataset.data_root, LIST)
        with open(path, encoding='utf-8') as file:
            errors = sorted(names.index(name) for name in json.load(file))
    ranked = dict(
        score=recorder.infobatch.training.tables.averages,
        pixels=np.array(values[PIXELS]),
        random=np.random.default_rng(seed).random(len(names)))
    if CLEANLAB in values:
        ranked['cleanlab'] = np.array(values[CLEANLAB])
    return dict(
        recorder.summary,
        wrong=cfg.wrong,
        errors=errors,
        orders=first_of(ranked))


def make_study(args: argparse.Namespace) -> CamVidStudy:
    base = load_base(args.config, args.cfg_options)
    return CamVidStudy(base, args.out, args.work_dir)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('config', help='config of the full training')
    parser.add_argument('--work-dir', default='work_dirs/review')
    train_study(parser, make_study, LIBRARIES)


if __name__ == '__main__':
    main()
