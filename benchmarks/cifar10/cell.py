# Copyright (c) mmib contributors. All rights reserved.
"""Train one cell of the comparison on CIFAR-10: an arm with a seed."""
import copy
from typing import Iterator, List, Optional, Set

import torch
from mmengine.config import Config
from mmengine.runner import Runner
from torch import Tensor, nn

from benchmarks.compare.recorder import Recorder
from benchmarks.compare.run import train

from .data import Images, load

LIBRARIES = ('mmpretrain', )
# Images of a batch of an evaluation, and shares of the training after which
# there is one.
EVAL_BATCH = 2000
EVALUATIONS = (0.25, 0.5, 0.75, 1)


class CIFARRecorder(Recorder):
    """Evaluates a network after shares of its training, on every ``step``-th
    image of a split. With a window the mean distance that the parameters go in
    each so many iterations is kept."""

    def __init__(self,
                 split: str,
                 metric: str = 'accuracy',
                 step: int = 1,
                 window: int = 0) -> None:
        super().__init__(metric)
        self.split = split
        self.step = step
        self.window = window
        self._lengths = []

    def before_train(self, runner: Runner) -> None:
        self._eval_iters = eval_iters(runner.max_iters)
        self._weights = parameters_of(runner.model)

    def after_train_iter(self, runner, *args, **kwargs) -> None:
        super().after_train_iter(runner, *args, **kwargs)
        if self.window:
            weights = parameters_of(runner.model)
            self._lengths.append((weights - self._weights).norm().item())
            self._weights = weights
        if runner.iter + 1 in self._eval_iters:
            self.evaluate(runner)

    def evaluate(self, runner: Runner) -> None:
        """Evaluate the network as it is now."""
        self.before_val(runner)
        data = runner.train_dataloader.dataset.data_root
        value = evaluate(runner.model, data, self.split, self.metric,
                         self.step)
        self.after_val_epoch(runner, {self.metric: value})
        self.after_val(runner)

    def after_train(self, runner: Runner) -> None:
        super().after_train(runner)
        self.summary[self.metric] = self.summary['evals'][-1][self.metric]
        if self.window:
            parts = torch.tensor(self._lengths).split(self.window)
            self.summary['step_lengths'] = [
                round(part.mean().item(), 5) for part in parts
            ]


def parameters_of(model: nn.Module) -> Tensor:
    """All parameters, of shape (N,)."""
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def eval_iters(max_iters: int) -> Set[int]:
    """The iterations after which a network is evaluated."""
    return {round(share * max_iters) for share in EVALUATIONS}


def evaluate(model: nn.Module,
             data: str,
             split: str,
             metric: str = 'accuracy',
             step: int = 1) -> float:
    """Mean metric of a network over every ``step``-th image of a split, times
    100."""
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


def hardest(cfg: Config, seed: int, keep: float, part: float,
            seeds: int) -> List[int]:
    """Images of the largest errors early in training, by which a fixed subset
    is chosen (EL2N of Paul et al., "Deep Learning on a Data Diet", 2021)."""
    cfg = copy.deepcopy(cfg)
    cfg.train_cfg.max_iters = round(part * cfg.train_cfg.max_iters)
    data = cfg.train_dataloader.dataset
    images = load(data.data_root, data.split)
    wanted = nn.functional.one_hot(images.labels)
    errors = 0
    for number in range(seeds):
        model = train(cfg, 1000 + seeds * seed + number,
                      CIFARRecorder('held_out'))
        given = predict(model, images.inputs).softmax(1).cpu()
        errors = errors + (given - wanted).norm(dim=1)
    order = errors.argsort(descending=True)
    return order[:round(keep * len(order))].sort().values.tolist()


def train_cell(cfg: Config,
               seed: int,
               split: str = 'test',
               subset: Optional[dict] = None) -> dict:
    """Train a cell, and return its figures."""
    if subset is not None:
        subset = dict(subset)
        indices = hardest(subset.pop('full'), seed, **subset)
        cfg.train_dataloader.dataset.indices = indices
    recorder = CIFARRecorder(split, **cfg.get('evaluation', {}))
    train(cfg, seed, recorder)
    return recorder.summary
