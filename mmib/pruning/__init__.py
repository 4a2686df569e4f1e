# Copyright (c) mmib contributors. All rights reserved.
"""Plans and policies: numpy alone, to be used and tested without a Runner."""
from .controls import (AboveMean, EpsilonGreedy, RandomPruning,
                       UpperConfidenceBound)
from .plan import EpochPlan, Tier, check_plan, prune
from .policies import Budget, MeanThreshold, QuantileTiers
from .policy import FunctionPolicy, Policy, Progress, as_policy

__all__ = [
    'AboveMean', 'Budget', 'EpochPlan', 'EpsilonGreedy', 'FunctionPolicy',
    'MeanThreshold', 'Policy', 'Progress', 'QuantileTiers', 'RandomPruning',
    'Tier', 'UpperConfidenceBound', 'as_policy', 'check_plan', 'prune'
]
