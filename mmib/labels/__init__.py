# Copyright (c) mmib contributors. All rights reserved.
"""Wrong labels: rankings, pictures of what ranks high, and reviews of them.
Pruning needs nothing of this package."""
from .listed_images import ListedImages

__all__ = ['ListedImages']
