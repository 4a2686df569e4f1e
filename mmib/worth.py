# Copyright (c) mmib contributors. All rights reserved.
"""The public name of :mod:`mmib.scores.worth`."""
from .scores.worth import *  # noqa: F401, F403
