# Copyright (c) mmib contributors. All rights reserved.
"""What does looking at the images with the highest scores bring back on
CIFAR-10? See study.py."""
import argparse
import copy
import os.path as osp
from typing import List

import numpy as np
import torch
from mmengine.config import Config

import mmib
from benchmarks.compare.run import train

from .study import FOLDER, Review, Study, first_of, train_study

CONFIG = osp.join(osp.dirname(FOLDER), 'hard_selection', 'plain_cnn.py')
LOOKED = (0.1, 0.2, 0.3)
LIBRARIES = ('mmpretrain', )
# Images are ranked by the average score, by the margin of the label in the
# predictions of the trained network (as cleanlab's `normalized_margin`), and
# at random.
REVIEWS = (Review('score', 'removed',
                  LOOKED), Review('score', 'repaired', LOOKED),
           Review('margin', 'removed',
                  (0.1, 0.3)), Review('random', 'removed', (0.3, )))


class CIFAR10Study(Study):
    """Labels of CIFAR-10 become other classes."""

    def __init__(self, base: Config, out: str) -> None:
        super().__init__('cifar10', REVIEWS, out)
        self.base = base

    def dirty(self, wrong: float, seed: int) -> Config:
        cfg = copy.deepcopy(self.base)
        cfg.train_dataloader.dataset.update(wrong=wrong, wrong_seed=seed)
        return cfg

    def cleaned(self, line: dict, arm: str, images: List[int],
                what: str) -> Config:
        cfg = self.dirty(line['wrong'], line['seed'])
        if what == 'repaired':
            cfg.train_dataloader.dataset.repaired = images
        else:
            kept = np.setdiff1d(np.arange(line['num_images']), images)
            cfg.train_dataloader.dataset.indices = kept.tolist()
        return cfg


def train_cell(cfg: Config,
               seed: int,
               rank: bool = False,
               split: str = 'test') -> dict:
    """Train a cell, and return its figures."""
    # Here, so that the tables need no MMPretrain.
    from benchmarks.cifar10.cell import CIFARRecorder, predict
    from benchmarks.cifar10.data import load, wrong_labels

    recorder = CIFARRecorder(split)
    if not rank:
        train(cfg, seed, recorder)
        return recorder.summary
    data = cfg.train_dataloader.dataset
    cfg = mmib.convert(cfg, policy=dict(type='ScoreOnly'), delta=1.)
    model = train(cfg, seed, recorder)
    images = load(data.data_root, data.split)
    labels = wrong_labels(
        images.labels, data.wrong,
        seed=data.wrong_seed) if data.wrong else images.labels
    shares = predict(model, images.inputs).softmax(1).cpu()
    own = shares.gather(1, labels[:, None])
    others = shares.scatter(1, labels[:, None], 0).max(1, keepdim=True)[0]
    values = dict(
        score=recorder.infobatch.training.tables.averages,
        margin=(others - own)[:, 0].numpy(),
        random=np.random.default_rng(seed).random(len(labels)))
    return dict(
        recorder.summary,
        wrong=data.wrong,
        errors=torch.nonzero(labels != images.labels)[:, 0].tolist(),
        orders=first_of(values))


def load_base_of(args: argparse.Namespace, config: str) -> Config:
    """The config of the full training, of a command's arguments."""
    from benchmarks.cifar10.run import load_base
    return load_base(
        args.data,
        num_iters=args.iters,
        changes=args.cfg_options,
        config=config)


def make_study(args: argparse.Namespace) -> CIFAR10Study:
    return CIFAR10Study(load_base_of(args, CONFIG), args.out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--data', default='data/cifar10/cifar10.npz')
    parser.add_argument(
        '--iters', type=int, help='of the full training, for a trial')
    train_study(parser, make_study, LIBRARIES)


if __name__ == '__main__':
    main()
