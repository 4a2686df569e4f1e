# Copyright (c) mmib contributors. All rights reserved.
"""Compare ways to train on CamVid, or with any config of MMSegmentation that
validates."""
import argparse
import os.path as osp
from typing import Dict, List, NamedTuple

from mmengine.config import Config

from benchmarks.compare import run
from benchmarks.compare.arms import Cell, change
from benchmarks.compare.recorder import Recorder
from mmib.config.zoo import allow_scoped_bases, resolve_config

ARMS = osp.join(osp.dirname(osp.abspath(__file__)), 'arms.py')
METRIC, LIBRARIES = 'mIoU', ('mmcv', 'mmseg')


class Arm(NamedTuple):
    """One way to train: its config, and the number of its seeds."""

    cfg: Config
    seeds: int


def load_base(config: str, changes: dict) -> Config:
    """Load the config of the full training."""
    allow_scoped_bases()
    cfg = Config.fromfile(resolve_config(config), import_custom_modules=False)
    cfg.merge_from_dict(changes)
    return cfg


def load_arms(path: str, base: Config) -> Dict[str, Arm]:
    """Make the arms of a file, in its order."""
    arms = Config.fromfile(path).to_dict().get('arms')
    if not arms:
        raise ValueError(f'{path} has no `arms`')
    loaded = {}
    for name, arm in arms.items():
        try:
            loaded[name] = _make_arm(base, **arm)
        except (TypeError, ValueError) as error:
            raise ValueError(f'arm {name} of {path}: {error!r}') from error
    return loaded


def _make_arm(base: Config, seeds: int, **changes) -> Arm:
    return Arm(change(base, **changes), seeds)


def make_cells(args: argparse.Namespace, _: run.Comparison) -> List[Cell]:
    """The cells of all arms. Each arm has its first seed before any has its
    second one: an early table is of use."""
    base = load_base(args.config, args.cfg_options)
    if base.get('val_cfg') is None:
        raise ValueError(f'{args.config} has no validation: give it '
                         '`val_cfg`, `val_dataloader` and `val_evaluator`')
    cells = [
        Cell(args.out, name, seed, arm.cfg, 'benchmarks.camvid.run')
        for name, arm in load_arms(args.arms, base).items()
        for seed in range(arm.seeds)
    ]
    return sorted(cells, key=lambda cell: cell.seed)


def train_cell(cfg: Config, seed: int) -> dict:
    """Train a cell, which is evaluated as its config says."""
    recorder = Recorder(METRIC)
    run.train(cfg, seed, recorder)
    return recorder.summary


def main() -> None:
    parser = argparse.ArgumentParser(
        description=f'{__doc__}\n\n{run.__doc__}',
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('config', help='config of the full training')
    parser.add_argument('--arms', default=ARMS, help='file of the arms')
    parser.add_argument(
        '--out', required=True, help='results, a file of JSON lines')
    run.add_arguments(parser)
    run.run(parser, make_cells, LIBRARIES)


if __name__ == '__main__':
    main()
