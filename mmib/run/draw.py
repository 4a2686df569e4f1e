# Copyright (c) mmib contributors. All rights reserved.
"""How a plan is drawn: functions without state."""
import math
from functools import partial
from typing import Any, Dict, NamedTuple, Optional, Tuple

import numpy as np

from ..plans import EpochPlan, Policy, ScoreHistogram, Tier, draw_plan
from ..scores.table import Tables
from ..scores.worth import MeanRatio, VarianceRatio, from_sums, mean_squares
from ..stream.schedule import Place, Schedule, StepSize
from .record import PlanRecord


class Reading(NamedTuple):
    """The scores as they were last read, and what follows from them.

    Args:
        scores (np.ndarray, optional): Score of each index, float32 of shape
            (pass_length,). None before the first read.
        mean_score (float): Mean of the scores. Defaults to 1.
        mean_ratio (MeanRatio): V of the run until the read.
        sums (np.ndarray, optional): :func:`~mmib.worth.tier_sums` of the
            visits between the previous read and this read, if the next plan is
            the first one that is drawn from the read. Defaults to None.
        read_at (int): First slot of the last plan that scores were read for.
        logged_at (float): First slot of the last plan with a line in the log.
    """

    scores: Optional[np.ndarray] = None
    mean_score: float = 1.
    mean_ratio: MeanRatio = MeanRatio()
    sums: Optional[np.ndarray] = None
    read_at: int = 0
    logged_at: float = -math.inf  # The first plan has a line.


class Start(NamedTuple):
    """Where a plan begins.

    Args:
        place (Place): The place of its first slot.
        epoch (int): Epoch of the plan, from 1.
        begins_annealing (bool): Whether the plan is the first of annealing.
        step (StepSize, optional): The steps of the epoch. None if the run
            isn't by epochs, where a step may span two plans.
    """

    place: Place
    epoch: int
    begins_annealing: bool
    step: Optional[StepSize]


def reads_scores(schedule: Schedule, reading: Reading, place: Place) -> bool:
    """Return whether scores are read for a plan. The visits of all ranks are
    merged first.

    A plan that soon follows another one (:attr:`Schedule.min_gap`) would see
    few new scores. Such a plan is drawn from the same scores, without
    waiting for the device, and has no line in the log. Before pruning begins,
    scores are read only to empty the log of visits, which would grow over many
    passes.
    """
    now = schedule.clock(place)
    if schedule.is_annealing(now):
        return False
    is_due = place.spent - reading.read_at >= schedule.min_gap
    return is_due or (reading.scores is None and schedule.may_prune(now))


def read(tables: Tables, reading: Reading, pass_length: int) -> Reading:
    """Return the scores of the tables, and V of the visits since the previous
    read."""
    scores = tables.by_index(pass_length)
    return reading._replace(
        scores=scores,
        mean_score=float(scores.mean()),
        mean_ratio=reading.mean_ratio.add(tables.sums),
        sums=tables.sums)


def draw(policy: Policy, schedule: Schedule, reading: Reading, start: Start,
         rng: np.random.Generator,
         normalize: bool) -> Tuple[Optional[EpochPlan], PlanRecord]:
    """Draw the plan of the next epoch. Only ``rng`` and the policy change.

    Args:
        policy (Policy): Draws the plans that prune.
        schedule (Schedule): How long the run is.
        reading (Reading): The scores.
        start (Start): Where the plan begins.
        rng (np.random.Generator): Source of every random choice.
        normalize (bool): Whether the mean weight of a plan is 1.

    Returns:
        tuple[EpochPlan, PlanRecord]: The plan, where None stands for the next
        full pass of the baseline, and the record of the plan.
    """
    place, size = start.place, schedule.pass_length
    now, plan = schedule.clock(place), None
    if schedule.may_prune(now) and reading.scores is not None:
        progress = schedule.progress(place)
        if reading.sums is not None:
            progress = progress._replace(norms=mean_squares(reading.sums))
        tail = start.step and partial(start.step.tail, pass_length=size)
        plan = draw_plan(policy, reading.scores, progress, rng, tail)
        if normalize and not plan.is_full:
            plan = plan.normalized()
    is_logged = bool(start.begins_annealing
                     or place.spent - reading.logged_at >= schedule.min_gap)
    note = plan.note if plan else ''
    if plan is None or plan.is_full:
        plan = None
        of_plan: Dict[str, Any] = dict(kept=size, tiers=(Tier(size, size), ))
    else:
        assert reading.scores is not None
        of_plan = dict(
            kept=len(plan),
            tiers=plan.tiers,
            threshold=plan.threshold,
            mean_weight=round(plan.mean_weight, 6),
            histogram=ScoreHistogram.of(reading.scores, plan)
            if is_logged else None)
    return plan, PlanRecord(
        covered=place.covered / size,
        epoch=start.epoch,
        first_slot=int(place.spent),
        mean_score=reading.mean_score,
        variance_ratio=_known_ratio(reading.sums),
        mean_ratio=reading.mean_ratio.mean(),
        note=note,
        logged=is_logged,
        annealing=schedule.is_annealing(now),
        **of_plan)


def _known_ratio(sums: Optional[np.ndarray]) -> Optional[VarianceRatio]:
    """Return V, None where V is unknown."""
    ratio = None if sums is None else from_sums(sums)
    return ratio if ratio and math.isfinite(ratio.value) else None
