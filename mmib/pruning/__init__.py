# Copyright (c) mmib contributors. All rights reserved.
"""Plans and policies: numpy alone, to be used and tested without a Runner."""
from .budget import Budget
from .controls import (AboveMean, EpsilonGreedy, RandomPruning, ScoreOnly,
                       ShuffledTiers, UpperConfidenceBound)
from .histogram import ScoreHistogram
from .neyman import Neyman
from .plan import EpochPlan, Tier, prune
from .policies import MeanThreshold, QuantileTiers
from .policy import (FunctionPolicy, Policy, Progress, TierNorms, ToBudget,
                     as_policy, draw_plan)

__all__ = [
    'AboveMean', 'Budget', 'EpochPlan', 'EpsilonGreedy', 'FunctionPolicy',
    'MeanThreshold', 'Neyman', 'Policy', 'Progress', 'QuantileTiers',
    'RandomPruning', 'ScoreHistogram', 'ScoreOnly', 'ShuffledTiers', 'Tier',
    'TierNorms', 'ToBudget', 'UpperConfidenceBound', 'as_policy', 'draw_plan',
    'prune'
]
