# Copyright (c) mmib contributors. All rights reserved.
"""Say what a training will prune and save, without training.

CONFIG has InfoBatch already, or --infobatch converts it as `mmib train` does.
The data set is read for the length of a pass, if the data is there.
"""
import argparse
from typing import List, Optional, Tuple

from mmengine.config import Config, DictAction
from mmengine.registry import DATASETS, HOOKS, init_default_scope

from mmib.config.outlook import forecast_of
from mmib.config.parts import check_parts, infobatch_hooks, length_of
from mmib.config.zoo import allow_scoped_bases
from mmib.data.datasets import unwrap_repeats
from mmib.errors import Refusal
from mmib.runner.checks import check_stack

from .files import find_config, read
from .options import (CONFIG_HELP, add_conversion_options, check_infobatch,
                      conversion, listing)


def pass_length(cfg: Config) -> Tuple[int, int]:
    """Images in a pass over the training data of a config, and how often
    these are repeated."""
    init_default_scope(cfg.get('default_scope', 'mmengine'))
    dataset = DATASETS.build(cfg.train_dataloader.dataset)
    if hasattr(dataset, 'full_init'):
        dataset.full_init()
    length = num_indices = len(dataset)
    if length_of(cfg)[0] == 'iteration':
        length = len(unwrap_repeats(dataset))
    if length == 0:
        raise Refusal('The training data has no images: check '
                      '`train_dataloader.dataset`.')
    return length, num_indices // length


def outlook(cfg: Config, gpus: int) -> List[str]:
    """Sentences on what is to be expected of a config on some GPUs."""
    hooks = infobatch_hooks(cfg)
    if not hooks:
        raise Refusal('The config trains without InfoBatch: add '
                      '--infobatch to convert it first.')
    num_images: Optional[int] = None
    repeats = 1
    try:
        num_images, repeats = pass_length(cfg)
        batch_size = cfg.train_dataloader.batch_size * gpus
        lines = [
            f'A pass is {num_images} images, an iteration {batch_size} of '
            f'them on {gpus} GPU{"s" * (gpus > 1)}.'
        ]
    # Where files are missing, some data sets assert that the files are there,
    # others try to download them.
    except (OSError, AssertionError, RuntimeError) as error:
        left_out = ("iterations can't be told."
                    if length_of(cfg)[0] == 'epoch' else
                    "passes can't be told, and it is left out that the first "
                    'one is full.')
        lines = [f"The data isn't there ({error}), so {left_out}"]
    expected = forecast_of(cfg, HOOKS.build(hooks[0]), num_images, gpus,
                           repeats)
    lines += expected.lines
    if expected.share == 1:
        lines.append('Warning: it prunes nothing. Train longer, raise '
                     '`delta`, or change the `policy`.')
    return lines


def main(args: List[str]) -> None:
    parser = argparse.ArgumentParser(
        prog='mmib forecast',
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('config', help=CONFIG_HELP)
    parser.add_argument(
        '--infobatch', action='store_true', help='convert CONFIG first')
    add_conversion_options(parser)
    parser.add_argument(
        '--gpus',
        type=int,
        default=1,
        help='GPUs to train on, each with the batch size of CONFIG (default: '
        '%(default)s)')
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action=DictAction,
        default={},
        help='change the config, after conversion: KEY=VALUE')
    parsed = parser.parse_args(args)
    if parsed.gpus < 1:
        raise Refusal(f'--gpus must be 1 or more, but got {parsed.gpus}.')
    if not parsed.infobatch:
        check_infobatch(parsed, 'policy', 'delta', 'ratio')
    check_stack()
    allow_scoped_bases()
    cfg = listing(parsed)(read(find_config(parsed.config)))
    if parsed.infobatch:
        cfg = conversion(parsed)(cfg)
    cfg.merge_from_dict(parsed.cfg_options)
    check_parts(cfg)
    print('\n'.join(outlook(cfg, parsed.gpus)))
