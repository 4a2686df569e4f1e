# Copyright (c) mmib contributors. All rights reserved.
"""Why a plan keeps an image or leaves it out."""
from dataclasses import dataclass
from typing import Mapping, Optional, Union

import numpy as np
from torch import Tensor

from .record import PlanRecord

Array = Union[np.ndarray, Tensor]


@dataclass(frozen=True)
class Explanation:
    """Whether a plan keeps an image, and why.

    Args:
        index (int): Dataset index of the image.
        epoch (int): Epoch of the plan, from 1.
        is_full (bool): Whether the plan keeps every image.
        kept (bool): Whether the plan keeps the image. Annealing may begin
            before the image is dealt.
        score (float): Score of the image when scores were read for the plan.
        tier (int, optional): Tier of the image, from 1. None if the plan has
            no tiers, or several without edges.
        num_tiers (int): Number of tiers of the plan.
        lower (float, optional): Lower edge of the tier. None for the first
            tier.
        upper (float, optional): Upper edge of the tier. None for the last
            tier.
        probability (float, optional): Share of the tier that the plan keeps,
            on average over what was left out of its rest.
        weight (float, optional): Weight of the slots of the tier. Slots that
            were trained on before others of the rest were left out had a
            smaller weight.
        last_visit (int): Time of the last visit with a score, from 1: in
            MMEngine the iteration, in a Session the number of slots until
            then. 0 before the first such visit.
        visits (int): How often the image was visited.
        pruned (int): How often plans left the image out.
    """

    index: int
    epoch: int
    is_full: bool
    kept: bool
    score: float
    tier: Optional[int]
    num_tiers: int
    lower: Optional[float]
    upper: Optional[float]
    probability: Optional[float]
    weight: Optional[float]
    last_visit: int
    visits: int
    pruned: int

    def __str__(self) -> str:
        return self.describe(f'image {self.index}')

    def describe(self, name: str) -> str:
        """Return the explanation in words, for an image with this name."""
        counts = (f'Visits of the image until now: {self.visits}; left out: '
                  f'{self.pruned}.')
        if self.is_full:
            return (f'Epoch {self.epoch} keeps all images, so it keeps '
                    f'{name}. {counts}')
        verb = 'keeps' if self.kept else 'leaves out'
        text = (f'Epoch {self.epoch} {verb} {name}. Its '
                f'score was {self.score:.4g}')
        if self.tier is not None:
            text += f', in tier {self.tier} of {self.num_tiers}'
            edges = [
                f'{word} {edge:.4g}'
                for word, edge in (('from', self.lower), ('below', self.upper))
                if edge is not None
            ]
            if edges:
                text += f' (scores {" ".join(edges)})'
        text += '.'
        if self.probability is not None:
            text += (f' The plan keeps {100 * self.probability:.3g} % of the '
                     'images of this tier')
            if self.weight is not None:
                text += f', with weight {self.weight:.4g}'
            text += '.'
        return f'{text} {counts}'


def explain(index: int, image: int, record: PlanRecord, pass_length: int,
            scores: Optional[Array], keeps: Optional[Array],
            table: Mapping[str, Array]) -> Explanation:
    """Explain whether a plan keeps an image, and why.

    Args:
        index (int): Dataset index of the image.
        image (int): Number of the image, which its repeats share.
        record (PlanRecord): The plan.
        pass_length (int): Slots of a full pass.
        scores (array, optional): See :class:`~mmib.run.draw.Reading`.
        keeps (array, optional): See :class:`~mmib.stream.stream.Dealt`.
        table (Mapping[str, array]): The columns of an
            :class:`~mmib.scores.table.ImageTable`.
    """
    # A user's policy may draw as many slots as a pass has, with images twice.
    is_full = keeps is None
    # In a stream, a repeated index stands for the original one.
    place = index % pass_length
    score = 1. if scores is None else float(scores[place])
    is_kept = keeps is None or bool(
        int(keeps[place // 8]) >> (7 - place % 8) & 1)
    tiers = record.tiers
    uppers = [tier.upper for tier in tiers[:-1]]
    number: Optional[int] = None
    if len(tiers) == 1:
        number = 1
    elif tiers and all(upper is not None for upper in uppers):
        # As when the plan was drawn: a score at an edge lies above the edge.
        value = np.float32(score)
        number = 1 + sum(not value < np.float32(upper) for upper in uppers)
    weight = probability = lower = upper = None
    if number is not None:
        tier = tiers[number - 1]
        weight, probability = tier.weight, tier.kept / max(tier.size, 1)
        # Slots of the rest may have been left out since. Their tiers aren't
        # recorded, and the tiers of a user's policy may say anything.
        drawn = sum(each.kept for each in tiers)
        probability *= min(record.kept / max(drawn, 1), 1.)
        upper = tier.upper
        lower = tiers[number - 2].upper if number > 1 else None
    return Explanation(
        index, record.epoch, is_full, is_kept, score, number, len(tiers),
        lower, upper, probability, weight,
        *(int(table[name][image])
          for name in ('last_visit', 'visits', 'pruned')))
