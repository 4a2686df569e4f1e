# Copyright (c) mmib contributors. All rights reserved.
"""Diffusion: kinds of scores by what they say of the next visit of an image,
and trainings that are pruned by the loss on held-out images.

Each training adds a line to arms.jsonl, and isn't run again. Those that prune
at random also add lines to scores.jsonl: what V would have been with each kind
of score, see research/worth/scores.py. Run it in the root of the repository:

    python -m research.diffusion.diffusion --data data/cifar10 --seeds 0 1
"""
import argparse
import os.path as osp
from typing import Dict, Iterator

import numpy as np
import pandas as pd
import torch
from mmengine.config import Config
from mmengine.registry import DATASETS
from mmengine.runner import Runner

import mmib
from benchmarks.compare import paired
from benchmarks.compare.arms import fingerprint
from benchmarks.compare.report import by_arm, ratios
from benchmarks.compare.results import append_result, missing, read_results
from research.pruned_training import (VisitRecorder, add_arm_arguments,
                                      infobatch_hook, line_of, rounded)
from research.worth.scores import judge_kinds, last_value

CONFIG = 'examples/diffusion/ddpm_cifar10.py'
OUT = 'research/diffusion'
RANDOM = dict(type='RandomPruning')
# The mean weight of what prunes at random.
MEAN_WEIGHT = 1.9


def shorten_with_larger_steps(cfg: Config) -> Config:
    cfg = mmib.shorten(cfg)
    cfg.optim_wrapper.optimizer.lr *= MEAN_WEIGHT
    return cfg


ARMS = dict(
    full=lambda cfg: cfg,
    short=mmib.shorten,
    short_lr=shorten_with_larger_steps,
    random=lambda cfg: mmib.convert(cfg, policy=RANDOM, normalize=False),
    pruned=lambda cfg: mmib.convert(cfg, normalize=False))
# Draws of timestep and noise for each held-out image.
DRAWS = 4
# Images whose gradients are computed one by one.
NUM_GRADIENTS = 400
COLUMNS = ['plan', 'image', 'weight', 'raw', 'norm', 'relative']
# Name -> column of a visit, and how a score follows from it.
KINDS = {
    f'{name}{f", ema {ema}" if ema else ""}': (column, last_value(ema))
    for name, column in (('loss', 3), ('normalized', 5))
    for ema in (0., 0.5, 0.8)
}
PARTS = 3
# Keys of a line -> what they are. The last two: with the norm of the gradient
# of all weights.
FACTS = {
    'image_share.correlation': 'correlation of two visits in a row',
    'image_share.shared': 'squared variation that they share',
    'image_share.least': 'least V that this allows',
    'gradients.predictions': 'correlation of the norm at the predictions',
    'gradients.score': 'correlation of the stored score',
}


class DrawRecorder(VisitRecorder):
    """Notes the loss of each visit and the normalized one."""

    def before_train_iter(self, runner, batch_idx, data_batch=None) -> None:
        if runner.iter == 0:
            runner.model.register_forward_hook(self._note_losses)

    def _note_losses(self, model, args, outputs) -> None:
        self._means = dict(
            raw=outputs['loss'].detach(), relative=outputs['infobatch_score'])


def image_share(visits: np.ndarray) -> Dict[str, float]:
    """How much of a normalized loss belongs to the image: the correlation of
    two visits in a row, the squared variation of what they share,
    and the least V that a perfect knowledge of this part could have."""
    table = pd.DataFrame(visits[:, [0, 1, 5]], columns=['plan', 'image', 'r'])
    table = table[table['plan'] >= table['plan'].max() / 2]
    table['r'] /= table['r'].mean()
    table['next'] = table.groupby('image')['r'].shift(-1)
    pairs = table.dropna()
    shared = max(np.cov(pairs['r'], pairs['next'])[0, 1], 0.)
    # The squared mean of the root over the mean, of a gamma distribution.
    return dict(
        correlation=pairs['r'].corr(pairs['next']),
        shared=shared,
        least=1 - shared / 4)


def true_gradients(runner: Runner) -> Dict[str, float]:
    """Norms of the gradients of all weights, image by image: their
    correlation with the norm at the predictions and with the scores."""
    model, dataset = runner.model, runner.train_dataloader.dataset
    scores = infobatch_hook(runner).scores.by_image()
    chosen = np.linspace(0, len(dataset) - 1, NUM_GRADIENTS).astype(int)
    rng, rows = np.random.default_rng(0), []
    for index in chosen:
        image = dataset[index]['inputs'][None]
        loss = model.losses(
            image, torch.from_numpy(rng.integers(model.num_timesteps, size=1)),
            torch.from_numpy(rng.standard_normal(image.shape, np.float32)))
        model.zero_grad()
        loss.sum().backward()
        squares = sum(weight.grad.square().sum()
                      for weight in model.parameters())
        rows.append([float(squares)**0.5, loss.item()**0.5, scores[index]])
    found = np.corrcoef(np.transpose(rows))[0]
    return dict(predictions=found[1], score=found[2])


@torch.no_grad()
def held_out_loss(model: torch.nn.Module, cfg: Config) -> float:
    """Mean loss on held-out images, with the same timesteps and noise for all
    arms."""
    dataset = DATASETS.build(cfg)
    images = torch.stack([dataset[i]['inputs'] for i in range(len(dataset))])
    model.eval()
    rng, losses = np.random.default_rng(0), []
    for _ in range(DRAWS):
        # As many of each size.
        timesteps = (np.arange(len(images)) + rng.random()) / len(images)
        timesteps = rng.permutation(timesteps % 1 * model.num_timesteps)
        noise = rng.standard_normal(images.shape, np.float32)
        columns = images, torch.from_numpy(timesteps).long(), torch.from_numpy(
            noise)
        losses += [
            model.losses(*part)
            for part in zip(*(c.split(100) for c in columns))
        ]
    return torch.cat(losses).mean().item()


def run(arm: str, seed: int, args: argparse.Namespace) -> None:
    """Train an arm with a seed, and write its lines."""
    cfg = Config.fromfile(CONFIG)
    cfg.merge_from_dict(args.cfg_options)
    cfg.train_dataloader.dataset.data_root = osp.join(args.data, 'train')
    cfg = ARMS[arm](cfg)
    name = fingerprint(cfg)
    cfg.work_dir = osp.join(args.work_dir, f'{arm}_{seed}')
    cfg.randomness = dict(seed=seed)
    runner = Runner.from_cfg(cfg)
    recorder = DrawRecorder()
    if arm == 'random':
        runner.register_hook(recorder)
    runner.train()
    held_out = dict(
        cfg.train_dataloader.dataset,
        data_root=osp.join(args.data, 'test'),
        indices=args.held_out)
    line = line_of(arm, seed, name, runner)
    if arm == 'random':
        visits = recorder.visits.dropna()[COLUMNS].to_numpy()
        for row in judge_kinds(visits, KINDS, PARTS):
            append_result(
                osp.join(args.out, 'scores.jsonl'),
                rounded(dict(seed=seed, **row)))
        line.update(
            image_share=image_share(visits), gradients=true_gradients(runner))
    line['held_out_loss'] = held_out_loss(runner.model, held_out)
    append_result(osp.join(args.out, 'arms.jsonl'), rounded(line))


def arm_table(folder: str) -> str:
    """Iterations, V and held-out loss of each arm."""
    cells = paired.by_arm_and_seed(
        read_results(osp.join(folder, 'arms.jsonl')), ('versions', ))
    losses = 1000 * cells['held_out_loss'].unstack()
    of_arms = by_arm(cells)
    table = pd.DataFrame({
        'seeds': of_arms.size(),
        'iterations': of_arms['iters'].first(),
        'V': ratios(cells),
        'held-out loss x 1000': losses.mean(axis=1)
    })
    others = paired.BASELINE, 'short_lr', paired.RANDOM
    return paired.markdown(
        table.join(paired.difference_columns(losses, others)))


def spread(values: pd.Series) -> str:
    """Mean and range over the seeds."""
    return f'{values.mean():.3f} ({values.min():.3f} to {values.max():.3f})'


def score_table(folder: str) -> str:
    """V of each kind of score."""
    rows = pd.DataFrame(read_results(osp.join(folder, 'scores.jsonl')))
    # Parts are of equal length.
    of_seeds = rows.drop(columns='part').groupby(['kind', 'seed']).mean()
    table = of_seeds.groupby('kind').agg(spread)
    table.columns = [
        'V of ten learned strata', "V of the paper's tiers",
        'correlation with the norm at the next visit'
    ]
    return paired.markdown(table.loc[list(KINDS)], 'score')


def image_table(folder: str) -> str:
    """What belongs to the image, and what norms at the predictions tell."""
    rows = pd.json_normalize(read_results(osp.join(folder, 'arms.jsonl')))
    table = rows[[*FACTS]].dropna().rename(columns=FACTS)
    return paired.markdown(
        table.agg(spread).to_frame('mean and range over the seeds'), 'what')


def tables(folder: str) -> Iterator[str]:
    """All that the results say."""
    for table in (arm_table, score_table, image_table):
        yield table(folder)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--data', required=True, help='has train/ and test/')
    add_arm_arguments(parser, OUT, ARMS)
    parser.add_argument(
        '--held-out', type=int, default=1000, help='images of test/')
    args = parser.parse_args()
    path = osp.join(args.out, 'arms.jsonl')
    for arm, seed in missing(path, args.arms, args.seeds):
        run(arm, seed, args)
    print(*tables(args.out), sep='\n\n')


if __name__ == '__main__':
    main()
