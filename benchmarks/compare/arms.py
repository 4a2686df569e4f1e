# Copyright (c) mmib contributors. All rights reserved.
"""Arms, the ways to train that are compared, and their cells."""
import copy
import hashlib
import json
import math
from typing import List, NamedTuple, Optional, Sequence

from mmengine.config import Config

import mmib


class Cell(NamedTuple):
    """One training: an arm with a seed, in the results of a file. The module's
    ``train_cell(cfg, seed, **options)`` trains the cell and returns its
    figures. ``lr`` is the learning rate where arms differ in theirs."""

    path: str
    arm: str
    seed: int
    cfg: Config
    module: str
    lr: Optional[float] = None
    options: dict = {}

    @property
    def key(self) -> tuple:
        """tuple: What a line of the results has of the cell."""
        return self.arm, self.seed, fingerprint(self.cfg)

    def line(self, figures: dict) -> dict:
        """The line of the results, with the figures of the training."""
        arm, seed, config = self.key
        rate = {} if self.lr is None else dict(lr=self.lr)
        return dict(arm=arm, seed=seed, config=config, **rate, **figures)


def change(cfg: Config,
           shorten: Optional[dict] = None,
           convert: Optional[dict] = None,
           lr: Optional[dict] = None,
           passes: Optional[float] = None,
           rate: Optional[float] = None) -> Config:
    """Make the config of an arm from the config of the full training, with the
    arguments of ``mmib.shorten`` and ``mmib.convert``, and the learning rate
    ``rate``.

    With ``lr`` the learning rate is multiplied by its ``factor`` from
    iteration ``begin``, by default the second of the ``passes`` of the full
    training, to the fraction ``delta`` of the training. With ``keep_decay``
    the weight decay is divided by the factor there, so that weights decay as
    fast as without ``lr``.
    """
    cfg = copy.deepcopy(cfg)
    full_iters = cfg.train_cfg.get('max_iters')
    if rate is not None:
        cfg.optim_wrapper.optimizer.lr = rate
    if shorten is not None:
        cfg = mmib.shorten(cfg, **shorten)
    if convert is not None:
        cfg = mmib.convert(cfg, **convert)
    if lr is not None:
        # MMEngine's schedulers only lower a learning rate.
        cfg.optim_wrapper.optimizer.lr *= lr['factor']
        begin = lr['begin'] if 'begin' in lr else math.ceil(full_iters /
                                                            passes)
        end = round(lr['delta'] * cfg.train_cfg.max_iters)
        cfg.param_scheduler += [
            dict(
                type='ConstantLR',
                factor=factor,
                begin=first,
                end=last,
                by_epoch=False)
            for factor, first, last in ((1., begin, end), (1 / lr['factor'], 0,
                                                           begin + 1),
                                        (1 / lr['factor'], end, full_iters))
        ]
        if lr.get('keep_decay'):
            cfg.param_scheduler.append(
                dict(
                    type='ConstantParamScheduler',
                    param_name='weight_decay',
                    factor=1 / lr['factor'],
                    begin=begin,
                    end=end,
                    by_epoch=False))
    return cfg


def fingerprint(cfg: Config) -> str:
    """Ten digits that name a config by what it says, wherever its data lies.
    """
    max_iters = (cfg.get('train_cfg') or {}).get('max_iters')

    def told(node: dict) -> dict:
        node.pop('data_root', None)
        # Results keep the names of when conversion wrote `full_iters`.
        if max_iters and node.get('type') in ('Budget', 'Neyman'):
            if 'ratio' in node:
                node['full_iters'] = round(max_iters / node.pop('ratio'))
        return node

    as_told = json.loads(json.dumps(cfg.to_dict()), object_hook=told)
    text = json.dumps(as_told, sort_keys=True)
    return hashlib.sha1(text.encode()).hexdigest()[:10]


def chosen(cells: Sequence[Cell], arms: Optional[Sequence[str]],
           seeds: Optional[int]) -> List[Cell]:
    """The cells of some arms (default: all) with their first seeds."""
    names = list(dict.fromkeys(cell.arm for cell in cells))
    if unknown := set(arms or ()).difference(names):
        raise ValueError(f'There is no arm {sorted(unknown)}, but {names}.')
    return [
        cell for cell in cells if cell.arm in (arms or names) and cell.seed < (
            math.inf if seeds is None else seeds)
    ]
