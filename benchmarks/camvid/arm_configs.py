# Copyright (c) mmib contributors. All rights reserved.
"""From a file of arms to the config of each arm."""
import argparse
import hashlib
import json
import os.path as osp
from typing import Dict, NamedTuple, Optional

from mmengine.config import Config, DictAction

import mmib
from mmib.compat import allow_scoped_bases

ARMS = osp.join(osp.dirname(osp.abspath(__file__)), 'arms.py')


class Arm(NamedTuple):
    """One way to train: its config, and the number of its seeds."""

    cfg: Config
    seeds: int


def add_arguments(parser: argparse.ArgumentParser, arms: str = ARMS) -> None:
    """Let a command choose arms."""
    parser.add_argument('config', help='config of the full training')
    parser.add_argument('--arms', default=arms, help='file of the arms')
    parser.add_argument(
        '--only', nargs='+', help='names of arms (default: all)')
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action=DictAction,
        default={},
        help='changes to the config of the full training')


def load_base(args: argparse.Namespace) -> Config:
    """Load the config of the full training."""
    # The other comparisons do without MMSegmentation.
    from mmib.config.zoo import resolve_config
    allow_scoped_bases()
    cfg = Config.fromfile(resolve_config(args.config))
    cfg.merge_from_dict(args.cfg_options)
    return cfg


def load_arms(args: argparse.Namespace) -> Dict[str, Arm]:
    """Load the arms that a command was given, in the order of their file. It
    raises a ValueError where that file and ``--only`` are wrong."""
    base = load_base(args)
    arms = Config.fromfile(args.arms).to_dict().get('arms')
    if not arms:
        raise ValueError(f'{args.arms} has no `arms`')
    if unknown := set(args.only or ()) - arms.keys():
        raise ValueError(f'{args.arms} has no arm {sorted(unknown)}, but '
                         f'{sorted(arms)}')
    loaded = {}
    for name in (n for n in arms if n in (args.only or arms)):
        try:
            loaded[name] = _make_arm(base, **arms[name])
        except (TypeError, ValueError) as error:
            raise ValueError(
                f'arm {name} of {args.arms}: {error!r}') from error
    return loaded


def _make_arm(cfg: Config, seeds: int, **changes) -> Arm:
    return Arm(change(cfg, **changes), seeds)


def change(cfg: Config,
           shorten: Optional[dict] = None,
           convert: Optional[dict] = None,
           lr: Optional[dict] = None) -> Config:
    """Make an arm's config of that of the full training, with the arguments
    of ``mmib.shorten`` or ``mmib.convert``. ``lr`` multiplies the learning
    rate by a ``factor`` from iteration ``begin`` to the fraction ``delta``."""
    full_iters = cfg.train_cfg.max_iters
    if shorten is not None:
        cfg = mmib.shorten(cfg, **shorten)
    if convert is not None:
        cfg = mmib.convert(cfg, **convert)
    if lr is not None:
        # MMEngine's schedulers only lower a learning rate.
        cfg.optim_wrapper.optimizer.lr *= lr['factor']
        begin, end = lr['begin'], round(lr['delta'] * cfg.train_cfg.max_iters)
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
