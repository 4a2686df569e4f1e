# Copyright (c) mmib contributors. All rights reserved.
"""Compare ways to draw the images of a plan, by true gradients.

A config trains with InfoBatch for a while. Then the gradient of each image's
loss alone is taken, with several crops, and passes are drawn in numpy.
"""
import argparse
from typing import Callable, Dict, Tuple

import numpy as np
import pandas as pd
import torch
from mmengine.dataset import pseudo_collate

from mmib.hook import InfoBatchHook
from mmib.pruning.budget import allocate
from mmib.pruning.plan import divide
from research.pruned_training import (add_arguments, build_runner,
                                      infobatch_hook)

# Gradients are projected to so many numbers, for less memory.
NUM_BUCKETS = 2**15
SPANS = (1, 2, 4, 8)
SIZE = (40, 1000)  # Passes and simulations.
# Correlation of the scores of two visits of an image. With 1 the strata never
# change, but the error of a systematic draw is that of a single order then,
# which the crops don't tell. On CamVid it is about 0.4.
RELIABILITIES = (1., 0.98, 0.4)
Plan = Tuple[np.ndarray, np.ndarray]  # Images of each stratum, and its kept.


def at_random(credits: np.ndarray, kept: int,
              rng: np.random.Generator) -> np.ndarray:
    """Keep images of a stratum at random, as mmib does: credits and result
    are of shape (simulations, images), in increasing order of score."""
    return rotate(rng.random(credits.shape), kept, rng)


def systematic(credits: np.ndarray, kept: int,
               rng: np.random.Generator) -> np.ndarray:
    """Keep every (n / kept)-th image by score, from a random start."""
    num_sims, size = credits.shape
    starts = rng.integers(size, size=(num_sims, 1))
    # In integers, so that each start keeps exactly as many.
    return (starts + np.arange(size) * kept) % size < kept


def rotate(credits: np.ndarray, kept: int,
           rng: np.random.Generator) -> np.ndarray:
    """Keep the images with the highest credits, which have no ties."""
    ranks = np.argsort(np.argsort(-credits, axis=1), axis=1)
    return ranks < kept


WAYS = dict(random=at_random, systematic=systematic, rotation=rotate)


def simulate(way: Callable, plan: Plan, scores: np.ndarray,
             size: Tuple[int, int], reliability: float) -> np.ndarray:
    """Draw successive passes.

    Credits begin at random in [0, 1). With each pass they grow by the keep
    probability, and a kept image pays 1. Weights, 0 of pruned images, are of
    shape (passes, simulations, N).
    """
    rng = np.random.default_rng(0)
    sizes, kept = plan
    keep, ends = np.repeat(kept / sizes, sizes), np.cumsum(sizes)[:-1]
    steady = np.argsort(np.argsort(scores)) / len(scores)
    steady = (steady - steady.mean()) / steady.std()
    weights = np.zeros((*size, len(scores)), np.float32)
    now, credits = np.tile(steady, (size[1], 1)), rng.random(weights[0].shape)
    for drawn in weights:
        order = np.argsort(now, axis=1)
        old = np.take_along_axis(credits, order, 1)
        strata = zip(np.split(old, ends, axis=1), kept)
        mask = np.hstack([way(part, num, rng) for part, num in strata])
        np.put_along_axis(credits, order, old + keep - mask, 1)
        np.put_along_axis(drawn, order, (mask / keep).astype(np.float32), 1)
        noise = (1 - reliability)**0.5 * rng.standard_normal(now.shape)
        now = np.where(drawn > 0, reliability**0.5 * steady + noise, now)
    return weights


def longest_gaps(weights: np.ndarray) -> np.ndarray:
    """Longest gap of each simulation, 1 if each pass has each image."""
    since = longest = np.zeros(weights.shape[1:])
    for drawn in weights:
        longest = np.maximum(longest, since + 1)
        since = np.where(drawn > 0, 0, since + 1)
    return longest.max(1)


def judge(weights: np.ndarray, inner: np.ndarray, crops: np.ndarray) -> Dict:
    """What draws are worth, from their weights of shape (passes, simulations,
    N), the inner products (N, N) of the mean gradients of the images, and the
    variance of each over its crops.

    It gives the mean squared error of the mean gradient of so many passes,
    and with what crops add; the longest gap; how far the weights of an image
    are from their due at the end (root mean square); the mean weight of images
    that were pruned in the pass before; and the largest deviation of an
    image's mean weight from 1, as it is and in standard errors.
    """
    num_passes, num_sims, size = weights.shape
    noise = (weights**2 @ crops).mean() / size**2
    row = {}
    for span in SPANS:
        spans = weights[:num_passes // span * span].reshape(
            -1, span, num_sims, size)
        errors = (spans.mean(1) - 1) / size
        row[span] = ((errors @ inner) * errors).sum(-1).mean()
        row[f'{span} + crops'] = row[span] + noise / span
    off = weights.mean(0) - 1
    errors = off.std(0) / num_sims**0.5 + 1e-6
    return dict(
        row,
        gap=longest_gaps(weights).mean(),
        due=num_passes * (off**2).mean()**0.5,
        after_pruned=weights[1:][weights[:-1] == 0].mean(),
        off=np.abs(off.mean(0)).max(),
        in_errors=(np.abs(off.mean(0)) / errors).max())


def make_plans(scores: np.ndarray, squares: np.ndarray) -> Dict[str, Plan]:
    """Strata of the policies, of scores and squared norms of shape (N,)."""
    num_kept = round(0.525 * len(scores))
    tiers = np.bincount(divide(scores, np.quantile(scores, [0.2, 0.85])))
    strata = divide(scores, np.quantile(scores, np.arange(1, 10) / 10))
    sizes = np.bincount(strata)
    roots = np.sqrt(np.bincount(strata, squares) / sizes)
    return {
        'at random': (np.array([len(scores)]), np.array([num_kept])),
        'tiers': (tiers, tiers - (tiers * [0.75, 0.5, 0]).astype(int)),
        'Neyman': (sizes, allocate(sizes, roots, num_kept, 0.1))
    }


def compare(scores: np.ndarray, gradients: np.ndarray, size: Tuple[int, int],
            reliability: float) -> pd.DataFrame:
    """Judge each way with each policy: scores of shape (N,), gradients of
    shape (crops, N, D). Errors are over that of one pass at random, and with
    crops over that of as many passes at random."""
    num = len(gradients)
    # Crops of two visits are independent: only they tell what is the image's.
    inner = gradients.sum(0) @ gradients.sum(0).T
    inner -= sum(gradient @ gradient.T for gradient in gradients)
    inner /= num * (num - 1)
    crops = gradients.var(0, ddof=1).sum(-1)
    plans = make_plans(scores, (gradients**2).sum(-1).mean(0))
    tables = {}
    for name, plan in plans.items():
        table = pd.DataFrame({
            way: judge(
                simulate(how, plan, scores, size, reliability), inner, crops)
            for way, how in WAYS.items()
        }).T
        table[list(SPANS)] /= table.loc['random', 1]
        mixed = [f'{span} + crops' for span in SPANS]
        table[mixed] /= table.loc['random', mixed]
        tables[name] = table.drop(columns=mixed[1:-1])
    return pd.concat(tables)


def measure(hook: InfoBatchHook, model: torch.nn.Module) -> np.ndarray:
    """Gradient of each image's loss alone, of shape (N, NUM_BUCKETS).
    BatchNorm uses its running statistics."""
    hook.batch.begin(None)
    model.eval()
    params = list(model.parameters())
    num = sum(p.numel() for p in params)
    generator = torch.Generator().manual_seed(0)
    bucket = torch.randint(NUM_BUCKETS, (num, ), generator=generator)
    sign = torch.randint(2, (num, ), generator=generator) * 2. - 1
    rows = []
    for index in range(hook.sampler.pass_length):
        model.zero_grad(set_to_none=False)
        data = pseudo_collate([hook.dataset[index]])
        losses = model(**model.data_preprocessor(data, True), mode='loss')
        model.parse_losses(losses)[0].backward()
        gradient = torch.cat([p.grad.flatten() for p in params]).cpu()
        # It keeps inner products up to a small error.
        row = torch.zeros(NUM_BUCKETS).index_add_(0, bucket, sign * gradient)
        rows.append(row.numpy())
    return np.stack(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    parser.add_argument('--iters', type=int, default=400)
    parser.add_argument('--crops', type=int, default=5)
    args = parser.parse_args()

    runner = build_runner(
        args, args.iters, delta=1., policy=dict(type='QuantileTiers'))
    runner.train()
    hook = infobatch_hook(runner)
    gradients = np.stack(
        [measure(hook, runner.model) for _ in range(args.crops)])
    for reliability in RELIABILITIES:
        print(f'Correlation of the scores of two visits: {reliability:g}')
        table = compare(hook.scores.numpy(), gradients, SIZE, reliability)
        print(table.to_string(float_format='{:.3f}'.format))


if __name__ == '__main__':
    main()
