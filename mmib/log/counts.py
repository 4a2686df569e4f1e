# Copyright (c) mmib contributors. All rights reserved.
"""How often each image was trained on, and how often it was left out."""
from typing import Optional

import numpy as np
import torch


class ImageCounts:
    """How often each image was asked for in a step, also where another one was
    delivered (``visits``), and how often plans left it out (``pruned``), int32
    of shape (num_images,).

    All ranks have the same counts without a collective, as every rank knows
    the slots of all ranks.

    Args:
        images (np.ndarray): Number of the image of each index of the data
            set, from 0, int64 of shape (pass_length,).
    """

    def __init__(self, images: np.ndarray) -> None:
        self._images = images
        num_images = int(images.max()) + 1
        self.visits = np.zeros(num_images, np.int32)
        self.pruned = np.zeros(num_images, np.int32)

    def visit(self, indices: np.ndarray) -> None:
        """Count the images of a step, by their indices on all ranks."""
        np.add.at(self.visits, self._images[indices], 1)

    def prune(self, kept: np.ndarray) -> None:
        """Count the images that a plan leaves out, by the indices in the
        plan."""
        is_pruned = np.ones(len(self._images), bool)
        is_pruned[kept] = False
        np.add.at(self.pruned, self._images[is_pruned], 1)

    def state_dict(self) -> dict:
        """Both counts, as tensors."""
        return dict(
            visits=torch.from_numpy(self.visits.copy()),
            pruned=torch.from_numpy(self.pruned.copy()))

    def load_state_dict(self, state_dict: Optional[dict]) -> None:
        """Go on from a state, or from 0 where an older checkpoint has None."""
        if state_dict is not None:
            self.visits[:] = state_dict['visits'].numpy()
            self.pruned[:] = state_dict['pruned'].numpy()
