# Copyright (c) mmib contributors. All rights reserved.
"""Say what a training will prune and save, without training.

CONFIG has InfoBatch already, or --infobatch converts it as `mmib train` does.
The data set is read for the length of a pass, if the data is there.
"""
from typing import List, Tuple

from mmengine.config import Config
from mmengine.registry import DATASETS, init_default_scope

from mmib.errors import Refusal
from mmib.openmmlab.config.parts import check_parts, infobatch_hooks, length_of
from mmib.openmmlab.data.datasets import unwrap_repeats
from mmib.openmmlab.runner.checks import check_stack

from .files import find_config, read, report, summary
from .options import (CONFIG_HELP, add_cfg_options, add_conversion_options,
                      check_infobatch, conversion, listing, parser_of)


def pass_length(cfg: Config) -> Tuple[int, int]:
    """Images in a pass over the training data of a config, and how often
    these are repeated."""
    init_default_scope(cfg.get('default_scope', 'mmengine'))
    try:
        dataset = DATASETS.build(cfg.train_dataloader.dataset)
        if hasattr(dataset, 'full_init'):
            dataset.full_init()
        length = num_indices = len(dataset)
    except ValueError as error:
        # MMEngine can't join the annotations of no images.
        if 'need at least one array' not in str(error):
            raise
        length = 0
    if length and length_of(cfg)[0] == 'iteration':
        length = len(unwrap_repeats(dataset))
    if length == 0:
        raise Refusal('The training data has no images: check `ann_file` and '
                      '`data_prefix` of `train_dataloader.dataset`.')
    return length, num_indices // length


def main(args: List[str]) -> None:
    parser = parser_of('forecast', __doc__)
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
    add_cfg_options(parser)
    parsed = parser.parse_args(args)
    if parsed.gpus < 1:
        raise Refusal(f'--gpus must be 1 or more, but got {parsed.gpus}.')
    if not parsed.infobatch:
        check_infobatch(parsed, 'policy', 'delta', 'ratio')
    check_stack()
    before = listing(parsed)(read(find_config(parsed.config)))
    after = conversion(parsed)(before) if parsed.infobatch else before
    after.merge_from_dict(parsed.cfg_options)
    check_parts(after)
    if not infobatch_hooks(after):
        raise Refusal('The config trains without InfoBatch: add '
                      '--infobatch to convert it first.')
    slots: tuple = ()
    try:
        num_images, repeats = pass_length(after)
        batch_size = after.train_dataloader.batch_size * parsed.gpus
        data = (f'A pass is {num_images} images, an iteration {batch_size} of '
                f'them on {parsed.gpus} GPU{"s" * (parsed.gpus > 1)}.')
        slots = num_images, parsed.gpus, repeats
    # Where files are missing, some data sets assert that the files are there,
    # others try to download them.
    except (OSError, AssertionError, RuntimeError) as error:
        data = (f"The data isn't there ({error}), so iterations and passes "
                'aren\'t known.')
    print(data)
    if parsed.infobatch:
        print(f'\n{report(before, after, *slots)}')
    else:
        print('\n'.join(summary(before, after, *slots)))
