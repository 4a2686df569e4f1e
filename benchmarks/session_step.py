# Copyright (c) mmib contributors. All rights reserved.
"""Time a training step of a `Session` against that of a plain loop, on random
images that lie in memory.

    python -m benchmarks.session_step

Both train the same ResNet-18 on images of 32 x 32, and take turns, a step
each, so that whatever else the machine does hits both. A step begins with its
batch on the training device, and ends when the device has finished. The plain
loop takes a mean over the losses.
"""
import argparse
import time
from typing import Any, Callable, Optional

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from mmib import Session
from mmib.pruning import RandomPruning

DEVICE = 'cuda' if torch.cuda.is_available() else 'cpu'
CLASSES = 10


class Block(nn.Module):
    """A basic block of a ResNet (He et al., 2016)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs), nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs))
        self.shortcut = nn.Sequential()
        if stride > 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False),
                nn.BatchNorm2d(outputs))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return F.relu(self.layers(inputs) + self.shortcut(inputs))


def resnet18() -> nn.Module:
    """Return a ResNet-18 for images of 32 x 32."""
    blocks, before = [], 64
    for width, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        blocks += [Block(before, width, stride), Block(width, width, 1)]
        before = width
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(),
        *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(before, CLASSES)).to(DEVICE)


def step_of(dtype: Optional[torch.dtype], compiled: str,
            weigh: Callable) -> Callable[..., float]:
    """Return a function that trains a network of its own on a batch, and
    returns the wall time in seconds.

    Args:
        dtype (torch.dtype, optional): That of autocast. None has none.
        compiled (str): What is compiled: `network`, `step`, which is the
            network with the losses and `weigh`, or nothing.
        weigh (Callable): Takes losses, slots and logits, returns a loss.
    """
    torch.manual_seed(0)
    model = resnet18()
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    scaler = torch.amp.GradScaler(DEVICE, enabled=dtype == torch.float16)
    forward = torch.compile(model) if compiled == 'network' else model

    def loss_of(slots: Any, images: torch.Tensor,
                labels: torch.Tensor) -> torch.Tensor:
        with torch.autocast(DEVICE, dtype, enabled=dtype is not None):
            logits = forward(images)
            losses = F.cross_entropy(logits, labels, reduction='none')
        return weigh(losses, slots, logits)

    if compiled == 'step':
        loss_of = torch.compile(loss_of, fullgraph=True)

    def step(slots: Any, images: torch.Tensor, labels: torch.Tensor) -> float:
        start = time.perf_counter()
        loss = loss_of(slots, images, labels)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if DEVICE == 'cuda':
            torch.cuda.synchronize()
        return time.perf_counter() - start

    return step


def take_turns(batch_size: int, dtype: Optional[torch.dtype], compiled: str,
               iters: int, warmup: int) -> np.ndarray:
    """Return the seconds of the steps of the plain loop and of the Session, of
    shape (iters, 2)."""
    size = 100 * batch_size
    dataset = torch.utils.data.TensorDataset(
        torch.rand(size, 3, 32, 32), torch.randint(CLASSES, (size, )))
    # So many epochs that annealing is far away.
    session = Session(
        dataset, RandomPruning(0.5), epochs=10 + (iters + warmup) // 10)
    steps = (step_of(dtype, compiled,
                     lambda losses, slots, logits: losses.mean()),
             step_of(
                 dtype, compiled, lambda losses, slots, logits: session.weigh(
                     losses, slots, logits).mean()))
    loader = session.loader(batch_size, drop_last=True, device=DEVICE)
    seconds = []
    while len(seconds) < warmup + iters:
        for slots, (images, labels) in loader:
            turn = np.empty(2)
            # A B, B A, ...: neither always runs after the other.
            for k in (0, 1) if len(seconds) % 2 else (1, 0):
                turn[k] = steps[k](slots, images, labels)
            seconds.append(turn)
    return np.array(seconds[warmup:])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    dtypes = ['float32', 'bfloat16'] + ['float16'] * (DEVICE == 'cuda')
    parser.add_argument('--dtypes', nargs='+', default=dtypes)
    parser.add_argument(
        '--compile',
        choices=['network', 'step'],
        default='',
        help='what torch.compile compiles: the network, or the step with '
        'its losses and `weigh`')
    parser.add_argument('--batch-size', type=int, default=128)
    parser.add_argument('--iters', type=int, default=300)
    parser.add_argument('--warmup', type=int, default=120)
    args = parser.parse_args()
    print('| dtype | plain step, ms | ratio | quartiles |\n|---|---|---|---|')
    for name in args.dtypes:
        dtype = None if name == 'float32' else getattr(torch, name)
        plain, ours = take_turns(args.batch_size, dtype, args.compile,
                                 args.iters, args.warmup).T
        low, ratio, high = np.quantile(ours / plain, [0.25, 0.5, 0.75])
        print(
            f'| {name} | {1000 * np.median(plain):.2f} | {ratio:.4f} | '
            f'{low:.4f} to {high:.4f} |',
            flush=True)


if __name__ == '__main__':
    main()
