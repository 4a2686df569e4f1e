# Copyright (c) mmib contributors. All rights reserved.
"""Estimate by the verdicts of a review what was found, and what is left."""
from itertools import chain
from typing import Dict, Iterable, List, Sequence, Tuple

import numpy as np
from scipy import stats

from .verdicts import UNSURE, WRONG, Judged

# How many images predict the next ones, and for how many each of them counts,
# because rankings aren't smooth.
_LAST, _COUNTS = 20, 0.5


def merge(
    reviews: Iterable[Sequence[Judged]]
) -> Tuple[List[Judged], List[List[Judged]]]:
    """Merge the reviews of several people: each image once in each ranking, by
    rank; and all that was said of each image whose verdicts differ, which is
    unsure, or whose labels do, which is wrong, without a label."""
    by_image: Dict[str, List[Judged]] = {}
    for row in chain(*reviews):
        by_image.setdefault(row.image, []).append(row)
    merged, conflicts = [], []
    for rows in by_image.values():
        verdicts = {row.verdict for row in rows}
        labels = {row.label for row in rows if row.label}
        if len(verdicts) > 1 or len(labels) > 1:
            conflicts.append(rows)
            labels = set()
        verdict = UNSURE if len(verdicts) > 1 else rows[0].verdict
        label = labels.pop() if labels else ''
        for row in {row.ranking: row for row in reversed(rows)}.values():
            merged.append(row._replace(verdict=verdict, label=label))
    return sorted(merged, key=lambda row: (row.ranking, row.rank)), conflicts


def _known(rows: Sequence[Judged]) -> Tuple[np.ndarray, np.ndarray]:
    """The ranks of the images that somebody is sure of, and whether they are
    wrong."""
    known = [row for row in rows if row.verdict != UNSURE]
    return (np.array([row.rank for row in known], np.int64),
            np.array([row.verdict == WRONG for row in known], bool))


def expected(rows: Sequence[Judged],
             n: int = 50,
             others: int = 0) -> Tuple[float, int]:
    """Estimate how many wrong images are among the next ``n`` of a ranking,
    the highest that nobody has looked at: the mean, and an upper limit with
    95 %.
    At least one image before them was judged. There may be none, because
    errors may end at once. By other rankings ``others`` were looked at, whose
    ranks aren't known.

    The share of wrong images is that of the last 20, or of all since the last
    wrong one, with the uncertainty of half as many. Where no image was wrong
    yet, these are the last 20: hard ones may come first.
    """
    ranks, is_wrong = _known(sorted(rows, key=lambda row: row.rank))
    looked_at = [row.rank for row in rows]
    free = np.setdiff1d(np.arange(1, len(rows) + n + others + 1), looked_at)
    # What lies after the next ones, such as the lowest, says nothing of them.
    before = is_wrong[ranks <= free[n + others - 1]]
    found = np.flatnonzero(before)
    since = len(before) - 1 - found[-1] if len(found) else 0
    last = before[-max(since, _LAST):]
    wrong, right = _COUNTS * last.sum(), _COUNTS * (~last).sum()
    count = stats.betabinom(n, 0.25 + wrong, 0.5 + right)
    return count.mean(), int(count.ppf(0.95))


def beats_chance(rows: Sequence[Judged]) -> bool:
    """Return whether the wrong images of a review, at least one, come clearly
    before the others, by the sum of their ranks; or are a third of all and
    more, as in no dataset as a whole."""
    ranks, is_wrong = _known(rows)
    if 3 * is_wrong.sum() >= len(is_wrong):
        return True
    chance = stats.mannwhitneyu(
        ranks[is_wrong],
        ranks[~is_wrong],
        use_continuity=False,
        alternative='less',
        method='asymptotic').pvalue
    return bool(chance < 0.05)
