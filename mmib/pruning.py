# Copyright (c) mmib contributors. All rights reserved.
"""The public name of :mod:`mmib.plans`: plans and policies."""
from .plans import *  # noqa: F401, F403
from .plans import __all__  # noqa: F401
