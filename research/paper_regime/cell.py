# Copyright (c) mmib contributors. All rights reserved.
"""Train a cell of the comparison by epochs, in parts: an arm with a seed.

The random state is in the checkpoints too, so that a training in parts has the
same crops as one in one go.
"""
import shutil
import time
from typing import List, Optional, Set

import numpy as np
import torch
from mmengine.config import Config
from mmengine.runner import Runner
from torch import Tensor

from benchmarks.cifar10.cell import CIFARRecorder
from benchmarks.compare.recorder import times
from benchmarks.compare.run import train

LIBRARIES = ('mmpretrain', )
EVALUATIONS = 10


class PartRecorder(CIFARRecorder):
    """Evaluates a network after each tenth of its epochs, and stops a training
    after the first epoch past a deadline. ``summary`` is empty until the
    training is at its end."""

    # After InfoBatchHook, and before CheckpointHook saves the epoch.
    priority = 'LOW'

    def __init__(self, split: str, deadline: float) -> None:
        super().__init__(split)
        self.deadline = deadline

    def before_train(self, runner: Runner) -> None:
        self._eval_iters = set()

    def after_train_epoch(self, runner: Runner) -> None:
        if runner.epoch + 1 in eval_epochs(runner.max_epochs):
            self.evaluate(runner)
        runner.train_loop.stop_training = is_over(self.deadline)

    def after_train(self, runner: Runner) -> None:
        if runner.epoch == runner.max_epochs:
            super().after_train(runner)
            self.summary['epochs'] = runner.epoch
            if self.infobatch is None:
                self.summary['virtual_epochs'] = runner.epoch

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        checkpoint['recorder'] = dict(
            evals=self._evals,
            plans=self._plans,
            means=[tuple(mean) for mean in self._means],
            losses=torch.stack(self._losses) if self._losses else [],
            seconds=(times() - self._start).tolist(),
            val_seconds=self._val_times.tolist(),
            random=random_state())

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        kept = checkpoint['recorder']
        self._evals, self._plans = kept['evals'], kept['plans']
        self._means, self._losses = kept['means'], list(kept['losses'])
        self._start = times() - np.array(kept['seconds'])
        self._val_times = np.array(kept['val_seconds'])
        set_random_state(kept['random'])


def eval_epochs(max_epochs: int) -> Set[int]:
    """The epochs after which a network is evaluated."""
    return {
        round(number * max_epochs / EVALUATIONS)
        for number in range(1, EVALUATIONS + 1)
    }


def is_over(deadline: float) -> bool:
    """Whether a time, in seconds since 1970, is over."""
    return time.time() > deadline


def random_state() -> List[Tensor]:
    """The state of torch's generators: of the CPU, and of each GPU."""
    return [torch.get_rng_state(), *torch.cuda.get_rng_state_all()]


def set_random_state(state: List[Tensor]) -> None:
    # Checkpoints are loaded to the training device.
    of_cpu, *of_gpus = (tensor.cpu() for tensor in state)
    torch.set_rng_state(of_cpu)
    torch.cuda.set_rng_state_all(of_gpus)


def train_cell(cfg: Config,
               seed: int,
               folder: str,
               deadline: float,
               split: str = 'test') -> Optional[dict]:
    """Train a cell until a deadline, from where the folder has it. Its figures
    are returned and the folder is removed at the end of the training."""
    if is_over(deadline):
        return None
    recorder = PartRecorder(split, deadline)
    train(cfg, seed, recorder, folder)
    if recorder.summary:
        shutil.rmtree(folder)
    return recorder.summary or None
