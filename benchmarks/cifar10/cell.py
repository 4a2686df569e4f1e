# Copyright (c) mmib contributors. All rights reserved.
"""Train one cell of the comparison: an arm with a seed.

A process trains many of them, as starting one takes as long as some cells do.
"""
import copy
import functools
import tempfile
import time
import uuid
import warnings
from typing import Iterator, List, Optional, Sequence, Set

import mmengine
import mmpretrain
import numpy as np
import torch
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch import Tensor, nn

import mmib
from mmib.hook import InfoBatchHook

from .data import Images, load

# Images of a batch of an evaluation, and shares of the training after which
# there is one.
EVAL_BATCH = 2000
EVALUATIONS = (0.25, 0.5, 0.75, 1)


class Recorder(Hook):
    """Keeps what a cell is compared by.

    Args:
        split (str): Images on which the network is evaluated.
        metric (str): One of :data:`METRICS`. Defaults to ``'accuracy'``.
        step (int): Every how manieth of these images is taken. Defaults to 1.
        window (int): If above 0, the mean distance that the parameters go in
            each so many iterations is kept. Defaults to 0.
    """

    # Its `after_train` comes after that of InfoBatchHook.
    priority = 'LOWEST'

    def __init__(self,
                 split: str,
                 metric: str = 'accuracy',
                 step: int = 1,
                 window: int = 0) -> None:
        self.split = split
        self.metric = metric
        self.step = step
        self.window = window
        self.infobatch: Optional[InfoBatchHook] = None
        self.evals, self._plans, self._steps = [], [], []
        self._eval_seconds = 0.

    def before_train(self, runner: Runner) -> None:
        for hook in runner.hooks:
            if isinstance(hook, InfoBatchHook):
                self.infobatch = hook
                hook.plan_observers.append(self._note_plan)
        self._eval_iters = eval_iters(runner.max_iters)
        self._data = runner.train_dataloader.dataset.data_root
        self._lengths, self._weights = [], _weights(runner.model)
        self._start = self._last = time.perf_counter()

    def _note_plan(self, epoch, plan) -> None:
        planner = self.infobatch.planner
        self._plans.append((epoch.start, epoch.size, planner.mean_ratio))

    def after_train_iter(self, runner, *_, **__) -> None:
        if self.window:
            weights = _weights(runner.model)
            self._lengths.append((weights - self._weights).norm().item())
            self._weights = weights
        if runner.iter + 1 in self._eval_iters:
            begin = time.perf_counter()
            value = evaluate(runner.model, self._data, self.split, self.metric,
                             self.step)
            self.evals.append((runner.iter + 1, value))
            self._eval_seconds += time.perf_counter() - begin
            self._last = time.perf_counter()
        else:
            now = time.perf_counter()
            self._steps.append(now - self._last)
            self._last = now

    def after_train(self, runner: Runner) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        loader = runner.train_dataloader
        size = len(loader.dataset)
        position = runner.iter * loader.batch_size
        self.summary = dict(
            iters=runner.iter,
            batch_size=loader.batch_size,
            num_images=size,
            virtual_epochs=position / size,
            **{self.metric: self.evals[-1][1]},
            evals=self.evals,
            train_seconds=round(
                time.perf_counter() - self._start - self._eval_seconds, 2),
            step_ms=round(1000 * float(np.median(self._steps)), 3))
        if self.window:
            lengths = torch.tensor(self._lengths).split(self.window)
            self.summary['step_lengths'] = [
                round(part.mean().item(), 5) for part in lengths
            ]
        if self.infobatch is not None:
            self.summary.update(self._of_plans(position, size))

    def _of_plans(self, position: int, size: int) -> dict:
        planner = self.infobatch.planner
        begun = [plan for plan in self._plans if plan[0] < position]
        pruned = [plan[1] / size for plan in begun if plan[1] < size]
        ratio = planner.mean_ratio.mean()
        starts = [start / position for start, *_ in self._plans]
        means = [mean for *_, mean in self._plans]
        quarters = by_quarter([*starts, 1.], [*means, planner.mean_ratio])
        return dict(
            virtual_epochs=planner.epoch.covered_until(position),
            kept_share=round(float(np.mean(pruned)), 4) if pruned else 1.,
            variance_ratio=[_rounded(value) for value in ratio[:3]],
            variance_ratio_of_quarters=[_rounded(v) for v in quarters])


def _weights(model: nn.Module) -> Tensor:
    return nn.utils.parameters_to_vector(model.parameters()).detach()


def _rounded(value: float) -> Optional[float]:
    return round(float(value), 4) if np.isfinite(value) else None


def by_quarter(starts: Sequence[float], means: Sequence) -> List[float]:
    """Mean V in each quarter of a training.

    Args:
        starts (Sequence[float]): Share of the training before each plan, and
            1.
        means (Sequence[MeanRatio]): Mean V of the training until each of
            these.

    Returns:
        list[float]: Four, nan where V isn't known, as in a first pass.
    """
    totals = np.zeros((4, 2))
    for i in range(1, len(starts)):
        middle = (starts[i - 1] + starts[i]) / 2
        totals[min(int(4 * middle), 3)] += np.subtract(means[i][:2],
                                                       means[i - 1][:2])
    visits, sums = totals.T
    return [s / n if n else float('nan') for s, n in zip(sums, visits)]


def eval_iters(max_iters: int) -> Set[int]:
    """The iterations after which a network is evaluated."""
    return {round(share * max_iters) for share in EVALUATIONS}


def evaluate(model: nn.Module,
             data: str,
             split: str,
             metric: str = 'accuracy',
             step: int = 1) -> float:
    """Evaluate a network in training.

    Args:
        model (nn.Module): The network.
        data (str): File of the images.
        split (str): Which images of it.
        metric (str): One of :data:`METRICS`. Defaults to ``'accuracy'``.
        step (int): Every how manieth of these images is taken. Defaults to 1.

    Returns:
        float: Its mean over these images, times 100.
    """
    images = Images(*(column[::step] for column in load(data, split)))
    values = METRICS[metric](model, images)
    model.train()
    return round(100 * values.double().mean().item(), 4)


def _hits(model: nn.Module, images: Images) -> Tensor:
    return predict(model, images.inputs).argmax(1).cpu() == images.labels


@torch.no_grad()
def _losses(model: nn.Module, images: Images) -> Tensor:
    """Loss of each image of an MAE, with masks that depend on the images
    alone: mean squared distance of the masked patches, whose pixels are
    normalized to variance 1."""
    model.eval()
    losses = []
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for inputs in _batches(model, images.inputs):
            features, mask, order = model.backbone(inputs)
            found = model.neck(features, order)
            distances = (found - model.head.construct_target(inputs))**2
            losses.append((distances.mean(-1) * mask).sum(1) / mask.sum(1))
    return torch.cat(losses)


METRICS = dict(accuracy=_hits, loss=_losses)


@torch.no_grad()
def predict(model: nn.Module, images: Tensor) -> Tensor:
    """Logits of images without augmentation, of shape (N, classes)."""
    model.eval()
    return torch.cat(
        [model(inputs, mode='tensor') for inputs in _batches(model, images)])


def _batches(model: nn.Module, images: Tensor) -> Iterator[Tensor]:
    for inputs in images.split(EVAL_BATCH):
        batch = dict(inputs=inputs, labels=torch.zeros(0, dtype=torch.long))
        yield model.data_preprocessor(batch, False)['inputs']


def train(cfg: Config, seed: int, recorder: Recorder) -> nn.Module:
    """Train a config, and return the network."""
    cfg = copy.deepcopy(cfg)
    # MMEngine keeps a logger and more for each name.
    cfg.experiment_name = uuid.uuid4().hex
    cfg.randomness = dict(seed=seed)
    with tempfile.TemporaryDirectory() as cfg.work_dir:
        runner = Runner.from_cfg(cfg)
        runner.register_hook(recorder)
        runner.train()
    return runner.model


def hardest(cfg: Config, seed: int, keep: float, part: float,
            seeds: int) -> List[int]:
    """Images of the largest errors early in training, by which a fixed subset
    is chosen (EL2N of Paul et al., "Deep Learning on a Data Diet", 2021).

    Args:
        cfg (Config): Config of the full training.
        seed (int): The networks of each seed are others.
        keep (float): Share of the images to choose.
        part (float): Share of the training after which errors are taken.
        seeds (int): Networks whose errors are averaged.

    Returns:
        list[int]: Their indices.
    """
    cfg = copy.deepcopy(cfg)
    cfg.train_cfg.max_iters = round(part * cfg.train_cfg.max_iters)
    data = cfg.train_dataloader.dataset
    images = load(data.data_root, data.split)
    wanted = nn.functional.one_hot(images.labels)
    errors = 0
    for number in range(seeds):
        model = train(cfg, 1000 + seeds * seed + number, Recorder('held_out'))
        given = predict(model, images.inputs).softmax(1).cpu()
        errors = errors + (given - wanted).norm(dim=1)
    order = errors.argsort(descending=True)
    return order[:round(keep * len(order))].sort().values.tolist()


@functools.lru_cache(maxsize=None)
def environment() -> dict:
    """What figures depend on, besides the config."""
    libraries = (mmib, torch, mmengine, mmpretrain)
    return dict(
        versions={module.__name__: module.__version__
                  for module in libraries},
        device=torch.cuda.get_device_name()
        if torch.cuda.is_available() else 'cpu')


def train_cell(cfg: dict, seed: int, split: str,
               subset: Optional[dict]) -> dict:
    """Train a cell, and return what its line of the results has.

    Args:
        cfg (dict): Config of the arm.
        seed (int): Seed of everything.
        split (str): Images on which it is evaluated.
        subset (dict, optional): Config of the training that chooses a fixed
            subset, ``full``, and arguments of :func:`hardest`.
    """
    warnings.simplefilter('ignore')
    torch.set_num_threads(1)
    cfg = Config(cfg)
    start = time.perf_counter()
    if subset is not None:
        subset = dict(subset)
        cfg.train_dataloader.dataset.indices = hardest(
            Config(subset.pop('full')), seed, **subset)
    recorder = Recorder(split, **cfg.get('evaluation', {}))
    train(cfg, seed, recorder)
    return dict(
        **environment(),
        **recorder.summary,
        seconds=round(time.perf_counter() - start, 2))
