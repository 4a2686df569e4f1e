# Copyright (c) mmib contributors. All rights reserved.
"""Wrong labels: rankings, pictures of what ranks high, and reviews of them.
Pruning needs nothing of this package.

:mod:`mmib.labels.rankings` needs no MMEngine. Where MMEngine is installed,
``import mmib.labels`` registers :class:`ListedImages`.
"""
from importlib.util import find_spec

from . import rankings

__all__ = ['rankings']

if find_spec('mmengine'):
    from .listed_images import ListedImages

    __all__ += ['ListedImages']
