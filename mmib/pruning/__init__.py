# Copyright (c) mmib contributors. All rights reserved.
from ..registry import POLICIES
from .controls import (AboveMean, EpsilonGreedy, RandomPruning,
                       UpperConfidenceBound)
from .plan import EpochPlan, Progress, Tier, prune
from .policies import Budget, MeanThreshold, QuantileTiers
from .scores import ScoreTable

__all__ = [
    'POLICIES', 'AboveMean', 'Budget', 'EpochPlan', 'EpsilonGreedy',
    'MeanThreshold', 'Progress', 'QuantileTiers', 'RandomPruning',
    'ScoreTable', 'Tier', 'UpperConfidenceBound', 'prune'
]
