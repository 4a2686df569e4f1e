# Copyright (c) mmib contributors. All rights reserved.
"""Compare kinds of scores by what they say of the next visit of an image.

A config trains with pruning at random, so that images have scores of all
ages. Each visit is noted: its loss, the norm of its gradient and a loss in
which all classes of the image count alike. Afterwards it is computed for each
plan what V would have been, had the plan been drawn from a kind of score: with
QuantileTiers, and with ten strata of equal size whose keep probabilities were
learned from the other half of the plans (Neyman's allocation).
"""
import argparse
from typing import Callable, Dict, Iterator

import numpy as np
import pandas as pd

from mmib.pruning.plan import divide
from mmib.worth import variance_ratio
from research.pruned_training import VisitRecorder, add_arguments, build_runner

NUM_STRATA = 10
# Images that the moving mean of all losses remembers.
TREND_VISITS = 200


def last_value(ema: float = 0.) -> Callable:
    """A kind of score: a moving average of the values of an image."""

    def update(old: float, value: float, trend: float) -> float:
        return value if np.isnan(old) else ema * old + (1 - ema) * value

    return update


def against_trend(ema: float = 0.) -> Callable:
    """A kind of score: values over the mean of all images at that time."""

    def update(old: float, value: float, trend: float) -> float:
        return last_value(ema)(old, value / trend, trend)

    return update


COLUMNS = ['plan', 'image', 'weight', 'loss', 'norm', 'balanced']
# Name -> column of a visit, and how a score follows from it.
KINDS = {
    'loss': (3, last_value()),
    'loss, ema 0.5': (3, last_value(0.5)),
    'loss, ema 0.8': (3, last_value(0.8)),
    'loss / trend': (3, against_trend()),
    'loss / trend, ema 0.8': (3, against_trend(0.8)),
    'gradient': (4, last_value()),
    'gradient, ema 0.8': (4, last_value(0.8)),
    'gradient / trend': (4, against_trend()),
    'gradient / trend, ema 0.8': (4, against_trend(0.8)),
    'balanced loss': (5, last_value()),
    'balanced loss, ema 0.8': (5, last_value(0.8)),
}


def scores_of_plans(visits: np.ndarray, num_images: int, column: int,
                    update: Callable) -> np.ndarray:
    """Score of each image when each plan was drawn, of shape (P, N)."""
    num_plans = int(visits[:, 0].max()) + 1
    scores = np.full((num_plans, num_images), np.nan)
    now, trend, plan = np.full(num_images, np.nan), visits[0, column], 0
    for visit in visits:
        while plan < visit[0]:
            plan += 1
            scores[plan] = now
        image, value = int(visit[1]), visit[column]
        now[image] = update(now[image], value, trend)
        trend += (value - trend) / TREND_VISITS
    return scores


def judge(visits: np.ndarray, scores: np.ndarray) -> Dict[str, float]:
    """V of the strata and of QuantileTiers, and the correlation of scores
    with the norms that followed. Norms are over their mean in the plan."""
    plans, images = visits[:, 0].astype(int), visits[:, 1].astype(int)
    weights, norms = visits[:, 2], visits[:, 4].copy()
    strata, tiers = np.zeros((2, *scores.shape), int)
    for plan in np.unique(plans):
        quantiles = np.arange(1, NUM_STRATA) / NUM_STRATA
        strata[plan] = divide(scores[plan],
                              np.quantile(scores[plan], quantiles))
        tiers[plan] = divide(scores[plan],
                             np.quantile(scores[plan], [0.2, 0.85]))
        norms[plans == plan] /= np.average(
            norms[plans == plan], weights=weights[plans == plan])
    stratum = strata[plans, images]
    keep = np.zeros(len(visits))
    for half in (0, 1):
        others, own = plans % 2 != half, plans % 2 == half
        squares = np.bincount(stratum[others], (weights * norms**2)[others],
                              NUM_STRATA)
        counts = np.bincount(stratum[others], weights[others], NUM_STRATA)
        # A stratum that was never seen is taken for one like all others.
        means = np.divide(
            squares, counts, out=np.ones(NUM_STRATA), where=counts > 0)
        keep[own] = np.sqrt(means)[stratum[own]]
    # Half of the images, as far as each is kept once at most.
    keep = np.clip(0.5 * keep / np.average(keep, weights=weights), 0.1, 1)
    tier_keep = np.array([0.25, 0.5, 1.])[tiers[plans, images]]
    return dict(
        strata=variance_ratio(keep, norms, weights).value,
        tiers=variance_ratio(tier_keep, norms, weights).value,
        correlation=np.corrcoef(scores[plans, images], norms)[0, 1])


def judge_kinds(visits: np.ndarray, kinds: Dict[str, tuple],
                num_parts: int) -> Iterator[dict]:
    """:func:`judge` each kind of score in each part of a training."""
    num_images = int(visits[:, 1].max()) + 1
    # The first pass has no scores.
    plans = np.unique(visits[:, 0])[1:]
    for kind, (column, update) in kinds.items():
        scores = scores_of_plans(visits, num_images, column, update)
        for number, part in enumerate(np.array_split(plans, num_parts), 1):
            of_part = visits[np.isin(visits[:, 0], part)]
            yield dict(kind=kind, part=number, **judge(of_part, scores))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    parser.add_argument('--ratio', type=float, default=0.6)
    parser.add_argument('--parts', type=int, default=3)
    args = parser.parse_args()

    runner = build_runner(
        args, ratio=args.ratio, policy=dict(type='RandomPruning'))
    recorder = VisitRecorder()
    runner.register_hook(recorder)
    runner.train()

    visits = recorder.visits.dropna()[COLUMNS].to_numpy()
    rows = judge_kinds(visits, KINDS, args.parts)
    table = pd.DataFrame(rows).pivot(index='kind', columns='part')
    print(table.loc[list(KINDS)].to_string(float_format='{:.3f}'.format))


if __name__ == '__main__':
    main()
