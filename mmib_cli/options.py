# Copyright (c) mmib contributors. All rights reserved.
"""What the options of a conversion do in every sub-command."""
import ast
from argparse import Namespace
from functools import partial
from typing import Callable

import mmib
from mmib.errors import Refusal
from mmib.labels.config import list_images
from mmib.pruning import Policy


def policy_of(text: str) -> dict:
    """Read the config of a policy from a text such as
    ``QuantileTiers(quantiles=(0.2, 0.85))``. Nothing in the text is run.

    Raises:
        Refusal: If the text is something else, or an argument no literal.
    """
    if '(' not in text:
        return dict(type=text)
    try:
        call = ast.parse(text.strip(), mode='eval').body
        if not isinstance(call, ast.Call) or call.args:
            raise ValueError
        # One without a name is `**arguments`, which `dict` refuses.
        arguments: dict = {
            each.arg: ast.literal_eval(each.value)
            for each in call.keywords
        }
        return dict(type=ast.unparse(call.func), **arguments)
    except (SyntaxError, TypeError, ValueError):
        raise Refusal(
            f'--policy {text!r} can\'t be read: write the type of a policy, '
            'and its arguments as NAME=VALUE with plain values, such as '
            '--policy "QuantileTiers(quantiles=(0.2, 0.85))".') from None


def conversion(args: Namespace) -> Callable:
    """``mmib.convert`` with the options that are given."""
    policy = args.policy and policy_of(args.policy)
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
    """``mmib.shorten`` with the options that are given. The steps are those of
    the pruned run, unless others are given."""
    policy = args.policy and policy_of(args.policy)
    others = {} if args.delta is None else dict(delta=args.delta)
    ratio = Policy.default_ratio if args.ratio is None else args.ratio
    if policy and policy['type'] == 'Neyman':
        policy.setdefault('ratio', ratio)
    return partial(
        mmib.shorten, ratio=ratio, steps=args.steps, policy=policy, **others)


def check_options_of(args: Namespace, needed: str, *names: str) -> None:
    """Refuse options that are given without what they need."""
    for name in names:
        if getattr(args, name) is not None:
            raise Refusal(f'--{name} needs {needed}.')
