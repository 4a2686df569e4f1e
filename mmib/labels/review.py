# Copyright (c) mmib contributors. All rights reserved.
"""What the verdicts of a review tell: what was found, and what is left."""
from itertools import chain
from typing import Dict, Iterable, List, Sequence, Tuple

import numpy as np

from ..data.verdicts import UNSURE, WRONG, Judged

# One-sided 95 % of a normal distribution.
_CLEAR = 1.645
# How often the future of a review is drawn.
_DRAWS = 4000


def merge(
    reviews: Iterable[Sequence[Judged]]
) -> Tuple[List[Judged], List[List[Judged]]]:
    """Merge the reviews of several people: each image once, by rank; and all
    that was said of each image whose verdicts differ, which is unsure."""
    by_image: Dict[str, List[Judged]] = {}
    for row in chain(*reviews):
        by_image.setdefault(row.image, []).append(row)
    merged, conflicts = [], []
    for rows in by_image.values():
        row = rows[0]
        if any(other.verdict != row.verdict for other in rows):
            conflicts.append(rows)
            row = row._replace(verdict=UNSURE)
        merged.append(row)
    return sorted(merged, key=lambda row: row.rank), conflicts


def _known(rows: Sequence[Judged]) -> Tuple[np.ndarray, np.ndarray]:
    """Ranks of what somebody is sure of, and whether it is wrong."""
    known = [row for row in rows if row.verdict != UNSURE]
    return (np.array([row.rank for row in known], np.int64),
            np.array([row.verdict == WRONG for row in known], bool))


def expected(rows: Sequence[Judged], n: int = 50) -> Tuple[float, int, int]:
    """How many wrong images to expect among the next ``n`` of a ranking, the
    highest that nobody has looked at, by what was said of others, at least of
    one: the mean, and the ends of an interval of 95 %.

    The share of wrong images is taken for a logistic curve in the logarithm of
    the rank, which falls from a level to a floor. Curves of a grid are drawn
    as often as the verdicts are likely by them, and from each of them whether
    the next images are wrong.
    """
    ranks, is_wrong = _known(rows)
    looked_at = [row.rank for row in rows]
    # Errors may end long after the last image, or at once: steepness 60.
    half = np.geomspace(1, 10 * max(*looked_at, 100), 24)
    grid = np.meshgrid((np.arange(10) + 0.5) / 10, half,
                       np.geomspace(0.3, 60, 6), [0.001, 0.02])
    level, half, steepness, floor = (each.reshape(-1, 1) for each in grid)

    def share(ranks: np.ndarray) -> np.ndarray:
        """Share of each curve at each rank, of shape (curves, ranks)."""
        falling = 0.5 - np.tanh(steepness / 2 * np.log(ranks / half)) / 2
        return floor + (0.999 - floor) * level * falling

    told = share(ranks)
    fit = np.log(np.where(is_wrong, told, 1 - told)).sum(1)
    weights = np.exp(fit - fit.max())
    left = np.setdiff1d(np.arange(1, len(rows) + n + 1), looked_at)[:n]
    rng = np.random.default_rng(0)
    drawn = rng.choice(len(weights), _DRAWS, p=weights / weights.sum())
    counts = np.sort(rng.binomial(1, share(left)[drawn]).sum(1))
    low, high = counts[[_DRAWS // 40, -_DRAWS // 40]]
    return counts.mean(), low, high


def beats_chance(rows: Sequence[Judged]) -> bool:
    """Whether the wrong images of a review, at least one, come clearly before
    the others, by the sum of their ranks; or are a third of all and more, as
    in no data as a whole."""
    ranks, is_wrong = _known(rows)
    count, total = is_wrong.sum(), len(is_wrong)
    if 3 * count >= total:
        return True
    places = ranks.argsort().argsort()
    gap = (total - 1) / 2 - places[is_wrong].mean()
    return gap > _CLEAR * np.sqrt((total + 1) * (total - count) / (12 * count))
