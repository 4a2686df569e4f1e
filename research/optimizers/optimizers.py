# Copyright (c) mmib contributors. All rights reserved.
"""What a weight of 2 on all samples does to the steps of an optimizer, as in
README.md.

The learning rates are so low that all trainings of a row stay at about the
same place: what differs is the length of their steps. LARS and Lamb need
MMPretrain.
"""
import argparse
import copy
import importlib.util

import numpy as np
import torch
import torch.nn.functional as F
from mmengine.model import BaseModel
from mmengine.optim import build_optim_wrapper
from torch.nn.utils import parameters_to_vector

from mmib import tasks
from mmib.batch import BatchContext

WINDOW = 10
OPTIMIZERS = {
    'SGD': dict(optimizer=dict(type='SGD', lr=1e-4)),
    'SGD, momentum 0.9': dict(
        optimizer=dict(type='SGD', lr=1e-5, momentum=0.9)),
    'SGD, momentum 0.9, gradients always clipped': dict(
        optimizer=dict(type='SGD', lr=1e-5, momentum=0.9),
        clip_grad=dict(max_norm=0.01)),
    'AdamW': dict(optimizer=dict(type='AdamW', lr=1e-6)),
    'AdamW, betas (0.9, 0.95)': dict(
        optimizer=dict(type='AdamW', lr=1e-6, betas=(0.9, 0.95))),
    'Muon': dict(optimizer=dict(type='Muon', lr=1e-6)),
    'LARS, momentum 0.9': dict(
        optimizer=dict(
            type='mmpretrain.LARS', lr=1e-3, momentum=0.9, weight_decay=1e-6)),
    'LARS, a layer of `lars_exclude`': dict(
        optimizer=dict(type='mmpretrain.LARS', lr=1e-5, momentum=0.9),
        paramwise_cfg=dict(custom_keys={'': dict(lars_exclude=True)})),
    'Lamb': dict(
        optimizer=dict(type='mmpretrain.Lamb', lr=1e-6, max_grad_norm=1e9)),
    'Lamb, `max_grad_norm=1.`, the default': dict(
        optimizer=dict(type='mmpretrain.Lamb', lr=1e-6)),
}


def needs_mmpretrain(optim_wrapper):
    return optim_wrapper['optimizer']['type'].startswith('mmpretrain.')


def classifier(optim_wrapper):
    """The model that an optimizer trains: Muon can't train a bias."""
    torch.manual_seed(0)
    return Classifier(bias=optim_wrapper['optimizer']['type'] != 'Muon')


class Classifier(BaseModel):
    """Some 400 parameters, and one loss for each sample."""

    def __init__(self, bias):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(8, 32, bias), torch.nn.Tanh(),
            torch.nn.Linear(32, 4, bias))

    def forward(self, inputs, labels, mode='tensor'):
        out = self.layers(inputs)
        if mode == 'loss':
            return dict(loss=F.cross_entropy(out, labels, reduction='none'))
        return out


def samples(step, number=16):
    """A batch, drawn anew for each step."""
    random = torch.Generator().manual_seed(step)
    inputs = torch.randn(number, 8, generator=random)
    return inputs, inputs[:, :4].argmax(1)


def parameters_of(model):
    """All parameters, of shape (N,)."""
    return parameters_to_vector(model.parameters()).detach().double()


def step_lengths(optim_wrapper, weights):
    """Train with the same weight for all samples of a step, and return how
    far the parameters went in each."""
    model, batch = classifier(optim_wrapper), BatchContext()
    tasks.attach(model, batch)
    wrapper = build_optim_wrapper(model, copy.deepcopy(optim_wrapper))
    lengths = []
    for step, weight in enumerate(weights):
        data = samples(step)
        batch.begin(torch.full((len(data[1]), ), float(weight)))
        before = parameters_of(model)
        model.train_step(data, wrapper)
        lengths.append((parameters_of(model) - before).norm().item())
    return np.array(lengths)


def compare(optim_wrapper, change=50, steps=150):
    """Lengths of steps, divided by those of the training with weight 1: with
    weight 2 always, the first step and the last ones; where the weight goes
    from 1 to 2, and from 2 to 1, steps soon after that and the last ones."""

    def ratios(before, after):
        weights = [before] * change + [after] * (steps - change)
        return step_lengths(optim_wrapper, weights) / baseline

    baseline = step_lengths(optim_wrapper, [1] * steps)
    always = ratios(2, 2)
    row = [always[0], always[-WINDOW:].mean()]
    soon = slice(change + WINDOW, change + 2 * WINDOW)
    for changed in (ratios(1, 2), ratios(2, 1)):
        row += [changed[soon].mean(), changed[-WINDOW:].mean()]
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--optimizers', nargs='+', choices=OPTIMIZERS)
    parser.add_argument(
        '--change', type=int, default=50, help='steps before the change')
    parser.add_argument('--steps', type=int, default=150, help='all steps')
    args = parser.parse_args()
    torch.set_num_threads(1)
    has_mmpretrain = importlib.util.find_spec('mmpretrain')
    for name in args.optimizers or OPTIMIZERS:
        cfg = OPTIMIZERS[name]
        if has_mmpretrain or not needs_mmpretrain(cfg):
            row = compare(cfg, args.change, args.steps)
            cells = ' | '.join(f'{ratio:.2f}' for ratio in row)
            print(f'| {name} | {cells} |', flush=True)


if __name__ == '__main__':
    main()
