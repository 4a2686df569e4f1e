# Copyright (c) mmib contributors. All rights reserved.
"""Say what a training will prune and save, without training.

CONFIG has InfoBatch already, or --infobatch converts it as `mmib train` does.
The length of a pass is that of the data set, which is read for it where it is
there.
"""
import argparse
from typing import List, Optional

from mmengine.config import Config, DictAction
from mmengine.registry import DATASETS, HOOKS, init_default_scope

from mmib.compat import allow_scoped_bases
from mmib.config.checks import check_form, check_stack
from mmib.config.convert import clock_of, mean_weight
from mmib.config.schedule import infobatch_hooks, length_of
from mmib.config.zoo import find_config
from mmib.datasets import unwrap_repeats
from mmib.hook import InfoBatchHook
from mmib.log.forecast import forecast

from .files import read
from .options import (CONFIG_HELP, add_conversion_options, check_infobatch,
                      conversion, listing)


def pass_length(cfg: Config) -> int:
    """Images in a pass over the training data.

    Args:
        cfg (Config): The config of the training.

    Raises:
        FileNotFoundError: If the data isn't there.
        ValueError: If there are no images, or not those of a list.
    """
    init_default_scope(cfg.get('default_scope', 'mmengine'))
    dataset = DATASETS.build(cfg.train_dataloader.dataset)
    if hasattr(dataset, 'full_init'):
        dataset.full_init()
    if length_of(cfg)[0] == 'iteration':
        dataset = unwrap_repeats(dataset)
    length = len(dataset)
    if length == 0:
        raise ValueError('The training data has no images: check '
                         '`train_dataloader.dataset`.')
    return length


def outlook(cfg: Config, hook: InfoBatchHook, num_images: Optional[int],
            gpus: int) -> List[str]:
    """What is to be expected of a training.

    Args:
        cfg (Config): Its config.
        hook (InfoBatchHook): The hook in it.
        num_images (int, optional): Images in a pass. None where that isn't
            known.
        gpus (int): GPUs, or other ranks, that train.

    Returns:
        list[str]: Sentences.

    Raises:
        ValueError: If the training is too short.
    """
    if num_images is None:
        clock = clock_of(cfg, hook)
    else:
        clock = clock_of(cfg, hook, num_images,
                         cfg.train_dataloader.batch_size, gpus)
        clock.check_length()
    expected = forecast(hook.policy, clock, mean_weight(hook, cfg).is_one)
    note = hook.policy.note_on_schedule(clock.schedule_iters)
    lines = [expected.when, expected.how_much]
    if num_images is not None:
        lines = [
            f'A pass is {num_images} images, an iteration '
            f'{clock.slots_per_iter} of them on {gpus} '
            f'GPU{"s" * (gpus > 1)}.', *lines, expected.covers
        ]
    elif expected.full_iters is not None:
        share = expected.iters / expected.full_iters
        lines.append(f'It runs about {100 * share:.0f} % of the iterations '
                     'that the baseline needs for as many passes.')
    if note:
        lines.append(f'Warning: {note}')
    if expected.share == 1:
        lines.append('Warning: it prunes nothing. Train longer, raise '
                     '`delta`, or change the `policy`.')
    return [line for line in lines if line]


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
        raise ValueError(f'--gpus must be 1 or more, but got {parsed.gpus}.')
    if not parsed.infobatch:
        check_infobatch(parsed, 'policy', 'delta', 'ratio')
    check_stack()
    allow_scoped_bases()
    cfg = listing(parsed)(read(find_config(parsed.config)))
    if parsed.infobatch:
        cfg = conversion(parsed)(cfg)
    cfg.merge_from_dict(parsed.cfg_options)
    check_form(cfg)
    hooks = infobatch_hooks(cfg)
    if not hooks:
        raise ValueError('The config trains without InfoBatch: add '
                         '--infobatch to convert it first.')
    hook = HOOKS.build(hooks[0])
    try:
        num_images = pass_length(cfg)
    # Some data sets assert that their files are there, others try to download
    # them.
    except (OSError, AssertionError, RuntimeError) as error:
        num_images = None
        left_out = ("iterations can't be told."
                    if length_of(cfg)[0] == 'epoch' else
                    "passes can't be told, and it is left out that the first "
                    'one is full.')
        print(f"The data isn't there ({error}), so {left_out}")
    print('\n'.join(outlook(cfg, hook, num_images, parsed.gpus)))
