# Copyright (c) mmib contributors. All rights reserved.
"""How a plan is drawn: functions without state."""
import math
from functools import partial
from typing import Any, Dict, NamedTuple, Optional, Tuple

import numpy as np

from .plan_record import PlanRecord
from .pruning import EpochPlan, Policy, ScoreHistogram, Tier, draw_plan
from .schedule import PlanStart, Schedule, StepSize
from .visits import Tables
from .worth import MeanRatio, correlation, from_sums, mean_squares


class Memory(NamedTuple):
    """What is kept from one plan for the next.

    Args:
        scores (np.ndarray, optional): Score of each index when scores were
            last read for a plan, float32 of shape (pass_length,).
        kept (np.ndarray, optional): Whether the plan keeps each index, packed
            by :func:`np.packbits`, uint8. None for a full plan.
        mean_score (float): Mean of the scores. Defaults to 1.
        read_at (int): First slot of the last plan that scores were read for.
        logged_at (float): First slot of the last plan with a line in the log.
        mean_ratio (MeanRatio): V of the run until scores were last read.
    """

    scores: Optional[np.ndarray] = None
    kept: Optional[np.ndarray] = None
    mean_score: float = 1.
    read_at: int = 0
    logged_at: float = -math.inf  # The first plan has a line.
    mean_ratio: MeanRatio = MeanRatio()


def reads_scores(schedule: Schedule, memory: Memory, start: PlanStart) -> bool:
    """Return whether scores are read for a plan. The visits of all ranks are
    merged first.

    A plan that soon follows another one (:attr:`Schedule.min_gap`) would see
    few new scores. Such a plan is drawn from the same scores, without
    waiting for the device, and has no line in the log. Before pruning begins,
    scores are read only to empty the log of visits, which would grow over many
    passes.
    """
    if schedule.is_annealing(start):
        return False
    is_due = start.slot - memory.read_at >= schedule.min_gap
    return is_due or (memory.scores is None and schedule.may_prune(start))


def draw(
        policy: Policy,
        schedule: Schedule,
        tables: Tables,
        memory: Memory,
        start: PlanStart,
        reads: bool,
        last: Optional[PlanRecord],
        rng: np.random.Generator,
        step: Optional[StepSize] = None,
        normalize: bool = False
) -> Tuple[Optional[EpochPlan], PlanRecord, Memory]:
    """Draw the plan of the next epoch. Only ``rng`` and the policy change.

    Args:
        policy (Policy): Draws the plans that prune.
        schedule (Schedule): How long the run is.
        tables (Tables): The records of the images.
        memory (Memory): What was kept from the plan before.
        start (PlanStart): Where the plan begins.
        reads (bool): Whether scores are read for this plan, as
            :func:`reads_scores` returned. If not, the plan is drawn from the
            scores of the plan before.
        last (PlanRecord, optional): The plan before. None for the first one.
        rng (np.random.Generator): Source of every random choice.
        step (StepSize, optional): The steps of the epoch. None if the run
            counts iterations, where a step may span two plans. Defaults to
            None.
        normalize (bool): Whether the mean weight of a plan is 1. Defaults to
            False.

    Returns:
        tuple[Optional[EpochPlan], PlanRecord, Memory]: The plan, where None
        stands for the next full pass of the baseline; its record; and the
        memory for the next plan.
    """
    saved_iters = 0. if last is None else last.saved_iters + (
        schedule.iters_saved_since(last, start.slot, start.iteration))
    annealing = schedule.is_annealing(start)
    begins_annealing = annealing and last is not None and not last.annealing
    plan: Optional[EpochPlan] = None
    of_record: Dict[str, Any] = {}
    if reads:
        memory = memory._replace(read_at=start.slot)
    if schedule.may_prune(start) and tables.knows_scores:
        progress = schedule.progress(start, saved_iters)
        if reads:
            scores = tables.by_index(schedule.pass_length)
            memory = memory._replace(
                scores=scores,
                mean_score=float(scores.mean()),
                mean_ratio=memory.mean_ratio.add(tables.sums))
            progress = progress._replace(norms=mean_squares(tables.sums))
            ratio, reliability = (from_sums(tables.sums),
                                  correlation(tables.pairs))
            of_record = dict(
                variance_ratio=ratio if math.isfinite(ratio.value) else None,
                reliability=reliability
                if math.isfinite(reliability) else None)
        assert memory.scores is not None
        tail = step and partial(step.tail, pass_length=schedule.pass_length)
        plan = draw_plan(policy, memory.scores, progress, rng, tail)
        if normalize and not plan.is_full:
            plan = plan.normalized()
    note = plan.note if plan else ''
    logged = bool(begins_annealing
                  or start.slot - memory.logged_at >= schedule.min_gap)
    if logged:
        memory = memory._replace(logged_at=start.slot)
    size = schedule.pass_length
    if plan is None or plan.is_full:
        plan = None
        of_record.update(kept=size, tiers=(Tier(size, size), ))
    else:
        histogram = None
        if logged and memory.scores is not None:
            histogram = ScoreHistogram.of(memory.scores, plan)
        of_record.update(
            kept=len(plan),
            tiers=plan.tiers,
            threshold=plan.threshold,
            mean_weight=round(plan.mean_weight, 6),
            histogram=histogram)
    record = PlanRecord(
        covered=last.covered_until(start.slot) if last else start.slot / size,
        epoch=last.epoch + 1 if last else 1,
        first_slot=start.slot,
        iter=schedule.iteration_at(start),
        saved_iters=saved_iters,
        mean_score=memory.mean_score,
        mean_ratio=memory.mean_ratio.mean(),
        note=note,
        logged=logged,
        annealing=annealing,
        **of_record)
    return plan, record, memory
