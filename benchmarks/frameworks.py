# Copyright (c) mmib contributors. All rights reserved.
"""Time trainings with a `Session` in other frameworks against the same ones
with a shuffled DataLoader, on images that lie in memory.

    python -m benchmarks.frameworks

Both take turns, a short training each, so that whatever else the machine does
hits both. A step is what lies between two forward passes, so it has all that
the framework does; the first batch is what comes before the first one.
"""
import argparse
import itertools
import logging
import tempfile
import time
import warnings
from typing import Any, Callable, Dict, List, Optional

import accelerate
import lightning
import numpy as np
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, default_collate

from benchmarks.loader import BATCH_SIZE, Images
from mmib import Session
from mmib.integrations.lightning import InfoBatchCallback
from mmib.integrations.transformers import InfoBatchTrainerMixin
from mmib.pruning import RandomPruning

WARMUP = 5  # Steps.


def collate(samples: List[Any]) -> Dict[str, Tensor]:
    """Return a batch as transformers takes it."""
    images, labels = default_collate(samples)
    return dict(images=images, labels=labels)


class Network(nn.Module):
    """A network that notes when it is called."""

    def __init__(self) -> None:
        super().__init__()
        widths = (3, 32, 64, 64, 128)
        self.layers = nn.Sequential(
            *(nn.Sequential(nn.Conv2d(a, b, 3, 2, 1), nn.ReLU())
              for a, b in itertools.pairwise(widths)), nn.Flatten(),
            nn.Linear(512, 10))
        self.times: List[float] = []

    def forward(self,
                images: Tensor,
                labels: Optional[Tensor] = None) -> Dict[str, Tensor]:
        self.times.append(time.perf_counter())
        logits = self.layers(images)
        if labels is None:
            return dict(logits=logits)
        return dict(loss=F.cross_entropy(logits, labels), logits=logits)


def loss_of(network: nn.Module, batch: Any,
            session: Optional[Session]) -> Tensor:
    """Return the loss of a batch, weighed if there is a Session."""
    if session is None:
        logits = network(batch['images'])['logits']
        return F.cross_entropy(logits, batch['labels'])
    slots, batch = batch
    logits = network(batch['images'])['logits']
    losses = F.cross_entropy(logits, batch['labels'], reduction='none')
    return session.weigh(losses, slots, logits).mean()


class Module(lightning.LightningModule):

    def __init__(self, network: nn.Module, session: Optional[Session]) -> None:
        super().__init__()
        self.network, self.session = network, session

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.01)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return loss_of(self.network, batch, self.session)


def in_lightning(network: nn.Module, loader: Any, session: Optional[Session],
                 dataset: Dataset, num_steps: int) -> None:
    trainer = lightning.Trainer(
        accelerator='cpu',
        max_steps=num_steps,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[] if session is None else [InfoBatchCallback(session)])
    trainer.fit(Module(network, session), loader)


def in_accelerate(network: nn.Module, loader: Any, session: Optional[Session],
                  dataset: Dataset, num_steps: int) -> None:
    accelerator = accelerate.Accelerator(cpu=True)
    optimizer = torch.optim.SGD(network.parameters(), 0.01)
    network, optimizer, loader = accelerator.prepare(network, optimizer,
                                                     loader)
    for batch in itertools.islice(loader, num_steps):
        optimizer.zero_grad()
        accelerator.backward(loss_of(network, batch, session))
        optimizer.step()


class PrunedTrainer(InfoBatchTrainerMixin, transformers.Trainer):
    pass


def in_transformers(network: nn.Module, loader: Any,
                    session: Optional[Session], dataset: Dataset,
                    num_steps: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        args = transformers.TrainingArguments(
            folder,
            per_device_train_batch_size=BATCH_SIZE,
            max_steps=num_steps,
            optim='sgd',
            use_cpu=True,
            report_to='none',
            save_strategy='no',
            disable_tqdm=True,
            logging_strategy='no')

        if session is None:
            trainer = transformers.Trainer(
                network, args, data_collator=collate, train_dataset=dataset)
        else:
            trainer = PrunedTrainer(
                network, args, data_collator=collate, session=session)
        trainer.train()


def train(function: Callable, dataset: Dataset, num_steps: int,
          prunes: bool) -> np.ndarray:
    """Return the seconds until the first forward pass, and those of each step
    after the first ones."""
    session = Session(
        dataset, RandomPruning(0.5), epochs=100, stream=True,
        seed=0) if prunes else None
    loader = session.loader(
        BATCH_SIZE, collate_fn=collate) if session else DataLoader(
            dataset, BATCH_SIZE, shuffle=True, collate_fn=collate)
    network, start = Network(), time.perf_counter()
    function(network, loader, session, dataset, num_steps)
    seconds = np.diff([start, *network.times])
    return np.delete(seconds, slice(1, WARMUP))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--size', type=int, default=1_280_000)
    parser.add_argument('--steps', type=int, default=60, help='of a training')
    parser.add_argument('--turns', type=int, default=10)
    args = parser.parse_args()
    warnings.simplefilter('ignore')
    logging.disable()
    torch.set_num_threads(1)
    dataset = Images(args.size)
    print('| framework | plain step, ms | ratio | quartiles | first batch, ms '
          '| of the plain training, ms |\n|---|---|---|---|---|---|')
    for function in (in_accelerate, in_lightning, in_transformers):
        times = np.array([[
            train(function, dataset, args.steps, prunes)
            for prunes in (False, True)
        ] for _ in range(args.turns + 1)])[1:]
        plain, ours = np.median(times[..., 1:], 2).T
        low, ratio, high = np.quantile(ours / plain, [0.25, 0.5, 0.75])
        first_of_plain, first = 1000 * np.median(times[..., 0], 0)
        name = function.__name__.removeprefix('in_')
        print(
            f'| {name} | {1000 * np.median(plain):.2f} | {ratio:.3f} | '
            f'{low:.3f} to {high:.3f} | {first:.1f} | {first_of_plain:.1f} |',
            flush=True)


if __name__ == '__main__':
    main()
