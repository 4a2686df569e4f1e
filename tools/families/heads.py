# Copyright (c) mmib contributors. All rights reserved.
"""The heads of a stock segmentor and their losses, found without mmib."""
from collections import Counter

import torch.nn as nn


def heads_of(model):
    """All heads of a segmentor, in order."""
    heads = []
    for part in ('decode_head', 'auxiliary_head'):
        head = getattr(model, part, None)
        heads += head if isinstance(head, nn.ModuleList) else [head]
    return [head for head in heads if head is not None]


def losses_of(head):
    """Names and modules of the losses of a head, found by where their
    classes are defined."""
    return [(name, module) for name, module in head.named_modules()
            if '.models.losses.' in type(module).__module__]


def describe(model):
    """Heads and losses in a few words.

    Args:
        model (nn.Module): A segmentor.

    Returns:
        list[str]: One text for each head, or for several that are the same.
    """
    texts = []
    for head in heads_of(model):
        losses = ', '.join(_describe(loss) for _, loss in losses_of(head))
        text = f'{type(head).__name__}: {losses}'
        sampler = getattr(head, 'sampler', None)
        if type(sampler).__name__ == 'OHEMPixelSampler':
            by = 'loss' if sampler.thresh is None else 'probability'
            text += f', OHEM by {by}'
        texts.append(text)
    return [
        text + (f' (x{count})' if count > 1 else '')
        for text, count in Counter(texts).items()
    ]


def _describe(loss):
    extras = ', '.join(text
                       for key, text in (('use_sigmoid', 'sigmoid'),
                                         ('class_weight', 'class weights'),
                                         ('avg_non_ignore', 'avg_non_ignore'))
                       if getattr(loss, key, None))
    return type(loss).__name__ + (f' ({extras})' if extras else '')
