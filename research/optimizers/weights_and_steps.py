# Copyright (c) mmib contributors. All rights reserved.
"""What the mean weight of a plan does to trainings with AdamW: the tables of
README.md.

A training prunes at random, with weights of 1.9 (`random`) or with these
divided by their mean (`random_mean1`), and is compared with one that is as
short and prunes nothing (`short`). Here a small classifier is trained, at a
rate so low that it stays where it is: only weights change its steps. The
trainings of the Swin and the SegFormer are by benchmarks.cifar10.run
and benchmarks.camvid.run.
"""
import argparse
import copy
import os.path as osp
import tempfile
from typing import Dict, List

import numpy as np
import pandas as pd
import torch
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch.utils.data import TensorDataset

import mmib  # noqa: F401
from benchmarks.compare import paired
from benchmarks.compare.results import append_result, missing, read_results
from research.optimizers.optimizers import (OPTIMIZERS, classifier,
                                            parameters_of, samples)

OUT = osp.dirname(osp.abspath(__file__))
SMALL, SWIN, SEGFORMER = 'classifier', 'swin-w48', 'segformer'
# What is told of the hook of each arm that prunes.
HOOKS = dict(random=dict(normalize=False), random_mean1=dict(normalize=True))
NAMES = dict(random='mean weight 1.9', random_mean1='mean weight 1')
SEEDS = 5
ITERS, NUM_SAMPLES, BATCH_SIZE, WINDOW = 2000, 2400, 16, 10
DELTA = 0.85
# Iterations after an edge whose steps are compared.
SOON = 20


class StepLengths(Hook):
    """Notes how far the parameters go in each iteration."""

    priority = 'LOWEST'

    def before_train(self, runner: Runner) -> None:
        self.lengths = []
        self._last = parameters_of(runner.model)

    def after_train_iter(self, runner: Runner, *_, **__) -> None:
        now = parameters_of(runner.model)
        self.lengths.append((now - self._last).norm().item())
        self._last = now


def train(arm: str, seed: int) -> dict:
    """Train the small classifier, and return its line of the results."""
    steps, cfg = StepLengths(), copy.deepcopy(OPTIMIZERS['AdamW'])
    sampler, hooks = 'InfiniteSampler', [steps]
    if arm in HOOKS:
        sampler = 'InfoBatchSampler'
        hooks.append(
            dict(
                type='InfoBatchHook',
                policy=dict(type='RandomPruning'),
                delta=DELTA,
                **HOOKS[arm]))
    with tempfile.TemporaryDirectory() as folder:
        Runner(
            model=classifier(cfg),
            work_dir=folder,
            experiment_name=folder,
            randomness=dict(seed=seed),
            log_level='WARNING',
            train_dataloader=dict(
                batch_size=BATCH_SIZE,
                dataset=TensorDataset(*samples(0, NUM_SAMPLES)),
                collate_fn=dict(type='default_collate'),
                sampler=dict(type=sampler)),
            optim_wrapper=cfg,
            train_cfg=dict(by_epoch=False, max_iters=ITERS),
            default_hooks=dict(checkpoint=None, logger=None),
            custom_hooks=hooks).train()
    means = np.reshape(steps.lengths, (-1, WINDOW)).mean(axis=1)
    return dict(
        arm=arm,
        seed=seed,
        iters=ITERS,
        batch_size=BATCH_SIZE,
        num_images=NUM_SAMPLES,
        step_lengths=[float(f'{mean:.4g}') for mean in means])


def path_of(name: str) -> str:
    return osp.join(OUT, f'{name}.jsonl')


def train_missing() -> None:
    """Train the small classifier where it has no line yet."""
    path = path_of(SMALL)
    for arm, seed in missing(path, ('short', *HOOKS), range(SEEDS)):
        append_result(path, train(arm, seed))


def quality_table(cells: List[dict]) -> pd.DataFrame:
    """What the arms reach, and what they differ by, seed by seed."""
    metric = 'accuracy' if 'accuracy' in cells[0] else 'mIoU'
    values = pd.DataFrame([
        dict(cell['evals'][-1] if metric == 'mIoU' else cell,
             **{key: cell[key]
                for key in ('arm', 'seed')}) for cell in cells
    ]).pivot(
        index='arm', columns='seed', values=metric)
    values = values.loc[['short', *HOOKS]]
    table = pd.DataFrame({
        'seeds': values.count(axis=1),
        metric: values.mean(axis=1),
        'sd': values.std(axis=1)
    })
    return table.join(paired.difference_columns(values, ('short', 'random')))


def relative_steps(cells: List[dict]) -> Dict[str, pd.DataFrame]:
    """Length of the steps of each arm that prunes, divided by that of the
    short training: seeds, and iterations in the middle of each mean."""
    lengths = {}
    for arm in ('short', *HOOKS):
        lengths[arm] = pd.DataFrame({
            cell['seed']: cell['step_lengths']
            for cell in cells if cell['arm'] == arm
        }).T
        window = cells[0]['iters'] // len(cells[0]['step_lengths'])
        lengths[arm].columns = (lengths[arm].columns + 0.5) * window
    return {arm: lengths[arm] / lengths['short'] for arm in HOOKS}


def edges(cells: List[dict]) -> Dict[str, int]:
    """Iterations at which pruning and annealing begin."""
    cell = cells[0]
    return {
        'pruning begins': -(-cell['num_images'] // cell['batch_size']),
        'annealing begins': round(DELTA * cell['iters'])
    }


def edge_rows(cells: List[dict], name: str) -> pd.DataFrame:
    """By how many percent steps are longer than those of the short training
    in the iterations that follow an edge."""
    rows = {}
    for arm, steps in relative_steps(cells).items():
        row = rows[f'{name}, {NAMES[arm]}'] = {}
        for edge, begin in edges(cells).items():
            after = steps.columns - begin
            soon = steps.loc[:, (after > 0) & (after < SOON)].mean(axis=1)
            mean, half, _ = paired.interval(100 * (soon - 1))
            row[edge] = f'{mean:+.1f} [{mean - half:+.1f}, {mean + half:+.1f}]'
    return pd.DataFrame(rows).T


def tables() -> List[str]:
    """The tables of the page."""
    small, swin, segformer = (
        read_results(path_of(name)) for name in (SMALL, SWIN, SEGFORMER))
    edge_table = pd.concat(
        [edge_rows(small, 'classifier'),
         edge_rows(swin, 'Swin')])
    return [
        paired.markdown(edge_table, 'training'),
        paired.markdown(quality_table(swin), 'Swin'),
        paired.markdown(quality_table(segformer), 'SegFormer')
    ]


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    torch.set_num_threads(1)
    train_missing()
    print('\n\n'.join(tables()))


if __name__ == '__main__':
    main()
