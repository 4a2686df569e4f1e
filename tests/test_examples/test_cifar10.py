# Copyright (c) mmib contributors. All rights reserved.
import numpy as np
from PIL import Image

from examples.cifar10 import read


def test_the_first_images_are_of_all_classes(pictures):
    images, classes = read(f'{pictures}/train', 6)
    assert images.shape == (6, 3, 16, 16)
    assert classes.tolist() == [0, 1, 0, 1, 0, 1]
    third = Image.open(f'{pictures}/train/dark/0001.png')
    np.testing.assert_array_equal(images[2].permute(1, 2, 0), third)
    images, classes = read(f'{pictures}/test')
    assert len(images) == len(classes) == 16
