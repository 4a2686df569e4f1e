# Copyright (c) mmib contributors. All rights reserved.
"""Training steps that can be repeated, and how far two trainings differ."""
import copy
import itertools
import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from mmengine.structures import PixelData
from mmseg.registry import MODELS
from mmseg.structures import SegDataSample

from .configs import read_model
from .heads import heads_of

STEPS = 2
LOSS_TOLERANCE = 1e-5
GRADIENT_TOLERANCE = 1e-5


class Step(NamedTuple):
    """What a training step gives.

    Args:
        start (list[Tensor]): Parameters and buffers before it.
        loss (float): The loss.
        gradients (dict[str, Tensor]): By the name of their parameter.
    """

    start: list
    loss: float
    gradients: dict


class Trainer:
    """Trains the small model of a config, from the same start with the same
    random numbers.

    Args:
        path (str): Name in :data:`~families.configs.CONFIGS`.
        dtype (torch.dtype): What the network computes in.
    """

    def __init__(self, path, dtype):
        torch.manual_seed(0)
        cfg, size = read_model(path)
        self.model = MODELS.build(cfg)
        try:
            self.model.init_weights()
        except AttributeError:
            # SAN's head has no start of its own, it takes that of CLIP.
            for parameter in self.model.parameters():
                if parameter.dim() > 1:
                    torch.nn.init.normal_(parameter, std=0.02)
        self.model.to(dtype)
        self.batch = make_batch(
            heads_of(self.model)[0],
            cfg.get('backbone', {}).get('in_channels', 3), size)
        self.start = self._copy()

    def steps(self, follow=()):
        """Train with SGD, and yield what each step gives.

        Args:
            follow (Sequence[Step]): Steps of another training. Each step
                starts with the parameters and buffers of its step there, as
                the last bit of a parameter may turn a ReLU on or off.

        Yields:
            Step: The loss and the gradients.
        """
        self._load(self.start)
        optimizer = torch.optim.SGD(
            [p for p in self.model.parameters() if p.requires_grad], lr=1e-3)
        self.model.train()
        for number in range(STEPS):
            start = follow[number].start if follow else self._copy()
            self._load(start)
            data = self.model.data_preprocessor(
                copy.deepcopy(self.batch), training=True)
            data['inputs'] = data['inputs'].to(start[0].dtype)
            # Random points and dropout must be those of the other runs.
            torch.manual_seed(number)
            losses = self.model(**data, mode='loss')
            loss, _ = self.model.parse_losses(losses)
            optimizer.zero_grad()
            loss.backward()
            gradients = {
                name: parameter.grad.clone()
                for name, parameter in self.model.named_parameters()
                if parameter.grad is not None
            }
            yield Step(start, loss.item(), gradients)
            optimizer.step()

    def _tensors(self):
        # Not once for all: EMAHead replaces its buffer in each step.
        return itertools.chain(self.model.parameters(), self.model.buffers())

    def _copy(self):
        return [tensor.detach().clone() for tensor in self._tensors()]

    @torch.no_grad()
    def _load(self, start):
        for tensor, value in zip(self._tensors(), start):
            tensor.copy_(value)


def make_batch(head, in_channels, size):
    """Two images of unlike classes, contents and ignored pixels.

    Args:
        head (nn.Module): The head that learns their labels.
        in_channels (int): Channels of an image.
        size (int): Side of an image.

    Returns:
        dict: What a data loader would return.
    """
    num_classes = getattr(head, 'num_classes', 10)
    ignore_index = getattr(head, 'ignore_index', 255)
    generator = torch.Generator().manual_seed(0)

    def blocks(channels):
        coarse = torch.rand(1, channels, 8, 8, generator=generator)
        return F.interpolate(coarse, (size, size))[0]

    inputs, samples = [], []
    for i in range(2):
        noise = torch.rand(in_channels, size, size, generator=generator)
        inputs.append(180 * blocks(in_channels) + 75 * noise)
        classes = min(3 + 2 * i, num_classes)
        label = (blocks(1) * classes).long() + (num_classes - classes) * i
        label[:, :size // 8 * (1 + 2 * i), :size // 2] = ignore_index
        depth = 5 * blocks(1) + noise[:1] - 0.5
        samples.append(
            SegDataSample(
                gt_sem_seg=PixelData(data=label),
                gt_edge_map=PixelData(data=(blocks(1) > 0.8).long()),
                gt_depth_map=PixelData(data=depth.clamp(min=0))))
    return dict(inputs=inputs, data_samples=samples)


def compare(steps, expected):
    """Largest differences of a training from the expected one.

    Args:
        steps (Iterable[Step]): Of :meth:`Trainer.steps`.
        expected (Sequence[Step]): The same of another training.

    Returns:
        dict: ``loss``, relative to the loss, and ``gradient`` of a parameter,
        relative to its largest element, or to 1/1000 of the largest of the
        network where that is more: biases in front of a normalization have
        no gradient but rounding.
    """
    worst = dict(loss=0., gradient=0., parameter='')
    for step, other in zip(steps, expected):
        error = abs(step.loss - other.loss) / abs(other.loss)
        if error > worst['loss'] or math.isnan(error):
            worst['loss'] = error
        different = step.gradients.keys() ^ other.gradients.keys()
        if different:
            worst.update(gradient=math.inf, parameter=str(different)[:200])
            continue
        scales = {k: float(v.abs().max()) for k, v in other.gradients.items()}
        floor = max(scales.values()) / 1000
        for name, gradient in step.gradients.items():
            error = float((gradient - other.gradients[name]).abs().max())
            error /= max(scales[name], floor)
            if error > worst['gradient'] or math.isnan(error):
                worst.update(gradient=error, parameter=name)
    return worst


def holds(difference):
    """Whether a difference is one of rounding."""
    return (difference['loss'] <= LOSS_TOLERANCE
            and difference['gradient'] <= GRADIENT_TOLERANCE)
