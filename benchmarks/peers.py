# Copyright (c) mmib contributors. All rights reserved.
"""Compare the processor time of small runs in a plain loop, with mmib, and
with other packages that leave out images.

    pip install datacull==1.0.2
    pip install git+https://github.com/NUS-HPC-AI-Lab/InfoBatch@8bbb012
    python -m benchmarks.peers

What isn't installed is left out. The data have 1,000 samples and the network
is small, so that hardly anything but the packages is timed. The runs take
turns, and one thread computes.
"""
import argparse
import time
from tempfile import TemporaryDirectory

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

from mmib import Session
from mmib.pruning import MeanThreshold, Neyman

BATCH_SIZE = 50


class Job:
    """The training of a small network, step by step.

    Args:
        num_epochs (int): Epochs of the run.
    """

    def __init__(self, num_epochs):
        torch.manual_seed(0)
        inputs = torch.randn(1000, 20)
        self.dataset = TensorDataset(inputs, (inputs.sum(1) > 0).long())
        self.num_epochs, self.num_samples = num_epochs, 0
        self.model = torch.nn.Sequential(
            torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
        self._optimizer = torch.optim.SGD(self.model.parameters(), 0.1)

    def losses_of(self, inputs, labels):
        """Return the losses and logits of a batch."""
        self.num_samples += len(inputs)
        logits = self.model(inputs)
        return F.cross_entropy(logits, labels, reduction='none'), logits

    def step(self, loss):
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()


def plain(job):
    loader = DataLoader(job.dataset, BATCH_SIZE, shuffle=True)
    for _ in range(job.num_epochs):
        for batch in loader:
            job.step(job.losses_of(*batch)[0].mean())


def with_mmib(job, policy):
    session = Session(job.dataset, policy, epochs=job.num_epochs)
    loader = session.loader(BATCH_SIZE)
    while session.epoch < job.num_epochs:
        for slots, batch in loader:
            losses, logits = job.losses_of(*batch)
            job.step(session.weigh(losses, slots, logits).mean())


def with_infobatch(job):
    """By the package of InfoBatch's authors."""
    from infobatch import InfoBatch
    dataset = InfoBatch(job.dataset, job.num_epochs)
    own = dataset.sampler

    class Sampler:
        """The sampler of the package resets itself whenever it is iterated,
        which torch does in each batch since version 2.6."""

        def __len__(self):
            return len(own)

        def __iter__(self):
            own.reset()
            return iter(own.sample_indices)

    loader = DataLoader(dataset, BATCH_SIZE, sampler=Sampler())
    for _ in range(job.num_epochs):
        for batch in loader:
            job.step(dataset.update(job.losses_of(*batch)[0]))


def with_datacull(job):
    """By RCAP, which learns from the losses of the last epoch."""
    from datacull import DCDataset, DCLogger
    from datacull.methods.RCAP import RCAPDataLoader, RCAPImportance
    job.dataset.targets = job.dataset.tensors[1]
    dataset = DCDataset(job.dataset)
    with TemporaryDirectory() as folder:
        logger = DCLogger(f'{folder}/')
        importance = RCAPImportance(dataset, logger, beta=1)
        # The rate is the share that stays.
        loader = RCAPDataLoader(dataset, 0.6, batch_size=BATCH_SIZE)
        for epoch in range(job.num_epochs):
            loader.resample(importance.compute_importance())
            for *batch, indices in loader:
                losses, _ = job.losses_of(*batch)
                logger.log_metric(epoch, indices, losses.detach())
                job.step(losses.mean())


RUNS = {
    'a plain loop': plain,
    'mmib, `Neyman`': lambda job: with_mmib(job, Neyman()),
    'mmib, `MeanThreshold`': lambda job: with_mmib(job, MeanThreshold()),
    "the authors' package": with_infobatch,
    'datacull, RCAP': with_datacull
}


def seconds_per_sample(train, num_epochs):
    """Return the processor time of each sample that a run trains on, and the
    number of these samples. NaN if a package isn't installed."""
    job = Job(num_epochs)
    begin = time.process_time()
    try:
        train(job)
    except ImportError:
        return np.nan, 0
    return (time.process_time() - begin) / job.num_samples, job.num_samples


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--epochs', type=int, default=30)
    parser.add_argument('--rounds', type=int, default=7)
    args = parser.parse_args()
    torch.set_num_threads(1)
    for train in RUNS.values():
        seconds_per_sample(train, 3)
    rounds = np.array(
        [[seconds_per_sample(train, args.epochs) for train in RUNS.values()]
         for _ in range(args.rounds)])
    ratios = rounds[..., 0] / rounds[:, :1, 0]
    print('| run | samples | time of a sample, over the plain loop | '
          'quartiles |\n|---|---|---|---|')
    for name, num_samples, own in zip(RUNS, rounds[0, :, 1], ratios.T):
        if num_samples:
            low, ratio, high = np.quantile(own, [0.25, 0.5, 0.75])
            print(f'| {name} | {num_samples:.0f} | {ratio:.2f} | {low:.2f} to '
                  f'{high:.2f} |')


if __name__ == '__main__':
    main()
