# Copyright (c) mmib contributors. All rights reserved.
"""The place where MMEngine looks for the registries of the scope ``mmib``."""
from .openmmlab.registry import POLICIES

__all__ = ['POLICIES']
