# Copyright (c) mmib contributors. All rights reserved.
"""Plans and policies: numpy alone, to be used and tested without a Runner."""
from .budget import Budget, Neyman
from .controls import (AboveMean, EpsilonGreedy, RandomPruning, ScoreOnly,
                       ShuffledTiers, UpperConfidenceBound)
from .histogram import ScoreHistogram
from .plan import EpochPlan, Tier, check_plan, prune
from .policies import MeanThreshold, QuantileTiers
from .policy import FunctionPolicy, Policy, Progress, TierNorms, as_policy

__all__ = [
    'AboveMean', 'Budget', 'EpochPlan', 'EpsilonGreedy', 'FunctionPolicy',
    'MeanThreshold', 'Neyman', 'Policy', 'Progress', 'QuantileTiers',
    'RandomPruning', 'ScoreHistogram', 'ScoreOnly', 'ShuffledTiers', 'Tier',
    'TierNorms', 'UpperConfidenceBound', 'as_policy', 'check_plan', 'prune'
]
