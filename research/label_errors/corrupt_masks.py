# Copyright (c) mmib contributors. All rights reserved.
"""Copy the training split of a data set in ADE20K's layout, with known label
errors: some of its masks, drawn at random, become wrong.

There are these kinds, of as many images each. `classes`: two of the larger
classes of a mask are exchanged, or one of them becomes another class.
`shifted`: the mask is moved by about a fifth, and what comes in is its other
end, or is ignored. `exchanged`: two images have each other's mask. `object`: a
connected region of a few percent becomes another class; only where asked for.
The file `label_errors.json` in the copy names the masks.
"""
import json
import os.path as osp
import shutil
from typing import Callable, Dict, List, NamedTuple, Sequence

import cv2
import mmcv
import numpy as np
from mmengine.utils import scandir

# Mask value that is ignored.
IGNORED = 0
# Share of an image that a larger class has, by how much masks move, and share
# of an image that an object has.
LARGE = 0.05
SHIFTS = 0.15, 0.25
OBJECT = 0.02, 0.1
# Kinds, and the share of the labelled pixels that an error changes at least:
# two images of a street may have nearly the same mask.
MIN_CHANGED = dict(classes=0.1, shifted=0.1, exchanged=0.1, object=OBJECT[0])
LARGE_KINDS = ['classes', 'shifted', 'exchanged']
TRIES = 100
LIST = 'label_errors.json'


class LabelError(NamedTuple):
    """A wrong mask, of shape (H, W), its kind, and the share of its labelled
    pixels that are wrong."""

    mask: np.ndarray
    kind: str
    changed: float


def swap_classes(mask: np.ndarray, classes: Sequence[int],
                 rng: np.random.Generator) -> np.ndarray:
    """Exchange two of the larger classes of a mask, or let one of them become
    any other class."""
    labels, counts = np.unique(mask[mask != IGNORED], return_counts=True)
    large = labels[counts >= LARGE * mask.size]
    if not len(large) or len(classes) < 2:
        return mask
    old = rng.choice(large)
    exchange = len(large) > 1 and rng.random() < 0.5
    new = rng.choice(np.setdiff1d(large if exchange else classes, [old]))
    swapped = np.where(mask == old, new, mask)
    return np.where(mask == new, old, swapped) if exchange else swapped


def shift(mask: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Move a mask up, down, left or right."""
    axis = rng.integers(2)
    distance = round(rng.uniform(*SHIFTS) * mask.shape[axis])
    distance *= rng.choice([-1, 1])
    moved = np.roll(mask, distance, axis)
    if rng.random() < 0.5:
        came_in = slice(distance) if distance > 0 else slice(distance, None)
        np.moveaxis(moved, axis, 0)[came_in] = IGNORED
    return moved


def relabel_object(mask: np.ndarray, classes: Sequence[int],
                   rng: np.random.Generator) -> np.ndarray:
    """Let a connected region of a mask become any other class."""
    regions = []
    for label in np.setdiff1d(mask, [IGNORED]):
        _, numbers = cv2.connectedComponents((mask == label).astype(np.uint8))
        shares = np.bincount(numbers.flat)[1:] / mask.size
        fitting = (shares >= OBJECT[0]) & (shares <= OBJECT[1])
        regions += [numbers == i + 1 for i in np.flatnonzero(fitting)]
    if not regions or len(classes) < 2:
        return mask
    region = regions[rng.integers(len(regions))]
    new = rng.choice(np.setdiff1d(classes, mask[region]))
    return np.where(region, new, mask)


def changed(true: np.ndarray, mask: np.ndarray) -> float:
    """Share of the labelled pixels of a mask that have another label than the
    true one."""
    labelled = mask != IGNORED
    wrong = labelled & (true != IGNORED) & (true != mask)
    return wrong.sum() / max(labelled.sum(), 1)


def exchange(masks: List[np.ndarray],
             rng: np.random.Generator) -> List[np.ndarray]:
    """Give each two of some masks, an even number, the mask of the other."""
    pairs = rng.permutation(len(masks)).reshape(-1, 2)
    other = dict(zip(pairs.flat, pairs[:, ::-1].flat))
    return [masks[other[i]] for i in range(len(masks))]


def corrupt(masks: List[np.ndarray],
            share: float,
            rng: np.random.Generator,
            kinds: Sequence[str] = LARGE_KINDS) -> Dict[int, LabelError]:
    """Draw label errors in a share of the masks, by the number of the mask."""
    # Images with each other's mask come in twos.
    num = 2 * round(share * len(masks) / len(kinds) / 2)
    if not 0 < num * len(kinds) <= len(masks):
        raise ValueError(
            f'{share} of {len(masks)} images are {num * len(kinds)} label '
            'errors: a share must give two of each kind, and at most all '
            'images.')
    classes = np.setdiff1d(
        np.concatenate([np.unique(mask) for mask in masks]), [IGNORED])
    makers = dict(
        classes=lambda mask: swap_classes(mask, classes, rng),
        shifted=lambda mask: shift(mask, rng),
        object=lambda mask: relabel_object(mask, classes, rng))
    order = rng.permutation(len(masks)).tolist()
    errors = {}

    def add(kind: str, images: List[int], make: Callable) -> bool:
        """Try until all are wrong enough."""
        for _ in range(TRIES):
            new = make([masks[i] for i in images])
            shares = [changed(masks[i], mask) for i, mask in zip(images, new)]
            if min(shares) >= MIN_CHANGED[kind]:
                found = map(LabelError, new, [kind] * len(new), shares)
                errors.update(zip(images, found))
                return True
        return False

    for kind in kinds:
        if kind == 'exchanged':
            images, order = order[:num], order[num:]
            done = len(images) == num and add(
                kind, images, lambda those: exchange(those, rng))
            missing = 0 if done else num
        else:
            missing = num
            while missing and order:
                missing -= add(
                    kind, [order.pop(0)],
                    lambda those: [makers[kind](mask) for mask in those])
        if missing:
            raise ValueError(
                f'{missing} masks are missing in which a label error of the '
                f'kind {kind!r} changes {MIN_CHANGED[kind]:.0%} of the '
                'pixels: they are too uniform, or too alike. Give another '
                'seed, or other kinds.')
    return errors


def copy_with_errors(data: str,
                     out: str,
                     share: float,
                     seed: int,
                     kinds: Sequence[str] = LARGE_KINDS) -> Dict[str, dict]:
    """Write the copy, and return what its list says: `kind` and `changed` of
    each wrong mask, by the name that it shares with its image."""
    for folder in ('images', 'annotations'):
        shutil.copytree(
            osp.join(data, folder, 'training'),
            osp.join(out, folder, 'training'),
            dirs_exist_ok=True)
    folder = osp.join(out, 'annotations', 'training')
    names = sorted(scandir(folder, '.png', recursive=True))
    masks = [
        # Those with a palette have labels only so.
        mmcv.imread(osp.join(folder, name), 'unchanged', backend='pillow')
        for name in names
    ]
    errors = corrupt(masks, share, np.random.default_rng(seed), kinds)
    listed = {}
    for image, error in sorted(errors.items()):
        mask = error.mask.astype(masks[image].dtype)
        mmcv.imwrite(mask, osp.join(folder, names[image]))
        listed[osp.splitext(names[image])[0]] = dict(
            kind=error.kind, changed=round(float(error.changed), 4))
    with open(osp.join(out, LIST), 'w', encoding='utf-8') as file:
        json.dump(listed, file, indent=1)
    return listed
