# Copyright (c) mmib contributors. All rights reserved.
"""The mix of the images' losses by hand, which knows nothing of mmib."""
import functools
from collections import Counter

import torch
import torch.nn as nn
import torch.nn.functional as F

MASK_HEADS = ('MaskFormerHead', 'Mask2FormerHead', 'SideAdapterCLIPHead')
SUMS = ('CrossEntropyLoss', 'DiceLoss', 'FocalLoss', 'SiLogLoss')


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
    """Mixes the loss of the images in a model without mmib, with hooks on its
    losses.

    What a call returns is taken apart into the share of each image:

    - A loss that is a sum over pixels, images, queries or masks with a fixed
      divisor is called with ``reduction_override='sum'`` on the rows of one
      image after the other. The divisor is the sum of these over what the
      call returned. Queries and masks belong to images in order, masks by the
      number of classes in the labels of each image.
    - ``OhemCrossEntropy`` and ``BoundaryLoss`` choose or balance the pixels
      of the whole batch. Given this, each pixel counts for its image.

    In each call the shares must add up to what it returned, and their
    gradients to its gradient.
    """

    def __init__(self, model, weights, samples):
        self.weights = weights
        self.unknown = set()
        """Classes of losses without a formula here."""
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
                    loss.register_forward_hook(
                        functools.partial(self._hook, counts),
                        with_kwargs=True))

    def remove(self):
        """Give the model back as it was."""
        for handle in self.handles:
            handle.remove()

    def _hook(self, counts, loss, args, kwargs, output):
        # A pixel sampler asks for the loss of the pixels.
        if kwargs.get('reduction_override') == 'none':
            return None
        name = type(loss).__name__
        if name in SUMS:
            shares = _sums(loss, counts, args, kwargs, output)
        elif name in SELECTIONS:
            shares = SELECTIONS[name](loss, *args)
        else:
            self.unknown.add(name)
            return None
        _check(args[0], output, sum(shares))
        return sum(w * share for w, share in zip(self.weights, shares))


def _check(pred, output, total):
    """That the shares add up to what the loss returned, and its gradient."""
    torch.testing.assert_close(total, output, rtol=1e-5, atol=1e-7)
    if not output.requires_grad:  # no pixel was chosen
        return
    got, expected = (
        torch.autograd.grad(value.sum(), pred, retain_graph=True)[0]
        for value in (total, output))
    torch.testing.assert_close(
        got, expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))


def _sums(loss, counts, args, kwargs, output):
    """Shares of images whose rows are to each other as the counts."""
    rows = len(args[0])
    sums = []
    for i in range(len(counts)):
        start, stop = (
            rows * sum(counts[:end]) // sum(counts) for end in (i, i + 1))

        def part(value):
            shape = getattr(value, 'shape', ())
            return value[start:stop] if shape[:1] == (rows, ) else value

        alone = {key: part(value) for key, value in kwargs.items()}
        alone.update(reduction_override='sum', avg_factor=None)
        sums.append(loss.forward(*map(part, args), **alone))
    if not output.any():
        return sums
    divisor = (sum(sums) / output).detach()
    return [value / divisor for value in sums]


def _hard_pixels(loss, pred, target):
    valid = target != loss.ignore_label
    class_weight = loss.class_weight
    if class_weight is not None:
        class_weight = pred.new_tensor(class_weight)
    pixels = F.cross_entropy(
        pred,
        target,
        class_weight,
        ignore_index=loss.ignore_label,
        reduction='none')
    prob = pred.detach().softmax(1)
    prob = prob.gather(1, torch.where(valid, target, 0)[:, None])[:, 0]
    number = min(loss.min_kept + 1, int(valid.sum()))
    if number == 0:
        return [image.sum() * 0 for image in pixels]
    threshold = max(float(prob[valid].kthvalue(number).values), loss.thresh)
    hard = valid & (prob < threshold)
    return [
        loss.loss_weight * image[chosen].sum() / hard.sum()
        for image, chosen in zip(pixels, hard)
    ]


def _balanced_pixels(loss, pred, target):
    edge, other = target == 1, target == 0
    balance = torch.zeros_like(pred[:, 0])
    share = edge.sum() / (edge.sum() + other.sum())
    balance[edge], balance[other] = 1 - share, share
    pixels = balance * F.binary_cross_entropy_with_logits(
        pred[:, 0], target.float(), reduction='none')
    return [
        loss.loss_weight * image.sum() / pixels.numel() for image in pixels
    ]


SELECTIONS = dict(OhemCrossEntropy=_hard_pixels, BoundaryLoss=_balanced_pixels)
