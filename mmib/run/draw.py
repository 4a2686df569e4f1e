# Copyright (c) mmib contributors. All rights reserved.
"""How a plan is drawn: functions without state."""
import math
from functools import partial
from typing import Any, Dict, NamedTuple, Optional, Tuple

import numpy as np

from ..plans import EpochPlan, Policy, ScoreHistogram, Tier, draw_plan
from ..scores.table import ImageTable
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
        read_at (int): Slots spent when scores were last read.
        logged_at (float): Slots spent before the last plan with a line in the
            log.
        variance_ratio (VarianceRatio, optional): V of the visits between the
            last two reads. None if V is unknown, or if no scores were read for
            the newest plan.
        mean_squares (tuple, optional): :func:`~mmib.worth.mean_squares` of
            these visits. None if no scores were read for the newest plan.
    """

    scores: Optional[np.ndarray] = None
    mean_score: float = 1.
    mean_ratio: MeanRatio = MeanRatio()
    read_at: int = 0
    logged_at: float = -math.inf  # The first plan has a line.
    variance_ratio: Optional[VarianceRatio] = None
    mean_squares: Optional[Tuple[np.ndarray, np.ndarray]] = None


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


def next_reading(reading: Reading, table: ImageTable, schedule: Schedule,
                 place: Place, reads: bool) -> Reading:
    """Return the reading for a plan at a place, given the previous reading,
    and whether scores are read for this plan."""
    reading = reading._replace(variance_ratio=None, mean_squares=None)
    if not reads:
        return reading
    reading = reading._replace(read_at=int(place.spent))
    if schedule.may_prune(schedule.clock(place)) and table.knows_scores:
        reading = read(table, reading, schedule.pass_length)
    return reading


def read(table: ImageTable, reading: Reading, pass_length: int) -> Reading:
    """Return a reading with the scores of the table, and with V and the mean
    squares of the visits since the previous read."""
    scores, ratio = table.by_index(pass_length), from_sums(table.sums)
    return reading._replace(
        scores=scores,
        mean_score=float(scores.mean()),
        mean_ratio=reading.mean_ratio.add(table.sums, ratio),
        variance_ratio=ratio if math.isfinite(ratio.value) else None,
        mean_squares=mean_squares(table.sums))


def draw(policy: Policy, schedule: Schedule, reading: Reading, place: Place,
         step: Optional[StepSize], rng: np.random.Generator,
         normalize: bool) -> EpochPlan:
    """Draw the next plan: a full plan before pruning begins, and in annealing.
    Only ``rng`` and the policy change.

    Args:
        policy (Policy): Draws the plans that prune.
        schedule (Schedule): How long the run is.
        reading (Reading): The scores.
        place (Place): Where the plan begins.
        step (StepSize, optional): The steps of the epoch. None if the run
            isn't by epochs, where a step may span two plans.
        rng (np.random.Generator): Source of every random choice.
        normalize (bool): Whether the mean weight of a plan is 1.
    """
    if (not schedule.may_prune(schedule.clock(place))
            or reading.scores is None):
        return EpochPlan.full(np.arange(schedule.pass_length))
    progress = schedule.progress(place)._replace(norms=reading.mean_squares)
    tail = step and partial(step.tail, pass_length=schedule.pass_length)
    plan = draw_plan(policy, reading.scores, progress, rng, tail)
    return plan.normalized() if normalize and not plan.is_full else plan


def record_of(plan: EpochPlan,
              schedule: Schedule,
              reading: Reading,
              place: Place,
              first_slot: int,
              epoch: int,
              is_first_of_annealing: bool,
              with_histogram: bool = True) -> PlanRecord:
    """Return the record of a plan.

    Args:
        plan (EpochPlan): What :func:`draw` has returned.
        schedule (Schedule): How long the run is.
        reading (Reading): The scores that the plan was drawn from.
        place (Place): Where the plan begins.
        first_slot (int): Number of the first slot of the plan.
        epoch (int): Epoch of the plan, from 1.
        is_first_of_annealing (bool): Whether annealing begins with the plan.
        with_histogram (bool): Whether a plan that is logged has a histogram.
            Defaults to True.
    """
    size = schedule.pass_length
    is_logged = bool(is_first_of_annealing
                     or place.spent - reading.logged_at >= schedule.min_gap)
    of_plan: Dict[str, Any] = dict(kept=size, tiers=(Tier(size, size), ))
    if not plan.is_full:
        assert reading.scores is not None
        of_plan = dict(
            kept=len(plan),
            tiers=plan.tiers,
            threshold=plan.threshold,
            mean_weight=round(plan.mean_weight, 6),
            histogram=ScoreHistogram.of(reading.scores, plan)
            if is_logged and with_histogram else None)
    return PlanRecord(
        covered_epochs=place.covered / size,
        epoch=epoch,
        first_slot=first_slot,
        mean_score=reading.mean_score,
        variance_ratio=reading.variance_ratio,
        mean_ratio=reading.mean_ratio.mean(),
        note=plan.note,
        logged=is_logged,
        annealing=schedule.is_annealing(schedule.clock(place)),
        **of_plan)
