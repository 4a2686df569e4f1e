# Copyright (c) mmib contributors. All rights reserved.
"""Train with the official InfoBatch package, side by side with mmib.

It is no part of this project: name a checkout of NUS-HPC-AI-Lab/InfoBatch.
Network, images, augmentation, schedule, iterations and seeds are those of the
arm `mean`, whose policy it has; the loop is a plain one, as in its example.

It needs one repair to run on torch 2.6 or later. Its sampler draws a plan in
each call of ``__iter__`` and returns itself, and torch's batch sampler calls
``iter`` on what it is given for each batch. Here ``__iter__`` returns the
iterator over the plan that it has drawn. Nothing else of it is changed.
"""
import argparse
import copy
import json
import os.path as osp
import sys
import time
import uuid
from contextlib import contextmanager
from types import ModuleType
from typing import Iterator, List, Tuple

import numpy as np
import torch
import torch.nn.functional as F
from mmengine.config import Config
from mmengine.logging import MMLogger
from mmengine.optim import build_optim_wrapper
from mmengine.registry import PARAM_SCHEDULERS, init_default_scope
from mmengine.runner import set_random_seed
from mmengine.utils import import_modules_from_strings
from mmpretrain.registry import MODELS
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from mmib.pruning import MeanThreshold

from .cell import Recorder, environment, eval_iters, evaluate, train
from .data import PackedImages
from .run import load_base, make_cell

# Of the package's example and of the paper.
RATIO, DELTA = 0.5, 0.875


@contextmanager
def official_package(folder: str) -> Iterator[ModuleType]:
    """Import the package from a checkout, and repair its sampler.

    It changes torch's data loaders when it is imported, which are as before
    when this ends.
    """
    if not osp.isdir(osp.join(folder, 'infobatch')):
        raise FileNotFoundError(
            f'{folder} is no checkout of NUS-HPC-AI-Lab/InfoBatch.')
    original = _BaseDataLoaderIter.__next__
    sys.path.insert(0, folder)
    try:
        from infobatch import infobatch
        _BaseDataLoaderIter.__next__ = infobatch.info_hack_indices
        infobatch.IBSampler.__iter__ = _draw_and_iterate
        yield infobatch
    finally:
        sys.path.remove(folder)
        _BaseDataLoaderIter.__next__ = original


def _draw_and_iterate(self) -> Iterator[int]:
    self.reset()
    return self.iter_obj


class Pairs(Dataset):
    """Images with their labels, as the package's example has them."""

    def __init__(self, images: PackedImages) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Tuple[Tensor, Tensor]:
        return tuple(self.images.images[column][index] for column in (0, 1))


class Loop:
    """What a plain training loop needs, built from the config of an arm.

    Args:
        cfg (Config): The config.
        seed (int): Seed of everything.
    """

    def __init__(self, cfg: Config, seed: int) -> None:
        import_modules_from_strings(**cfg.custom_imports)
        init_default_scope(cfg.default_scope)
        MMLogger.get_instance(uuid.uuid4().hex, log_level='WARNING')
        set_random_seed(seed)
        device = 'cuda' if torch.cuda.is_available() else 'cpu'
        self.max_iters = cfg.train_cfg.max_iters
        self.model = MODELS.build(copy.deepcopy(cfg.model)).to(device)
        self.model.init_weights()
        self.model.train()
        self.optim = build_optim_wrapper(self.model,
                                         copy.deepcopy(cfg.optim_wrapper))
        self.schedulers = [
            PARAM_SCHEDULERS.build(
                dict(scheduler, optimizer=self.optim.optimizer))
            for scheduler in cfg.param_scheduler
        ]
        self.step_seconds: List[float] = []

    def step(self, inputs: Tensor, labels: Tensor, reduce) -> None:
        """Train on a batch. ``reduce`` makes the loss of that of each
        image."""
        begin = time.perf_counter()
        batch = self.model.data_preprocessor(
            dict(inputs=inputs, labels=labels), True)
        logits = self.model(batch['inputs'], mode='tensor')
        labels = labels.to(logits.device)
        loss = reduce(F.cross_entropy(logits, labels, reduction='none'))
        self.optim.update_params(loss)
        for scheduler in self.schedulers:
            scheduler.step()
        self.step_seconds.append(time.perf_counter() - begin)


def train_cell(folder: str, cfg: dict, seed: int, num_epochs: int) -> dict:
    """Train a cell with the package, and return what its line has.

    Args:
        folder (str): Checkout of the package.
        cfg (dict): Config of the arm with the same cost.
        seed (int): Seed of everything but the plans, which the package seeds
            with the number of the epoch.
        num_epochs (int): Epochs that it is told, of which it leaves the last
            ones full.
    """
    torch.set_num_threads(1)
    start = time.perf_counter()
    with official_package(folder) as official:
        figures = _train(official, Config(cfg), seed, num_epochs)
    seconds = round(time.perf_counter() - start, 2)
    return dict(**environment(), **figures, seconds=seconds)


def _train(official: ModuleType, cfg: Config, seed: int,
           num_epochs: int) -> dict:
    loop = Loop(cfg, seed)
    loader_cfg, data = cfg.train_dataloader, cfg.train_dataloader.dataset
    dataset = official.InfoBatch(
        Pairs(PackedImages(data.data_root, data.split)), num_epochs, RATIO,
        DELTA)
    sampler = dataset.sampler
    loader = DataLoader(
        dataset, batch_size=loader_cfg.batch_size, sampler=sampler)
    kept, evals = [], []
    iters = annealed = 0
    # The schedule counts iterations, the package epochs.
    while iters < loop.max_iters:
        batches = iter(loader)
        kept.append(len(sampler.sample_indices) / len(dataset))
        is_annealing = sampler.iterations - 1 > sampler.stop_prune
        for inputs, labels in batches:
            loop.step(inputs, labels, dataset.update)
            iters += 1
            annealed += is_annealing
            if iters in eval_iters(loop.max_iters):
                accuracy = evaluate(loop.model, data.data_root, 'test')
                evals.append((iters, accuracy))
            if iters == loop.max_iters:
                break
    # The last epoch was cut short.
    slots = iters * loader_cfg.batch_size / len(dataset)
    pruned = [share for share in kept if share < 1]
    return dict(
        iters=iters,
        batch_size=loader_cfg.batch_size,
        num_images=len(dataset),
        virtual_epochs=len(kept) - 1 + (slots - sum(kept[:-1])) / kept[-1],
        accuracy=evals[-1][1],
        evals=evals,
        kept_share=round(float(np.mean(pruned)), 4) if pruned else 1.,
        annealed_iters=annealed,
        step_ms=round(1000 * float(np.median(loop.step_seconds)), 3))


def time_steps(official: ModuleType, cells: dict, num_iters: int) -> dict:
    """Milliseconds of an iteration with data, median, in a plain loop and in
    MMEngine's, with and without pruning.

    Args:
        official (module): The package.
        cells (dict[str, Cell]): Those of `full` and `mean`.
        num_iters (int): Iterations to train.
    """
    cfg = copy.deepcopy(cells['full'].cfg)
    cfg.train_cfg.max_iters = num_iters
    data = cfg.train_dataloader
    pairs = Pairs(PackedImages(data.dataset.data_root, data.dataset.split))
    found = {}
    for name in ('plain loop', 'official'):
        loop = Loop(cfg, 0)
        dataset, sampler, reduce = pairs, None, torch.mean
        if name == 'official':
            dataset = official.InfoBatch(pairs, 24, RATIO, DELTA)
            sampler, reduce = dataset.sampler, dataset.update
        loader = DataLoader(
            dataset, data.batch_size, shuffle=sampler is None, sampler=sampler)
        times, last = [], time.perf_counter()
        while len(times) < num_iters:
            for inputs, labels in loader:
                loop.step(inputs, labels, reduce)
                # The scores of the package wait for the device anyway.
                _synchronize()
                now = time.perf_counter()
                times.append(now - last)
                last = now
        found[name] = round(1000 * float(np.median(times[20:])), 3)
    for name, arm in (('MMEngine', 'full'), ('mmib', 'mean')):
        cfg = copy.deepcopy(cells[arm].cfg)
        cfg.train_cfg.max_iters = num_iters
        recorder = Timer('test')
        train(cfg, 0, recorder)
        found[name] = round(1000 * float(np.median(recorder.times[20:])), 3)
    return found


class Timer(Recorder):
    """Times whole iterations, with the work of the device."""

    def before_train(self, runner) -> None:
        self.times, self._last = [], time.perf_counter()

    def after_train_iter(self, runner, *_, **__) -> None:
        _synchronize()
        now = time.perf_counter()
        self.times.append(now - self._last)
        self._last = now

    def after_train(self, runner) -> None:
        pass


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def time_plans(official: ModuleType, num_images: int) -> dict:
    """Seconds of a plan of so many images, the best of five."""
    scores = np.random.default_rng(0).exponential(size=num_images)
    scores = scores.astype(np.float32)
    dataset = official.InfoBatch(range(num_images), 10, RATIO, DELTA)
    dataset.scores = torch.from_numpy(scores)
    policy, rng = MeanThreshold(RATIO), np.random.default_rng(0)
    return {
        name: round(_best_of(function), 5)
        for name, function in (('official', dataset.prune),
                               ('mmib', lambda: policy(scores, rng)))
    }


def _best_of(function, repeats: int = 5) -> float:
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        function()
        times.append(time.perf_counter() - begin)
    return min(times)


def after_resume(official: ModuleType, num_images: int = 1000) -> dict:
    """What a training knows after five epochs, and what it knows when it goes
    on from there: the package has nothing to save, so its parts are built
    anew, as by its example."""

    def build():
        dataset = official.InfoBatch(range(num_images), 10, RATIO, DELTA)
        return dataset, dataset.sampler

    def known(dataset, sampler):
        scores = dataset.scores.clone()
        kept = len(list(iter(sampler)))
        return dict(
            epochs=sampler.iterations - 2,
            distinct_scores=len(scores.unique()),
            next_kept_share=kept / num_images)

    dataset, sampler = build()
    for _ in range(5):
        list(iter(sampler))
    dataset.scores[:] = torch.linspace(0, 1, num_images)
    return dict(
        has_state=hasattr(dataset, 'state_dict'),
        before=known(dataset, sampler),
        after=known(*build()))


def main() -> None:
    parser = argparse.ArgumentParser(
        description='Measure what the official InfoBatch package costs beside '
        'mmib: a step, a plan, and what a resumed training knows. Its '
        'accuracy is that of `run.py --official`.')
    parser.add_argument('checkout', help='folder of the official package')
    parser.add_argument('--data', default='data/cifar10/cifar10.npz')
    parser.add_argument('--out', required=True, help='a JSON file to write')
    parser.add_argument(
        '--iters', type=int, default=300, help='iterations to time')
    args = parser.parse_args()
    torch.set_num_threads(1)
    base = load_base(args.data)
    cells = {
        name: make_cell('', base, name, 0, 0.1)
        for name in ('full', 'mean')
    }
    with official_package(args.checkout) as official:
        figures = dict(
            **environment(),
            step_ms=time_steps(official, cells, args.iters),
            plan_seconds={
                str(size): time_plans(official, size)
                for size in (10_000, 1_281_167)
            },
            after_resume=after_resume(official))
    with open(args.out, 'w', encoding='utf-8') as file:
        json.dump(figures, file, indent=1)
    print(json.dumps(figures, indent=1))


if __name__ == '__main__':
    main()
