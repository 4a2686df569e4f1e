# Copyright (c) mmib contributors. All rights reserved.
"""Plans and policies. They need only numpy, and no Runner."""
from .controls import EpsilonGreedy, RandomPruning, ScoreOnly
from .histogram import ScoreHistogram
from .neyman import Neyman
from .paper import MeanThreshold, QuantileTiers
from .plan import EpochPlan, Tier, prune
from .policy import (FunctionPolicy, Policy, Progress, as_policy, draw_plan,
                     try_policy)

__all__ = [
    'EpochPlan', 'EpsilonGreedy', 'FunctionPolicy', 'MeanThreshold', 'Neyman',
    'Policy', 'Progress', 'QuantileTiers', 'RandomPruning', 'ScoreHistogram',
    'ScoreOnly', 'Tier', 'as_policy', 'draw_plan', 'prune', 'try_policy'
]
