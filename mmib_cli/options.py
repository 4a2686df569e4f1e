# Copyright (c) mmib contributors. All rights reserved.
"""The options that conversion has in every sub-command."""
import difflib
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from functools import partial
from typing import Any, Callable, List

from mmengine.config import DictAction

import mmib
from mmib.errors import Refusal
from mmib.labels.config import list_images
from mmib.pruning import Policy

CONFIG_HELP = 'path of the config, or its name: mmseg::upernet/NAME'


def parser_of(command: str, text: str, **others: Any) -> ArgumentParser:
    """A parser that shows a text as it is written."""
    return ArgumentParser(
        prog=f'mmib {command}',
        description=text,
        formatter_class=RawDescriptionHelpFormatter,
        **others)


def add_cfg_options(parser: ArgumentParser) -> None:
    """Let a command change the config."""
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action=DictAction,
        default={},
        metavar='KEY=VALUE',
        help='change the config, as for mmib train')


def add_conversion_options(parser: ArgumentParser) -> None:
    """Let a command choose how to convert."""
    parser.add_argument(
        '--ratio',
        type=float,
        help='share of the iterations to run (default: that of the policy, '
        'of most 0.6)')
    parser.add_argument(
        '--delta',
        type=float,
        help='fraction of these that prune (default: 0.85)')
    parser.add_argument(
        '--policy',
        metavar='TYPE',
        help='type of the pruning policy (default: Neyman, which covers all '
        'passes of the original schedule)')
    parser.add_argument(
        '--subset',
        metavar='FILE',
        help='train on the images alone that this file lists')
    parser.add_argument(
        '--without',
        metavar='FILE',
        help='leave out the images that this file lists, or of a review.csv '
        'those that were judged wrong')
    parser.add_argument(
        '--relabel',
        metavar='FILE',
        help='train with the right labels of a review.csv, and leave out the '
        'images that were judged wrong and have none')
    parser.add_argument(
        '--repaired',
        metavar='DIR',
        help='train on the masks in this folder in the place of those of the '
        'same names: the folder of `mmib review --export`, with what Label '
        'Studio has exported, or any folder of masks')


def conversion(args: Namespace) -> Callable:
    """``mmib.convert`` with the options that are given."""
    policy = args.policy and dict(type=args.policy)
    others = {} if args.delta is None else dict(delta=args.delta)
    return partial(mmib.convert, ratio=args.ratio, policy=policy, **others)


def listing(args: Namespace) -> Callable:
    """``list_images`` with the files of --subset, --without, --relabel and
    --repaired, if one is given."""
    files = dict(
        images=args.subset,
        without=args.without,
        relabel=args.relabel,
        repaired=args.repaired)
    if {*files.values()} == {None}:
        return lambda cfg: cfg
    if args.repaired is not None:
        # Who has no wrong labels needs nothing of it.
        from mmib.labels.repair import masks_in
        files.update(repaired=masks_in(args.repaired))
    return partial(list_images, **files)


def shortening(args: Namespace) -> Callable:
    """``mmib.shorten`` with the ratio, if one is given."""
    ratio = Policy.default_ratio if args.ratio is None else args.ratio
    return partial(mmib.shorten, ratio=ratio)


def check_infobatch(args: Namespace, *names: str, **others: str) -> None:
    """Refuse options that are given without what they need: --infobatch, and
    for ``others`` what is named."""
    others.update(dict.fromkeys(names, '--infobatch'))
    for name, needed in others.items():
        if getattr(args, name) is not None:
            raise Refusal(f'--{name} needs {needed}.')


def check_spelling(args: List[str], parser: ArgumentParser) -> None:
    """Refuse options for a library's script that are nearly an option of mmib.

    The script would refuse such an option too, and show only its own ones.
    """
    ours = [*parser._option_string_actions]
    for option in (each.partition('=')[0] for each in args):
        close = difflib.get_close_matches(option, ours, 1, 0.8)
        if option.startswith('--') and close:
            raise Refusal(f'{option} is no option: did you mean {close[0]}?')
