# Copyright (c) mmib contributors. All rights reserved.
from ..registry import POLICIES
from .plan import EpochPlan, Progress, Tier, prune
from .policies import Budget, MeanThreshold, QuantileTiers
from .scores import ScoreTable

__all__ = [
    'POLICIES', 'Budget', 'EpochPlan', 'MeanThreshold', 'Progress',
    'QuantileTiers', 'ScoreTable', 'Tier', 'prune'
]
