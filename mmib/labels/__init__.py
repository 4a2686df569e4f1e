# Copyright (c) mmib contributors. All rights reserved.
"""Wrong labels: rankings, pictures of what ranks high, and reviews of them.
Who only wants to prune needs nothing of it."""
from .listed_images import ListedImages

__all__ = ['ListedImages']
