# Copyright (c) mmib contributors. All rights reserved.
"""Plans and policies: numpy alone, to be used and tested without a Runner."""
from .budget import Budget
from .controls import EpsilonGreedy, RandomPruning, ScoreOnly
from .histogram import ScoreHistogram
from .neyman import Neyman
from .plan import EpochPlan, Tier, prune
from .policies import MeanThreshold, QuantileTiers
from .policy import (FunctionPolicy, Policy, Progress, ToBudget, as_policy,
                     draw_plan)

__all__ = [
    'Budget', 'EpochPlan', 'EpsilonGreedy', 'FunctionPolicy', 'MeanThreshold',
    'Neyman', 'Policy', 'Progress', 'QuantileTiers', 'RandomPruning',
    'ScoreHistogram', 'ScoreOnly', 'Tier', 'ToBudget', 'as_policy',
    'draw_plan', 'prune'
]
