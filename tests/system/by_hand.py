# Copyright (c) mmib contributors. All rights reserved.
"""The mix of the images' losses by hand, which knows nothing of mmib."""
import functools
from collections import Counter

import torch
import torch.nn as nn

MASK_HEADS = ('MaskFormerHead', 'Mask2FormerHead', 'SideAdapterCLIPHead')


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
    """Heads and losses in a few words: a text for each head, or for several
    that are the same."""
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


class ByHand:
    """Mixes the losses of the images in a model without mmib.

    A loss falls into the losses of the images, each of which depends on the
    predictions for that image alone. So the gradient of the mix at these
    predictions is the gradient of the loss there, times the weight of the
    image. This holds whatever the loss divides by, and also where it chooses
    or balances the pixels of the whole batch.

    Predictions of queries and masks belong to images in order, masks by the
    number of classes in the labels of each image.
    """

    def __init__(self, model, weights, samples):
        self.weights = torch.tensor(weights)
        self.handles = []
        images = [1] * len(weights)
        masks = [
            len(set(sample.gt_sem_seg.data.unique().tolist()) - {255})
            for sample in samples
        ]
        for head in heads_of(model):
            of_masks = type(head).__name__ in MASK_HEADS
            for name, loss in losses_of(head):
                name += getattr(loss, 'loss_name', '')
                counts = masks if of_masks and 'cls' not in name else images
                self.handles.append(
                    loss.register_forward_pre_hook(
                        functools.partial(self._hook, torch.tensor(counts))))

    def remove(self):
        """Give the model back as it was."""
        for handle in self.handles:
            handle.remove()

    def _hook(self, counts, loss, args):
        predictions, *others = args
        # A sampler of pixels asks for losses without gradients.
        if not (predictions.requires_grad and torch.is_grad_enabled()):
            return None
        rows = self.weights.repeat_interleave(counts * len(predictions) //
                                              counts.sum())
        shape = len(rows), *[1] * (predictions.dim() - 1)
        # Another loss may have the same predictions.
        predictions = predictions.clone()
        predictions.register_hook(lambda grad: grad * rows.view(shape))
        return predictions, *others
