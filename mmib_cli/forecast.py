# Copyright (c) mmib contributors. All rights reserved.
"""Say what a run will prune and save, without training."""
import argparse
import json
import sys
from contextlib import redirect_stdout
from typing import Tuple

from mmengine.config import Config
from mmengine.registry import DATASETS, init_default_scope

from mmib.errors import Refusal
from mmib.openmmlab.config.parts import check_parts, infobatch_hooks, length_of
from mmib.openmmlab.data.datasets import unwrap_repeats
from mmib.openmmlab.runner.checks import check_stack

from .answer import answer
from .files import find_config, number, read
from .options import check_options_of, conversion, listing


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


def main(parsed: argparse.Namespace) -> None:
    if not parsed.infobatch:
        check_options_of(parsed, '--infobatch', 'policy', 'delta', 'ratio')
    check_stack()
    before = listing(parsed)(read(find_config(parsed.config)))
    after = conversion(parsed)(before) if parsed.infobatch else before
    after.merge_from_dict(parsed.cfg_options)
    check_parts(after)
    if not infobatch_hooks(after):
        raise Refusal('The config trains without InfoBatch: add '
                      '--infobatch to convert it first.')
    slots: tuple = ()
    gpus = parsed.gpus
    try:
        # The forecast has standard output for itself: some datasets print.
        with redirect_stdout(sys.stderr):
            num_images, repeats = pass_length(after)
        batch_size = after.train_dataloader.batch_size * gpus
        data = (f'A pass is {number(num_images)} images, an iteration '
                f'{batch_size} of them on {gpus} GPU{"s" * (gpus > 1)}.')
        slots = num_images, gpus, repeats
    # Where files are missing, some datasets assert that the files are there,
    # others try to download them.
    except (OSError, AssertionError, RuntimeError) as error:
        data = (f"The data isn't there ({error}), so iterations and passes "
                'aren\'t known.')
    outlook = answer(before, after, parsed, *slots, data=data)
    if parsed.json:
        figures = dict(
            outlook.figures, images=slots[0] if slots else None, gpus=gpus)
        # A config may have values that JSON hasn't.
        print(json.dumps(figures, indent=2, default=str))
    else:
        print(outlook.text(parsed.verbose))
