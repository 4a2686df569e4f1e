# Copyright (c) mmib contributors. All rights reserved.
"""The record of a plan, which stays when the slots of the plan are gone."""
import math
from dataclasses import dataclass, fields, replace
from typing import Any, Optional, Tuple, Type, TypeVar

from ..plans import ScoreHistogram, Tier
from ..scores.worth import VarianceRatio

Record = TypeVar('Record', bound='PlanRecord')


@dataclass(frozen=True)
class PlanRecord:
    """A plan in a checkpoint, in ``infobatch.jsonl`` and in a report.

    Args:
        kept (int): Slots of the plan, before annealing cut it short, and
            without slots that were left out of its rest.
        tiers (tuple[Tier]): Tiers of the plan as it was drawn, by increasing
            score.
        covered_epochs (float): Epochs before the plan. An epoch that annealing
            cut short counts in part. Files have the key ``covered``.
        epoch (int): Epoch of the plan, from 1.
        first_slot (int): Number of the first slot of the plan in the stream of
            all plans.
        threshold (float): The score from which on every image is kept. 0 if
            nothing was pruned, or if the policy has no such threshold.
        mean_weight (float): Mean weight of the slots, rounded.
        mean_score (float): Mean of all scores when they were last read.
        variance_ratio (VarianceRatio, optional): V of the visits between the
            previous read of the scores and this read. None where V is unknown.
        mean_ratio (VarianceRatio, optional): Mean V of the run until the plan.
        histogram (ScoreHistogram, optional): Scores of all images and of the
            slots. None for full passes, where the plan isn't logged, and in
            a Session.
        note (str): What the policy says about the plan.
        logged (bool): Whether the plan has a line in the log.
        annealing (bool): Whether the plan belongs to annealing, in which
            losses are those of the baseline.
    """

    kept: int
    tiers: Tuple[Tier, ...]
    covered_epochs: float
    epoch: int = 1
    first_slot: int = 0
    threshold: float = 0.
    mean_weight: float = 1.
    mean_score: float = 1.
    variance_ratio: Optional[VarianceRatio] = None
    mean_ratio: Optional[VarianceRatio] = None
    histogram: Optional[ScoreHistogram] = None
    note: str = ''
    logged: bool = True
    annealing: bool = False

    def cut(self, kept: int, scale: float) -> 'PlanRecord':
        """Return the record after slots of the rest were left out: how many
        slots the plan keeps now, and the factor of the weights of the other
        slots. The counts of the tiers stay as they were drawn.
        """
        return replace(
            self,
            kept=kept,
            mean_weight=round(self.mean_weight * scale, 6),
            tiers=tuple(tier.scaled(scale) for tier in self.tiers))

    def to_dict(self) -> dict:
        """Return the record as values that checkpoints and JSON can hold."""
        histogram = self.histogram and {
            name: list(values)
            for name, values in self.histogram._asdict().items()
        }
        values = dict(vars(self), covered=self.covered_epochs)
        del values['covered_epochs']
        return dict(
            values,
            tiers=[list(tier) for tier in self.tiers],
            variance_ratio=without_nan(self.variance_ratio),
            mean_ratio=without_nan(self.mean_ratio),
            histogram=histogram)

    @classmethod
    def from_dict(cls: Type[Record], values: dict) -> Record:
        """Return a record from what :meth:`to_dict` returned. Other keys are
        ignored."""
        values = dict(values, covered_epochs=values['covered'])
        names = {field.name for field in fields(cls)}
        known: Any = {key: values[key] for key in names & values.keys()}
        histogram = known.get('histogram')
        return cls(**dict(
            known,
            tiers=tuple(Tier(*tier) for tier in known['tiers']),
            variance_ratio=with_nan(known.get('variance_ratio')),
            mean_ratio=with_nan(known.get('mean_ratio')),
            histogram=histogram and ScoreHistogram(**histogram)))


def without_nan(ratio: Optional[VarianceRatio]) -> Optional[list]:
    """Return a ratio as a list with None for NaN, which JSON lacks."""
    if ratio is None or not math.isfinite(ratio.value):
        return None
    return [value if math.isfinite(value) else None for value in ratio]


def with_nan(ratio: Optional[list]) -> Optional[VarianceRatio]:
    """Return the ratio from what :func:`without_nan` returned."""
    if ratio is None:
        return None
    return VarianceRatio(*(math.nan if value is None else value
                           for value in ratio))
