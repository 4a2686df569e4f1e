# Copyright (c) mmib contributors. All rights reserved.
from ..registry import POLICIES
from .plan import EpochPlan, Tier, prune
from .policies import MeanThreshold, QuantileTiers
from .scores import ScoreTable

__all__ = [
    'POLICIES', 'EpochPlan', 'MeanThreshold', 'QuantileTiers', 'ScoreTable',
    'Tier', 'prune'
]
