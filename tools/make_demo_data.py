# Copyright (c) mmib contributors. All rights reserved.
"""Draw a small segmentation dataset in the folder layout of ADE20K.

Its images are learnt at different speeds: easy scenes have the same colours
everywhere, hard ones have random colours, noise and clutter, and mislabelled
ones are easy scenes whose shapes have the labels of other shapes.
"""
import argparse
import os.path as osp
from typing import Tuple

import cv2
import numpy as np
from mmcv import imwrite

SIZE = 96
SHARES = dict(easy=0.6, hard=0.3, mislabelled=0.1)
# Mask values. 0 is ignored, as in ADE20K: the outlines of shapes have it.
SKY, GROUND, DISC, SQUARE, TRIANGLE = range(1, 6)
COLOURS = {
    SKY: (230, 190, 120),
    GROUND: (60, 110, 70),
    DISC: (50, 50, 220),
    SQUARE: (200, 60, 60),
    TRIANGLE: (40, 210, 230)
}


def draw_shape(image: np.ndarray, mask: np.ndarray, kind: int, colour: tuple,
               centre: np.ndarray, radius: int) -> None:
    """Draw a disc, square or triangle into a BGR image and its mask."""
    corners = {
        SQUARE: [(-1, -1), (1, -1), (1, 1), (-1, 1)],
        TRIANGLE: [(0, -1), (1, 1), (-1, 1)]
    }
    if kind == DISC:
        outline = cv2.ellipse2Poly(
            centre.tolist(), (radius, radius), 0, 0, 360, delta=10)
    else:
        outline = (centre + radius * np.array(corners[kind])).astype(np.int32)
    cv2.fillPoly(image, [outline], colour)
    cv2.fillPoly(mask, [outline], kind)
    cv2.polylines(mask, [outline], True, 0)


def draw_scene(kind: str,
               rng: np.random.Generator) -> Tuple[np.ndarray, np.ndarray]:
    """Draw the BGR image and the mask of an 'easy', 'hard' or 'mislabelled'
    scene."""
    hard = kind == 'hard'
    colours = COLOURS
    if hard:
        colours = {
            label: tuple(int(c) for c in rng.integers(40, 216, 3))
            for label in COLOURS
        }
    image = np.empty((SIZE, SIZE, 3), np.uint8)
    mask = np.empty((SIZE, SIZE), np.uint8)
    horizon = int(rng.integers(SIZE // 4, 3 * SIZE // 4))
    for label, rows in ((SKY, slice(horizon)), (GROUND, slice(horizon, None))):
        image[rows], mask[rows] = colours[label], label
    for _ in range(rng.integers(6, 12) if hard else rng.integers(1, 4)):
        shape = int(rng.integers(DISC, TRIANGLE + 1))
        radius = int(rng.integers(4, 12) if hard else rng.integers(10, 20))
        draw_shape(image, mask, shape, colours[shape],
                   rng.integers(radius, SIZE - radius, 2), radius)
    noise = rng.normal(0, 40 if hard else 6, image.shape)
    image = np.clip(image + noise, 0, 255).astype(np.uint8)
    if kind == 'mislabelled':
        wrong = np.arange(TRIANGLE + 1, dtype=np.uint8)
        wrong[DISC:] = np.roll(wrong[DISC:], rng.integers(1, 3))
        mask = wrong[mask]
    return image, mask


def make_demo_data(root: str,
                   num_training: int = 240,
                   num_validation: int = 60) -> None:
    """Write ``images`` and ``annotations``. Validation has easy and hard
    images alone: the truth is what counts."""
    rng = np.random.default_rng(0)
    shares = np.array(list(SHARES.values()))
    for split, size in (('training', num_training), ('validation',
                                                     num_validation)):
        kinds = rng.choice(list(SHARES), size, p=shares / shares.sum())
        for number, kind in enumerate(kinds):
            image, mask = draw_scene(kind, rng)
            name = osp.join(split, f'{kind}_{number:04d}')
            imwrite(image, osp.join(root, 'images', name + '.jpg'))
            imwrite(mask, osp.join(root, 'annotations', name + '.png'))
        shares[-1] = 0


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('root', help='folder to write to')
    make_demo_data(parser.parse_args().root)


if __name__ == '__main__':
    main()
